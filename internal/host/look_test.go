// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// underWay is a request to a host, which may take hours.
type underWay struct {
	key  hostkey.Key
	e    *host.Entry // pinned; nil while the host is in no trouble
	call decide.Call
}

// user makes requests to the hosts of a table.
type user struct {
	table host.Table
	rules play.Judge
	open  []*underWay
}

func (u *user) rulesAt(e *host.Entry) play.Judge {
	if e.Others {
		return u.rules.ForOthers()
	}
	return u.rules
}

// begin begins a request with a given key of a gate.
func (u *user) begin(key hostkey.Key, gate string, now time.Duration, draw uint64) play.Decision {
	c := &underWay{key: key, e: u.table.Pin(key, now)}
	c.call.GateKey = gate
	u.open = append(u.open, c)
	if c.e == nil {
		return play.Decision{Retry: true}
	}
	return u.rulesAt(c.e).First(&c.e.Record, &c.call, now, draw)
}

// end ends the attempt of a request in o, and the request if last is set.
func (u *user) end(i int, o decide.Outcome, last bool, now time.Duration, draw uint64) play.Decision {
	c := u.open[i]
	failed := u.rules.Retryable(&o)
	if c.e == nil && failed {
		c.e = u.table.PinNew(c.key, now)
	} else if c.e == nil {
		c.e = u.table.PinGood(c.key, now)
	}
	if c.e == nil {
		u.open = append(u.open[:i], u.open[i+1:]...)
		return play.Decision{}
	}
	if failed {
		c.e.FailsAt(now, host.Failure{})
	}
	c.call.Attempts = max(1, c.call.Attempts)
	d := u.rulesAt(c.e).Next(&c.e.Record, &c.call, o, now, draw)
	if c.call.Attempts++; last || !d.Retry {
		u.rulesAt(c.e).Return(&c.e.Record, &c.call)
		u.table.Unpin(c.e, now)
		u.open = append(u.open[:i], u.open[i+1:]...)
	}
	d.Wakes = false // the calls that would be woken are functions of nothing
	return d
}

// look does what an operator's tools do.
func (u *user) look(keys []hostkey.Key, now time.Duration) {
	list, others := u.table.All(now)
	for _, e := range append(list, others...) {
		u.rules.State(&e.Record, now)
	}
	for _, key := range keys {
		if e := u.table.Find(key, now); e != nil {
			u.rules.State(&e.Record, now)
		}
	}
}

// Two tables serve the same requests at the same instants, and one of them is
// looked at meanwhile. All decisions are the same.
//
//retrip:promise P15
func TestTable_LookingChangesNothing(t *testing.T) {
	testenv.OneGoroutine(t)
	for name, p := range map[string]retrip.Policy{
		"budget":  {},
		"breaker": {Breaker: retrip.Breaker{Ratio: 0.5, MinVolume: 3, Window: time.Minute, OpenFor: time.Minute}, Budget: retrip.Off},
		"gate":    {Gate: retrip.Gate{Enabled: retrip.On}, MaxWait: 48 * time.Hour},
		"all":     {Gate: retrip.Gate{Enabled: retrip.On}, MaxWait: time.Hour, Breaker: retrip.Breaker{MinVolume: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(testenv.Size(2, 100)) {
				r := rand.New(rand.NewPCG(seed, 12))
				rules := play.Rules(t, p)
				users := [2]*user{{rules: rules}, {rules: rules}}
				keys := sameStripe(host.PerStripe + 6)
				if seed%2 == 0 {
					keys = keys[:4]
				}
				now := time.Duration(0)
				if rules.Gated {
					for i := range host.MostKeys - 3 {
						for _, u := range users {
							o := refusal
							o.RetryAfter = time.Duration(i+1) * time.Second
							u.begin(keys[0], fmt.Sprint("tenant ", i), now, 0)
							u.end(0, o, true, now, 0)
						}
					}
				}
				for step := range 1000 {
					now += []time.Duration{0, time.Millisecond, time.Second, time.Minute, 10 * time.Minute, time.Hour + 1}[min(r.IntN(6), r.IntN(6))]
					var d [2]play.Decision
					draw, pick := r.Uint64(), r.Uint64()
					key, gate := keys[r.IntN(len(keys))], fmt.Sprint("key ", r.IntN(6))
					o := decide.Outcome{Status: []int{503, 429, 200, 0}[r.IntN(4)], Timeout: true, Repeatable: true, Replay: true}
					if o.Status >= 400 && r.IntN(2) == 0 {
						o.RetryAfter = []time.Duration{time.Second, time.Minute, 24 * time.Hour}[min(r.IntN(3), r.IntN(3))]
					}
					starts, last := r.IntN(2) == 0, r.IntN(4) > 0
					for i, u := range users {
						if starts && len(u.open) < 20 || len(u.open) == 0 {
							d[i] = u.begin(key, gate, now, draw)
						} else {
							d[i] = u.end(int(pick%uint64(len(u.open))), o, last, now, draw)
						}
					}
					require.Equal(t, d[0], d[1], "seed %d, step %d, at %v", seed, step, now)
					if r.IntN(2) == 0 {
						users[1].look(keys, now)
					}
				}
				for _, key := range keys {
					one, two := users[0].table.Find(key, now), users[1].table.Find(key, now)
					require.Equal(t, one != nil, two != nil, key)
					if one != nil {
						require.Equal(t, rules.State(&one.Record, now), rules.State(&two.Record, now))
						require.Equal(t, one.Used, two.Used, "the instant of the last failure")
					}
				}
			}
		})
	}
}

