// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/account"
)

// The effects of a hostile store, on the Fleet's goroutines and on what it
// knows, end when the store has recovered.
func TestFleet_StoreIsWellAgain(t *testing.T) {
	for name, hostile := range map[string]storeFunc{
		"panics": func(context.Context, string, float64, float64) (float64, error) { panic("store") },
		"ends its goroutine": func(context.Context, string, float64, float64) (float64, error) {
			runtime.Goexit()
			return 0, nil
		},
		"nil pointer": func(context.Context, string, float64, float64) (float64, error) {
			*map[int]*int{}[0] = 1
			return 0, nil
		},
		"hangs":    hangingStore,
		"negative": fixedStore(-1),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sick atomic.Bool
				sick.Store(true)
				fleet := newTestFleet(t, storeFunc(func(ctx context.Context, host string, tokens, size float64) (float64, error) {
					if sick.Load() {
						return hostile(ctx, host, tokens, size)
					}
					return 0, nil
				}))
				tr := &Transport{Fleet: fleet, Policy: Policy{MaxAttempts: 2, Backoff: Backoff{Base: time.Millisecond, Cap: time.Millisecond}}, Base: alwaysAnswers(503)}
				requests := func(n int) (forbidden int) {
					for i := range n {
						host := fmt.Sprintf("%d.example", i)
						tr.Trace = &Trace{GiveUp: func(e Event) {
							if e.Reason == ReasonFleetBudget {
								forbidden++
							}
						}}
						began := time.Now()
						_, err := get(t, tr, "http://"+host+"/")
						require.NoError(t, err)
						require.LessOrEqual(t, time.Since(began), account.OpTimeout+time.Millisecond)
						time.Sleep(time.Second)
					}
					return forbidden
				}
				assert.Zero(t, requests(10*4*5), "the budgets alone")
				sick.Store(false)
				time.Sleep(20 * time.Second)
				assert.Equal(t, 20, requests(20), "the store is asked again")
			})
		})
	}
}

// An answer that arrives after Close has no effect, and nothing waits for it.
func TestFleet_StoreAnswersAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		fleet := NewFleet(storeFunc(func(context.Context, string, float64, float64) (float64, error) {
			<-release
			return 0, nil // forbids every retry
		}))
		attempts := 0
		tr := &Transport{Fleet: fleet, Policy: Policy{Backoff: Backoff{Base: Off}}, Base: roundTripperFunc(func(r *http.Request) (*http.Response, error) {
			attempts++
			return answer(r, 503), nil
		})}
		go func() {
			time.Sleep(10 * time.Millisecond)
			fleet.Close()
		}()
		began := time.Now()
		_, err := get(t, tr, "http://a.example/")
		require.NoError(t, err)
		assert.Equal(t, 4, attempts)
		assert.LessOrEqual(t, time.Since(began), account.OpTimeout)
		close(release)
		time.Sleep(2 * time.Second)
		attempts = 0
		_, err = get(t, tr, "http://b.example/")
		require.NoError(t, err)
		assert.Equal(t, 4, attempts, "it forbids nothing")
		assert.NoError(t, fleet.Close())
	})
}

// A store may itself make requests through a Transport of the same Fleet.
func TestFleet_StoreUsesItsFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &Transport{Policy: Policy{Backoff: Backoff{Base: time.Millisecond, Cap: time.Millisecond}}, Base: alwaysAnswers(503)}
		tr.Fleet = newTestFleet(t, storeFunc(func(ctx context.Context, host string, _, size float64) (float64, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://store.example/"+host, nil)
			if err != nil {
				return 0, err
			}
			resp, err := tr.RoundTrip(req)
			if err != nil {
				return 0, err
			}
			defer resp.Body.Close()
			return size, nil
		}))
		for i := range 20 {
			began := time.Now()
			_, err := get(t, tr, fmt.Sprintf("http://%d.example/", i))
			require.NoError(t, err)
			assert.LessOrEqual(t, time.Since(began), 3*(account.OpTimeout+time.Millisecond))
			time.Sleep(time.Second)
		}
	})
}

