// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"io"
	"net/http"
	"net/http/httptrace"
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
)

func TestMain(m *testing.M) { testenv.RareGC(m) }

// hasty allows each attempt one second, and waits 100 ms before the first
// retry.
var hasty = retrip.Policy{
	AttemptTimeout: time.Second,
	Backoff:        retrip.Backoff{Base: 100 * time.Millisecond, Jitter: retrip.NoJitter},
}

var (
	allProtos = []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS, memhttp.HTTP2, memhttp.H2C}
	bothHTTP2 = []memhttp.Proto{memhttp.HTTP2, memhttp.H2C}
)

// freshWorld is a server whose connections can freeze, and a Transport over a
// base of its own.
type freshWorld struct {
	t         *testing.T
	server    *memhttp.Server
	base      *http.Transport
	transport *retrip.Transport
	attempts  atomic.Int64
	unsent    atomic.Int64 // of these, those that got no connection, and so were retried
}

// eachFresh runs f in a bubble for each protocol, with a handler that answers
// at once.
func eachFresh(t *testing.T, protos []memhttp.Proto, f func(w *freshWorld)) {
	t.Helper()
	for _, proto := range protos {
		t.Run(proto.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f(newFreshWorld(t, proto, func(http.ResponseWriter, *http.Request) {}))
			})
		})
	}
}

func newFreshWorld(t *testing.T, proto memhttp.Proto, h http.HandlerFunc) *freshWorld {
	w := &freshWorld{t: t, server: memhttp.NewServer(t, proto, h)}
	w.base = w.server.Transport()
	w.base.MaxIdleConnsPerHost = 16
	policy := hasty
	policy.Budget = retrip.Off // otherwise there would be no retry after two timeouts in a row
	w.transport = &retrip.Transport{
		Base: w.base, Policy: policy,
		Trace: &retrip.Trace{
			Attempt: func(retrip.Event) { w.attempts.Add(1) },
			Retry: func(e retrip.Event) {
				if e.Err != nil && strings.Contains(e.Err.Error(), "awaiting a connection") {
					w.unsent.Add(1)
				}
			},
		},
	}
	return w
}

// get makes a request and returns the number of attempts.
func (w *freshWorld) get(rt http.RoundTripper) (attempts int, err error) {
	w.t.Helper()
	req, err := http.NewRequest(http.MethodGet, w.server.URL, nil)
	require.NoError(w.t, err)
	before := w.attempts.Load()
	resp, err := rt.RoundTrip(req)
	if err == nil {
		assert.Same(w.t, req, resp.Request)
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	return int(w.attempts.Load() - before), err
}

// warm leaves a connection in the pool of the base.
func (w *freshWorld) warm() {
	w.t.Helper()
	_, err := w.get(w.base)
	require.NoError(w.t, err)
	synctest.Wait()
	require.Equal(w.t, 1, w.server.Listener.Open())
}

//retrip:promise P11
func TestFresh_FrozenAfterARequest(t *testing.T) {
	t.Parallel()
	eachFresh(t, allProtos, func(w *freshWorld) {
		w.warm()
		require.Equal(w.t, 1, w.server.Listener.Dials())
		w.server.Listener.Freeze()
		began := time.Now()
		attempts, err := w.get(w.transport)
		require.NoError(w.t, err)
		assert.Equal(w.t, 2, attempts)
		assert.Equal(w.t, 1100*time.Millisecond, time.Since(began))
		assert.Equal(w.t, 2, w.server.Listener.Dials())
	})
}

//retrip:promise P11
func TestFresh_FrozenBeforeTheFirstRequest(t *testing.T) {
	t.Parallel()
	eachFresh(t, allProtos, func(w *freshWorld) {
		var once sync.Once
		ctx := httptrace.WithClientTrace(w.t.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
			once.Do(w.server.Listener.Freeze)
		}})
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.server.URL, nil)
		require.NoError(w.t, err)
		resp, err := w.transport.RoundTrip(req)
		require.NoError(w.t, err)
		require.NoError(w.t, resp.Body.Close())
		assert.EqualValues(w.t, 2, w.attempts.Load())
		assert.Equal(w.t, 2, w.server.Listener.Dials())
	})
}

