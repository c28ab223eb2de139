// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

func TestHostState_Healthy(t *testing.T) {
	var h host.Record
	assert.Equal(t, decide.State{Tokens: 5, Size: 5, Breaker: breaker.Closed}, play.Rules(t, retrip.Policy{}).State(&h, 0))
	assert.Equal(t, decide.State{Breaker: breaker.Closed}, play.Rules(t, retrip.Policy{Budget: retrip.Off}).State(&h, 0))
}

func TestHostState_InTrouble(t *testing.T) {
	var h host.Record
	r := play.Rules(t, retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, Breaker: retrip.Breaker{Ratio: 1, MinVolume: 2, OpenFor: 10 * time.Second}})
	require.True(t, play.Fail(&h, r, 0).Retry)
	o := play.Repeatable(429)
	o.RetryAfter = 20 * time.Second
	var call decide.Call
	r.First(&h, &call, 0, play.Lowest)
	call.Attempts = 1
	r.Next(&h, &call, o, 0, play.Lowest)
	r.First(&h, &decide.Call{}, 0, play.Lowest)

	s := r.State(&h, 0)
	assert.Equal(t, 4.5, s.Tokens)
	assert.Equal(t, 20*time.Second, s.PausedFor)
	assert.Equal(t, breaker.Open, s.Breaker)
	assert.GreaterOrEqual(t, s.OpenFor, 5*time.Second)
	assert.LessOrEqual(t, s.OpenFor, 15*time.Second)
	assert.Equal(t, 1, s.Waiting)

	off := *r.Rules
	off.Gated, off.Breaker = false, nil
	assert.Equal(t, decide.State{Tokens: 4.5, Size: 5, FailedRetries: s.FailedRetries, Waiting: 1}, off.State(&h, 0), "what is switched off holds nothing back")

	later := r.State(&h, 5*time.Second)
	assert.Equal(t, 15*time.Second, later.PausedFor)
	assert.Equal(t, s.OpenFor-5*time.Second, later.OpenFor)
	assert.Zero(t, r.State(&h, time.Minute).PausedFor)
	assert.Zero(t, r.State(&h, time.Minute).OpenFor, "it may be probed")
}

// Everything at once, from many goroutines, for the race detector. No token is
// lost.
//
//retrip:promise P13
func TestStep_Concurrently(t *testing.T) {
	var h host.Record
	r := play.Rules(t, retrip.Policy{
		MaxAttempts: 3,
		MaxWait:     time.Microsecond,
		Budget:      1000,
		Gate:        retrip.Gate{Enabled: retrip.On},
		Breaker:     retrip.Breaker{Ratio: 0.9, Window: time.Millisecond, MinVolume: 5, OpenFor: time.Millisecond},
	})
	start := time.Now()
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := range 500 {
				var call decide.Call
				draw := uint64(g*1000+i) * 0x9e3779b97f4a7c15
				d := r.First(&h, &call, time.Since(start), draw)
				for again := d.Retry; again; {
					call.Attempts++
					o := play.Repeatable([]int{200, 503, 429, 0, 404}[(g+i+call.Attempts)%5])
					o.RetryAfter = time.Duration(i%2) * time.Microsecond
					if again = r.Next(&h, &call, o, time.Since(start), draw).Retry; again {
						again = r.Wake(&h, &call, time.Since(start), draw).Retry
					}
				}
				r.Return(&h, &call)
				s := r.State(&h, time.Since(start))
				assert.LessOrEqual(t, s.Tokens, 1000.0)
				assert.GreaterOrEqual(t, s.Tokens, 0.0)
			}
		})
	}
	wg.Wait()
	// An hour later it is a host like any other.
	const later = time.Hour
	for range 5000 {
		var call decide.Call
		r.First(&h, &call, later, 0)
		call.Attempts = 1
		r.Next(&h, &call, play.Repeatable(200), later, 0)
	}
	s := r.State(&h, later)
	assert.Equal(t, 1000.0, s.Tokens)
	assert.Equal(t, breaker.Closed, s.Breaker)
	assert.Zero(t, s.PausedFor)
	assert.Zero(t, s.Waiting)
}

