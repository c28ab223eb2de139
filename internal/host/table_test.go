// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

var refusal = decide.Outcome{Status: 503, Repeatable: true, Replay: true}

// failAt makes one attempt at key fail, with everything that follows from it.
func failAt(t *host.Table, key hostkey.Key, r play.Judge, o decide.Outcome, now time.Duration) *host.Entry {
	e := t.PinNew(key, now)
	e.FailsAt(now, host.Failure{})
	r.Next(&e.Record, &decide.Call{Attempts: 1}, o, now, 0)
	t.Unpin(e, now)
	return e
}

func succeedAt(t *host.Table, key hostkey.Key, r play.Judge, now time.Duration) {
	if e := t.Pin(key, now); e != nil {
		r.Next(&e.Record, &decide.Call{Attempts: 1}, decide.Outcome{Status: 200}, now, 0)
		t.Unpin(e, now)
	}
}

// inTrouble returns the hosts in trouble.
func inTrouble(t *host.Table, now time.Duration) []*host.Entry {
	list, _ := t.All(now)
	return list
}

// sameStripe returns n hosts of the same stripe.
func sameStripe(n int) []hostkey.Key {
	first := hostkey.Key{Host: "host", Port: "443"}
	keys := []hostkey.Key{first}
	for i := 0; len(keys) < n; i++ {
		if k := (hostkey.Key{Host: "host" + strconv.Itoa(i), Port: "443"}); host.StripeOf(k) == host.StripeOf(first) {
			keys = append(keys, k)
		}
	}
	return keys
}

// An entry stays as long as it has any state.
//
//retrip:promise P15
func TestHostTable_Keeps(t *testing.T) {
	waits := func(status int, wait time.Duration) decide.Outcome {
		return decide.Outcome{Status: status, Repeatable: true, Replay: true, RetryAfter: wait}
	}
	for _, tt := range []struct {
		name    string
		policy  retrip.Policy
		outcome decide.Outcome
		until   time.Duration
	}{
		{"pause", retrip.Policy{Budget: retrip.Off}, waits(503, 10*time.Second), 10 * time.Second},
		{"failure that its breaker counts", retrip.Policy{Budget: retrip.Off, Breaker: retrip.Breaker{Ratio: 1}}, refusal, host.Idle + 1},
		{"gate", retrip.Policy{Budget: retrip.Off, Gate: retrip.Gate{Enabled: retrip.On}}, waits(429, 10*time.Second), 90*time.Second + 1},
		{"gate, a minute at least", retrip.Policy{Budget: retrip.Off, Gate: retrip.Gate{Enabled: retrip.On}}, waits(429, time.Second), 61*time.Second + 1},
		{"nothing", retrip.Policy{Budget: retrip.Off}, refusal, 0},
		{"tokens", retrip.Policy{}, refusal, host.Idle + 1},
		{"open breaker", retrip.Policy{Budget: retrip.Off, Breaker: retrip.Breaker{Ratio: 1, MinVolume: 1, OpenFor: 1 << 20}}, refusal, host.Idle + 2<<20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var table host.Table
			key := hostkey.Key{Host: "example.com", Port: "443"}
			failAt(&table, key, play.Rules(t, tt.policy), tt.outcome, 0)
			if tt.until > 0 {
				assert.Len(t, inTrouble(&table, tt.until-1<<20), 1)
			}
			assert.Empty(t, inTrouble(&table, tt.until))
			assert.Nil(t, table.Pin(key, tt.until))
			assert.Zero(t, table.Entries())
		})
	}
}

