// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// A slow host doesn't get a storm of new connections.
//
//retrip:promise P11
func TestFresh_SlowHost(t *testing.T) {
	const n = 120
	for _, tt := range []struct {
		name         string
		slow         int64 // number of slow requests
		http1, http2 int   // connections for the retries
	}{
		// Over HTTP/2, net/http opens another connection for every 100 streams
		// that begin before the server has sent its limit.
		{"once", n, n, 2},
		{"always", 1 << 40, 3 * n, 3 * 2},
	} {
		eachFresh(t, tt.name, play.Protos, func(w *freshWorld) {
			var slow atomic.Int64
			w.handle = func(http.ResponseWriter, *http.Request) {
				if slow.Add(-1) >= 0 {
					time.Sleep(10 * time.Second)
				}
			}
			w.warm()
			slow.Store(tt.slow)
			most := w.server.Listener.Dials() + tt.http2
			if w.base.Protocols.HTTP1() {
				most = n + tt.http1
			}
			failed := w.parallel(w.transport, n)
			if tt.slow == n {
				assert.Zero(w.t, failed)
			}
			assert.LessOrEqual(w.t, w.server.Listener.Dials(), most, "for %d requests and their retries", n)
		})
	}
}

// In a steady stream with some slow requests, retries share a spare as long as
// it answers.
func TestFresh_SlowNowAndThen(t *testing.T) {
	testenv.Slow(t)
	// How many connections 20 seconds may need where one request in so many is slow. For HTTP/2
	// without TLS, net/http dials again once IdleConnTimeout has passed since the last dial;
	// one in 200 is too rare for the spare to prove itself in between.
	for every, most := range map[int64]int{20: 2, 200: 10} {
		eachFresh(t, fmt.Sprint("one in ", every), bothHTTP2, func(w *freshWorld) {
			var n atomic.Int64
			w.handle = func(_ http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Retry") == "" && n.Add(1)%every == 0 {
					time.Sleep(10 * time.Second)
				}
			}
			w.transport.Policy.RetryHeader = "Retry"
			w.warm()
			var wg sync.WaitGroup
			for range 100 * 20 {
				time.Sleep(10 * time.Millisecond)
				wg.Go(w.mustGet)
			}
			wg.Wait()
			assert.LessOrEqual(w.t, w.server.Listener.Dials()-1, most)
		})
	}
}

// However many requests time out, and whenever they do, a host gets at most two
// spares per AttemptTimeout.
func TestFresh_TwoSparesAnAttempt(t *testing.T) {
	eachFresh(t, "", bothHTTP2, func(w *freshWorld) {
		w.handle = func(_ http.ResponseWriter, r *http.Request) { ends(r) }
		var wg sync.WaitGroup
		r := rand.New(rand.NewPCG(1, 2))
		const seconds = 20
		for range 20 * seconds {
			time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
			wg.Go(func() {
				_, err := w.get(w.transport)
				assert.Error(w.t, err)
			})
		}
		began := time.Now()
		wg.Wait()
		took := seconds + int(time.Since(began)/time.Second)
		assert.LessOrEqual(w.t, w.server.Listener.Dials()-1, 2*took+1)
	})
}

// In an outage where nothing answers and no dial succeeds, there are no more
// dials than without spares, but for one.
//
//retrip:promise P11
func TestFresh_Outage(t *testing.T) {
	for _, proto := range bothHTTP2 {
		t.Run(proto.String(), func(t *testing.T) {
			t.Parallel()
			run := func(t *testing.T, spares bool) (dialled int64) {
				synctest.Test(t, func(t *testing.T) {
					w := newFreshWorld(t, proto)
					if !spares {
						w.transport.Base = struct{ http.RoundTripper }{w.base}
					}
					var out atomic.Bool
					dials := w.beforeDial(func(ctx context.Context) error {
						if !out.Load() {
							return nil
						}
						return cmp.Or(await(ctx, 30*time.Second), errors.New("i/o timeout"))
					})
					w.warm()
					w.server.Listener.Freeze()
					out.Store(true)
					assert.Equal(t, 200, w.parallel(w.transport, 200))
					dialled = dials.Load()

					// Once the network is back, the next retry succeeds.
					out.Store(false)
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

// Connections freeze again and again under many requests. Each request gets its
// response, and nothing stays behind.
func TestFresh_Stress(t *testing.T) {
	eachFresh(t, "", play.Protos, func(w *freshWorld) {
		upTo := func(ms int) time.Duration { return time.Duration(rand.IntN(ms)) * time.Millisecond }
		w.handle = func(rw http.ResponseWriter, _ *http.Request) {
			time.Sleep(upTo(20))
			_, _ = io.WriteString(rw, "answer")
		}
		stop := make(chan struct{})
		var freezes atomic.Int64
		var freezer, callers sync.WaitGroup
		freezer.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(upTo(5000)):
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
						assert.GreaterOrEqual(w.t, freezes.Load()-before, int64(3))
					}
					time.Sleep(upTo(50))
				}
			})
		}
		callers.Wait()
		close(stop)
		freezer.Wait()
		w.base.CloseIdleConnections()
		time.Sleep(time.Minute)
		w.base.CloseIdleConnections()
		assert.Zero(w.t, w.server.Listener.Open())
	})
}
