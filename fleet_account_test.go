// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/account"
)

// storeFunc is a FleetStore.
type storeFunc func(ctx context.Context, host string, tokens, size float64) (float64, error)

func (f storeFunc) Add(ctx context.Context, host string, tokens, size float64) (float64, error) {
	return f(ctx, host, tokens, size)
}

// fixedStore always returns the same level.
func fixedStore(level float64) storeFunc {
	return func(context.Context, string, float64, float64) (float64, error) { return level, nil }
}

func hangingStore(ctx context.Context, _ string, _, _ float64) (float64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

func newTestFleet(t *testing.T, store FleetStore) *Fleet {
	t.Helper()
	f := NewFleet(store)
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	return f
}

func alwaysAnswers(status int) roundTripperFunc {
	return func(r *http.Request) (*http.Response, error) { return answer(r, status), nil }
}

// gathered returns the counters of m, one per line, without help texts.
func gathered(t *testing.T, m *Metrics) string {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	require.NoError(t, err)
	var b strings.Builder
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, pair := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", pair.GetName(), pair.GetValue()))
			}
			if m.GetCounter() != nil {
				fmt.Fprintf(&b, "%s{%s} %v\n", family.GetName(), strings.Join(labels, ","), m.GetCounter().GetValue())
			}
		}
	}
	return b.String()
}

var steady = Policy{Backoff: Backoff{Base: 100 * time.Millisecond, Cap: 100 * time.Millisecond, Jitter: NoJitter}}

func TestFleet_ForbidsAndGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet, attempts := newTestFleet(t, fixedStore(0)), 0
		metrics := NewMetrics()
		var reasons []Reason
		tr := &Transport{Fleet: fleet, Policy: steady, Metrics: metrics, Trace: &Trace{GiveUp: func(e Event) { reasons = append(reasons, e.Reason) }},
			Base: roundTripperFunc(func(r *http.Request) (*http.Response, error) {
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
		assert.Equal(t, []Reason{ReasonFleetBudget}, reasons)
		state, err := tr.HostState("a.example:80")
		require.NoError(t, err)
		assert.Equal(t, state.Size, state.Tokens, "the retry's tokens are back")
		assert.Contains(t, gathered(t, metrics), `retrip_fleet_checks_total{policy="default",result="forbidden"} 1`)
		assert.Contains(t, gathered(t, metrics), `retrip_give_ups_total{policy="default",reason="fleet_budget"} 1`)
	})
}

func TestFleet_HostState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &Transport{Fleet: newTestFleet(t, fixedStore(123)), Policy: steady, Base: alwaysAnswers(503)}
		_, err := get(t, tr, "http://a.example/")
		require.NoError(t, err)
		state := must(tr.HostState("a.example:80"))
		assert.Equal(t, 123.0, state.FleetTokens)
		assert.Equal(t, 500.0, state.FleetSize)
		assert.Contains(t, state.String(), "123 of 500 of the fleet's")
		data := must(state.MarshalJSON())
		assert.Contains(t, string(data), `"fleet_tokens":123,"fleet_size":500`)
		var back HostState
		require.NoError(t, back.UnmarshalJSON(data))
		assert.Equal(t, state, back)
		time.Sleep(account.Age + 1)
		assert.Zero(t, must(tr.HostState("a.example:80")).FleetSize, "an older level isn't known")
	})
}

// A fleet of clients with budgets of their own, each of which would go on
// alone.
func TestFleet_SharedByTransports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet := NewFleet(nil)
		var attempts int
		down := true
		base := roundTripperFunc(func(r *http.Request) (*http.Response, error) {
			attempts++
			if down {
				return answer(r, 503), nil
			}
			return answer(r, 200), nil
		})
		clients := make([]*Transport, 1000)
		for i := range clients {
			clients[i] = &Transport{Fleet: fleet, Policy: Policy{FleetBudget: 100}, Base: base}
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
		level, err := fleet.accounts.Store.Add(t.Context(), "a.example:80", 0, 100)
		require.NoError(t, err)
		assert.Equal(t, 100.0, level, "successes have filled the account")
		assert.NoError(t, fleet.Close())
		assert.NoError(t, fleet.Close())
	})
}

func TestFleet_OwnNetworkIsDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var spent float64
		fleet := newTestFleet(t, storeFunc(func(_ context.Context, _ string, tokens, size float64) (float64, error) {
			spent -= tokens
			return size, nil
		}))
		tr := &Transport{Fleet: fleet, Policy: Policy{Budget: Budget{Size: 1e6}, FleetBudget: 10},
			Base: roundTripperFunc(func(*http.Request) (*http.Response, error) { return nil, errors.New("no route to host") })}
		for range 100 {
			_, err := get(t, tr, "http://a.example/")
			require.Error(t, err)
			time.Sleep(time.Second)
		}
		require.NoError(t, fleet.Close())
		assert.Equal(t, 1.0, spent, "it costs the others one token, whatever its own budget")
	})
}

