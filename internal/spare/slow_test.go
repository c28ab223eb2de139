// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// However many attempts need it, a host has one dial of a spare under way, and they share
// what comes of it.
//
//retrip:promise P11
func TestSlow_OneDial(t *testing.T) {
	eachBubble(t, "", bothHTTP2, func(w *freshWorld) {
		w.handle = func(http.ResponseWriter, *http.Request) { time.Sleep(90 * time.Millisecond) }
		w.warm()
		dials := w.slowDials(1900 * time.Millisecond)
		w.server.Listener.Freeze()
		var requests sync.WaitGroup
		for range 50 {
			time.Sleep(20 * time.Millisecond)
			requests.Go(w.mustGet)
		}
		requests.Wait()
		assert.EqualValues(w.t, 1, dials.Load())
	})
}

// On a busy connection that freezes, attempts time out, and need more tokens than there are. With
// hundreds in flight, net/http has a second connection, and a handful of thousands may be lost.
//
//retrip:promise P11 P14
func TestSlow_Busy(t *testing.T) {
	for every, takes := range map[time.Duration]time.Duration{50: 400, 7: 100, 2: 200} {
		eachBubble(t, (every * time.Millisecond).String(), bothHTTP2, func(w *freshWorld) {
			w.handle = func(http.ResponseWriter, *http.Request) { time.Sleep(takes * time.Millisecond) }
			w.transport.Policy.Budget = 5
			w.warm()
			var requests sync.WaitGroup
			var lost atomic.Int64
			time.AfterFunc(time.Second, w.server.Listener.Freeze)
			time.AfterFunc(4*time.Second, w.server.Listener.Freeze) // requests begin with the spare
			for range 6 * time.Second / (every * time.Millisecond) {
				time.Sleep(every * time.Millisecond)
				requests.Go(func() {
					if _, err := w.get(w.transport); err != nil {
						lost.Add(1)
					}
				})
			}
			requests.Wait()
			assert.LessOrEqual(w.t, lost.Load(), int64(2/every*5), "%v", every)
		})
	}
}

// A dial that never ends is followed by another only now and then, and holds no request for long.
//
//retrip:promise P11
func TestSlow_HangingDial(t *testing.T) {
	eachBubble(t, "", bothHTTP2, func(w *freshWorld) {
		w.lateFirst()
		w.warm()
		dials := w.beforeDial(func(context.Context) error {
			time.Sleep(time.Hour)
			return errors.New("connection timed out")
		})
		const seconds = 60
		for range seconds {
			began := time.Now()
			require.NoError(w.t, w.send(w.transport, w.request("GET", "/late")))
			assert.LessOrEqual(w.t, time.Since(began), 1100*time.Millisecond+334*time.Millisecond)
		}
		assert.EqualValues(w.t, 2*seconds, w.attempts.Load())
		assert.LessOrEqual(w.t, dials.Load(), int64(2*seconds/4), "one in 4 s")
		time.Sleep(2 * time.Hour)
	})
}

// A response of the base speaks for its connection only until the next attempt over
// it times out.
//
//retrip:promise P11
func TestSlow_BaseAnswersAndFreezes(t *testing.T) {
	for _, dial := range []time.Duration{200 * time.Millisecond, 400 * time.Millisecond, 900 * time.Millisecond, 1500 * time.Millisecond} {
		// The retry begins after 1.1 s, and waits until 1.433 s.
		for _, answer := range []time.Duration{700 * time.Millisecond, 1050 * time.Millisecond, 1110 * time.Millisecond, 1200 * time.Millisecond, 1500 * time.Millisecond} {
			if answer == 1050*time.Millisecond && dial > 333*time.Millisecond {
				continue // the base has the second attempt, and the dial begins with the third
			}
			eachBubble(t, fmt.Sprintf("dial %v/base answers after %v", dial, answer), bothHTTP2, func(w *freshWorld) {
				w.lateFirst()
				late := w.handle
				w.handle = func(rw http.ResponseWriter, r *http.Request) {
					if late(rw, r); r.URL.Path == "/late" {
						time.Sleep(20 * time.Millisecond)
					}
				}
				w.transport.Policy.MaxAttempts = 3
				w.warm()
				w.slowDials(dial)
				time.AfterFunc(answer, func() {
					w.mustGet()
					w.server.Listener.Freeze()
				})
				require.NoError(w.t, w.send(w.transport, w.request("GET", "/late")))
				time.Sleep(time.Minute) // the spare goes by itself
				w.base.CloseIdleConnections()
			})
		}
	}
}

// The base gets the whole body of a request for which the spare had no
// connection, and each body is closed, even if nobody needs it any more.
//
//retrip:promise P2
func TestSlow_Upload(t *testing.T) {
	const size = 300 << 10
	for _, dial := range []time.Duration{0, 100 * time.Millisecond, time.Second / 3, 600 * time.Millisecond, -1, time.Hour} {
		for _, gone := range []time.Duration{time.Hour, 1200 * time.Millisecond} {
			eachBubble(t, fmt.Sprintf("dial %v/gone after %v", dial, gone), bothHTTP2, func(w *freshWorld) {
				var mu sync.Mutex
				var sizes []int
				w.handle = func(_ http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					mu.Lock()
					sizes = append(sizes, len(body))
					n := len(sizes)
					mu.Unlock()
					if n == 2 { // the first one of the upload
						ends(r)
					}
				}
				w.warm()
				w.beforeDial(func(ctx context.Context) error {
					if dial < 0 {
						return errors.New("connection refused")
					}
					return await(ctx, dial)
				})
				var bodies []*play.ReplyBody // which yield nothing once they are closed
				open := func() (io.ReadCloser, error) {
					bodies = append(bodies, play.NewReply(strings.NewReader(strings.Repeat("x", size))))
					return bodies[len(bodies)-1], nil
				}
				ctx, cancel := context.WithTimeout(w.t.Context(), gone)
				defer cancel()
				req := w.request(http.MethodPut, "").WithContext(ctx)
				req.Body, _ = open()
				req.ContentLength, req.GetBody = size, open
				err := testenv.Try(w.transport, req)
				if gone == time.Hour || err == nil {
					require.NoError(w.t, err)
					assert.Equal(w.t, size, sizes[len(sizes)-1])
					assert.EqualValues(w.t, len(sizes)-1, w.attempts.Load()-w.unsent.Load())
				} else {
					assert.ErrorIs(w.t, err, context.DeadlineExceeded)
				}
				time.Sleep(2 * time.Hour)
				for _, b := range bodies {
					assert.Positive(w.t, b.Closed.Load())
				}
			})
		}
	}
}

// However many requests time out, and whenever they do, a host gets at most two
// spares per AttemptTimeout.
func TestFresh_TwoSparesAnAttempt(t *testing.T) {
	eachBubble(t, "", bothHTTP2, func(w *freshWorld) {
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
