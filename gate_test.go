// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"math"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

func gated(t testing.TB) *retrip.Rules {
	return rulesOf(t, retrip.Policy{MaxAttempts: 10, Gate: true})
}

// throttle has one request at h refused with a 429 that asks for word.
func throttle(h *retrip.Host, r *retrip.Rules, word, now time.Duration) retrip.Decision {
	o := repeatable(http.StatusTooManyRequests)
	o.RetryAfter = word
	return h.Next(r, &retrip.Call{Attempts: 1}, o, now, drawLowest)
}

// passes asks for a first attempt until it may be made, and returns the
// instant.
func passes(t testing.TB, h *retrip.Host, r *retrip.Rules, call *retrip.Call, now time.Duration) time.Duration {
	t.Helper()
	for {
		d := h.First(r, call, now, drawLowest)
		require.True(t, d.Retry, "%s", d.Reason)
		if d.Wait == 0 {
			return now
		}
		now += d.Wait
	}
}

func TestGateOpen(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	for range 1000 {
		assert.Equal(t, retrip.Decision{Retry: true}, h.First(r, &retrip.Call{}, 0, 0))
	}
	assert.Zero(t, h.State(r, 0).Waiting)
}

// A 429 holds back new requests too, one after another.
func TestGatePaces(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	require.Equal(t, 8*time.Second, h.State(r, 0).PausedFor)
	last := time.Duration(0)
	for i := range 20 {
		at := passes(t, &h, r, &retrip.Call{}, time.Second)
		assert.GreaterOrEqual(t, at, 8*time.Second, "never before the end of the pause")
		if i > 0 {
			assert.Equal(t, time.Second, at-last, "an eighth of the word apart")
		}
		last = at
	}
}

// Whoever came first goes first, and asks again when something may have
// changed.
func TestGateTickets(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	calls := make([]retrip.Call, 5)
	for i := range calls {
		d := h.First(r, &calls[i], 0, 0)
		require.Greater(t, d.Wait, time.Duration(0))
		require.LessOrEqual(t, d.Wait, 8*time.Second+time.Duration(i+2)*time.Second)
	}
	assert.Equal(t, 5, h.State(r, 0).Waiting)
	var order []time.Duration
	for i := range calls {
		order = append(order, passes(t, &h, r, &calls[i], 0))
	}
	assert.True(t, slices.IsSorted(order), "%v", order)
	assert.Zero(t, h.State(r, order[4]).Waiting)
}

// Time that nobody used isn't saved up for a burst.
func TestGateSavesNothing(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	const now = 60 * time.Second
	assert.Equal(t, now, passes(t, &h, r, &retrip.Call{}, now))
	// Places are kept to a millionth of the gap.
	assert.InDelta(t, now+time.Second, passes(t, &h, r, &retrip.Call{}, now), 1000)
	assert.InDelta(t, now+2*time.Second, passes(t, &h, r, &retrip.Call{}, now), 2000)
}

// Accepted answers shorten the gap, a refusal after it has been shortened
// lengthens it, and refusals of requests sent before say nothing new.
func TestGateAdapts(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	gap := func(now time.Duration) time.Duration {
		a := passes(t, &h, r, &retrip.Call{}, now)
		return passes(t, &h, r, &retrip.Call{}, a) - a
	}
	now := 20 * time.Second
	before := gap(now)
	assert.InDelta(t, time.Second, before, 1000)

	var last *retrip.Call
	for range 40 {
		call := &retrip.Call{}
		now = passes(t, &h, r, call, now)
		call.Attempts = 1
		h.Next(r, call, repeatable(200), now, 0)
		last = call
	}
	shrunk := gap(now)
	assert.Less(t, shrunk, before/2)

	refusal := repeatable(429)
	refusal.RetryAfter = 8 * time.Second
	now = passes(t, &h, r, last, now)
	var late retrip.Call
	now = passes(t, &h, r, &late, now)
	last.Attempts, late.Attempts = 1, 1
	h.Next(r, last, refusal, now, 0)
	now += 30 * time.Second
	grown := gap(now)
	assert.InDelta(t, 2*shrunk, grown, float64(shrunk)/10, "doubled at the first refusal")

	h.Next(r, &late, refusal, now, 0)
	now += 30 * time.Second
	assert.InDelta(t, grown, gap(now), float64(grown)/10, "it was sent before")

	var fresh retrip.Call
	now = passes(t, &h, r, &fresh, now)
	fresh.Attempts = 1
	h.Next(r, &fresh, refusal, now, 0)
	now += 30 * time.Second
	assert.InDelta(t, grown*3/2, gap(now), float64(grown)/10, "half as much again, once the limit is known")
}