// A Fleet that NewFleet hasn't made, and a store that is a nil pointer.
func TestFleet_Zero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var none storeFunc
		for name, fleet := range map[string]*Fleet{"zero": {}, "nil store": newTestFleet(t, none)} {
			attempts := 0
			tr := &Transport{Fleet: fleet, Policy: steady, Base: roundTripperFunc(func(r *http.Request) (*http.Response, error) {
				attempts++
				return answer(r, 503), nil
			})}
			_, err := get(t, tr, "http://a.example/")
			require.NoError(t, err, name)
			assert.Equal(t, 4, attempts, name)
			for range 1000 {
				tr.payFleet(must(tr.Policy.Rules()), must(http.NewRequest(http.MethodGet, "http://a.example/", nil)).URL)
			}
			tr.HostStates()
			assert.NoError(t, fleet.Close(), name)
		}
	})
}

// A host has exactly one account, whose name is bounded and the same for all
// spellings of the host.
func TestFleet_HostNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := map[string]bool{}
		fleet := newTestFleet(t, storeFunc(func(_ context.Context, host string, _, size float64) (float64, error) {
			asked[host] = true
			return size, nil
		}))
		tr := &Transport{Fleet: fleet, Policy: steady, Base: alwaysAnswers(503)}
		for _, u := range []string{"http://a.example/", "http://A.Example/x", "http://a.example:80/", "http://u:p@a.example/"} {
			_, err := get(t, tr, u)
			require.NoError(t, err)
			time.Sleep(2 * time.Second)
		}
		assert.Equal(t, map[string]bool{"a.example:80": true}, asked)
		clear(asked)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://a.example/", nil)
		require.NoError(t, err)
		for _, host := range []string{strings.Repeat("x", 10_000), "a\r\nFLUSHALL\r\n", "{x}*?[", "a:b:c"} {
			req.URL.Host = host
			resp, err := tr.RoundTrip(req)
			if err == nil {
				resp.Body.Close()
			}
		}
		for host := range asked {
			assert.LessOrEqual(t, len(host), len(":65535")+255)
		}
	})
}

func TestFleet_HotSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reasons []Reason
		tr := &Transport{Fleet: NewFleet(nil), Policy: steady, Base: alwaysAnswers(503),
			Trace: &Trace{GiveUp: func(e Event) { reasons = append(reasons, e.Reason) }}}
		p := steady
		for i, size := range []float64{10, 1e6, 100, 500, Off, 20} {
			p.FleetBudget = size
			require.NoError(t, tr.SetPolicies(p, nil))
			_, err := get(t, tr, fmt.Sprintf("http://%d.example/", i))
			require.NoError(t, err)
			_, err = get(t, tr, "http://a.example/") // its budget is soon spent
			require.NoError(t, err)
		}
		for _, r := range reasons {
			assert.NotEqual(t, ReasonFleetBudget, r, "nobody has spent anything of the account but a token per host")
		}
	})
}

// In a long outage no process charges the account, because retries are
// forbidden. If the account expired then, it would be full.
func TestFleet_LongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet, attempts := NewFleet(nil), 0
		base := roundTripperFunc(func(r *http.Request) (*http.Response, error) {
			attempts++
			return answer(r, 503), nil
		})
		const clients = 200
		minute := func() int {
			attempts = 0
			for range clients { // each is a process with a full budget
				tr := &Transport{Fleet: fleet, Policy: Policy{FleetBudget: 50}, Base: base}
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

// nilError is an error whose methods panic.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

// An error of a store's own type becomes one short line in the log, and its
// code doesn't run in a request.
func TestFleet_StoreErrors(t *testing.T) {
	var none *nilError
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"long":   {errors.New(strings.Repeat("x\n\x1b[31m", 1<<20)), "x; "},
		"cut":    {errors.New(strings.Repeat("…", 1000)), "…"},
		"panics": {none, "panicked"},
		"panic":  {nil, "panicked"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fleet := newTestFleet(t, storeFunc(func(context.Context, string, float64, float64) (float64, error) {
					if test.err == nil {
						panic(none)
					}
					return 0, test.err
				}))
				var log strings.Builder
				tr := &Transport{Fleet: fleet, Policy: steady, Base: alwaysAnswers(503), Logger: slog.New(slog.NewTextHandler(&log, nil))}
				_, err := get(t, tr, "http://a.example/")
				require.NoError(t, err)
				assert.Contains(t, log.String(), "the fleet's store is away")
				assert.Contains(t, log.String(), test.want)
				assert.Less(t, log.Len(), 4*500)
				assert.NotContains(t, log.String(), "\x1b")
				assert.True(t, utf8.ValidString(log.String()))
			})
		})
	}
}
