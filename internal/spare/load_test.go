// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// A slow host doesn't get a storm of new connections.
//
//retrip:promise P11
func TestFresh_SlowHost(t *testing.T) {
	t.Parallel()
	const n = 200
	for _, tt := range []struct {
		name  string
		slow  int64 // number of slow requests
		conns map[bool]int
	}{
		// Over HTTP/2, net/http opens another connection for every 100 streams
		// that begin before the server has sent its limit.
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
					w.transport.Policy.Budget = retrip.Off
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

// In a steady stream with some slow requests, retries share a spare as long as
// it answers.
func TestFresh_SlowNowAndThen(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		every int // one in this many requests is slow
		most  int // new connections per minute
	}{
		// For HTTP/2 without TLS, net/http dials again once IdleConnTimeout has
		// passed since the last dial.
		{20, 2},
		// Too rare for the spare to prove itself in between.
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
// spares per AttemptTimeout.
func TestFresh_TwoSparesAnAttempt(t *testing.T) {
	t.Parallel()
	for _, proto := range bothHTTP2 {
		t.Run(proto.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFreshWorld(t, proto, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
				w.transport.Policy.Budget = retrip.Off
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

// In an outage where nothing answers and no dial succeeds, there are no more
// dials than without spares, but for one.
//
//retrip:promise P11
func TestFresh_Outage(t *testing.T) {
	t.Parallel()
	for _, proto := range bothHTTP2 {
		t.Run(proto.String(), func(t *testing.T) {
			t.Parallel()
			run := func(t *testing.T, spares bool) (dialled int64) {
				synctest.Test(t, func(t *testing.T) {
					w := newFreshWorld(t, proto, func(http.ResponseWriter, *http.Request) {})
					if !spares {
						w.transport.Base = struct{ http.RoundTripper }{w.base}
					}
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
					w.warm()
					w.server.Listener.Freeze()
					out.Store(1)
					assert.EqualValues(t, 200, w.parallel(200))
					dialled = dials.Load()
					t.Logf("%d dials for %d attempts", dialled, w.attempts.Load())

					// Once the network is back, the next retry succeeds.
					out.Store(0)
					if attempts, err := w.get(w.transport); spares {
						require.NoError(t, err)
						assert.LessOrEqual(t, attempts, 2)
					}
					time.Sleep(time.Minute)
					w.base.CloseIdleConnections()
				})
				return dialled
			}
			without := run(t, false)
			assert.LessOrEqual(t, run(t, true), without+1)
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

// Connections freeze again and again under many requests. Each request gets its
// response, and nothing stays behind.
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
				w.transport.Policy.Budget = retrip.Off
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
								// A request fails only if a connection
								// freezes under every attempt.
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
