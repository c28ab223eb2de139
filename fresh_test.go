// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
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
)

// hasty gives an attempt a second, and waits 100 ms before the first retry.
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
	policy.Budget = retrip.Unlimited // two retries that time out in a row would be the last
	w.transport = &retrip.Transport{
		Base: w.base, Policy: policy,
		Trace: &retrip.Trace{Attempt: func(retrip.Event) { w.attempts.Add(1) }},
	}
	return w
}

// get makes a request and returns how many attempts it took.
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

// All the connections of a pool died at once: there is no need to find that out
// one by one.
func TestFresh_WholePoolFrozen(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name               string
		most               int // MaxConnsPerHost
		attempts, newConns int
	}{
		{"no limit", 0, 2, 1},
		// The limit of the caller holds: net/http goes through its pool.
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

// What a spare was good for before is no reason to trust it now.
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
				// net/http has closed the one that froze.
				_, err := w.get(w.base)
				require.NoError(w.t, err)
			}
		}
	})
}

// The connections of base and spare die at once while requests are on their way
// over both: that the spare answered as the attempt began is no proof that it
// still does.
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
		time.Sleep(200 * time.Millisecond) // the first retry is answered
		w.server.Listener.Freeze()
		wg.Wait()
		assert.Equal(w.t, 1100*time.Millisecond, time.Since(began))
		assert.EqualValues(w.t, 4, w.attempts.Load())
		assert.Equal(w.t, 3, w.server.Listener.Dials())
	})
}

// A connection that freezes under the retry, too: the next retry has another.
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

// A retry after an answer from the spare stays with it: the pool of the base is
// as suspicious as before.
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
					// net/http makes up for the reset within the attempt.
					want, took = 3, 1300*time.Millisecond
				}
				assert.Equal(t, want, attempts)
				assert.Equal(t, took, time.Since(began))
				assert.Equal(t, 3, w.server.Listener.Dials())
			})
		})
	}
}

// ResponseHeaderTimeout is a timeout, too, also where nothing of ours goes with
// the request.
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

// parallel makes n requests at once and returns how many failed.
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

// A host that is merely slow doesn't get a storm of new connections.
func TestFresh_SlowHost(t *testing.T) {
	t.Parallel()
	const n = 200
	for _, tt := range []struct {
		name  string
		slow  int64 // how many requests are
		conns map[bool]int
	}{
		// Over HTTP/2 net/http opens another connection for every 100 streams
		// that begin before the server has said how many it allows.
		{"once", n, map[bool]int{true: 2, false: n}},
		{"always", 1 << 40, map[bool]int{true: 3 * 2, false: 3 * n}},
	} {
		for _, proto := range allProtos {
			t.Run(tt.name+" "+proto.String(), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					var slow atomic.Int64
					w := newFreshWorld(t, proto, func(http.ResponseWriter, *http.Request) {
						if slow.Add(-1) >= 0 {
							time.Sleep(10 * time.Second)
						}
					})
					w.transport.Policy.Budget = retrip.Unlimited
					w.warm()
					slow.Store(tt.slow)
					bare := w.server.Listener.Dials()
					first := n - bare // over HTTP/1
					if !w.base.Protocols.HTTP1() {
						first = 0
					}
					failed := w.parallel(n)
					if tt.slow == n {
						assert.Zero(t, failed)
					}
					more := w.server.Listener.Dials() - bare - first
					t.Logf("%d connections for the retries of %d requests", more, n)
					assert.LessOrEqual(t, more, tt.conns[!w.base.Protocols.HTTP1()])
				})
			})
		}
	}
}

