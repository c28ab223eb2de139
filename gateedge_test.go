// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// drawOfNoDelay has a gate begin to release at the very end of its pause.
const drawOfNoDelay = 1<<64 - 0x9e3779b97f4a7c15

// refuseAt has a request that the gate let through refused with word.
func refuseAt(h *retrip.Host, r *retrip.Rules, c *retrip.Call, word, now time.Duration) {
	o := repeatable(429)
	o.RetryAfter = word
	c.Attempts = 1
	h.Next(r, c, o, now, drawOfNoDelay)
}

// closedFor returns a host whose gate has closed at the instant 0 for word,
// and releases from its end on, every eighth of it.
func closedFor(r *retrip.Rules, word time.Duration) *retrip.Host {
	var h retrip.Host
	refuseAt(&h, r, &retrip.Call{}, word, 0)
	return &h
}

// places asks n times for a first attempt, and returns the calls.
func places(h *retrip.Host, r *retrip.Rules, n int, now time.Duration) []*retrip.Call {
	calls := make([]*retrip.Call, n)
	for i := range calls {
		calls[i] = new(retrip.Call)
		h.First(r, calls[i], now, drawLowest)
	}
	return calls
}

// gapOf returns the time between the next two releases.
func gapOf(t *testing.T, h *retrip.Host, r *retrip.Rules, now time.Duration) time.Duration {
	t.Helper()
	a := passes(t, h, r, &retrip.Call{}, now)
	return passes(t, h, r, &retrip.Call{}, a) - a
}

// The first place is one gap after the end of the pause; a fleet's processes
// are spread over one gap more.
func TestGateFirstPlace(t *testing.T) {
	r := gated(t)
	h := closedFor(r, 8*time.Second)
	assert.Equal(t, 9*time.Second, passes(t, h, r, &retrip.Call{}, 0))
}

// Half a gap that nobody used is half a place.
func TestGatePartOfAPlace(t *testing.T) {
	r := gated(t)
	h := closedFor(r, 8*time.Second)
	const now = 60*time.Second + 500*time.Millisecond
	assert.Equal(t, now, passes(t, h, r, &retrip.Call{}, now))
	assert.Equal(t, now+time.Second, passes(t, h, r, &retrip.Call{}, now))
}

// Also of a gap that has grown to many hours.
func TestGatePartOfALongGap(t *testing.T) {
	const word = 24 * time.Hour
	r := rulesOf(t, retrip.Policy{MaxAttempts: 10, MaxWait: word, Gate: true})
	h := closedFor(r, word)
	now := time.Duration(0)
	for range 50 {
		var call retrip.Call
		now = passes(t, h, r, &call, now)
		refuseAt(h, r, &call, word, now)
	}
	waiting := places(h, r, 3, now)
	first := passes(t, h, r, waiting[0], now)
	assert.Equal(t, now+2*word, first)
	for part := range 100 {
		now := first + word*time.Duration(part)/100
		assert.Equal(t, 2, h.State(r, now).Waiting, now)
	}
	assert.Equal(t, first+word, passes(t, h, r, waiting[1], first))
	assert.Equal(t, first+2*word, passes(t, h, r, waiting[2], first))
}

// How long a waiting request sleeps before it asks again.
func TestGateSleeps(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	for _, tt := range []struct {
		name  string
		place int // the first is at 9 s, the gap 1 s
		now   time.Duration
		want  time.Duration
	}{
		{"the pause is more than half of it", 7, 0, 15 * s},
		{"the pause is half of it", 8, 0, 16 * s},
		{"the pause is less than half of it", 9, 0, 17 * s / 2},
		{"in the middle of the pause", 5, 2*s + 500*ms, 10*s + 500*ms},
		{"the pause is a little less than half of it", 5, 3*s + 1, (10*s - 1) / 2},
		{"no pause any more", 2, 9 * s, 500 * ms},
		{"a little more than near", 1, 9*s - 100*ms - 2, 50*ms + 1},
		{"near", 1, 9*s - 100*ms, 100 * ms},
		{"nearer", 1, 9*s - 50*ms, 50 * ms},
		{"a nanosecond", 1, 9*s - 1, 1},
		{"now", 1, 9 * s, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := gated(t)
			h := closedFor(r, 8*time.Second)
			calls := places(h, r, tt.place, 0)
			assert.Equal(t, retrip.Decision{Retry: true, Wait: tt.want}, h.First(r, calls[tt.place-1], tt.now, drawLowest))
		})
	}
}

