// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"cmp"
	"context"
	"errors"
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
