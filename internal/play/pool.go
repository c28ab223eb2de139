// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package play

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/memhttp"
)

// StalePool returns a server, and a base whose pool has n connections to it.
// The server closes as many of the next requests' connections as stale says.
func StalePool(t *testing.T, proto memhttp.Proto, n int) (s *memhttp.Server, base *http.Transport, stale *atomic.Int32) {
	var arrived atomic.Int32
	stale = new(atomic.Int32)
	gather := make(chan struct{})
	s = memhttp.NewServer(t, proto, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if arrived.Add(1) <= int32(n) {
			<-gather
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		if stale.Add(-1) >= 0 {
			_ = memhttp.RequestConn(r).Close()
			panic(http.ErrAbortHandler)
		}
	}))
	base = s.Transport()
	base.MaxIdleConnsPerHost = n
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			resp, err := base.RoundTrip(MustRequest(t, "GET", s.URL, nil))
			if assert.NoError(t, err) {
				Finish(t, resp)
			}
		})
	}
	synctest.Wait()
	close(gather)
	wg.Wait()
	synctest.Wait()
	require.Equal(t, n, s.Listener.Open())
	return s, base, stale
}