// A wait that fits the deadline to the nanosecond is begun, at a gate that
// paces and at one that only has a pause to mind.
func TestGateWaitThatJustFits(t *testing.T) {
	r := gated(t)
	for name, h := range map[string]*retrip.Host{"paced": closedFor(r, 8*time.Second), "paused": new(retrip.Host)} {
		t.Run(name, func(t *testing.T) {
			free := 9 * time.Second
			if name == "paused" {
				pause(t, h, free, 0)
			}
			d := h.First(r, &retrip.Call{Deadline: free - 1}, 0, drawLowest)
			assert.Equal(t, retrip.Decision{Reason: retrip.ReasonHostPaused}, d)
			d = h.First(r, &retrip.Call{Deadline: free}, 0, drawLowest)
			assert.Equal(t, retrip.Decision{Retry: true, Wait: free}, d)
		})
	}
}

// A place that has been waited for is used, were the timer a little late for
// the deadline.
func TestGateLateForTheDeadline(t *testing.T) {
	const due = 9 * time.Second
	r := gated(t)
	h := closedFor(r, 8*time.Second)
	call := retrip.Call{Deadline: due}
	require.Equal(t, due, h.First(r, &call, 0, drawLowest).Wait)
	assert.Equal(t, retrip.Decision{Retry: true}, h.First(r, &call, due+1, drawLowest))

	h = closedFor(r, 8*time.Second)
	d := h.First(r, &retrip.Call{Deadline: due - 1}, due-1, drawLowest)
	assert.Equal(t, retrip.Decision{Reason: retrip.ReasonHostPaused}, d)
}

// However short the word, places are ten microseconds apart.
func TestGateLeastGap(t *testing.T) {
	r := gated(t)
	h := closedFor(r, time.Nanosecond)
	assert.Equal(t, 10*time.Microsecond, gapOf(t, h, r, 0))
}

// The last nanosecond of a pause is part of it.
func TestGateMindsPauseToItsEnd(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	pause(t, &h, time.Second, 0)
	assert.Equal(t, retrip.Decision{Retry: true, Wait: 1}, h.First(r, &retrip.Call{}, time.Second-1, 0))
	assert.Equal(t, retrip.Decision{Retry: true}, h.First(r, &retrip.Call{}, time.Second, 0))
}

// A request that was let through and comes back as a retry queues again.
func TestGateRetryTakesANewPlace(t *testing.T) {
	for name, late := range map[string]time.Duration{"on time": 0, "late": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			r := gated(t)
			h := closedFor(r, 8*time.Second)
			calls := places(h, r, 3, 0)
			now := passes(t, h, r, calls[0], 9*time.Second+late)
			require.Equal(t, 9*time.Second+late, now)
			calls[0].Attempts = 1
			require.True(t, h.Next(r, calls[0], repeatable(500), now, drawLowest).Retry)
			d := h.Wake(r, calls[0], now, drawLowest)
			assert.True(t, d.Retry)
			assert.Equal(t, (3*time.Second-late)/2, d.Wait, "behind the two others")
		})
	}
}

// Who comes next waits too, until the gate lets it through: it isn't taken for
// idle meanwhile.
func TestGateNextOneWaits(t *testing.T) {
	r := gated(t)
	h := closedFor(r, 4*time.Second)
	const now = 44 * time.Second
	require.Equal(t, now, passes(t, h, r, &retrip.Call{}, now))
	next := places(h, r, 1, now)[0]
	assert.Equal(t, 1, h.State(r, now+1).Waiting)
	assert.Equal(t, now+500*time.Millisecond, passes(t, h, r, next, now+1))
	assert.Zero(t, h.State(r, now+500*time.Millisecond).Waiting)
}