// The state of a host ends an hour after its last failure, whether or not
// anybody looks at it meanwhile.
//
//retrip:promise P15
func TestHostTable_ForgetsAtLookUp(t *testing.T) {
	r := play.Rules(t, retrip.Policy{})
	for _, scraped := range []bool{false, true} {
		var table host.Table
		key := hostkey.Key{Host: "dead.example", Port: "443"}
		retries := 0
		for i := range 10 {
			now := time.Duration(i) * 61 * time.Minute
			e := table.PinNew(key, now)
			e.Used = now
			for call := (decide.Call{Attempts: 1}); r.Next(&e.Record, &call, refusal, now, 0).Retry; call.Attempts++ {
				retries++
			}
			table.Unpin(e, now)
			if scraped {
				table.All(now + time.Hour/2)
				table.All(now + time.Hour + time.Second)
			}
		}
		assert.Equal(t, 30, retries, "scraped: %v", scraped)
	}

	// The same applies to hosts that are always in use, and to those without a
	// place.
	var table host.Table
	keys := sameStripe(host.PerStripe + 1)
	for _, key := range keys[:host.PerStripe] {
		table.PinNew(key, 0)
	}
	for _, key := range []hostkey.Key{keys[0], keys[host.PerStripe]} {
		failAt(&table, key, r, refusal, 0)
		assert.EqualValues(t, budget.RetryCost, table.PinNew(key, host.Idle).Debt.Missing)
		assert.Zero(t, table.PinNew(key, host.Idle+1).Debt.Missing)
		failAt(&table, key, r, refusal, host.Idle+2)
		assert.EqualValues(t, budget.RetryCost, table.PinNew(key, host.Idle+3).Debt.Missing, "once")
	}
}

// A host in trouble is never taken for a healthy one: not while others that
// share its stripe come and go, and not while someone looks at the
// table or replaces the policies.
//
//retrip:promise P13
func TestHostTable_NeverForgets(t *testing.T) {
	var table host.Table
	r := play.Rules(t, retrip.Policy{})
	keys := append(sameStripe(12), hostkey.Key{Host: "a.example", Port: "443"}, hostkey.Key{Host: "b.example", Port: "443"})
	done := make(chan struct{})
	var watching, working sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			for _, e := range inTrouble(&table, 0) {
				assert.NotZero(t, e.Key, "readers see whole entries")
			}
			table.Refit(func(*host.Entry) int64 { return r.Budget.Size })
		}
	})
	for _, key := range keys {
		working.Go(func() { // it alone decides about its host
			u := &url.URL{Scheme: "https", Host: key.Host}
			look := func(want bool, when string) bool {
				return assert.Equal(t, want, table.Calm(u, new(host.Position)), "%s %s", key, when)
			}
			for range testenv.Size(500, 5000) {
				failAt(&table, key, r, refusal, 0)
				if !look(false, "has failed") {
					return
				}
				succeedAt(&table, key, r, 0)
				if !look(false, "has not healed") {
					return
				}
				succeedAt(&table, key, r, 0)
				succeedAt(&table, key, r, 0)
				if !look(true, "has healed") {
					return
				}
			}
		})
	}
	working.Wait()
	close(done)
	watching.Wait()
	assert.Empty(t, inTrouble(&table, 0))
	assert.Zero(t, table.Entries())
}

// A success pays into the budget of a host that came into trouble while the
// request was under way, whatever happens to other hosts and to the policies
// meanwhile.
func TestHostTable_TroubleMeanwhile(t *testing.T) {
	tr := &retrip.Transport{Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}}}
	get := func(host, path string) {
		testenv.Drop(t, tr, play.MustRequest(t, http.MethodGet, "https://"+host+path, nil))
	}
	tr.Base = testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
		switch req.URL.Path {
		case "/fails":
			return play.Reply(503)(req)
		case "/nests":
			get(req.URL.Host, "/fails")
		}
		return play.Reply(200)(req)
	})
	done := make(chan struct{})
	var swapping, working sync.WaitGroup
	swapping.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			assert.NoError(t, tr.SetPolicies(tr.Policy, map[string]retrip.Policy{fmt.Sprintf("*.other%d.example", i%3): {}}))
		}
	})
	for g := range 6 {
		working.Go(func() {
			for i := range testenv.Size(50, 300) {
				host := fmt.Sprintf("host%d.%d.example", i, g)
				tokens := func() float64 { return play.Must(tr.HostState(host + ":443")).Tokens }
				get(host, "/nests")
				assert.InDelta(t, 4.7, tokens(), 1e-9, "a failed retry takes half a token, a success gives 0.2")
				get(host, "/")
				get(host, "/")
				assert.InDelta(t, 5, tokens(), 1e-9)
			}
		})
	}
	working.Wait()
	close(done)
	swapping.Wait()
}
