// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// When the table is full, it evicts only hosts that miss no tokens, the one
// idle longest first.
//
//retrip:promise P15
func TestHostTable_Evicts(t *testing.T) {
	var table host.Table
	r := play.Rules(t, retrip.Policy{})
	free := play.Rules(t, retrip.Policy{Budget: retrip.Off, Breaker: retrip.Breaker{Ratio: 1}})
	places := []int{30, 40, 41, 50, 60} // of hosts that miss no tokens
	keys := sameStripe(host.PerStripe + len(places) + 1)
	now := time.Duration(0)
	for i, key := range keys[:host.PerStripe] {
		now++
		if slices.Contains(places, i) {
			failAt(&table, key, free, refusal, now)
		} else {
			failAt(&table, key, r, refusal, now)
		}
	}
	there := func(key hostkey.Key) bool {
		e := table.Pin(key, now)
		if e == nil {
			return false
		}
		table.Unpin(e, now)
		return true
	}
	for i, gone := range places {
		failAt(&table, keys[host.PerStripe+i], r, refusal, now)
		assert.False(t, there(keys[gone]), "the host idle longest that misses no tokens")
		assert.True(t, there(keys[host.PerStripe+i]))
	}
	assert.True(t, failAt(&table, keys[40], r, refusal, now).Others, "there is no room for another host")
	for i, key := range keys[:host.PerStripe] {
		assert.Equal(t, !slices.Contains(places, i), there(key), "%d", i)
	}
	assert.EqualValues(t, host.PerStripe, table.Entries())

	// An entry that nobody has used for an hour goes at once.
	now += host.Idle + 1
	failAt(&table, keys[host.PerStripe+len(places)], r, refusal, now)
	assert.EqualValues(t, 1, table.Entries())
}

// Ten thousand names of one backend that is down: eviction gives no tokens
// back, however often each name is called.
//
//retrip:promise P15
func TestHostTable_ManyDeadNames(t *testing.T) {
	testenv.OneGoroutine(t)
	testenv.Slow(t)
	const names = 8000
	rounds := testenv.Size(6, 50)
	table := new(host.Table)
	r := play.Rules(t, retrip.Policy{})
	shared := r.ForOthers()
	attempts := func(key hostkey.Key, o decide.Outcome, now time.Duration) (n int) {
		e := table.PinNew(key, now)
		defer func() { table.Unpin(e, now) }()
		rules := r
		if e.Others {
			rules = shared
		}
		e.Used = now
		for call := (decide.Call{Attempts: 1}); ; call.Attempts++ {
			if n++; !rules.Next(&e.Record, &call, o, now, 0).Retry {
				return n
			}
		}
	}
	keys := make([]hostkey.Key, names)
	for i := range keys {
		keys[i] = hostkey.Key{Host: "tenant" + strconv.Itoa(i) + ".example", Port: "443"}
	}
	total, last, before := 0, 0, testenv.Heap()
	for round := range rounds {
		last = 0
		for i, key := range keys {
			last += attempts(key, refusal, time.Duration(round)*time.Minute+time.Duration(i)*time.Millisecond)
		}
		total += last
	}
	t.Logf("%.4f attempts per request, %.4f in the last round, %d hosts remembered", float64(total)/float64(names*rounds), float64(last)/names, table.Entries())
	assert.Less(t, testenv.Heap()-before, int64(4<<20))
	assert.LessOrEqual(t, table.Entries(), int64(host.Stripes*host.PerStripe))
	assert.Equal(t, names, last)
	assert.LessOrEqual(t, total-names*rounds, (host.PerStripe+1)*host.Stripes*7, "a budget for each place, and one for the others of each stripe")

	// A new host uses the shared entry, which has no tokens left until one of
	// its hosts succeeds.
	now := time.Duration(rounds) * time.Minute
	fresh := hostkey.Key{Host: "fresh.example", Port: "443"}
	assert.Equal(t, 1, attempts(fresh, refusal, now))
	e := table.PinGood(fresh, now)
	require.True(t, e.Others)
	shared.Next(&e.Record, &decide.Call{Attempts: 1}, decide.Outcome{Status: 200}, now, 0)
	assert.Equal(t, 4, attempts(fresh, refusal, now))
	assert.Equal(t, 4, attempts(fresh, refusal, now))
	assert.Equal(t, 1, attempts(fresh, refusal, now), "five requests have failed since a retry succeeded")

	// An hour without a failure frees all places.
	now += host.Idle + time.Second
	assert.Equal(t, 4, attempts(fresh, refusal, now))
	assert.Nil(t, table.Pin(keys[0], now))
}

// A host with a running pause, an open breaker or requests in flight is never
// evicted. New hosts then share one entry, which has only a budget.
//
//retrip:promise P15
func TestHostTable_Overflow(t *testing.T) {
	paused := decide.Outcome{Status: 503, Repeatable: true, Replay: true, RetryAfter: 30 * time.Second}
	plain := play.Rules(t, retrip.Policy{})
	for name, fill := range map[string]func(*host.Table, hostkey.Key){
		"pauses": func(table *host.Table, key hostkey.Key) { failAt(table, key, plain, paused, 0) },
		"open breakers": func(table *host.Table, key hostkey.Key) {
			failAt(table, key, play.Rules(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: 1, MinVolume: 1}}), refusal, 0)
		},
		"queues at gates": func(table *host.Table, key hostkey.Key) {
			r := play.Rules(t, retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}})
			e := failAt(table, key, r, paused, 0)
			r.First(&e.Record, &decide.Call{}, 0, 0)
			e.EndPause()
		},
		"in use": func(table *host.Table, key hostkey.Key) { table.PinNew(key, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			var table host.Table
			keys := sameStripe(host.PerStripe + 2)
			for _, key := range keys[:host.PerStripe] {
				fill(&table, key)
			}
			one := failAt(&table, keys[host.PerStripe], plain, refusal, 0)
			assert.True(t, one.Others)
			assert.Same(t, one, failAt(&table, keys[host.PerStripe+1], plain, refusal, 0))
			assert.EqualValues(t, 2*budget.RetryCost, one.Debt.Missing, "a budget shared")
			assert.EqualValues(t, host.PerStripe, table.Entries())
		})
	}
}

// A host that has no state of its own, because all places are taken, is known by its name
// while it fails.
//
//retrip:promise P15
func TestFailures_OfAHostWithoutAPlace(t *testing.T) {
	testenv.OneGoroutine(t)
	synctest.Test(t, func(t *testing.T) {
		tr := &retrip.Transport{Base: play.Base(play.Reply(503)), Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}}}
		fail := func(name string) { testenv.Drop(t, tr, play.MustRequest(t, http.MethodGet, "http://"+name+"/", nil)) }
		for n := range 8000 {
			fail(fmt.Sprintf("%d.example", n))
		}
		assert.LessOrEqual(t, len(tr.HostStates()), 2*4096+1)
		time.Sleep(6 * time.Minute)
		require.Len(t, tr.HostStates(), 4096+1, "all places are taken")
		for i := range 5 {
			name := fmt.Sprintf("victim%d.example", i)
			fail(name)
			fail(name)
			var mine []retrip.HostState
			for _, s := range tr.HostStates() {
				if s.Host == name+":80" {
					mine = append(mine, s)
				}
			}
			require.Len(t, mine, 1)
			assert.Equal(t, []any{false, 2, retrip.ReasonServerError, 503}, []any{mine[0].Held, mine[0].Failed, mine[0].LastFailure, mine[0].LastStatus})
		}
		require.Len(t, tr.HostStates(), 4096+1+5)
	})
}