// A gate that has opened for want of use begins anew.
func TestGateBeginsAnew(t *testing.T) {
	r := gated(t)
	h := closedFor(r, 4*time.Second)
	const now = 45 * time.Second
	var call retrip.Call
	require.Equal(t, now, passes(t, h, r, &call, now))
	refuseAt(h, r, &call, 2*time.Second, now)
	assert.Equal(t, 250*time.Millisecond, gapOf(t, h, r, now), "an eighth of the word, not twice the old gap")
}

// A gate is kept for ten words after its pause, for ten seconds at least, and
// as long as somebody waits.
func TestGateIdleToTheNanosecond(t *testing.T) {
	r := gated(t)
	paced := func(h *retrip.Host, now time.Duration) bool {
		h.First(r, &retrip.Call{}, now, drawLowest)
		return h.First(r, &retrip.Call{}, now, drawLowest).Wait > 0
	}
	for word, over := range map[time.Duration]time.Duration{
		4 * time.Second:        44 * time.Second,
		500 * time.Millisecond: 10*time.Second + 500*time.Millisecond,
	} {
		assert.True(t, paced(closedFor(r, word), over), "%v", word)
		assert.False(t, paced(closedFor(r, word), over+1), "%v", word)
	}
	h := closedFor(r, 8*time.Second)
	places(h, r, 100, 0)
	assert.True(t, paced(h, 90*time.Second))
	assert.Equal(t, 20, h.State(r, 90*time.Second).Waiting)
}

// A shorter word said later neither ends the pause nor lets places pass in it.
func TestGateShorterWord(t *testing.T) {
	r := gated(t)
	h := closedFor(r, 8*time.Second)
	calls := places(h, r, 4, 0)
	refuseAt(h, r, &retrip.Call{}, time.Second, time.Second)
	for i, call := range calls {
		assert.Equal(t, time.Duration(9+i)*time.Second, passes(t, h, r, call, time.Second))
	}
}

// The next pause holds places back where they are: none is lost, and none is
// counted twice.
func TestGateNextPause(t *testing.T) {
	r := gated(t)
	h := closedFor(r, 8*time.Second)
	calls := places(h, r, 10, 0)
	now := 12 * time.Second
	for _, call := range calls[:4] {
		require.LessOrEqual(t, passes(t, h, r, call, 0), now)
	}
	require.Equal(t, 6, h.State(r, now).Waiting)
	refuseAt(h, r, &retrip.Call{}, 8*time.Second, now)
	assert.Equal(t, 6, h.State(r, now).Waiting)
	assert.Equal(t, 6, h.State(r, now+8*time.Second).Waiting)
	assert.Equal(t, now+9*time.Second, passes(t, h, r, calls[4], now))
	assert.Equal(t, now+14*time.Second, passes(t, h, r, calls[9], now))
}

// A millionth of a place more or less is that, and not a whole one.
func TestGateMillionth(t *testing.T) {
	const little = 954 * time.Nanosecond // of a gap of 1 s
	r := gated(t)
	h := closedFor(r, 8*time.Second)
	first := places(h, r, 1, 0)[0]
	assert.Equal(t, 1, h.State(r, 9*time.Second-little).Waiting)
	refuseAt(h, r, &retrip.Call{}, 8*time.Second, 8*time.Second+little)
	assert.InDelta(t, 17*time.Second, passes(t, h, r, first, 9*time.Second), 1000)
}

