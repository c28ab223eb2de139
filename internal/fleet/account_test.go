// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"net/http"
	"runtime"
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
	"github.com/retrip/retrip/internal/fleet"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

func TestFleet_HostState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &retrip.Transport{Fleet: opened(t, fixedStore(123)), Policy: steady, Base: always(play.Reply(503))}
		get(t, tr, "a")
		state := play.Must(tr.HostState("a.example:80"))
		assert.Equal(t, 123.0, state.FleetTokens)
		assert.Equal(t, 175.0, state.FleetSize)
		assert.Contains(t, string(play.Must(state.MarshalJSON())), `"fleet_tokens":123,"fleet_size":175`)
		time.Sleep(account.Age + 1)
		assert.Zero(t, play.Must(tr.HostState("a.example:80")).FleetSize, "an older level isn't known")
	})
}

// In a long outage no process charges the account, because retries are
// forbidden. If the account expired then, it would be full.
//
//retrip:promise P22
func TestFleet_LongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, base := retrip.NewFleet(nil), play.Base(play.Reply(503))
		const clients = 200
		minute := func() (retries int) {
			before := base.Attempts()
			for range clients { // each is a process with a full budget
				get(t, &retrip.Transport{Fleet: f, Policy: retrip.Policy{FleetBudget: 50}, Base: base}, "a")
				time.Sleep(time.Minute / clients)
			}
			return base.Attempts() - before - clients
		}
		assert.Greater(t, minute(), 50)
		for range 10 {
			assert.Less(t, minute(), 10, "retries")
		}
	})
}

// A 429 at a gate costs nothing, here either, even if it comes too late.
func TestFleet_RefusalsAtAGateAreFree(t *testing.T) {
	for _, took := range []time.Duration{0, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var l ledger
			refuse := func(r *http.Request) (*http.Response, error) {
				time.Sleep(took)
				return play.Reply(429, "Retry-After: 1")(r)
			}
			tr := &retrip.Transport{Fleet: opened(t, l.add), Policy: retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, AttemptTimeout: time.Second},
				Base: play.Base(refuse, refuse, play.Reply(200))}
			assert.Equal(t, 200, get(t, tr, "a").StatusCode)
			assert.Empty(t, l.accounts())
		})
	}
}

//retrip:promise P22
func TestFleet_ConcurrentUse(t *testing.T) {
	for name, store := range map[string]fleet.StoreFunc{"memory": nil, "store": fixedStore(100), "panics": fleet.BrokenStores["panics"]} {
		testenv.Bubble(t, name, func(t *testing.T) {
			f := opened(t, store)
			var n atomic.Int64
			tr := &retrip.Transport{Fleet: f, Policy: retrip.Policy{Backoff: retrip.Backoff{Base: time.Millisecond, Cap: time.Millisecond}}, Metrics: &retrip.Metrics{},
				Base: always(func(r *http.Request) (*http.Response, error) { return play.Reply([]int{503, 200}[n.Add(1)%2])(r) })}
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					for j := range 100 {
						if i == 0 && j == 50 {
							assert.NoError(t, f.Close())
						}
						if i == 1 && j%25 == 0 {
							assert.NoError(t, tr.SetPolicies(retrip.Policy{FleetBudget: float64(j + 1)}, nil))
							tr.HostStates()
						}
						testenv.Drop(t, tr, requestTo(t, j%5))
					}
				})
			}
			wg.Wait()
		})
	}
}

//retrip:promise P22
func TestFleet_PolicyDecidesWhoTakesPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		tr := &retrip.Transport{Fleet: opened(t, l.add), Policy: steady, Base: play.Base(play.Reply(503)), Hosts: map[string]retrip.Policy{
			"off.example":       {FleetBudget: retrip.Off},
			"small.example":     {FleetBudget: 50},
			"unlimited.example": {Budget: retrip.Off},
			"once.example":      {MaxAttempts: 1},
		}}
		for _, host := range []string{"off", "small", "unlimited", "once", "plain"} {
			get(t, tr, host)
		}
		time.Sleep(time.Second)
		assert.Equal(t, map[string]float64{"small.example:80": 50, "plain.example:80": 175}, l.accounts())
		for _, p := range []retrip.Policy{{FleetBudget: retrip.Off}, {Budget: retrip.Off}} {
			testenv.Drop(t, tr, requestTo(t, "other").WithContext(retrip.WithPolicy(t.Context(), p)))
			assert.Empty(t, l.accounts())
		}

		// The policies change while the Transport is in use.
		require.NoError(t, tr.SetPolicies(retrip.Policy{FleetBudget: retrip.Off}, nil))
		get(t, tr, "plain2")
		assert.Empty(t, l.accounts())
	})
}