// No instant, wait or setting is so large that a decision is about another one.
//
//retrip:promise P9
func TestRules_Extremes(t *testing.T) {
	const most = math.MaxInt64
	pick := func(r *rand.Rand, list ...time.Duration) time.Duration { return list[r.IntN(len(list))] }
	lengths := []time.Duration{1, time.Millisecond, time.Second, time.Hour, 100 * 365 * 24 * time.Hour, most / 3, most / 2, most/2 + 1, most - time.Hour, most - 1, most}
	bad := map[string]int{}
	for seed := range uint64(testenv.Size(50_000, 200_000)) {
		r := rand.New(rand.NewPCG(seed, 5))
		length := func() time.Duration { return pick(r, lengths...) }
		p := retrip.Policy{MaxAttempts: []int{2, 5, math.MaxInt}[r.IntN(3)], MaxWait: length(), Budget: retrip.Off}
		p.Backoff = retrip.Backoff{Base: 1, Cap: length(), ThrottleBase: length(), Jitter: retrip.Jitter(1 + r.IntN(4))}
		if r.IntN(2) == 0 {
			p.Gate.Enabled = retrip.On
		}
		if r.IntN(2) == 0 {
			p.Breaker = retrip.Breaker{Ratio: 0.5, MinVolume: 1 + r.IntN(3), Window: length(), OpenFor: length()}
		}
		rules := play.Rules(t, p)
		var h host.Record
		now := pick(r, 0, 0, 1, time.Hour, most/2-1, most/2+1, most-time.Hour, -1, -time.Hour, -most/2+1)
		fail := func(format string, args ...any) {
			what := fmt.Sprintf(format, args...)
			if bad[what]++; bad[what] < 3 {
				t.Errorf("seed %d, at %d, %+v: %s", seed, now, p, what)
			}
		}
		paused := now
		for range 4 {
			call := &decide.Call{}
			if r.IntN(2) == 0 {
				call.Deadline = max(1, pick(r, now, now/2+length()/2, 1, most, most-1))
			}
			check := func(name string, d play.Decision) {
				switch {
				case d.Wait < 0:
					fail("%s waits for less than nothing", name)
				case d.Retry && d.Wait == 0 && rules.Gated && paused > now:
					fail("%s lets go in a pause", name)
				case d.Retry && d.Wait != 0 && call.Deadline != 0 && d.Wait < most && now+d.Wait > call.Deadline && now+d.Wait > now:
					fail("%s waits beyond the deadline", name)
				}
			}
			d := rules.First(&h, call, now, r.Uint64())
			check("First", d)
			if !d.Retry {
				continue
			}
			if d.Wait > 0 {
				rules.Return(&h, call)
				if d.Wait < most-max(0, now) {
					now += d.Wait
				}
				continue
			}
			o := decide.Outcome{Status: int(pick(r, 503, 429, 200, 0)), Repeatable: true, Replay: true, Took: pick(r, 0, 1, time.Second, most/8, most)}
			if r.IntN(2) == 0 && o.Status >= 429 {
				o.RetryAfter = length()
			}
			if call.Attempts = 1; r.IntN(8) == 0 {
				call.Attempts = math.MaxInt - 1
			}
			d = rules.Next(&h, call, o, now, r.Uint64())
			if o.RetryAfter > 0 && rules.Gated && d.Reason != decide.None {
				until := now + min(o.RetryAfter, 24*time.Hour)
				if until < now {
					until = most
				}
				paused = max(paused, until)
			}
			check("Next", d)
			if d.Retry && o.RetryAfter > 0 && d.Wait < min(o.RetryAfter, 24*time.Hour) && !d.AtGate {
				fail("Next returns before the server said")
			}
			if d.Retry && !d.AtGate {
				if d.Wait < most-max(0, now) {
					now += d.Wait
				}
				check("Wake", rules.Wake(&h, call, now, r.Uint64()))
			}
			rules.Return(&h, call)
		}
	}
}
