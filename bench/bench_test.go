// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Benchmark is for looking at one thing: it runs the peers one after the
// other, so that what the machine does meanwhile is in the difference.
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
			if !retries(p) {
				assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
				return
			}
			assert.Equal(t, http.StatusOK, resp.StatusCode)
			assert.Equal(t, []int{1 << 10, 1 << 10, 1 << 10}, s.bodies, "bytes of each attempt")
		})
	}
}

// counter notes how much each request body held.
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