// The gap stays between bounds, whatever is answered.
func TestGateBounds(t *testing.T) {
	t.Run("refusals", func(t *testing.T) {
		for _, word := range []time.Duration{time.Nanosecond, time.Second, time.Hour, 24 * time.Hour} {
			var h retrip.Host
			r := rulesOf(t, retrip.Policy{MaxAttempts: 10, MaxWait: 24 * time.Hour, Gate: true})
			now := time.Duration(0)
			refusal := repeatable(429)
			refusal.RetryAfter = word
			for range 50 {
				var call retrip.Call
				now = passes(t, &h, r, &call, now)
				call.Attempts = 1
				h.Next(r, &call, refusal, now, drawLowest)
			}
			a := passes(t, &h, r, &retrip.Call{}, now)
			b := passes(t, &h, r, &retrip.Call{}, a)
			assert.GreaterOrEqual(t, a-now, word)
			assert.Greater(t, b, a)
			assert.Equal(t, max(word, 10*time.Microsecond), b-a, "word %v", word)
		}
	})
	t.Run("successes", func(t *testing.T) {
		var h retrip.Host
		r := gated(t)
		throttle(&h, r, 100*time.Millisecond, 0)
		now := time.Duration(0)
		for range 30_000 {
			var call retrip.Call
			now = passes(t, &h, r, &call, now)
			call.Attempts = 1
			h.Next(r, &call, repeatable(200), now, 0)
		}
		a := passes(t, &h, r, &retrip.Call{}, now)
		b := passes(t, &h, r, &retrip.Call{}, a)
		assert.Equal(t, 10*time.Microsecond, b-a)
	})
}

func TestGateDeadline(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	d := h.First(r, &retrip.Call{Deadline: 7 * time.Second}, 0, 0)
	assert.Equal(t, retrip.Decision{Reason: retrip.ReasonHostPaused}, d)
	assert.True(t, h.First(r, &retrip.Call{Deadline: 20 * time.Second}, 0, 0).Retry)
	for range 30 {
		h.First(r, &retrip.Call{}, 0, 0)
	}
	d = h.First(r, &retrip.Call{Deadline: 20 * time.Second}, 0, 0)
	assert.Equal(t, retrip.ReasonHostPaused, d.Reason, "the queue is too long for it")
}

// Who can't wait for a place doesn't take one: else such callers would make
// the queue ever longer, and nobody would get through any more.
func TestGateOfTheImpatient(t *testing.T) {
	for name, leave := range map[string]bool{"deadline": false, "canceled": true} {
		t.Run(name, func(t *testing.T) {
			var h retrip.Host
			r := gated(t)
			throttle(&h, r, 8*time.Second, 0)
			const patience = 2 * time.Second
			type waiter struct {
				*retrip.Call
				until time.Duration
			}
			var waiting []waiter
			passed := 0
			for now := time.Duration(0); now < 20*time.Second; now += 10 * time.Millisecond {
				newcomer := waiter{&retrip.Call{}, now + patience}
				if !leave {
					newcomer.Deadline = newcomer.until
				}
				waiting = slices.DeleteFunc(append(waiting, newcomer), func(w waiter) bool {
					d := h.First(r, w.Call, now, 0)
					switch {
					case !d.Retry:
						return true
					case d.Wait == 0:
						passed++
						return true
					case now >= w.until:
						h.Return(r, w.Call)
						return true
					}
					return false
				})
				require.LessOrEqual(t, h.State(r, now).Waiting, 201)
			}
			assert.InDelta(t, 12, passed, 2, "one a second after the pause of 8 s")
		})
	}
}

