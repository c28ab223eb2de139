// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/account"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// After a wait of more than a second, an account that has become empty forbids
// the retry that it allowed. The response is gone by then, so the caller gets an
// Error with its status and header.
//
//retrip:promise P22
func TestFleet_LooksAgainAfterALongWait(t *testing.T) {
	for _, test := range []struct {
		name   string
		wait   string
		gate   retrip.Switch
		asks   int64
		allows bool
	}{
		{"long", "10", retrip.Off, 2, false},
		{"a second", "", retrip.Off, 1, true},
		{"at a gate", "10", retrip.On, 2, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var level atomic.Int64
				level.Store(500)
				var asks, charges atomic.Int64
				fleet := opened(t, storeFunc(func(_ context.Context, _ string, tokens, _ float64) (float64, error) {
					if tokens == 0 {
						asks.Add(1)
					} else {
						charges.Add(1)
					}
					time.Sleep(10 * time.Millisecond)
					return float64(level.Load()), nil
				}))
				attempts, closed := 0, false
				metrics := retrip.NewMetrics()
				tr := &retrip.Transport{Fleet: fleet, Metrics: metrics, Policy: retrip.Policy{MaxAttempts: 2, Gate: retrip.Gate{Enabled: test.gate}, Backoff: retrip.Backoff{Base: time.Second, Jitter: retrip.NoJitter}},
					Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
						attempts++
						resp := answer(r, 503)
						if test.wait != "" {
							resp.Header.Set("Retry-After", test.wait)
						}
						resp.Header.Set("Request-Id", "7")
						resp.Body = &closeRecorder{closed: &closed}
						return resp, nil
					})}
				time.AfterFunc(500*time.Millisecond, func() { level.Store(0) })
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://a.example/", strings.NewReader("body"))
				require.NoError(t, err)
				req.Header.Set("Idempotency-Key", "1")
				began := time.Now()
				resp, err := tr.RoundTrip(req)
				if test.allows {
					require.NoError(t, err)
					assert.Equal(t, 503, resp.StatusCode)
					assert.Equal(t, 2, attempts)
				} else {
					var e *retrip.Error
					require.ErrorAs(t, err, &e)
					assert.Equal(t, retrip.ReasonFleetBudget, e.Reason)
					assert.Equal(t, 1, e.Attempts)
					assert.Equal(t, 503, e.StatusCode)
					assert.Equal(t, "7", e.Header.Get("Request-Id"))
					assert.ErrorContains(t, err, "fleet_budget")
					assert.ErrorContains(t, err, "503")
					assert.Equal(t, 1, attempts)
					assert.True(t, closed)
					assert.GreaterOrEqual(t, time.Since(began), 10*time.Second)
					assert.LessOrEqual(t, time.Since(began), 15*time.Second+account.OpTimeout)
					assert.Contains(t, gathered(t, metrics), `retrip_fleet_checks_total{policy="default",result="forbidden"} 1`)
				}
				state := play.Must(tr.HostState("a.example:80"))
				if !test.allows {
					assert.Equal(t, state.Size, state.Tokens, "the retry's tokens are back")
				}
				assert.Equal(t, test.asks, asks.Load())
				time.Sleep(time.Second)
				assert.Equal(t, test.allows, charges.Load() == 1, "what isn't sent costs nothing")
			})
		})
	}
}

// The second look uses the draw of the first, so that looking twice forbids no
// more retries than looking once.
func TestFleet_SecondLookForbidsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &retrip.Transport{Fleet: opened(t, fixedStore(62.5)), Policy: retrip.Policy{MaxAttempts: 2, Budget: 1e6, FleetBudget: 500}}
		var retries atomic.Int64
		tr.Base = testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			resp := answer(r, 502)
			resp.Header.Set("Retry-After", "5")
			return resp, nil
		})
		tr.Trace = &retrip.Trace{Attempt: func(e retrip.Event) {
			if e.Attempt == 2 {
				retries.Add(1)
			}
		}}
		const n = 2000
		done := make(chan struct{})
		for range n {
			go func() {
				req, _ := http.NewRequest(http.MethodGet, "http://a.example/", nil)
				resp, err := tr.RoundTrip(req)
				if assert.NoError(t, err) {
					resp.Body.Close()
				}
				done <- struct{}{}
			}()
		}
		for range n {
			<-done
		}
		assert.InDelta(t, n/2, retries.Load(), 120, "five standard deviations")
	})
}

// The caller may go, or the store may hang, while the account is asked again.
//
//retrip:promise P22
func TestFleet_SecondLookHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		fleet := opened(t, storeFunc(func(ctx context.Context, host string, tokens, size float64) (float64, error) {
			if hangs.Load() {
				return hangingStore(ctx, host, tokens, size)
			}
			return size, nil
		}))
		tr := &retrip.Transport{Fleet: fleet, Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: 3 * time.Second, Jitter: retrip.NoJitter}}, Base: alwaysAnswers(503)}
		for _, goes := range []time.Duration{time.Hour, 3020 * time.Millisecond} {
			hangs.Store(false)
			time.AfterFunc(time.Second, func() { hangs.Store(true) })
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(goes, cancel)
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://a.example/", nil)
			require.NoError(t, err)
			began := time.Now()
			resp, err := tr.RoundTrip(req)
			if goes == time.Hour {
				require.NoError(t, err)
				assert.Equal(t, 503, resp.StatusCode)
				assert.Equal(t, 3*time.Second+account.OpTimeout, time.Since(began))
			} else {
				assert.ErrorIs(t, err, context.Canceled)
				assert.Equal(t, goes, time.Since(began))
			}
			cancel()
			time.Sleep(20 * time.Second)
		}
	})
}

