// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/testenv"
	"github.com/retrip/retrip/shed"
)

// Any mixture of requests, in one Handler that several muxes share and that
// contains another one, ends without leaving anything behind.
func TestHostile_Mixture(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 3, 50, math.MaxInt, retrip.Off} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, proto memhttp.Proto) {
				var running, most atomic.Int64
				inner := &shed.Handler{Limit: limit, QueueTime: 20 * ms, HoldTime: retrip.Off, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					n := running.Add(1)
					defer running.Add(-1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					if r.URL.Path == "/panic" {
						panic(http.ErrAbortHandler)
					}
					time.Sleep(rand.N(30 * ms))
				})}
				outer := &shed.Handler{Limit: limit, QueueTime: 20 * ms, Handler: inner, DeadlineHeader: "Timeout-Ms"}
				one, two := http.NewServeMux(), http.NewServeMux()
				one.Handle("/", outer)
				two.Handle("/", outer)
				sites := []*site{newSite(t, proto, one), newSite(t, proto, two)}
				var wg sync.WaitGroup
				for range testenv.Size(150, 600) {
					wg.Go(func() {
						time.Sleep(rand.N(300 * ms))
						s := sites[rand.IntN(2)]
						path := "/"
						if rand.IntN(10) == 0 {
							path = "/panic"
						}
						ctx, cancel := context.WithTimeout(t.Context(), rand.N(60*ms))
						defer cancel()
						a := do(ctx, s.base, "GET", s.URL+path, nil, fmt.Sprint("Retry-Attempt: ", rand.IntN(4)), fmt.Sprint("Timeout-Ms: ", rand.IntN(60)))
						assert.False(t, path == "/panic" && a.status == 200, "a panic reaches net/http")
					})
				}
				wg.Wait()
				time.Sleep(time.Second)
				assertIdle(t, outer)
				assertIdle(t, inner)
				if limit > 0 {
					assert.LessOrEqual(t, most.Load(), int64(limit))
				}
				var arrived, ended float64
				for name, n := range counted(t, outer) {
					switch {
					case strings.HasPrefix(name, "requests_total"):
						arrived += n
					case strings.HasPrefix(name, "refused_total"), name == "queue_seconds":
						ended += n
					}
				}
				assert.Equal(t, arrived, ended, "each request is served or refused, once")
				require.Positive(t, arrived)
			})
		})
	}
}

// A request with a context of its own is a copy: the files of an upload are
// still removed, and outer handlers still see the pattern.
func TestHostile_NothingOfACopyIsLost(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Setenv("TMP", dir) // for Windows
	mux := http.NewServeMux()
	files := func() int {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		return len(entries)
	}
	mux.HandleFunc("POST /upload/{name}", func(_ http.ResponseWriter, r *http.Request) {
		assert.NoError(t, r.ParseMultipartForm(1))
		assert.Equal(t, 1, files())
		if r.PathValue("name") == "panic" {
			panic(http.ErrAbortHandler)
		}
	})
	for _, exempt := range []bool{false, true} {
		h := &shed.Handler{Handler: mux, Limit: 1, DeadlineHeader: "Timeout-Ms", Exempt: func(*http.Request) bool { return exempt }}
		synctest.Test(t, func(t *testing.T) {
			var pattern string
			s := newSite(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				h.ServeHTTP(w, r)
				pattern = r.Pattern
			}))
			for _, header := range []string{"None: 1", "Retry-Attempt: 2", "Timeout-Ms: 1000"} {
				body := "--b\r\nContent-Disposition: form-data; name=f; filename=f\r\n\r\n" + strings.Repeat("x", 11<<20) + "\r\n--b--\r\n"
				a := do(t.Context(), s.base, "POST", s.URL+"/upload/x", strings.NewReader(body), "Content-Type: multipart/form-data; boundary=b", header)
				assert.Equal(t, 200, a.status)
				synctest.Wait()
				assert.Zero(t, files(), header)
				assert.Equal(t, "POST /upload/{name}", pattern)
			}
		})
	}
}