// A retry whose place comes too late gives up, with its token.
func TestGateRetryDeadline(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	call := retrip.Call{Attempts: 1, Deadline: 5 * time.Second}
	d := h.Next(r, &call, repeatable(503), 0, 0)
	require.True(t, d.Retry)
	throttle(&h, r, 8*time.Second, 0)
	assert.Equal(t, retrip.Decision{Reason: retrip.ReasonHostPaused}, h.Wake(r, &call, d.Wait, 0))
	assert.Equal(t, 5.0, h.State(r, 0).Tokens)
}

// Requests that are refused take no places: however many come, the queue
// doesn't grow, and whoever can wait for the next place gets it.
func TestGateRefusedTakesNoPlace(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	for now := time.Duration(0); now < 8*time.Second; now += 100 * time.Millisecond {
		d := h.First(r, &retrip.Call{Deadline: now + time.Second}, now, drawLowest)
		if !d.Retry {
			require.Equal(t, retrip.ReasonHostPaused, d.Reason)
		}
	}
	assert.LessOrEqual(t, h.State(r, 8*time.Second).Waiting, 1)
	passed := 0
	for now := 8 * time.Second; now < 18*time.Second; now += 100 * time.Millisecond {
		call := retrip.Call{Deadline: now + 2*time.Second}
		if h.First(r, &call, now, drawLowest).Retry {
			passed++
		}
	}
	assert.InDelta(t, 11, passed, 1, "one in each second of ten, and one that waits")
}

// The gate minds a pause that requests without a gate have met.
func TestGateMindsPause(t *testing.T) {
	for name, used := range map[string]bool{"fresh host": false, "host that has had a gate": true} {
		t.Run(name, func(t *testing.T) {
			var h retrip.Host
			r := gated(t)
			now := time.Hour
			if used {
				throttle(&h, r, time.Second, 0)
			}
			pause(t, &h, 5*time.Second, now)
			d := h.First(r, &retrip.Call{}, now, 0)
			assert.Equal(t, retrip.Decision{Retry: true, Wait: 5 * time.Second}, d)
			d = h.First(r, &retrip.Call{Deadline: now + time.Second}, now, 0)
			assert.Equal(t, retrip.Decision{Reason: retrip.ReasonHostPaused}, d)
			assert.Zero(t, h.First(r, &retrip.Call{}, now+5*time.Second, 0).Wait)
		})
	}
}

// Also while the gate is pacing, whatever places it has given out.
func TestGateMindsLaterPause(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, time.Second, 0)
	var call retrip.Call
	h.First(r, &call, 0, 0)
	pause(t, &h, 5*time.Second, 2*time.Second)
	assert.Equal(t, 7*time.Second, passes(t, &h, r, &call, 2*time.Second))
}

// A place far behind is asked about again before its time, since the gap may
// have shrunk.
func TestGateLooksAgain(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	for range 99 {
		h.First(r, &retrip.Call{}, 0, 0)
	}
	d := h.First(r, &retrip.Call{}, 0, 0)
	assert.InDelta(t, 54*time.Second, d.Wait, float64(time.Second), "half of 108 s")
}

// Processes that were told the same don't start in one instant.
func TestGateSpreadsProcesses(t *testing.T) {
	r := gated(t)
	refusal := repeatable(429)
	refusal.RetryAfter = 8 * time.Second
	first := map[time.Duration]bool{}
	for draw := range uint64(100) {
		var h retrip.Host
		h.Next(r, &retrip.Call{Attempts: 1}, refusal, 0, draw)
		at := passes(t, &h, r, &retrip.Call{}, 0)
		assert.GreaterOrEqual(t, at, 8*time.Second)
		first[at] = true
	}
	assert.Greater(t, len(first), 90)
}

// The success of a retry that cost nothing pays nothing back.
func TestGatePricedSuccess(t *testing.T) {
	var h retrip.Host
	drain(t, &h, 0)
	r := gated(t)
	call := retrip.Call{Attempts: 1}
	o := repeatable(429)
	o.RetryAfter = time.Second
	require.True(t, h.Next(r, &call, o, 0, 0).Retry)
	call.Attempts++
	h.Next(r, &call, repeatable(200), time.Minute, 0)
	assert.Zero(t, h.State(r, time.Minute).Tokens)
}

