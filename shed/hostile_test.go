// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
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

// Bodies that never end and handlers that never return hold a place for
// HoldTime, and block others no longer than that.
func TestHostile_SlowClientsAndHandlers(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, proto memhttp.Proto) {
		const limit = 8
		hang := make(chan struct{})
		h := &shed.Handler{Limit: limit, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/body":
				_, _ = io.Copy(io.Discard, r.Body)
			case "/hang":
				<-hang
			}
		})}
		s := memhttp.NewServer(t, proto, h)
		rt := s.Transport()
		var wg sync.WaitGroup
		pipe, feed := io.Pipe()
		for i := range 3 * limit {
			wg.Go(func() {
				if i%2 == 0 {
					do(t.Context(), rt, "POST", s.URL+"/body", io.MultiReader(strings.NewReader("x"), pipe))
				} else {
					do(t.Context(), rt, "GET", s.URL+"/hang", nil)
				}
			})
		}
		synctest.Wait()
		assert.EqualValues(t, limit, counted(t, h)["running_requests"])
		time.Sleep(time.Second)
		assert.Equal(t, 503, do(t.Context(), rt, "GET", s.URL, nil).status)
		time.Sleep(9 * time.Second)
		for range 3 {
			assert.Equal(t, 200, do(t.Context(), rt, "GET", s.URL, nil).status)
		}
		assert.Zero(t, counted(t, h)["running_requests"])
		close(hang)
		feed.Close()
		wg.Wait()
		synctest.Wait()
		assert.Zero(t, counted(t, h)["running_requests"])
		assert.Zero(t, counted(t, h)["waiting_requests"])
	})
}

// Clients with arbitrary headers get no more than first attempts get.
func TestHostile_Headers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &shed.Handler{Limit: 1, QueueTime: 100 * ms, DeadlineHeader: "Timeout-Ms", Handler: http.HandlerFunc(sleeper)}
		serve := func(path string, header http.Header) answered {
			start := time.Now()
			w, r := httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)
			r.Header = header
			h.ServeHTTP(w, r)
			return answered{status: w.Code, took: time.Since(start)}
		}
		running := meanwhile(func() answered { return serve("/10s", nil) })
		for _, header := range []http.Header{
			nil,
			{"Retry-Attempt": {"1"}}, {"Retry-Attempt": {"-1", "0"}}, {"Retry-Attempt": {""}}, {"Retry-Attempt": {}},
			{"Timeout-Ms": {"1e999"}}, {"Timeout-Ms": {}}, {"Timeout-Ms": {strings.Repeat("9", 10_000)}},
			{"Accept": {"text/event-stream"}}, {"Upgrade": {"websocket"}}, {"Upgrade": {}},
		} {
			a := serve("/0s", header)
			assert.Equal(t, 503, a.status, header)
			assert.Equal(t, 100*ms, a.took, header)
		}
		<-running
	})
}

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
				servers := []*memhttp.Server{memhttp.NewServer(t, proto, one), memhttp.NewServer(t, proto, two)}
				transports := []http.RoundTripper{servers[0].Transport(), servers[1].Transport()}
				var wg sync.WaitGroup
				for range testenv.Size(300, 600) {
					wg.Go(func() {
						time.Sleep(rand.N(300 * ms))
						i := rand.IntN(2)
						path := "/"
						if rand.IntN(10) == 0 {
							path = "/panic"
						}
						ctx, cancel := context.WithTimeout(t.Context(), rand.N(60*ms))
						defer cancel()
						do(ctx, transports[i], "GET", servers[i].URL+path, nil,
							fmt.Sprint("Retry-Attempt: ", rand.IntN(4)), fmt.Sprint("Timeout-Ms: ", rand.IntN(60)))
					})
				}
				wg.Wait()
				time.Sleep(time.Second)
				for _, h := range []*shed.Handler{outer, inner} {
					counts := counted(t, h)
					assert.Zero(t, counts["running_requests"])
					assert.Zero(t, counts["waiting_requests"])
				}
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

// A thousand streams of one connection wait in one queue.
func TestHostile_ManyStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &shed.Handler{Limit: 10, Handler: http.HandlerFunc(sleeper)}
		s := memhttp.NewServer(t, memhttp.H2C, h)
		rt := s.Transport()
		require.Equal(t, 204, do(t.Context(), rt, "GET", s.URL+"/0s", nil).status)
		var good, refused atomic.Int64
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				switch do(t.Context(), rt, "GET", s.URL+"/10ms", nil).status {
				case 204:
					good.Add(1)
				case 503:
					refused.Add(1)
				}
			})
		}
		wg.Wait()
		assert.EqualValues(t, 1000, good.Load()+refused.Load())
		assert.GreaterOrEqual(t, good.Load(), int64(100), "as many as fit into QueueTime")
	})
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
			s := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				h.ServeHTTP(w, r)
				pattern = r.Pattern
			}))
			for _, header := range []string{"None: 1", "Retry-Attempt: 2", "Timeout-Ms: 1000"} {
				body := "--b\r\nContent-Disposition: form-data; name=f; filename=f\r\n\r\n" + strings.Repeat("x", 11<<20) + "\r\n--b--\r\n"
				a := do(t.Context(), s.Transport(), "POST", s.URL+"/upload/x", strings.NewReader(body), "Content-Type: multipart/form-data; boundary=b", header)
				assert.Equal(t, 200, a.status)
				synctest.Wait()
				assert.Zero(t, files(), header)
				assert.Equal(t, "POST /upload/{name}", pattern)
			}
		})
	}
}