//retrip:promise P22
func TestFleet_FirstAttemptsNeverAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{took: time.Millisecond}
		f := opened(t, l.add)
		tr := &retrip.Transport{Fleet: f, Base: always(play.Reply(200))}
		const n = 10_000
		for range n {
			began := time.Now()
			get(t, tr, "a")
			require.Zero(t, time.Since(began))
			time.Sleep(2 * time.Millisecond)
		}
		require.NoError(t, f.Close())
		asks, adds, spent := l.noted()
		assert.Zero(t, asks)
		assert.InDelta(t, n/25, adds, 100, "five standard deviations")
		assert.InDelta(t, 0.2*n, -spent, 0.1*n)
	})
}

// A host has exactly one account, whose name is bounded and the same for all
// spellings of the host. So have what the Transport knows, and its policies.
//
//retrip:promise P22
func TestFleet_HostNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		f, base := opened(t, l.add), play.Base(play.Reply(503))
		for pattern, spellings := range map[string][]string{
			"a.example": {"a.example", "A.Example", "a.example:80", "u:p@a.example"},
			"[::1]":     {"[::1]", "[0:0:0:0:0:0:0:1]", "[::0001]:80", "[0::1]:080"},
		} {
			tr := &retrip.Transport{Fleet: f, Policy: steady, Base: base, Hosts: map[string]retrip.Policy{pattern: {}}}
			for _, host := range spellings {
				testenv.Drop(t, tr, play.MustRequest(t, http.MethodGet, "http://"+host+"/x", nil))
				time.Sleep(2 * time.Second)
				states := tr.HostStates()
				require.Len(t, states, 1, host)
				assert.Equal(t, pattern, states[0].Policy, host)
			}
			assert.Equal(t, map[string]float64{pattern + ":80": 175}, l.accounts())
		}
		tr := &retrip.Transport{Fleet: f, Policy: steady, Base: base}
		for _, host := range []string{strings.Repeat("x", 10_000), "a\r\nFLUSHALL\r\n", "{x}*?[", "a:b:c"} {
			req := requestTo(t, "a")
			req.URL.Host = host
			_ = testenv.Try(tr, req)
		}
		for host := range l.accounts() {
			assert.LessOrEqual(t, len(host), len(":65535")+255)
		}
	})
}

// A host's name is part of the string of its URL. Whoever chooses URLs must not
// be able to make the program keep them all: a query may be long.
//
//retrip:promise P22
func TestFleet_KeepsNoURLs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hosts, query = 20, 1 << 20
		tr := &retrip.Transport{Fleet: retrip.NewFleet(nil), Policy: play.AtOnce, Base: always(play.Reply(503))}
		before := testenv.Heap()
		for i := range hosts {
			url := fmt.Sprintf([]string{
				"http://%[1]d.example:8080/?%[2]s", "http://%[1]d.example:8080/%[2]s", "http://%[1]d.example:8080/#%[2]s", "http://%[2]s@%[1]d.example:8080/",
			}[i%4], i, strings.Repeat("x", query))
			testenv.Drop(t, tr, play.MustRequest(t, http.MethodGet, url, nil))
		}
		assert.Less(t, testenv.Heap()-before, int64(hosts*query/10), "bytes kept for %d hosts", hosts)
		states := tr.HostStates()
		assert.Len(t, states, hosts)
		for _, state := range states {
			assert.Equal(t, 175.0, state.FleetSize, "the Fleet knows %s", state.Host)
		}
		runtime.KeepAlive(tr)
	})
}