// By how much one accepted answer shortens the gap: the rate grows by half per
// word of time at first, by a sixteenth once the limit is known, and never to
// more than twice itself at once.
func TestGateStep(t *testing.T) {
	const s = time.Second
	accept := func(t *testing.T, h *retrip.Host, r *retrip.Rules, now time.Duration) {
		t.Helper()
		var call retrip.Call
		now = passes(t, h, r, &call, now)
		call.Attempts = 1
		h.Next(r, &call, repeatable(200), now, 0)
	}
	t.Run("at first", func(t *testing.T) {
		r := gated(t)
		h := closedFor(r, 8*s)
		accept(t, h, r, 9*s)
		assert.InDelta(t, s-s/16, gapOf(t, h, r, 9*s), 1000)
	})
	t.Run("limit known", func(t *testing.T) {
		r := gated(t)
		h := closedFor(r, 8*s)
		var call retrip.Call
		refuseAt(h, r, &call, 8*s, passes(t, h, r, &call, 0))
		accept(t, h, r, 20*s)
		assert.InDelta(t, 2*s-2*s/64, gapOf(t, h, r, 20*s), 1000)
	})
	t.Run("word shorter than the gap", func(t *testing.T) {
		r := gated(t)
		h := closedFor(r, 8*s)
		refuseAt(h, r, &retrip.Call{}, s/2, 0)
		accept(t, h, r, 9*s)
		assert.InDelta(t, s/2, gapOf(t, h, r, 9*s), 1000)
	})
	t.Run("gap far below the word", func(t *testing.T) {
		r := gated(t)
		h := closedFor(r, time.Millisecond)
		refuseAt(h, r, &retrip.Call{}, 8*s, 0)
		for range 1000 {
			accept(t, h, r, 9*s)
		}
		assert.InDelta(t, 124*time.Microsecond, gapOf(t, h, r, 9*s), 10, "a nanosecond each from 125 µs")
	})
	t.Run("sent before the pause", func(t *testing.T) {
		r := gated(t)
		h := closedFor(r, 8*s)
		h.Next(r, &retrip.Call{Attempts: 1}, repeatable(200), 9*s, 0)
		assert.Equal(t, s, gapOf(t, h, r, 9*s))
	})
	t.Run("places move up from now on", func(t *testing.T) {
		r := gated(t)
		h := closedFor(r, 8*s)
		calls := places(h, r, 20, 0)
		now := 18 * s
		for _, call := range calls[:10] {
			require.LessOrEqual(t, passes(t, h, r, call, 0), now)
		}
		calls[9].Attempts = 1
		h.Next(r, calls[9], repeatable(200), now, 0)
		assert.Equal(t, now+10*(s-s/16), passes(t, h, r, calls[19], now))
	})
}

// Who leaves the queue gives its place to the next to come; those who wait keep
// their times, so that nobody moves up in a burst.
func TestGatePlacesGivenUp(t *testing.T) {
	r := gated(t)
	h := closedFor(r, 8*time.Second) // a second between two
	calls := places(h, r, 5, 0)
	due := func(c *retrip.Call) time.Duration {
		return passes(t, h, r, c, 0)
	}
	require.Equal(t, 5, h.State(r, 0).Waiting)

	h.Return(r, calls[1])
	h.Return(r, calls[3])
	h.Return(r, calls[3]) // may be called twice
	assert.Equal(t, 3, h.State(r, 0).Waiting)
	newcomers := places(h, r, 3, 0)
	assert.Equal(t, 6, h.State(r, 0).Waiting)
	var order []time.Duration
	for _, c := range []*retrip.Call{calls[0], newcomers[0], calls[2], newcomers[1], calls[4], newcomers[2]} {
		order = append(order, due(c).Round(time.Second))
	}
	assert.IsIncreasing(t, order)
	assert.Equal(t, 5*time.Second, order[5]-order[0])
}

// Leaving from the end makes the queue shorter, and a queue that everyone has
// left holds nobody back.
func TestGateLeftByAll(t *testing.T) {
	r := gated(t)
	h := closedFor(r, 8*time.Second)
	for _, c := range places(h, r, 100, 0) {
		h.Return(r, c)
	}
	assert.Zero(t, h.State(r, 0).Waiting)
	first := places(h, r, 1, 0)[0]
	assert.Less(t, passes(t, h, r, first, 0), 10*time.Second)
}

// Places whose time has passed while nobody took them aren't made up for.
func TestGatePlacesGivenUpAndPassed(t *testing.T) {
	r := gated(t)
	h := closedFor(r, 8*time.Second)
	calls := places(h, r, 20, 0)
	for _, c := range calls[:10] {
		h.Return(r, c)
	}
	const later = 18500 * time.Millisecond // the tenth has passed
	atOnce := 0
	for range 10 {
		if d := h.First(r, &retrip.Call{}, later, drawLowest); d.Wait == 0 {
			atOnce++
		}
	}
	assert.LessOrEqual(t, atOnce, 1)
}
