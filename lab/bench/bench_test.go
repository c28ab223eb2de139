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

func TestMeasureLoopback(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		ratios, err := measureLoopback(http2, 2)
		require.NoError(t, err)
		for _, p := range peers[1:] {
			assert.Len(t, ratios[p.name], 2, p.name)
		}
	}
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
