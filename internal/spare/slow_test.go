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
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// slowWorld is a host that is slow to connect to, and answers late now and then.
type slowWorld struct {
	dial     time.Duration // how long a dial takes; negative: after the first one, it never ends
	refuses  bool          // after the first dial, every other fails
	trip     time.Duration // how long an ordinary answer takes
	timeout  time.Duration
	late     int // one in this many answers comes too late; 0: the first one to each request
	requests int
	attempts int
	freezes  bool // before each request, all connections freeze
}

// outcome is what became of the requests of a slowWorld.
type outcome struct{ failed, attempts, dials int }

// run makes the requests of s, with spares or without. Which answers are late
// depends on the request and on how often it has arrived, so that both have the
// same luck.
func (s slowWorld) run(t *testing.T, proto memhttp.Proto, spares bool) (o outcome) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		arrived := map[string]uint64{}
		w := newFreshWorld(t, proto)
		w.handle = func(_ http.ResponseWriter, r *http.Request) {
			mu.Lock()
			arrived[r.URL.Path]++
			n := arrived[r.URL.Path]
			mu.Unlock()
			i, _ := strconv.ParseUint(strings.TrimPrefix(r.URL.Path, "/"), 10, 64)
			switch {
			case i == 0:
			case s.late == 0 && n == 1, s.late > 0 && rand.New(rand.NewPCG(i, n)).IntN(s.late) == 0:
				ends(r)
			default:
				time.Sleep(s.trip)
			}
		}
		var dials *atomic.Int64
		dials = w.beforeDial(func(ctx context.Context) error {
			switch first := dials.Load() == 1; {
			case !first && s.refuses:
				return errors.New("connection refused")
			case s.dial >= 0:
				return await(ctx, s.dial)
			case !first:
				return await(ctx, time.Hour)
			}
			return nil
		})
		w.transport.Policy.AttemptTimeout, w.transport.Policy.MaxAttempts = s.timeout, s.attempts
		w.transport.Policy.Backoff.Base = 50 * time.Millisecond
		if !spares {
			w.transport.Base = struct{ http.RoundTripper }{w.base}
		}
		w.warm()
		for i := range s.requests {
			if s.freezes {
				w.server.Listener.Freeze()
			}
			if testenv.Try(w.transport, w.request(http.MethodGet, "/"+strconv.Itoa(i+1))) != nil {
				o.failed++
			}
		}
		o.attempts, o.dials = int(w.attempts.Load()), int(dials.Load())
		time.Sleep(2 * time.Hour) // spares go by themselves, and dials end
		w.base.CloseIdleConnections()
		synctest.Wait()
		assert.Zero(t, w.server.Listener.Open())
	})
	return o
}

// A retry can succeed where connecting takes longer than the timeout, and a
// late answer costs no request: with spares no more fail than without.
//
//retrip:promise P11
func TestSlow_LateAnswer(t *testing.T) {
	for _, proto := range play.Protos {
		for _, tt := range []struct {
			slowWorld
			dials int // over HTTP/2; without spares 1
		}{
			{slowWorld{dial: 600 * time.Millisecond, trip: 50 * time.Millisecond, timeout: 400 * time.Millisecond, requests: 1}, 2},
			{slowWorld{dial: 120 * time.Millisecond, trip: 60 * time.Millisecond, timeout: 100 * time.Millisecond, late: 20, requests: 80}, 4},
			{slowWorld{dial: -1, trip: 50 * time.Millisecond, timeout: 400 * time.Millisecond, requests: 1}, 2},
			{slowWorld{refuses: true, trip: 50 * time.Millisecond, timeout: 400 * time.Millisecond, requests: 1}, 2},
		} {
			for _, attempts := range []int{2, 4} {
				s := tt.slowWorld
				s.attempts = attempts
				t.Run(fmt.Sprintf("%v %+v", proto, s), func(t *testing.T) {
					t.Parallel()
					without, with := s.run(t, proto, false), s.run(t, proto, true)
					if attempts > 2 {
						// Two attempts of 100 ms may be too few to connect over
						// HTTP/1 and get an answer, with spares and without.
						assert.LessOrEqual(t, with.failed, without.failed)
					}
					if slices.Contains(bothHTTP2, proto) {
						assert.Zero(t, with.failed)
						assert.LessOrEqual(t, with.dials, tt.dials)
					}
				})
			}
		}
	}
}

// A frozen connection is still noticed where connecting takes longer than the
// timeout.
//
//retrip:promise P11
func TestSlow_Frozen(t *testing.T) {
	for _, proto := range bothHTTP2 {
		for _, dial := range []time.Duration{0, 100, 200, 390, 600, 800} {
			s := slowWorld{
				dial: dial * time.Millisecond, trip: 50 * time.Millisecond, timeout: 400 * time.Millisecond, late: 1 << 30,
				requests: 20, attempts: 4, freezes: true,
			}
			t.Run(fmt.Sprintf("%v %+v", proto, s), func(t *testing.T) {
				t.Parallel()
				with := s.run(t, proto, true)
				assert.Equal(t, s.requests, s.run(t, proto, false).failed)
				assert.Zero(t, with.failed)
				assert.LessOrEqual(t, with.dials, 1+s.requests)
				attempts := 2
				switch {
				case s.dial > 2*s.timeout-s.timeout/3:
					attempts = 4
				case s.dial > s.timeout/3:
					attempts = 3
				}
				assert.Equal(t, attempts*s.requests, with.attempts)
			})
		}
	}
}

// However many attempts need it, a host has one dial of a spare under way, and they share
// what comes of it.
//
//retrip:promise P11
func TestSlow_OneDial(t *testing.T) {
	eachFresh(t, "", bothHTTP2, func(w *freshWorld) {
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

// A dial that never ends, and doesn't obey its context, is followed by another
// only now and then, and holds no request for long.
//
//retrip:promise P11
func TestSlow_HangingDial(t *testing.T) {
	eachFresh(t, "", bothHTTP2, func(w *freshWorld) {
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

// If other responses arrive over HTTP/2, the connection works, and a retry needs
// no other: neither one that begins later, nor one that already waits.
//
//retrip:promise P11
func TestSlow_BaseAnswers(t *testing.T) {
	const retry = 1100 * time.Millisecond // when it begins
	for _, dial := range []time.Duration{300 * time.Millisecond, time.Hour} {
		for _, others := range []time.Duration{retry - 50*time.Millisecond, retry + 100*time.Millisecond} {
			eachFresh(t, fmt.Sprintf("dial %v/others after %v", dial, others), bothHTTP2, func(w *freshWorld) {
				w.lateFirst()
				w.warm()
				dials := w.slowDials(dial)
				time.AfterFunc(others, w.mustGet)
				began := time.Now()
				require.NoError(w.t, w.send(w.transport, w.request(http.MethodGet, "/late")))
				assert.Equal(w.t, max(others, retry), time.Since(began))
				if others < retry {
					assert.Zero(w.t, dials.Load())
				}
				time.Sleep(2 * time.Hour) // the dial ends, and the spare goes by itself
				w.base.CloseIdleConnections()
			})
		}
	}
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
			eachFresh(t, fmt.Sprintf("dial %v/base answers after %v", dial, answer), bothHTTP2, func(w *freshWorld) {
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
			eachFresh(t, fmt.Sprintf("dial %v/gone after %v", dial, gone), bothHTTP2, func(w *freshWorld) {
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
