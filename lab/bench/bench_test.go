// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Benchmark is for looking at a single case. It runs the peers one after
// another, so the difference between two peers includes whatever else the
// machine does meanwhile.
func Benchmark(b *testing.B) {
	for _, c := range cases {
		for _, p := range peers {
			if c.able(p) {
				b.Run(c.name+"/peer="+p.name, func(b *testing.B) { c.run(b, p) })
			}
		}
	}
}

func TestPeers_AllDoWhatIsMeasured(t *testing.T) {
	for _, p := range peers {
		t.Run(p.name, func(t *testing.T) {
			s := &counter{stub: newStub(2)}
			c := newCall(http.MethodPut, target, 1<<10)
			resp, err := p.client(s, true).Do(c.next())
			require.NoError(t, err)
			resp.Body.Close()
			if p.once {
				assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
				return
			}
			assert.Equal(t, http.StatusOK, resp.StatusCode)
			assert.Equal(t, []int{1 << 10, 1 << 10, 1 << 10}, s.bodies, "bytes of each attempt")
		})
	}
}

// TestPages_ShowTheResults checks that the pages show the saved results: nobody
// edits them by hand.
func TestPages_ShowTheResults(t *testing.T) {
	r, err := load(saved)
	require.NoError(t, err)
	for page, section := range r.pages() {
		text, err := os.ReadFile(filepath.Join("../..", page))
		require.NoError(t, err)
		want, err := replaceSection(text, section)
		require.NoError(t, err, page)
		assert.Equal(t, string(want), string(text), "%s: go run . -render", page)
	}
}

// TestPages_ShowWhoIsAhead checks that every peer that beats retrip in a column
// stands out in the tables.
func TestPages_ShowWhoIsAhead(t *testing.T) {
	run := func(name, peer string, ns float64) timing { return timing{Case: name, Peer: peer, Ns: ns} }
	r := &results{Runs: []timing{
		run("Transport/GET/serial", "bare", 100), run("Transport/GET/serial", "retrip-metrics", 114.2), run("Transport/GET/serial", "rehttp", 114.1),
		run("Client/retry-GET", "loop", 100), run("Client/retry-GET", "retrip-metrics", 150), run("Client/retry-GET", "httpretry", 149),
		run("Transport/POST/serial", "bare", 100), run("Transport/POST/serial", "retrip-metrics", 114), run("Transport/POST/serial", "rehttp", 114),
	}}
	assert.Contains(t, r.table(), "| **+14.1 ns, +0** |")
	assert.NotContains(t, r.table(), "**+14.0 ns")
	assert.Contains(t, r.table(), "| **149 ns, 0** |")
}

func TestMeasureLoopback(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		ratios, err := measureLoopback(http2, 2)
		require.NoError(t, err)
		for _, p := range peers[1:] {
			assert.Len(t, ratios[p.name], 2, p.name)
		}
	}
}

func TestLoopback_IsMedianAndMargin(t *testing.T) {
	var ratios []float64
	for i := range 401 {
		ratios = append(ratios, 2-float64(i)/1000)
	}
	r := &results{Loopback: map[string]map[string][]float64{"HTTP/2": {"loop": ratios}}}
	longer, margin, ok := r.loopback("HTTP/2", "loop")
	assert.True(t, ok)
	assert.InDelta(t, 0.8, longer, 1e-9)
	assert.InDelta(t, 0.020, margin, 1e-9, "twenty ranks on either side")
	_, _, ok = r.loopback("HTTP/1.1", "loop")
	assert.False(t, ok)
}

// TestGuards checks that a guard notices what is out of bounds or missing.
func TestGuards(t *testing.T) {
	r := &results{Loopback: map[string]map[string][]float64{}}
	add := func(name, peer string, ns float64) { r.Runs = append(r.Runs, timing{Case: name, Peer: peer, Ns: ns}) }
	set := func(timeouts, retry, loopback float64) {
		r.Runs = nil
		add("Transport/GET/serial", "bare", 100)
		add("Transport/GET/serial", "bare-timeout", 1100)
		add("Transport/GET/serial", "retrip", 150)
		add("Transport/GET/serial", "retrip-timeouts", 100+timeouts)
		add("Client/retry-GET", "loop", 1000)
		add("Client/retry-GET", "retrip", retry)
		add("Client/retry-GET", "retrip-timeouts", 3000)
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
			r.Loopback[protocol] = map[string][]float64{"bare-timeout": {1.05}, "retrip-timeouts": {1 + loopback}}
		}
	}
	set(700, 1500, 0.08)
	assert.True(t, r.writeGuards(io.Discard))
	set(1300, 1500, 0.08)
	assert.False(t, r.writeGuards(io.Discard))
	set(700, 3500, 0.08)
	assert.False(t, r.writeGuards(io.Discard))
	set(700, 1500, 0.3)
	assert.False(t, r.writeGuards(io.Discard))
	set(700, 1500, 0.08)
	delete(r.Loopback, "HTTP/2")
	assert.False(t, r.writeGuards(io.Discard), "not measured")
}

// counter records how many bytes each request body held.
type counter struct {
	*stub
	bodies []int
}

func (c *counter) RoundTrip(req *http.Request) (*http.Response, error) {
	n, err := io.Copy(io.Discard, req.Body)
	if err != nil {
		return nil, err
	}
	c.bodies = append(c.bodies, int(n))
	return c.stub.RoundTrip(req)
}
