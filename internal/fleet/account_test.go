// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"fmt"
	"io"
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

//retrip:promise P22
func TestFleet_ForbidsAndGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet, attempts := opened(t, fixedStore(0)), 0
		metrics := retrip.NewMetrics()
		var reasons []retrip.Reason
		tr := &retrip.Transport{Fleet: fleet, Policy: steady, Metrics: metrics, Trace: &retrip.Trace{GiveUp: func(e retrip.Event) { reasons = append(reasons, e.Reason) }},
			Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				attempts++
				resp := answer(r, 503)
				resp.Body = io.NopCloser(strings.NewReader("in hand"))
				return resp, nil
			})}
		began := time.Now()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://a.example/", nil)
		require.NoError(t, err)
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		assert.Equal(t, 503, resp.StatusCode)
		body, err := io.ReadAll(resp.Body)
		assert.NoError(t, err)
		assert.Equal(t, "in hand", string(body), "the response in hand is returned, body unread")
		assert.Equal(t, 1, attempts)
		assert.Zero(t, time.Since(began), "and at once")
		assert.Equal(t, []retrip.Reason{retrip.ReasonFleetBudget}, reasons)
		state, err := tr.HostState("a.example:80")
		require.NoError(t, err)
		assert.Equal(t, state.Size, state.Tokens, "the retry's tokens are back")
		assert.Contains(t, gathered(t, metrics), `retrip_fleet_checks_total{policy="default",result="forbidden"} 1`)
		assert.Contains(t, gathered(t, metrics), `retrip_give_ups_total{policy="default",reason="fleet_budget"} 1`)
	})
}

func TestFleet_HostState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &retrip.Transport{Fleet: opened(t, fixedStore(123)), Policy: steady, Base: alwaysAnswers(503)}
		_, err := get(t, tr, "http://a.example/")
		require.NoError(t, err)
		state := play.Must(tr.HostState("a.example:80"))
		assert.Equal(t, 123.0, state.FleetTokens)
		assert.Equal(t, 175.0, state.FleetSize)
		data := play.Must(state.MarshalJSON())
		assert.Contains(t, string(data), `"fleet_tokens":123,"fleet_size":175`)
		time.Sleep(account.Age + 1)
		assert.Zero(t, play.Must(tr.HostState("a.example:80")).FleetSize, "an older level isn't known")
	})
}

// A fleet of clients with budgets of their own, each of which would go on
// alone.
func TestFleet_SharedByTransports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet := retrip.NewFleet(nil)
		var attempts int
		down := true
		base := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			attempts++
			if down {
				return answer(r, 503), nil
			}
			return answer(r, 200), nil
		})
		clients := make([]*retrip.Transport, 1000)
		for i := range clients {
			clients[i] = &retrip.Transport{Fleet: fleet, Policy: retrip.Policy{FleetBudget: 100}, Base: base}
		}
		for _, c := range clients {
			_, err := get(t, c, "http://a.example/")
			require.NoError(t, err)
		}
		// One token each: the retries after the first one aren't charged.
		assert.Less(t, attempts, 1000+3*200, "the account is empty after some two hundred clients")
		attempts, down = 0, false
		for range 10 {
			for _, c := range clients {
				_, err := get(t, c, "http://a.example/")
				require.NoError(t, err)
			}
		}
		assert.Equal(t, 10_000, attempts, "no first attempt is held back")
		state := play.Must(clients[0].HostState("a.example:80"))
		assert.Equal(t, []float64{100, 100}, []float64{state.FleetTokens, state.FleetSize}, "successes have filled the account")
		assert.NoError(t, fleet.Close())
		assert.NoError(t, fleet.Close())
	})
}

// In a long outage no process charges the account, because retries are
// forbidden. If the account expired then, it would be full.
//
//retrip:promise P22
func TestFleet_LongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet, attempts := retrip.NewFleet(nil), 0
		base := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			attempts++
			return answer(r, 503), nil
		})
		const clients = 200
		minute := func() int {
			attempts = 0
			for range clients { // each is a process with a full budget
				tr := &retrip.Transport{Fleet: fleet, Policy: retrip.Policy{FleetBudget: 50}, Base: base}
				_, err := get(t, tr, "http://a.example/")
				require.NoError(t, err)
				time.Sleep(time.Minute / clients)
			}
			return attempts - clients
		}
		assert.Greater(t, minute(), 50)
		for range 10 {
			assert.Less(t, minute(), 10, "retries")
		}
	})
}

func TestFleet_RefusalsAtAGateAreFree(t *testing.T) {
	for _, took := range []time.Duration{0, 2 * time.Second} { // the second comes too late
		synctest.Test(t, func(t *testing.T) {
			fleet := opened(t, storeFunc(func(context.Context, string, float64, float64) (float64, error) {
				t.Error("a 429 at a gate costs nothing, here either")
				return 0, nil
			}))
			n := 0
			tr := &retrip.Transport{Fleet: fleet, Policy: retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, AttemptTimeout: time.Second}, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				if n++; n < 3 {
					time.Sleep(took)
					resp := answer(r, 429)
					resp.Header.Set("Retry-After", "1")
					return resp, nil
				}
				return answer(r, 200), nil
			})}
			resp, err := get(t, tr, "http://a.example/")
			require.NoError(t, err)
			assert.Equal(t, 200, resp.StatusCode)
		})
	}
}

//retrip:promise P22
func TestFleet_ConcurrentUse(t *testing.T) {
	for name, store := range map[string]storeFunc{"memory": nil, "store": fixedStore(100), "panics": storeFunc(func(context.Context, string, float64, float64) (float64, error) { panic(1) })} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fleet := retrip.NewFleet(store)
				var n atomic.Int64
				tr := &retrip.Transport{Fleet: fleet, Policy: retrip.Policy{Backoff: retrip.Backoff{Base: time.Millisecond, Cap: time.Millisecond}}, Metrics: retrip.NewMetrics(),
					Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
						if n.Add(1)%2 == 0 {
							return answer(r, 503), nil
						}
						return answer(r, 200), nil
					})}
				var wg sync.WaitGroup
				for i := range 8 {
					wg.Go(func() {
						for j := range 300 {
							if i == 0 && j == 150 {
								assert.NoError(t, fleet.Close())
							}
							if i == 1 && j%50 == 0 {
								assert.NoError(t, tr.SetPolicies(retrip.Policy{FleetBudget: float64(j + 1)}, nil))
								tr.HostStates()
							}
							req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://%d.example/", j%5), nil)
							if assert.NoError(t, err) {
								_, err = tr.RoundTrip(req)
								assert.NoError(t, err)
							}
						}
					})
				}
				wg.Wait()
				assert.NoError(t, fleet.Close())
			})
		})
	}
}

// With a Fleet, a request that succeeds at once costs one random number more,
// and one request in 25 also hands over an operation.
func BenchmarkFleet_Success(b *testing.B) {
	run := func(fleet *retrip.Fleet) func(*testing.B) {
		return func(b *testing.B) {
			req := play.MustRequest(b, http.MethodGet, "http://a.example/", nil)
			resp := answer(req, 200) // always the same, so that the base allocates nothing
			tr := &retrip.Transport{Fleet: fleet, Base: testenv.RoundTripper(func(*http.Request) (*http.Response, error) { return resp, nil })}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tr.RoundTrip(req); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	b.Run("without", run(nil))
	b.Run("memory", run(retrip.NewFleet(nil)))
	fleet := retrip.NewFleet(fixedStore(500))
	defer fleet.Close()
	b.Run("store", run(fleet))
}