// A retry costs a token while it is under way, and for good if it fails. While one is
// under way that has waited for more than a second, it costs two.
//
//retrip:promise P22
func TestFleet_ChargesWhatItSends(t *testing.T) {
	for name, test := range map[string]struct {
		ends  func(*http.Request) (*http.Response, error)
		spent int64
	}{
		"succeeds":   {func(r *http.Request) (*http.Response, error) { return answer(r, 200), nil }, 0},
		"is refused": {func(r *http.Request) (*http.Response, error) { return answer(r, 404), nil }, 0},
		"fails":      {func(r *http.Request) (*http.Response, error) { return answer(r, 503), nil }, 1},
		"breaks":     {func(r *http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }, 1},
		"panics":     {func(r *http.Request) (*http.Response, error) { panic(http.ErrAbortHandler) }, 1},
		"has no hope": {func(r *http.Request) (*http.Response, error) {
			return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
		}, 0},
	} {
		for _, wait := range []time.Duration{time.Second, 1001 * time.Millisecond, 5 * time.Second} {
			t.Run(fmt.Sprint(name, wait), func(t *testing.T) {
				underWay := int64(1)
				if wait > time.Second {
					underWay = 2
				}
				synctest.Test(t, func(t *testing.T) {
					var spent atomic.Int64
					fleet := opened(t, storeFunc(func(_ context.Context, _ string, tokens, size float64) (float64, error) {
						return size - float64(spent.Add(-int64(tokens))), nil
					}))
					attempts := 0
					tr := &retrip.Transport{Fleet: fleet, Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: wait, Jitter: retrip.NoJitter}},
						Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
							if attempts++; attempts == 1 {
								return answer(r, 503), nil
							}
							time.Sleep(time.Second)
							return test.ends(r)
						})}
					go func() {
						defer func() { _ = recover() }()
						req, _ := http.NewRequest(http.MethodGet, "http://a.example/", nil)
						resp, err := tr.RoundTrip(req)
						if err == nil {
							resp.Body.Close()
						}
					}()
					time.Sleep(wait - 1)
					synctest.Wait()
					assert.EqualValues(t, 0, spent.Load(), "it waits")
					time.Sleep(time.Second)
					synctest.Wait()
					assert.Equal(t, underWay, spent.Load(), "it is under way")
					time.Sleep(time.Second)
					synctest.Wait()
					assert.Equal(t, test.spent, spent.Load())
				})
			})
		}
	}
}

// What the server says while a retry asks the account again holds for that retry.
//
//retrip:promise P9
func TestFleet_SecondLookHeedsTheServer(t *testing.T) {
	const answers = 40 * time.Millisecond
	for _, gate := range []retrip.Switch{retrip.Off, retrip.On} {
		for later := time.Duration(0); later < answers; later += 13 * time.Millisecond {
			t.Run(fmt.Sprint(gate, later), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					began := time.Now()
					again := make(chan struct{})
					fleet := opened(t, storeFunc(func(_ context.Context, _ string, _, size float64) (float64, error) {
						if time.Since(began) > 3*time.Second && time.Since(began) < 5*time.Second {
							close(again)
						}
						time.Sleep(answers)
						return size, nil
					}))
					var said time.Time
					attempts := 0
					tr := &retrip.Transport{Fleet: fleet, Policy: retrip.Policy{MaxAttempts: 2, Gate: retrip.Gate{Enabled: gate}},
						Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
							attempts++
							resp := answer(r, 503)
							switch attempts {
							case 1:
								<-again
								time.Sleep(later)
								said = time.Now()
								resp.Header.Set("Retry-After", "7")
							case 2:
								resp.Header.Set("Retry-After", "3")
							default:
								assert.GreaterOrEqual(t, time.Since(said), 7*time.Second)
								resp = answer(r, 200)
							}
							return resp, nil
						})}
					get := func() {
						resp, err := tr.RoundTrip(play.MustRequest(t, http.MethodGet, "http://a.example/", nil))
						if assert.NoError(t, err) {
							assert.Equal(t, 200, resp.StatusCode)
						}
					}
					var other sync.WaitGroup
					other.Go(get)
					synctest.Wait()
					get()
					other.Wait()
					assert.Equal(t, 4, attempts)
				})
			})
		}
	}
}

// Many requests of a process end a long wait together. They ask the account once in
// 100 ms.
//
//retrip:promise P22
func TestFleet_ManyLookAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asks atomic.Int64
		fleet := opened(t, storeFunc(func(_ context.Context, _ string, tokens, size float64) (float64, error) {
			if tokens == 0 {
				asks.Add(1)
			}
			time.Sleep(2 * time.Millisecond)
			return size, nil
		}))
		tr := &retrip.Transport{Fleet: fleet, Policy: retrip.Policy{MaxAttempts: 2, Budget: 1e6, Backoff: retrip.Backoff{Base: 3 * time.Second, Jitter: retrip.NoJitter}}, Base: alwaysAnswers(503)}
		var work sync.WaitGroup
		for range 1000 {
			time.Sleep(time.Millisecond)
			work.Go(func() {
				req, _ := http.NewRequest(http.MethodGet, "http://a.example/", nil)
				resp, err := tr.RoundTrip(req)
				if assert.NoError(t, err) {
					resp.Body.Close()
				}
			})
		}
		time.Sleep(time.Second)
		synctest.Wait()
		assert.LessOrEqual(t, asks.Load(), int64(2), "before the waits")
		asks.Store(0)
		work.Wait()
		assert.InDelta(t, 10, asks.Load(), 1, "after the waits, for a second")
	})
}
