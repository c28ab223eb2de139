// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/memhttp"
)

// TestTransport_ForbiddenIsNotRepeatedByNetHTTPEither: net/http resends a
// request that has a key and a GetBody if its connection turns out to be dead.
// retrip must not add a GetBody to a request that the policy forbids to repeat.
func TestTransport_ForbiddenIsNotRepeatedByNetHTTPEither(t *testing.T) {
	for name, tt := range map[string]struct {
		idempotent func(*http.Request) bool
		want       int32
	}{
		"forbidden": {func(*http.Request) bool { return false }, 1},
		"allowed":   {nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var posts atomic.Int32
				server := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					io.Copy(io.Discard, r.Body)
					if r.Method == http.MethodPost && posts.Add(1) == 1 {
						panic(http.ErrAbortHandler)
					}
				}))
				client := &http.Client{Transport: &Transport{Base: server.Transport(), Policy: Policy{Idempotent: tt.idempotent}}}
				resp, err := client.Get(server.URL) // leaves a connection in the pool
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				req, err := http.NewRequest(http.MethodPost, server.URL, io.MultiReader(strings.NewReader("pay")))
				require.NoError(t, err)
				req.Header.Set("Idempotency-Key", "foreign")
				if resp, err := client.Do(req); err == nil {
					resp.Body.Close()
				}
				assert.Equal(t, tt.want, posts.Load())
			})
		})
	}
}