// Of a steady stream of requests some are slow: retries share a spare for as
// long as it answers.
func TestFresh_SlowNowAndThen(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		every int // how many requests are slow: one of these many
		most  int // new connections in a minute
	}{
		// net/http dials for HTTP/2 without TLS again when IdleConnTimeout has
		// passed since the last dial.
		{20, 2},
		// Less often than the spare could prove itself meanwhile.
		{200, 30},
	} {
		for _, proto := range bothHTTP2 {
			t.Run(fmt.Sprintf("%s one of %d", proto, tt.every), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					var n atomic.Int64
					w := newFreshWorld(t, proto, func(_ http.ResponseWriter, r *http.Request) {
						if r.Header.Get("Retry") == "" && n.Add(1)%int64(tt.every) == 0 {
							time.Sleep(10 * time.Second)
						}
					})
					w.transport.Policy.RetryHeader = "Retry"
					w.warm()
					var wg sync.WaitGroup
					for range 100 * 60 {
						time.Sleep(10 * time.Millisecond)
						wg.Go(func() {
							_, err := w.get(w.transport)
							assert.NoError(t, err)
						})
					}
					wg.Wait()
					more := w.server.Listener.Dials() - 1
					t.Logf("%d new connections for %d retries in a minute", more, w.attempts.Load()-6000)
					assert.LessOrEqual(t, more, tt.most)
				})
			})
		}
	}
}

// However many requests time out, and whenever they do, a host gets at most two
// spares in the time of an attempt.
func TestFresh_TwoSparesAnAttempt(t *testing.T) {
	t.Parallel()
	for _, proto := range bothHTTP2 {
		t.Run(proto.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFreshWorld(t, proto, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
				w.transport.Policy.Budget = retrip.Unlimited
				var wg sync.WaitGroup
				r := rand.New(rand.NewPCG(1, 2))
				const seconds = 20
				for range 20 * seconds {
					time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
					wg.Go(func() {
						_, err := w.get(w.transport)
						assert.Error(t, err)
					})
				}
				began := time.Now()
				wg.Wait()
				took := seconds + int(time.Since(began)/time.Second)
				more := w.server.Listener.Dials() - 1
				t.Logf("%d new connections for %d attempts in %d s", more, w.attempts.Load(), took)
				assert.LessOrEqual(t, more, 2*took+1)
			})
		})
	}
}

// Nothing answers and nothing can be dialled: the dials are no more than without
// spares.
func TestFresh_Outage(t *testing.T) {
	t.Parallel()
	for _, proto := range bothHTTP2 {
		t.Run(proto.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFreshWorld(t, proto, func(http.ResponseWriter, *http.Request) {})
				var dials, out atomic.Int64
				dial := w.base.DialContext
				w.base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
					dials.Add(1)
					if out.Load() > 0 {
						select {
						case <-ctx.Done():
							return nil, ctx.Err()
						case <-time.After(30 * time.Second):
							return nil, errors.New("i/o timeout")
						}
					}
					return dial(ctx, network, addr)
				}
				w.transport.Policy.Budget = retrip.Unlimited
				w.warm()
				w.server.Listener.Freeze()
				out.Store(1)
				assert.EqualValues(t, 200, w.parallel(200))
				t.Logf("%d dials for %d attempts", dials.Load(), w.attempts.Load())
				assert.LessOrEqual(t, dials.Load()-1, int64(3))

				// And once the network is back the next retry gets through.
				out.Store(0)
				attempts, err := w.get(w.transport)
				require.NoError(t, err)
				assert.Equal(t, 2, attempts)
				time.Sleep(time.Minute)
			})
		})
	}
}

func TestFresh_ManyHosts(t *testing.T) {
	t.Parallel()
	eachFresh(t, allProtos, func(w *freshWorld) {
		const hosts = 10
		visit := func() (attempts int) {
			var wg sync.WaitGroup
			before := w.attempts.Load()
			for i := range hosts {
				wg.Go(func() {
					u, err := url.Parse(w.server.URL)
					assert.NoError(w.t, err)
					u.Host = fmt.Sprintf("host-%d.example.com:%s", i, u.Port())
					req, err := http.NewRequest(http.MethodGet, u.String(), nil)
					assert.NoError(w.t, err)
					resp, err := w.transport.RoundTrip(req)
					if assert.NoError(w.t, err) {
						_ = resp.Body.Close()
					}
				})
			}
			wg.Wait()
			synctest.Wait() // net/http may still be putting connections into its pool
			return int(w.attempts.Load() - before)
		}
		require.Equal(w.t, hosts, visit())
		require.Equal(w.t, hosts, w.server.Listener.Dials())
		w.server.Listener.Freeze()
		assert.Equal(w.t, 2*hosts, visit())
		assert.Equal(w.t, 2*hosts, w.server.Listener.Dials())
	})
}

