// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/testenv"
)

// When the table is full, it evicts only hosts that miss no tokens, the one
// idle longest first.
func TestHostTable_Evicts(t *testing.T) {
	var table host.Table
	r := defaultRules(t, Policy{})
	free := defaultRules(t, Policy{Budget: Unlimited, Breaker: Breaker{Ratio: 1}})
	keys := sameStripe(&table, host.PerStripe+3)
	now := time.Duration(0)
	for i, key := range keys[:host.PerStripe] {
		now++
		if i == 30 || i == 40 {
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
	for i, gone := range []int{30, 40} {
		failAt(&table, keys[host.PerStripe+i], r, refusal, now)
		assert.False(t, there(keys[gone]), "the host idle longest that misses no tokens")
		assert.True(t, there(keys[host.PerStripe+i]))
	}
	assert.True(t, failAt(&table, keys[40], r, refusal, now).Others, "there is no room for another host")
	for i, key := range keys[:host.PerStripe] {
		assert.Equal(t, i != 30 && i != 40, there(key), "%d", i)
	}
	assert.EqualValues(t, host.PerStripe, table.Entries.Load())

	// An entry that nobody has used for an hour goes at once.
	now += host.Idle + 1
	failAt(&table, keys[host.PerStripe+2], r, refusal, now)
	assert.EqualValues(t, 1, table.Entries.Load())
}

// Ten thousand names of one backend that is down: eviction gives no tokens
// back, however often each name is called.
func TestHostTable_ManyDeadNames(t *testing.T) {
	testenv.OneGoroutine(t)
	testenv.Slow(t)
	const names, rounds = 10_000, 50
	table := new(host.Table)
	r := defaultRules(t, Policy{})
	shared := r.forShared()
	attempts := func(key hostkey.Key, o Outcome, now time.Duration) (n int) {
		e := table.PinNew(key, now)
		defer func() { table.Unpin(e, now) }()
		rules := r
		if e.Others {
			rules = shared
		}
		e.Used.Store(int64(now))
		for call := (Call{Attempts: 1}); ; call.Attempts++ {
			if n++; !rules.next(&e.Record, &call, o, now, 0).Retry {
				return n
			}
		}
	}
	keys := make([]hostkey.Key, names)
	for i := range keys {
		keys[i] = hostkey.Key{Host: "tenant" + strconv.Itoa(i) + ".example", Port: "443"}
	}
	total, last := 0, 0
	for round := range rounds {
		last = 0
		for i, key := range keys {
			last += attempts(key, refusal, time.Duration(round)*time.Minute+time.Duration(i)*time.Millisecond)
		}
		total += last
	}
	t.Logf("%.4f attempts per request, %.4f in the last round, %d hosts remembered", float64(total)/(names*rounds), float64(last)/names, table.Entries.Load())
	assert.Equal(t, names, last)
	assert.LessOrEqual(t, total, names*rounds*105/100)
	assert.LessOrEqual(t, total-names*rounds, (host.PerStripe+1)*host.Stripes*5, "a budget for each place, and one for the others of each stripe")

	// A new host uses the shared entry, which has no tokens left until one of
	// its hosts succeeds.
	now := rounds * time.Minute
	fresh := hostkey.Key{Host: "fresh.example", Port: "443"}
	assert.Equal(t, 1, attempts(fresh, refusal, now))
	e := table.PinGood(fresh, now)
	require.True(t, e.Others)
	shared.next(&e.Record, &Call{Attempts: 1}, Outcome{Status: 200}, now, 0)
	assert.Equal(t, 4, attempts(fresh, refusal, now))
	assert.Equal(t, 2, attempts(fresh, refusal, now))
	assert.Equal(t, 1, attempts(fresh, refusal, now))

	// An hour without a failure frees all places.
	now += host.Idle + time.Second
	assert.Equal(t, 4, attempts(fresh, refusal, now))
	assert.Nil(t, table.Pin(keys[0], now))
}

// inTrouble returns the hosts in trouble.
func inTrouble(t *host.Table, now time.Duration) []*host.Entry {
	list, _ := t.All(now)
	return list
}

// A host with a running pause, an open breaker or requests in flight is never
// evicted. New hosts then share one entry, which has only a budget.
func TestHostTable_Overflow(t *testing.T) {
	paused := refusal
	paused.RetryAfter = 30 * time.Second
	plain := defaultRules(t, Policy{})
	tests := []struct {
		name string
		fill func(*host.Table, hostkey.Key)
	}{
		{"pauses", func(table *host.Table, key hostkey.Key) { failAt(table, key, plain, paused, 0) }},
		{"open breakers", func(table *host.Table, key hostkey.Key) {
			failAt(table, key, defaultRules(t, Policy{Breaker: Breaker{Ratio: 1, MinVolume: 1}}), refusal, 0)
		}},
		{"queues at gates", func(table *host.Table, key hostkey.Key) {
			r := defaultRules(t, Policy{Gate: On})
			e := failAt(table, key, r, paused, 0)
			r.first(&e.Record, &Call{}, 0, 0)
			e.Paused.Store(0)
		}},
		{"in use", func(table *host.Table, key hostkey.Key) { table.PinNew(key, 0) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var table host.Table
			keys := sameStripe(&table, host.PerStripe+2)
			for _, key := range keys[:host.PerStripe] {
				tt.fill(&table, key)
			}
			one := failAt(&table, keys[host.PerStripe], plain, refusal, 0)
			assert.True(t, one.Others)
			assert.Same(t, one, failAt(&table, keys[host.PerStripe+1], plain, refusal, 0))
			assert.EqualValues(t, 2*budget.RetryCost, one.Debt.Missing(), "a budget shared")
			assert.EqualValues(t, host.PerStripe, table.Entries.Load())
		})
	}
}

// Hosts without a place get their tokens back by successes, like other hosts.
func TestHostTable_OverflowRefills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := http.StatusServiceUnavailable
		tr := &Transport{Base: testenv.RoundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Body: http.NoBody}, nil
		})}
		get := func(key hostkey.Key) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+key.Host, nil)
			require.NoError(t, err)
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		keys := sameStripe(&tr.hosts, host.PerStripe+2)
		for _, key := range keys[:host.PerStripe] {
			tr.hosts.PinNew(key, 0)
		}
		dead, alive := keys[host.PerStripe], keys[host.PerStripe+1]
		get(dead)
		get(dead)
		others := tr.hosts.Stripe(dead).Others.Load()
		require.EqualValues(t, 4*budget.RetryCost, others.Debt.Missing())
		states := tr.HostStates()
		assert.Equal(t, HostState{Host: "others", Policy: "default", Tokens: 3, Size: 5, FailedRetries: 4, Breaker: "closed"}, states[len(states)-1])
		assert.Equal(t, 4, must(tr.HostState(dead.String())).FailedRetries)

		status = http.StatusOK
		get(dead)
		assert.EqualValues(t, 1.8*budget.Token, others.Debt.Missing())
		for range 9 {
			get(alive)
		}
		assert.Zero(t, others.Debt.Missing(), "they share it")
		get(alive)
		assert.Nil(t, tr.hosts.PinGood(alive, 0))
	})
}

// A crawler calls very many dead hosts.
func TestHostTable_Bounded(t *testing.T) {
	testenv.Slow(t)
	n := testenv.Size(100_000, 1_000_000)
	if testenv.Race {
		n /= 5
	}
	table := new(host.Table)
	r := defaultRules(t, Policy{Breaker: Breaker{Ratio: 1}})
	before := testenv.Heap()
	var wg sync.WaitGroup
	for g := range 2 {
		wg.Go(func() {
			for i := g; i < n; i += 2 {
				failAt(table, hostkey.Key{Host: "host" + strconv.Itoa(i) + ".example", Port: "443"}, r, refusal, time.Duration(i)*time.Millisecond)
			}
		})
	}
	wg.Wait()
	grown := testenv.Heap() - before
	t.Logf("%d hosts: %d entries, %.1f MiB", n, table.Entries.Load(), float64(grown)/(1<<20))
	assert.LessOrEqual(t, table.Entries.Load(), int64(host.Stripes*host.PerStripe))
	assert.Less(t, grown, int64(4<<20))
	runtime.KeepAlive(table)
}
