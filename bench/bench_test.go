// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

// Benchmark is for looking at a single case. It runs the peers one after
// another, so the difference between two peers includes whatever else the
// machine does meanwhile.
func Benchmark(b *testing.B) {
	for _, c := range Cases {
		for _, p := range Peers {
			if c.Able(p) {
				b.Run(c.Name+"/peer="+p.Name, func(b *testing.B) { c.Run(b, p) })
			}
		}
	}
}

func TestPeers_AllDoWhatIsMeasured(t *testing.T) {
	for _, p := range Peers {
		t.Run(p.Name, func(t *testing.T) {
			s := &counter{stub: stub{fail: 2}}
			c := newCall(context.Background(), http.MethodPut, target, 1<<10, false)
			resp, err := p.Client(s, None).Do(c.next())
			require.NoError(t, err)
			resp.Body.Close()
			if !p.Retries() {
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
	r, err := Load("results/results.json")
	require.NoError(t, err)
	for page, section := range r.pages() {
		text, err := os.ReadFile(filepath.Join("..", page))
		require.NoError(t, err)
		want, err := replaceSection(text, section)
		require.NoError(t, err, page)
		assert.Equal(t, string(want), string(text), "%s: go run ./cmd/peers -render", page)
	}
}

// TestPages_ShowWhoIsAhead checks that every peer that beats retrip in a column
// stands out in the tables.
func TestPages_ShowWhoIsAhead(t *testing.T) {
	run := func(name, peer string, ns float64) Run { return Run{Case: name, Peer: peer, Ns: ns} }
	r := &Results{Runs: []Run{
		run("Transport/GET/serial", "bare", 100), run("Transport/GET/serial", "retrip-metrics", 114.2), run("Transport/GET/serial", "rehttp", 114.1),
		run("Transport/GET-deep/serial", "bare", 100), run("Transport/GET-deep/serial", "retrip-metrics", 150), run("Transport/GET-deep/serial", "httpretry", 149),
		run("Transport/POST/serial", "bare", 100), run("Transport/POST/serial", "retrip-metrics", 114), run("Transport/POST/serial", "rehttp", 114),
	}}
	assert.Contains(t, r.figures(), "| **+14.1 ns, +0** |")
	assert.NotContains(t, r.figures(), "**+14.0 ns")
	assert.Contains(t, r.figures(), "| **+49.0 ns, +0** |")
}

func TestMeasureLoopback(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		ratios, err := MeasureLoopback(http2, 2)
		require.NoError(t, err)
		for _, p := range Peers[1:] {
			assert.Len(t, ratios[p.Name], 2, p.Name)
		}
	}
}

func TestLoopback_IsMedianAndMargin(t *testing.T) {
	var ratios []float64
	for i := range 401 {
		ratios = append(ratios, 2-float64(i)/1000)
	}
	r := &Results{Loopback: map[string]map[string][]float64{"HTTP/2": {"loop": ratios}}}
	longer, margin, ok := r.loopback("HTTP/2", "loop")
	assert.True(t, ok)
	assert.InDelta(t, 0.8, longer, 1e-9)
	assert.InDelta(t, 0.020, margin, 1e-9, "twenty ranks on either side")
	_, _, ok = r.loopback("HTTP/1.1", "loop")
	assert.False(t, ok)
}

// TestGuards checks that a guard notices what is out of bounds or missing.
func TestGuards(t *testing.T) {
	r := &Results{Loopback: map[string]map[string][]float64{}}
	add := func(name, peer string, ns float64) { r.Runs = append(r.Runs, Run{Case: name, Peer: peer, Ns: ns}) }
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
	assert.True(t, r.WriteGuards(io.Discard))
	set(1300, 1500, 0.08)
	assert.False(t, r.WriteGuards(io.Discard))
	set(700, 3500, 0.08)
	assert.False(t, r.WriteGuards(io.Discard))
	set(700, 1500, 0.3)
	assert.False(t, r.WriteGuards(io.Discard))
	set(700, 1500, 0.08)
	delete(r.Loopback, "HTTP/2")
	assert.False(t, r.WriteGuards(io.Discard), "not measured")
}

// counter records how many bytes each request body held.
type counter struct {
	stub
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

// The page about hedges shows the saved results, and every library.
func TestPages_ShowHedging(t *testing.T) {
	r, err := LoadHedging("..")
	require.NoError(t, err)
	require.Len(t, r.Hedgers, len(Hedgers))
	for i, h := range Hedgers {
		assert.Equal(t, h.Name, r.Hedgers[i].Name)
	}
	text, err := os.ReadFile(filepath.Join("..", HedgingPage))
	require.NoError(t, err)
	want, err := replaceSection(text, r.Section())
	require.NoError(t, err)
	assert.Equal(t, string(want), string(text), "go run ./cmd/hedges -render")
}

// What is measured of a library works, and bare net/http neither hedges nor survives a
// frozen connection.
func TestHedging_Measures(t *testing.T) {
	testenv.Slow(t)
	var bare, own HedgerResult
	require.NoError(t, bare.behave(Hedgers[0], 2))
	require.NoError(t, bare.tail(Hedgers[0], 200))
	assert.Equal(t, []any{2, 0, 0.0, 0.0}, []any{bare.Good, bare.Posts, bare.Frozen, bare.Extra})
	require.NoError(t, own.behave(Hedgers[2], 2))
	assert.Equal(t, []any{2, 0}, []any{own.Good, own.Posts})
	assert.Positive(t, own.Frozen, "the hedge uses another connection")
}