func TestFleet_FirstAttemptsNeverAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		operations, paid := 0, 0.0
		fleet := newTestFleet(t, storeFunc(func(_ context.Context, _ string, tokens, size float64) (float64, error) {
			operations++
			paid += tokens
			time.Sleep(time.Millisecond)
			return size, nil
		}))
		tr := &Transport{Fleet: fleet, Base: alwaysAnswers(200)}
		const n = 20_000
		for range n {
			began := time.Now()
			_, err := get(t, tr, "http://a.example/")
			require.NoError(t, err)
			require.Zero(t, time.Since(began))
			time.Sleep(2 * time.Millisecond)
		}
		require.NoError(t, fleet.Close())
		assert.InDelta(t, n/100, operations, 70, "five standard deviations")
		assert.InDelta(t, 0.2*n, paid, 0.07*n)
	})
}

func TestFleet_PolicyDecidesWhoTakesPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := map[string]float64{}
		fleet := newTestFleet(t, storeFunc(func(_ context.Context, host string, _, size float64) (float64, error) {
			asked[host] = size
			return 0, nil
		}))
		tr := &Transport{Fleet: fleet, Policy: steady, Base: alwaysAnswers(503), Hosts: map[string]Policy{
			"off.example":       {FleetBudget: Off},
			"small.example":     {FleetBudget: 50},
			"unlimited.example": {Budget: Unlimited},
			"once.example":      {MaxAttempts: 1},
		}}
		for _, host := range []string{"off", "small", "unlimited", "once", "plain"} {
			_, err := get(t, tr, "http://"+host+".example/")
			require.NoError(t, err)
		}
		assert.Equal(t, map[string]float64{"small.example:80": 50, "plain.example:80": 500}, asked)
		clear(asked)
		ctx := WithPolicy(t.Context(), Policy{FleetBudget: Off})
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://other.example/", nil)
		require.NoError(t, err)
		_, err = tr.RoundTrip(req)
		require.NoError(t, err)
		assert.Empty(t, asked)

		// The policies change while the Transport is in use.
		require.NoError(t, tr.SetPolicies(Policy{FleetBudget: Off}, nil))
		_, err = get(t, tr, "http://plain2.example/")
		require.NoError(t, err)
		assert.Empty(t, asked)
	})
}

func TestFleet_RefusalsAtAGateAreFree(t *testing.T) {
	for _, took := range []time.Duration{0, 2 * time.Second} { // the second comes too late
		synctest.Test(t, func(t *testing.T) {
			fleet := newTestFleet(t, storeFunc(func(context.Context, string, float64, float64) (float64, error) {
				t.Error("a 429 at a gate costs nothing, here either")
				return 0, nil
			}))
			n := 0
			tr := &Transport{Fleet: fleet, Policy: Policy{Gate: On, AttemptTimeout: time.Second}, Base: roundTripperFunc(func(r *http.Request) (*http.Response, error) {
				if n++; n < 3 {
					time.Sleep(took)
					return answer(r, 429, "Retry-After: 1"), nil
				}
				return answer(r, 200), nil
			})}
			resp, err := get(t, tr, "http://a.example/")
			require.NoError(t, err)
			assert.Equal(t, 200, resp.StatusCode)
		})
	}
}

func TestFleet_ConcurrentUse(t *testing.T) {
	for name, store := range map[string]FleetStore{"memory": nil, "store": fixedStore(100), "panics": storeFunc(func(context.Context, string, float64, float64) (float64, error) { panic(1) })} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fleet := NewFleet(store)
				var n atomic.Int64
				tr := &Transport{Fleet: fleet, Policy: Policy{Backoff: Backoff{Base: time.Millisecond, Cap: time.Millisecond}}, Metrics: NewMetrics(),
					Base: roundTripperFunc(func(r *http.Request) (*http.Response, error) {
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
								assert.NoError(t, tr.SetPolicies(Policy{FleetBudget: float64(j + 1)}, nil))
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
// and one request in a hundred also hands over an operation.
func BenchmarkFleet_Success(b *testing.B) {
	run := func(fleet *Fleet) func(*testing.B) {
		return func(b *testing.B) {
			tr := &Transport{Fleet: fleet, Base: &allocBase{statuses: []int{200}, body: http.NoBody}}
			req, err := http.NewRequest(http.MethodGet, "http://a.example/", nil)
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tr.RoundTrip(req); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	b.Run("without", run(nil))
	b.Run("memory", run(NewFleet(nil)))
	fleet := NewFleet(fixedStore(500))
	defer fleet.Close()
	b.Run("store", run(fleet))
}