func TestFresh_CloseIdleConnections(t *testing.T) {
	t.Parallel()
	eachFresh(t, allProtos, func(w *freshWorld) {
		w.warm()
		w.server.Listener.Freeze()
		_, err := w.get(w.transport)
		require.NoError(w.t, err)
		synctest.Wait()
		require.NotZero(w.t, w.server.Listener.Open())
		(&http.Client{Transport: w.transport}).CloseIdleConnections()
		time.Sleep(time.Second) // TLS's farewell to a frozen peer
		assert.Zero(w.t, w.server.Listener.Open())

		attempts, err := w.get(w.transport)
		require.NoError(w.t, err)
		assert.Equal(w.t, 1, attempts)
	})
}

// A spare that nothing needs any more leaves no connection, whatever the base
// does with its own.
func TestFresh_IdleSpareEnds(t *testing.T) {
	t.Parallel()
	for name, idle := range map[string]time.Duration{"base keeps them": 0, "base keeps them longer": time.Hour, "base keeps them less": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachFresh(t, allProtos, func(w *freshWorld) {
				w.base.IdleConnTimeout = idle
				w.warm()
				w.server.Listener.Freeze()
				_, err := w.get(w.transport)
				require.NoError(w.t, err)
				w.base.CloseIdleConnections()
				synctest.Wait()
				require.Equal(w.t, 1, w.server.Listener.Open())
				assert.Empty(w.t, w.transport.HostStates(), "the host is healthy")
				most := 30 * time.Second
				if idle > 0 {
					most = min(most, idle)
				}
				time.Sleep(most - time.Millisecond)
				assert.Equal(w.t, 1, w.server.Listener.Open())
				time.Sleep(2 * time.Millisecond)
				assert.Zero(w.t, w.server.Listener.Open())
			})
		})
	}
}

// A body that still comes from a spare is not cut when another spare takes its
// place, nor when all idle connections are closed.
func TestFresh_BodyOfAnOldSpare(t *testing.T) {
	t.Parallel()
	for _, proto := range allProtos {
		t.Run(proto.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFreshWorld(t, proto, func(rw http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/hang" {
						<-r.Context().Done()
					}
					if r.URL.Path == "/long" {
						for range 60 {
							_, _ = io.WriteString(rw, strings.Repeat("x", 100))
							_ = http.NewResponseController(rw).Flush()
							time.Sleep(time.Second)
						}
					}
				})
				w.warm()
				w.server.Listener.Freeze()
				resp, err := (&http.Client{Transport: w.transport}).Get(w.server.URL + "/long")
				require.NoError(t, err)
				long := w.server.Listener.Dials()
				done := make(chan int)
				go func() {
					body, err := io.ReadAll(resp.Body)
					assert.NoError(t, err)
					assert.NoError(t, resp.Body.Close())
					done <- len(body)
				}()
				time.Sleep(5 * time.Second)
				_, err = (&http.Client{Transport: w.transport}).Get(w.server.URL + "/hang")
				require.Error(t, err)
				assert.Greater(t, w.server.Listener.Dials(), long)
				w.transport.CloseIdleConnections()
				assert.Equal(t, 6000, <-done)
				time.Sleep(31 * time.Second)
				assert.Zero(t, w.server.Listener.Open())
			})
		})
	}
}