// All connections of a pool died at once. A request doesn't try them one by one: after
// two, it gets a new one.
//
//retrip:promise P11
func TestFresh_WholePoolFrozen(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name               string
		most               int // MaxConnsPerHost
		attempts, newConns int
	}{
		{"no limit", 0, 3, 1},
		// The caller's limit applies, so net/http goes through its pool.
		{"limit", 8, 4, 0},
	} {
		for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS} {
			t.Run(tt.name+" "+proto.String(), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := newFreshWorld(t, proto, func(http.ResponseWriter, *http.Request) { time.Sleep(time.Millisecond) })
					w.base.MaxConnsPerHost = tt.most
					var wg sync.WaitGroup
					for range 8 {
						wg.Go(func() {
							_, err := w.get(w.base)
							assert.NoError(t, err)
						})
					}
					wg.Wait()
					synctest.Wait()
					require.Equal(t, 8, w.server.Listener.Open())
					w.server.Listener.Freeze()
					attempts, err := w.get(w.transport)
					assert.Equal(t, tt.newConns > 0, err == nil)
					assert.Equal(t, tt.attempts, attempts)
					assert.Equal(t, 8+tt.newConns, w.server.Listener.Dials())
				})
			})
		}
	}
}

// Earlier responses from a spare don't prove that it still works.
//
//retrip:promise P11
func TestFresh_SpareFrozenToo(t *testing.T) {
	t.Parallel()
	eachFresh(t, allProtos, func(w *freshWorld) {
		w.warm()
		for range 3 {
			w.server.Listener.Freeze()
			dials := w.server.Listener.Dials()
			attempts, err := w.get(w.transport)
			require.NoError(w.t, err)
			assert.Equal(w.t, 2, attempts)
			assert.Equal(w.t, dials+1, w.server.Listener.Dials())
			if w.base.Protocols.HTTP1() {
				// net/http has closed the frozen connection.
				_, err := w.get(w.base)
				require.NoError(w.t, err)
			}
		}
	})
}

// Once the base is known to be frozen, later requests begin with the spare, whatever their
// method, until the base delivers a response.
//
//retrip:promise P11
func TestFresh_LaterRequests(t *testing.T) {
	t.Parallel()
	for _, proto := range bothHTTP2 {
		t.Run(proto.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				conns := map[any]int{}
				w := newFreshWorld(t, proto, func(_ http.ResponseWriter, r *http.Request) { conns[memhttp.RequestConn(r)]++ })
				w.warm()
				for n := range 3 {
					w.server.Listener.Freeze()
					attempts, err := w.get(w.transport)
					require.NoError(t, err)
					assert.Equal(t, 2, attempts)
					began := time.Now()
					for i := range 20 {
						req, err := http.NewRequest([]string{"GET", "POST"}[i%2], w.server.URL, nil)
						require.NoError(t, err)
						resp, err := w.transport.RoundTrip(req)
						require.NoError(t, err)
						require.NoError(t, resp.Body.Close())
						time.Sleep(20 * time.Second)
					}
					assert.Equal(t, 400*time.Second, time.Since(began), "none waits")
					assert.Equal(t, 2+n, len(conns))
				}
				// The base has closed its connection, and a request gets to it.
				w.base.CloseIdleConnections()
				time.Sleep(time.Second)
				_, err := w.get(w.base)
				require.NoError(t, err)
				time.Sleep(time.Minute)
				attempts, err := w.get(w.transport)
				require.NoError(t, err)
				assert.Equal(t, 1, attempts)
				assert.Equal(t, 5, len(conns), "the connection of the base")
			})
		})
	}
}

// A POST isn't retried, but two that time out in a row are enough for the third. If the
// spare freezes then, one is.
//
//retrip:promise P11
func TestFresh_LaterRequestsWithoutRetry(t *testing.T) {
	t.Parallel()
	eachFresh(t, bothHTTP2, func(w *freshWorld) {
		w.warm()
		w.server.Listener.Freeze()
		for n := range 10 {
			req, err := http.NewRequest(http.MethodPost, w.server.URL, nil)
			require.NoError(w.t, err)
			resp, err := w.transport.RoundTrip(req)
			assert.Equal(w.t, n < 2 || n == 5, err != nil)
			if err == nil {
				require.NoError(w.t, resp.Body.Close())
			}
			if n == 4 {
				w.server.Listener.Freeze()
			}
		}
	})
}