// A gate that nobody waits at opens some time after its pause.
func TestGateIdle(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, 4*time.Second, 0)
	const over = 4*time.Second + 40*time.Second
	a := passes(t, &h, r, &retrip.Call{}, over-10*time.Second)
	b := passes(t, &h, r, &retrip.Call{}, over-10*time.Second)
	require.NotEqual(t, a, b, "still paced")
	for range 100 {
		assert.Zero(t, h.First(r, &retrip.Call{}, over+time.Second, 0).Wait)
	}
}

// A 429 that is obeyed costs no token; one that names no time does.
func TestGatePrices(t *testing.T) {
	tests := []struct {
		name   string
		gate   bool
		status int
		word   time.Duration
		tokens float64
	}{
		{"obeyed 429", true, 429, time.Second, 5},
		{"429 without a word", true, 429, 0, 4},
		{"503", true, 503, time.Second, 4},
		{"429 without a gate", false, 429, time.Second, 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var h retrip.Host
			r := rulesOf(t, retrip.Policy{Gate: tt.gate})
			call := retrip.Call{Attempts: 1}
			o := repeatable(tt.status)
			o.RetryAfter = tt.word
			require.True(t, h.Next(r, &call, o, 0, 0).Retry)
			assert.Equal(t, tt.tokens, h.State(r, 0).Tokens)
			h.Return(r, &call)
			assert.Equal(t, 5.0, h.State(r, 0).Tokens)
		})
	}
}

// An empty budget doesn't hold back those who obey.
func TestGateWithEmptyBudget(t *testing.T) {
	var h retrip.Host
	drain(t, &h, 0)
	assert.True(t, throttle(&h, gated(t), time.Second, 0).Retry)
}

// 200 requests at once at a server that allows 10 a second.
func TestGateWorkers(t *testing.T) {
	run := func(gate bool) (succeeded, throttled, atOnce int, took time.Duration) {
		var h retrip.Host
		r := rulesOf(t, retrip.Policy{MaxAttempts: 10, Gate: gate})
		w := newWorld(3)
		second, allowed := time.Duration(-1), 0
		serve := func() retrip.Outcome {
			if s := w.now / time.Second; s != second {
				second, allowed = s, 10
			}
			o := repeatable(http.StatusOK)
			o.Took = 10 * time.Millisecond
			if allowed--; allowed < 0 {
				o.Status, o.RetryAfter = http.StatusTooManyRequests, time.Second
				throttled++
				if w.now < 10*time.Millisecond {
					atOnce++
				}
			}
			return o
		}
		for range 200 {
			w.request(&h, r, serve, func(o retrip.Outcome, _ retrip.Reason) {
				if o.Status == http.StatusOK {
					succeeded++
				}
				took = w.now
			})
		}
		w.run(math.MaxInt64)
		return succeeded, throttled, atOnce, took
	}
	succeeded, throttled, atOnce, took := run(true)
	t.Logf("with the gate: %d succeed in %v, %d refusals at once and %d later", succeeded, took, atOnce, throttled-atOnce)
	assert.Equal(t, 200, succeeded)
	assert.Equal(t, 190, atOnce)
	assert.LessOrEqual(t, throttled-atOnce, atOnce)
	assert.Less(t, took, 40*time.Second, "it finds the rate")

	without, more, _, _ := run(false)
	t.Logf("without: %d succeed, %d refusals later", without, more-atOnce)
	assert.Less(t, without, 200)
}

// A place in a queue that is no more is worth nothing in the next one.
func TestGatePlaceOfAnEarlierQueue(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, 4*time.Second, 0)
	calls := make([]retrip.Call, 20)
	for i := range calls {
		h.First(r, &calls[i], 0, 0)
	}
	now, late := time.Hour, &calls[19]
	require.Zero(t, h.First(r, late, now, 0).Wait)
	throttle(&h, r, 8*time.Second, now)
	assert.LessOrEqual(t, passes(t, &h, r, late, now), now+10*time.Second)
}