// Where a copy of the base would not do what the base does, or nothing is known
// of it, the base makes every attempt.
func TestFresh_OnlyTheBase(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		proto memhttp.Proto
		set   func(w *freshWorld)
	}{
		"a wrapper": {memhttp.HTTP2, func(w *freshWorld) {
			w.transport.Base = struct{ http.RoundTripper }{w.base}
		}},
		"http registered": {memhttp.H2C, func(w *freshWorld) {
			w.base.RegisterProtocol("http", w.server.Transport())
		}},
		"https registered": {memhttp.HTTP2, func(w *freshWorld) {
			other := w.server.Transport()
			w.base.Protocols, w.base.TLSNextProto = nil, map[string]func(string, *tls.Conn) http.RoundTripper{}
			w.base.RegisterProtocol("https", other)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFreshWorld(t, tt.proto, func(http.ResponseWriter, *http.Request) {})
				tt.set(w)
				attempts, err := w.get(w.transport)
				require.NoError(t, err)
				require.Equal(t, 1, attempts)
				dials := w.server.Listener.Dials()
				w.server.Listener.Freeze()
				attempts, err = w.get(w.transport)
				require.Error(t, err)
				assert.Equal(t, 4, attempts)
				assert.Equal(t, dials, w.server.Listener.Dials())
			})
		})
	}
}

// Another scheme's RoundTripper doesn't keep https from its spare.
func TestFresh_OtherSchemeRegistered(t *testing.T) {
	t.Parallel()
	eachFresh(t, allProtos, func(w *freshWorld) {
		w.base.RegisterProtocol("file", http.NewFileTransport(http.Dir(".")))
		w.warm()
		w.server.Listener.Freeze()
		attempts, err := w.get(w.transport)
		require.NoError(w.t, err)
		assert.Equal(w.t, 2, attempts)
	})
}

// Without kept connections there is none to mistrust.
func TestFresh_DisableKeepAlives(t *testing.T) {
	t.Parallel()
	eachFresh(t, allProtos, func(w *freshWorld) {
		w.base.DisableKeepAlives = true
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

// Over HTTP/2 a limit of connections may be exceeded by one.
func TestFresh_MaxConnsPerHost(t *testing.T) {
	t.Parallel()
	eachFresh(t, bothHTTP2, func(w *freshWorld) {
		w.base.MaxConnsPerHost = 1
		w.warm()
		w.server.Listener.Freeze()
		attempts, err := w.get(w.transport)
		require.NoError(w.t, err)
		assert.Equal(w.t, 2, attempts)
		assert.Equal(w.t, 2, w.server.Listener.Open())
	})
}

// A timeout before there was a connection says nothing against those there are.
func TestFresh_NoConnectionNoDoubt(t *testing.T) {
	t.Parallel()
	eachFresh(t, allProtos, func(w *freshWorld) {
		dial := w.base.DialContext
		var dials atomic.Int64
		w.base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dials.Add(1) == 1 {
				time.Sleep(1500 * time.Millisecond)
			}
			return dial(ctx, network, addr)
		}
		attempts, err := w.get(w.transport)
		require.NoError(w.t, err)
		assert.Equal(w.t, 2, attempts)
		time.Sleep(time.Second)
		attempts, err = w.get(w.base)
		require.NoError(w.t, err)
		assert.Zero(w.t, attempts)
		assert.EqualValues(w.t, 2, dials.Load(), "both belong to the base")
	})
}

// A proxy of the base is the spare's, too, and so are its TLS sessions.
func TestFresh_KeepsProxyAndSessions(t *testing.T) {
	t.Parallel()
	t.Run("proxy", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var proxied atomic.Int64
			w := newFreshWorld(t, memhttp.HTTP1, func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Host == "origin.example.com" {
					proxied.Add(1)
				}
			})
			proxy, err := url.Parse(w.server.URL)
			require.NoError(t, err)
			w.base.Proxy = http.ProxyURL(proxy)
			client := &http.Client{Transport: w.transport}
			for range 2 {
				resp, err := client.Get("http://origin.example.com/")
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				synctest.Wait()
				w.server.Listener.Freeze()
			}
			assert.EqualValues(t, 3, w.attempts.Load())
			assert.EqualValues(t, 2, proxied.Load())
		})
	})
	for _, proto := range []memhttp.Proto{memhttp.HTTPS, memhttp.HTTP2} {
		t.Run("sessions "+proto.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				resumed := false
				w := newFreshWorld(t, proto, func(_ http.ResponseWriter, r *http.Request) { resumed = r.TLS.DidResume })
				w.base.TLSClientConfig.ClientSessionCache = tls.NewLRUClientSessionCache(0)
				w.warm()
				require.False(t, resumed)
				w.server.Listener.Freeze()
				attempts, err := w.get(w.transport)
				require.NoError(t, err)
				assert.Equal(t, 2, attempts)
				assert.True(t, resumed)
			})
		})
	}
}