// The connections of base and spare die at once while both carry requests. A
// response of the spare at the beginning of the attempt doesn't prove that the
// spare still works.
func TestFresh_SpareFrozenMeanwhile(t *testing.T) {
	t.Parallel()
	eachFresh(t, bothHTTP2, func(w *freshWorld) {
		w.warm()
		w.server.Listener.Freeze()
		var wg sync.WaitGroup
		get := func() {
			wg.Go(func() {
				_, err := w.get(w.transport)
				assert.NoError(w.t, err)
			})
		}
		get()
		time.Sleep(time.Second)
		began := time.Now()
		get()
		time.Sleep(200 * time.Millisecond) // the first retry gets its response
		w.server.Listener.Freeze()
		wg.Wait()
		assert.Equal(w.t, 1100*time.Millisecond, time.Since(began))
		assert.EqualValues(w.t, 4, w.attempts.Load())
		assert.Equal(w.t, 3, w.server.Listener.Dials())
	})
}

// If the connection freezes under the retry too, the next retry gets another
// one.
func TestFresh_FreezesAgain(t *testing.T) {
	t.Parallel()
	eachFresh(t, allProtos, func(w *freshWorld) {
		w.warm()
		gets := 0
		ctx := httptrace.WithClientTrace(w.t.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
			if gets++; gets <= 3 {
				w.server.Listener.Freeze()
			}
		}})
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.server.URL, nil)
		require.NoError(w.t, err)
		resp, err := w.transport.RoundTrip(req)
		require.NoError(w.t, err)
		require.NoError(w.t, resp.Body.Close())
		assert.EqualValues(w.t, 4, w.attempts.Load())
		assert.Equal(w.t, 4, w.server.Listener.Dials())
	})
}

// A retry after a response from the spare uses the spare again: the pool of the
// base is still suspect.
func TestFresh_StaysAfterAFailure(t *testing.T) {
	t.Parallel()
	for _, proto := range allProtos {
		t.Run(proto.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				answers := 0
				w := newFreshWorld(t, proto, func(rw http.ResponseWriter, r *http.Request) {
					switch answers++; answers {
					case 2:
						rw.WriteHeader(http.StatusServiceUnavailable)
					case 3:
						memhttp.RequestConn(r).Reset()
						panic(http.ErrAbortHandler)
					}
				})
				w.warm()
				w.server.Listener.Freeze()
				began := time.Now()
				attempts, err := w.get(w.transport)
				require.NoError(t, err)
				want, took := 4, 1700*time.Millisecond
				if w.base.Protocols.HTTP1() {
					// net/http resends after the reset, within the attempt.
					want, took = 3, 1300*time.Millisecond
				}
				assert.Equal(t, want, attempts)
				assert.Equal(t, took, time.Since(began))
				assert.Equal(t, 3, w.server.Listener.Dials())
			})
		})
	}
}

// ResponseHeaderTimeout counts as a timeout too, even for a plain attempt.
func TestFresh_ResponseHeaderTimeout(t *testing.T) {
	t.Parallel()
	eachFresh(t, allProtos, func(w *freshWorld) {
		w.transport.Trace = nil
		w.transport.Policy.AttemptTimeout = 0
		w.base.ResponseHeaderTimeout = time.Second
		w.warm()
		for n := range 2 {
			w.server.Listener.Freeze()
			began := time.Now()
			_, err := w.get(w.transport)
			require.NoError(w.t, err)
			if n == 0 || !w.base.Protocols.HTTP1() {
				assert.Equal(w.t, 1100*time.Millisecond, time.Since(began))
				assert.Equal(w.t, n+2, w.server.Listener.Dials())
			}
		}
	})
}

// parallel makes n requests at once and returns the number of failures.
func (w *freshWorld) parallel(n int) (failed int64) {
	var wg sync.WaitGroup
	var errs atomic.Int64
	for range n {
		wg.Go(func() {
			if _, err := w.get(w.transport); err != nil {
				errs.Add(1)
			}
		})
	}
	wg.Wait()
	return errs.Load()
}

// The new connection gets the whole request body.
func TestFresh_Upload(t *testing.T) {
	t.Parallel()
	for _, proto := range allProtos {
		t.Run(proto.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var got []int
				w := newFreshWorld(t, proto, func(_ http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					got = append(got, len(body))
				})
				w.transport.Policy.MaxReplayBody = 1 << 20
				w.warm()
				w.server.Listener.Freeze()
				req, err := http.NewRequest(http.MethodPut, w.server.URL, io.LimitReader(strings.NewReader(strings.Repeat("x", 1<<20)), 300<<10))
				require.NoError(t, err)
				resp, err := w.transport.RoundTrip(req)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				assert.EqualValues(t, 2, w.attempts.Load())
				assert.Equal(t, []int{0, 300 << 10}, got)
			})
		})
	}
}