// The gates of keys at a host that nobody calls any more leave their places to
// those of other hosts.
//
//retrip:promise P15
func TestGates_OfAbandonedHosts(t *testing.T) {
	u := &user{rules: play.Rules(t, retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, Budget: retrip.Off, MaxWait: time.Hour})}
	host1, host2 := hostkey.Key{Host: "one.example", Port: "443"}, hostkey.Key{Host: "two.example", Port: "443"}
	refuse := func(key hostkey.Key, tenant int, word, now time.Duration) {
		o := refusal
		o.Status, o.RetryAfter = 429, word
		u.begin(key, fmt.Sprint("tenant ", tenant), now, 0)
		u.end(0, o, true, now, 0)
	}
	waits := func(key hostkey.Key, tenant int, now time.Duration) bool {
		d := u.begin(key, fmt.Sprint("tenant ", tenant), now, 0)
		u.end(0, decide.Outcome{Canceled: true}, true, now, 0)
		return d.Wait > 0
	}
	for i := range host.MostKeys {
		refuse(host1, i, time.Second, 0)
	}
	refuse(host2, 1, time.Hour, time.Second)
	assert.True(t, waits(host2, 2, time.Second), "all places are taken: the keys share a gate")

	now := 10 * time.Minute
	u.table.All(now)
	u.table.Find(host1, now)
	assert.EqualValues(t, host.MostKeys, u.table.Keyed(), "looking drops no gate")
	assert.False(t, waits(host2, 2, now), "there is a place for it now")
	refuse(host2, 3, time.Second, now)
	assert.True(t, waits(host2, 3, now))
	assert.False(t, waits(host2, 4, now), "a key that the host has not refused")
	for i := range 100 {
		refuse(host2, 1000+i, time.Second, now)
	}
	assert.False(t, waits(host2, 4, now))
	assert.False(t, waits(host1, 0, now), "its gate would have been forgotten")
}

// However an entry leaves the table, its gates of keys are counted off once, even if a
// request that has just unpinned it looks for idle gates at that instant.
//
//retrip:promise P15
func TestGates_CountedOnce(t *testing.T) {
	for name, leave := range map[string]func(u *user, keys []hostkey.Key) time.Duration{
		"an hour without a failure": func(u *user, keys []hostkey.Key) time.Duration {
			now := host.Idle + time.Minute
			require.Nil(t, u.table.Pin(keys[0], now))
			return now
		},
		"evicted": func(u *user, keys []hostkey.Key) time.Duration {
			for _, key := range keys[1:] {
				failAt(&u.table, key, play.Rules(t, retrip.Policy{}), refusal, 20*time.Second)
			}
			return 20 * time.Second
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := &user{rules: play.Rules(t, retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, Budget: retrip.Off})}
			keys := sameStripe(host.PerStripe + 1)
			o := refusal
			o.RetryAfter = time.Second
			for i := range 100 {
				u.begin(keys[0], fmt.Sprint("tenant ", i), 0, 0)
				u.end(0, o, true, 0, 0)
			}
			require.EqualValues(t, 100, u.table.Keyed())
			e := u.table.Pin(keys[0], 0)
			u.table.Unpin(e, 0)
			now := leave(u, keys)
			require.Zero(t, u.table.Keyed())
			e.Healed(now + time.Hour)
			assert.Zero(t, u.table.Keyed())
		})
	}
}

// An hour without a failure gives the tokens back, even while a gate holds the
// host's requests back for a day and a request is there all the time.
//
//retrip:promise P15
func TestTable_ForgivesInAPause(t *testing.T) {
	for name, inUse := range map[string]bool{"nobody there": false, "a request waits": true} {
		t.Run(name, func(t *testing.T) {
			var table host.Table
			r := play.Rules(t, retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, MaxWait: 48 * time.Hour})
			key := hostkey.Key{Host: "example.com", Port: "443"}
			for range 3 {
				e := failAt(&table, key, r, refusal, 0)
				require.False(t, e.Others)
			}
			day := refusal
			day.RetryAfter = 24 * time.Hour
			e := failAt(&table, key, r, day, 0)
			missing := e.Debt.Missing
			require.Positive(t, missing)
			if inUse {
				e = table.PinNew(key, 0)
			}
			assert.Equal(t, 24*time.Hour-host.Idle, table.Find(key, host.Idle).PausedFor(host.Idle))
			assert.Equal(t, missing, table.Find(key, host.Idle).Missing(host.Idle))
			assert.Zero(t, table.Find(key, host.Idle+1).Missing(host.Idle+1))
			assert.Positive(t, table.Find(key, host.Idle+1).PausedFor(host.Idle+1), "the pause goes on")
			// What a request finds that begins then, or that has waited until then.
			if !inUse {
				e = table.PinNew(key, 24*time.Hour)
			}
			e.FailsAt(24*time.Hour, host.Failure{})
			assert.Zero(t, e.Debt.Missing)
			assert.EqualValues(t, 24*time.Hour, e.Used)
		})
	}
}