// A request body goes again over the new connection, whole.
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

// Connections freeze again and again under many requests: each is answered, and
// nothing stays.
func TestFresh_Stress(t *testing.T) {
	t.Parallel()
	for _, proto := range allProtos {
		t.Run(proto.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFreshWorld(t, proto, func(rw http.ResponseWriter, _ *http.Request) {
					time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
					_, _ = io.WriteString(rw, "answer")
				})
				w.transport.Policy.Budget = retrip.Unlimited
				stop := make(chan struct{})
				var freezes, failed atomic.Int64
				var wg, callers sync.WaitGroup
				wg.Go(func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(time.Duration(rand.IntN(5000)) * time.Millisecond):
							freezes.Add(1)
							w.server.Listener.Freeze()
						}
						if rand.IntN(10) == 0 {
							w.transport.CloseIdleConnections()
						}
					}
				})
				for range 20 {
					callers.Go(func() {
						for range 50 {
							before := freezes.Load()
							if _, err := w.get(w.transport); err != nil {
								// It takes one under each retry.
								assert.GreaterOrEqual(t, freezes.Load()-before, int64(3))
								failed.Add(1)
							}
							time.Sleep(time.Duration(rand.IntN(50)) * time.Millisecond)
						}
					})
				}
				callers.Wait()
				close(stop)
				wg.Wait()
				t.Logf("%d of 1000 requests failed", failed.Load())
				w.base.CloseIdleConnections()
				time.Sleep(time.Minute)
				w.base.CloseIdleConnections()
				assert.Zero(t, w.server.Listener.Open())
			})
		})
	}
}

// A pool may hold more dead connections than a request has attempts. The third
// attempt at a PUT or DELETE takes a new connection, which net/http doesn't do
// for these.
func TestFresh_StalePool(t *testing.T) {
	for _, method := range []string{"PUT", "DELETE", "POST"} {
		for _, body := range []func() io.Reader{func() io.Reader { return nil }, func() io.Reader { return strings.NewReader("payload") }, func() io.Reader { return stream([]byte("payload")) }} {
			for _, timeout := range []time.Duration{0, time.Hour} {
				bubbled(t, fmt.Sprintf("%s/%T/timeout %v", method, body(), timeout), func(t *testing.T) {
					s, base, stale := stalePool(t, memhttp.HTTP1, 25)
					dials := s.Listener.Dials()
					stale.Store(25)
					tr := &retrip.Transport{Base: base, Policy: with(func(p *retrip.Policy) { p.AttemptTimeout = timeout })}
					attempts := 0
					ctx := retrip.WithTrace(t.Context(), &retrip.Trace{Attempt: func(retrip.Event) {
						if attempts++; attempts == 3 {
							// Those of the pool are the dead ones.
							stale.Store(0)
						}
					}})
					resp, err := tr.RoundTrip(mustRequest(t, method, s.URL, body()).WithContext(ctx))
					if method == "POST" {
						assert.Error(t, err)
						assert.Equal(t, 1, attempts)
						return
					}
					require.NoError(t, err)
					finish(t, resp)
					assert.Equal(t, 3, attempts)
					assert.Equal(t, 1, s.Listener.Dials()-dials, "one new connection")
					tr.CloseIdleConnections()
				})
			}
		}
	}
}
