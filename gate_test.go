// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"fmt"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

func gated(t testing.TB) *retrip.Rules {
	return rulesOf(t, retrip.Policy{MaxAttempts: 10, Gate: retrip.On})
}

// throttle has one request at h refused with a 429 that asks for word, 0 for
// none.
func throttle(h *retrip.Host, r *retrip.Rules, word, now time.Duration) retrip.Decision {
	return refuse(h, r, &retrip.Call{Attempts: 1}, word, now)
}

// refuse has c, which was sent, refused.
func refuse(h *retrip.Host, r *retrip.Rules, c *retrip.Call, word, now time.Duration) retrip.Decision {
	o := repeatable(http.StatusTooManyRequests)
	o.RetryAfter = word
	c.Attempts = max(c.Attempts, 1)
	return h.Next(r, c, o, now, drawLowest)
}

// accept has c, which was sent, answered with a 200.
func accept(h *retrip.Host, r *retrip.Rules, c *retrip.Call, now time.Duration) retrip.Decision {
	c.Attempts = max(c.Attempts, 1)
	return h.Next(r, c, repeatable(http.StatusOK), now, drawLowest)
}

// alone asks for an attempt of c, at whose gate nobody else waits, until it may
// be made, and returns the instant.
func alone(t testing.TB, h *retrip.Host, r *retrip.Rules, c *retrip.Call, now time.Duration) time.Duration {
	t.Helper()
	ask := h.First
	if c.Attempts > 0 {
		ask = h.Wake
	}
	for {
		d := ask(r, c, now, drawLowest)
		require.True(t, d.Retry, "%s", d.Reason)
		require.Less(t, d.Wait, time.Hour, "it waits for another")
		if d.Wait == 0 {
			return now
		}
		now += d.Wait
	}
}

// line has n calls queue at h, who are called by their indices.
func line(t testing.TB, h *retrip.Host, r *retrip.Rules, n int, now time.Duration) []*retrip.Call {
	t.Helper()
	calls := make([]*retrip.Call, n)
	for i := range calls {
		calls[i] = &retrip.Call{Waiter: i}
		d := h.First(r, calls[i], now, drawLowest)
		require.True(t, d.Retry && d.Wait > 0 && d.AtGate, "%+v", d)
	}
	return calls
}

// woken returns all that h wants woken.
func woken(h *retrip.Host) (all []any) {
	for who := h.Woken(); who != nil; who = h.Woken() {
		all = append(all, who)
	}
	return all
}

const untilWoken = time.Duration(math.MaxInt64)

func TestGate_Open(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	for range 1000 {
		assert.Equal(t, retrip.Decision{Retry: true}, h.First(r, &retrip.Call{}, 0, 0))
	}
	assert.Zero(t, h.State(r, 0).Waiting)
	assert.True(t, h.Healed(0))
	assert.Nil(t, h.Woken())
}

// A refusal closes the gate for the server's word, to the nanosecond, and the
// first request after it goes within one gap: an eighth of the pause.
func TestGate_Pause(t *testing.T) {
	r := gated(t)
	for draw := range uint64(100) {
		var h retrip.Host
		o := repeatable(429)
		o.RetryAfter = 8 * time.Second
		d := h.Next(r, &retrip.Call{Attempts: 1}, o, 0, draw)
		require.True(t, d.Retry && d.AtGate)
		require.Equal(t, retrip.ReasonThrottled, d.Reason)
		require.Equal(t, 8*time.Second, h.State(r, 0).PausedFor)
		at := alone(t, &h, r, &retrip.Call{}, time.Second)
		require.GreaterOrEqual(t, at, 8*time.Second, "never before the end of the pause")
		require.LessOrEqual(t, at, 9*time.Second)
	}
}

// Processes that were told the same don't start in one instant.
func TestGate_SpreadsProcesses(t *testing.T) {
	r := gated(t)
	first := map[time.Duration]bool{}
	for draw := range uint64(100) {
		var h retrip.Host
		o := repeatable(429)
		o.RetryAfter = 8 * time.Second
		h.Next(r, &retrip.Call{Attempts: 1}, o, 0, draw)
		first[alone(t, &h, r, &retrip.Call{}, 0)] = true
	}
	assert.Greater(t, len(first), 90)
}

// Only who goes next has a timer. After the pause it goes alone, and the others
// wait for its answer.
func TestGate_Probe(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	calls := line(t, &h, r, 3, 0)
	assert.Equal(t, 3, h.State(r, 0).Waiting)
	assert.Less(t, h.First(r, calls[0], 0, 0).Wait, 9*time.Second)
	assert.Equal(t, retrip.Decision{Retry: true, Wait: untilWoken, AtGate: true}, h.First(r, calls[1], 0, 0))

	now := 9 * time.Second
	d := h.First(r, calls[0], now, 0)
	assert.Equal(t, retrip.Decision{Retry: true, Wakes: true}, d)
	assert.Equal(t, []any{1}, woken(&h), "it goes next, and must know when")
	assert.Equal(t, 8*time.Second, h.First(r, calls[1], now, 0).Wait, "as long as the pause, should the probe hang")
	assert.Equal(t, untilWoken, h.First(r, calls[2], now, 0).Wait)

	now += 100 * time.Millisecond
	d = accept(&h, r, calls[0], now)
	assert.True(t, d.Wakes)
	assert.Equal(t, []any{1}, woken(&h), "earlier than it was told")
	at := alone(t, &h, r, calls[1], now)
	assert.LessOrEqual(t, at, 10*time.Second, "a gap after the probe")
	assert.Equal(t, []any{2}, woken(&h))
	assert.LessOrEqual(t, alone(t, &h, r, calls[2], at), at+time.Second, "without waiting for an answer")
	assert.Zero(t, h.State(r, at).Waiting)
}

// A probe that has no answer for long holds nobody: another goes.
func TestGate_HangingProbe(t *testing.T) {
	for name, tt := range map[string]struct {
		word, took, after time.Duration
	}{
		"as long as the pause":               {8 * time.Second, 0, 8 * time.Second},
		"a second at least":                  {100 * time.Millisecond, 0, time.Second},
		"four times what an attempt takes":   {100 * time.Millisecond, 4 * time.Second, 4 * time.Second},
		"which the first answers don't tell": {100 * time.Millisecond, time.Millisecond, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			var h retrip.Host
			r := gated(t)
			throttle(&h, r, tt.word, 0)
			var known retrip.Call
			now := alone(t, &h, r, &known, 0)
			if tt.took > 0 {
				// A quarter of it is believed at first.
				now += tt.took
				accept(&h, r, &known, now)
				throttle(&h, r, tt.word, now)
				var next retrip.Call
				now = alone(t, &h, r, &next, now)
				refuse(&h, r, &next, tt.word, now)
				known = retrip.Call{}
				now = alone(t, &h, r, &known, now)
			}
			for range 5 {
				var probe retrip.Call
				at := alone(t, &h, r, &probe, now)
				assert.Equal(t, tt.after, at-now)
				now = at
			}
		})
	}
}

// A probe that ends in nothing that tells of the limit is followed by another
// at once.
func TestGate_ProbeSaysNothing(t *testing.T) {
	for name, end := range map[string]func(h *retrip.Host, r *retrip.Rules, c *retrip.Call, now time.Duration) bool{
		"500": func(h *retrip.Host, r *retrip.Rules, c *retrip.Call, now time.Duration) bool {
			return h.Next(r, c, repeatable(500), now, 0).Wakes
		},
		"error": func(h *retrip.Host, r *retrip.Rules, c *retrip.Call, now time.Duration) bool {
			return h.Next(r, c, repeatable(0), now, 0).Wakes
		},
		"hopeless error": func(h *retrip.Host, r *retrip.Rules, c *retrip.Call, now time.Duration) bool {
			return h.Next(r, c, retrip.Outcome{Hopeless: true}, now, 0).Wakes
		},
		"canceled": func(h *retrip.Host, r *retrip.Rules, c *retrip.Call, now time.Duration) bool {
			return h.Next(r, c, retrip.Outcome{Canceled: true}, now, 0).Wakes
		},
		"returned": func(h *retrip.Host, r *retrip.Rules, c *retrip.Call, _ time.Duration) bool { return h.Return(r, c) },
		"429 that is the answer": func(h *retrip.Host, r *retrip.Rules, c *retrip.Call, now time.Duration) bool {
			return h.Next(r, c, retrip.Outcome{Status: 429, Verdict: retrip.Final}, now, 0).Wakes
		},
	} {
		t.Run(name, func(t *testing.T) {
			var h retrip.Host
			r := gated(t)
			throttle(&h, r, 8*time.Second, 0)
			calls := line(t, &h, r, 2, 0)
			now := 9 * time.Second
			require.Zero(t, h.First(r, calls[0], now, 0).Wait)
			require.Equal(t, []any{1}, woken(&h))
			require.Equal(t, 8*time.Second, h.First(r, calls[1], now, 0).Wait)
			now += 100 * time.Millisecond
			calls[0].Attempts = 1
			require.True(t, end(&h, r, calls[0], now))
			assert.Equal(t, []any{1}, woken(&h))
			assert.LessOrEqual(t, alone(t, &h, r, calls[1], now), 10*time.Second)
		})
	}
}

// A request that is refused goes back to where it was, before all who came
// later.
func TestGate_KeepsPlaces(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, time.Second, 0)
	calls := line(t, &h, r, 4, 0)
	now := 2 * time.Second
	require.Zero(t, h.First(r, calls[0], now, 0).Wait)
	accept(&h, r, calls[0], now)
	now = alone(t, &h, r, calls[1], now)
	now = alone(t, &h, r, calls[2], now)
	newcomer := &retrip.Call{Waiter: "newcomer"}
	h.First(r, newcomer, now, drawLowest)
	// They come back in another order than they were sent in.
	require.True(t, refuse(&h, r, calls[2], time.Second, now).Retry)
	require.True(t, refuse(&h, r, calls[1], time.Second, now).Retry)
	h.Wake(r, calls[2], now, drawLowest)
	h.Wake(r, calls[1], now, drawLowest)
	var order []time.Duration
	for _, c := range []*retrip.Call{calls[1], calls[2], calls[3], newcomer} {
		now = alone(t, &h, r, c, now)
		order = append(order, now)
		accept(&h, r, c, now)
	}
	assert.IsNonDecreasing(t, order)
	assert.Zero(t, h.State(r, now).Waiting)
}

// Who leaves the head of the queue has the next woken, and a queue that
// everyone has left holds nobody back.
func TestGate_Leave(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	calls := line(t, &h, r, 5, 0)
	assert.False(t, h.Return(r, calls[3]), "it was not the next")
	assert.False(t, h.Return(r, calls[3]), "it may be called twice")
	assert.Equal(t, 4, h.State(r, 0).Waiting)
	assert.True(t, h.Return(r, calls[0]))
	assert.Equal(t, []any{1}, woken(&h))
	assert.False(t, h.Return(r, calls[2]))
	assert.True(t, h.Return(r, calls[1]))
	assert.Equal(t, []any{4}, woken(&h))
	assert.False(t, h.Return(r, calls[4]))
	assert.Zero(t, h.State(r, 0).Waiting)
	assert.LessOrEqual(t, alone(t, &h, r, &retrip.Call{}, 0), 9*time.Second)
}

// Time that nobody used isn't saved up for a burst.
func TestGate_SavesNothing(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	var probe retrip.Call
	now := alone(t, &h, r, &probe, 0)
	accept(&h, r, &probe, now)
	now += 60 * time.Second
	a := alone(t, &h, r, &retrip.Call{}, now)
	b := alone(t, &h, r, &retrip.Call{}, a)
	c := alone(t, &h, r, &retrip.Call{}, b)
	assert.Equal(t, now, a)
	assert.Equal(t, 500*time.Millisecond, b-a, "the probe has doubled the rate")
	assert.Equal(t, 500*time.Millisecond, c-b)
}

// Who can't make its deadline is told at once, and what is too long: the pause,
// or the queue.
func TestGate_Deadline(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	ask := func(deadline, now time.Duration) retrip.Decision {
		return h.First(r, &retrip.Call{Deadline: deadline}, now, drawLowest)
	}
	assert.Equal(t, retrip.Decision{Reason: retrip.ReasonHostPaused}, ask(8*time.Second-1, 0))
	assert.Zero(t, h.State(r, 0).Waiting, "it takes no place")
	assert.True(t, ask(9*time.Second, 0).Retry)

	// While the rate is still to be found only the pause is known.
	line(t, &h, r, 50, 0)
	assert.True(t, ask(10*time.Second, 0).Retry)
}

// settled returns a host whose gate has been refused at a second's gap: its
// pace is known, to be about one in a second.
func settled(t testing.TB, r *retrip.Rules) (*retrip.Host, time.Duration) {
	t.Helper()
	h := new(retrip.Host)
	throttle(h, r, 8*time.Second, 0)
	now := time.Duration(0)
	for range 8 {
		c := new(retrip.Call)
		now = alone(t, h, r, c, now)
		accept(h, r, c, now)
	}
	c := new(retrip.Call)
	now = alone(t, h, r, c, now)
	refuse(h, r, c, 8*time.Second, now)
	h.Return(r, c)
	return h, now
}

func TestGate_DeadlineInTheQueue(t *testing.T) {
	r := gated(t)
	h, now := settled(t, r)
	line(t, h, r, 30, now)
	d := h.First(r, &retrip.Call{Deadline: now + 15*time.Second}, now, drawLowest)
	assert.Equal(t, retrip.Decision{Reason: retrip.ReasonDeadline}, d, "the queue is too long for it")
	d = h.First(r, &retrip.Call{Deadline: now + 5*time.Second}, now, drawLowest)
	assert.Equal(t, retrip.Decision{Reason: retrip.ReasonHostPaused}, d, "the pause already is")
	assert.True(t, h.First(r, &retrip.Call{Deadline: now + 5*time.Minute}, now, drawLowest).Retry)
	assert.Equal(t, 31, h.State(r, now).Waiting)
}

// A new pause has those told at once who can't wait for its end, and nobody
// waits longer for them.
func TestGate_Dismisses(t *testing.T) {
	r := gated(t)
	var h retrip.Host
	throttle(&h, r, time.Second, 0)
	calls := line(t, &h, r, 3, 0)
	late := &retrip.Call{Waiter: "late", Deadline: 10 * time.Second}
	require.True(t, h.First(r, late, 0, drawLowest).Retry)
	now := 2 * time.Second
	require.Zero(t, h.First(r, calls[0], now, 0).Wait)
	woken(&h)
	require.True(t, refuse(&h, r, calls[0], 20*time.Second, now).Wakes)
	assert.Contains(t, woken(&h), "late")
	assert.Equal(t, 2, h.State(r, now).Waiting)
	assert.Equal(t, retrip.Decision{Reason: retrip.ReasonHostPaused}, h.First(r, late, now, drawLowest))
}

// Waits of those with a deadline end at it, whether anyone wakes them or not.
func TestGate_GivesUpInTime(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	calls := line(t, &h, r, 2, 0)
	c := &retrip.Call{Deadline: 30 * time.Second}
	assert.Equal(t, 30*time.Second, h.First(r, c, 0, drawLowest).Wait)
	assert.Equal(t, 10*time.Second, h.First(r, c, 20*time.Second, drawLowest).Wait)
	assert.Equal(t, retrip.ReasonDeadline, h.First(r, c, 30*time.Second, drawLowest).Reason)
	assert.Equal(t, 2, h.State(r, 0).Waiting)
	h.Return(r, calls[0])
	h.Return(r, calls[1])

	// Nor is an attempt made that can't succeed any more.
	c = &retrip.Call{Deadline: 40 * time.Second}
	assert.Equal(t, retrip.ReasonDeadline, h.First(r, c, 40*time.Second+1, drawLowest).Reason)
}

// A retry that can't make its deadline gives up with the response in hand, and
// one that is already waiting with its token.
func TestGate_RetryDeadline(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	call := retrip.Call{Attempts: 1, Deadline: 5 * time.Second}
	assert.Equal(t, retrip.ReasonHostPaused, h.Next(r, &call, repeatable(503), 0, 0).Reason)
	assert.Equal(t, 5.0, h.State(r, 0).Tokens)

	h = retrip.Host{}
	call = retrip.Call{Attempts: 1, Deadline: 5 * time.Second}
	d := h.Next(r, &call, repeatable(503), 0, 0)
	require.True(t, d.Retry)
	throttle(&h, r, 8*time.Second, 0)
	assert.Equal(t, retrip.Decision{Reason: retrip.ReasonHostPaused}, h.Wake(r, &call, d.Wait, 0))
	assert.Equal(t, 5.0, h.State(r, 0).Tokens)
}

// A pause is what the server says, whatever MaxWait is: nothing is sent in it.
// Who doesn't want to wait so long is told at once.
func TestGate_MaxWait(t *testing.T) {
	var h retrip.Host
	short := rulesOf(t, retrip.Policy{Gate: retrip.On, MaxWait: 30 * time.Second})
	long := rulesOf(t, retrip.Policy{Gate: retrip.On, MaxWait: time.Minute})
	d := throttle(&h, short, time.Minute, 0)
	assert.Equal(t, retrip.Decision{Reason: retrip.ReasonWaitTooLong}, withoutChange(d))
	assert.Equal(t, time.Minute, h.State(short, 0).PausedFor)
	for _, now := range []time.Duration{0, 29 * time.Second, 30*time.Second - 1} {
		d := h.First(short, &retrip.Call{}, now, drawLowest)
		assert.Equal(t, retrip.Decision{Reason: retrip.ReasonWaitTooLong}, d, "%v", now)
	}
	assert.True(t, h.First(short, &retrip.Call{}, 30*time.Second, drawLowest).Retry, "from now on it is short enough")
	patient := &retrip.Call{}
	h = retrip.Host{}
	throttle(&h, short, time.Minute, 0)
	assert.GreaterOrEqual(t, alone(t, &h, long, patient, 0), time.Minute)

	// A server can't close it for good by mistake.
	h = retrip.Host{}
	throttle(&h, short, math.MaxInt64, 0)
	assert.Equal(t, 24*time.Hour, h.State(short, 0).PausedFor)

	// What no server has asked for is no matter of MaxWait.
	h = retrip.Host{}
	none := rulesOf(t, retrip.Policy{Gate: retrip.On, MaxWait: 1})
	assert.True(t, throttle(&h, none, 0, 0).Retry)
	assert.True(t, h.First(none, &retrip.Call{}, 0, drawLowest).Retry)
}

// withoutChange returns what is exported of d.
func withoutChange(d retrip.Decision) retrip.Decision {
	return retrip.Decision{Retry: d.Retry, Wait: d.Wait, Reason: d.Reason, AtGate: d.AtGate, Wakes: d.Wakes}
}

// A server that names no pause is given one, twice as long each time that
// nothing was accepted since, up to 30 s.
func TestGate_OwnPause(t *testing.T) {
	var h retrip.Host
	r := rulesOf(t, retrip.Policy{MaxAttempts: 100, Gate: retrip.On})
	c := new(retrip.Call)
	now := time.Duration(0)
	var pauses []time.Duration
	for range 11 {
		c.Attempts = 1
		require.True(t, refuse(&h, r, c, 0, now).Retry)
		pauses = append(pauses, h.State(r, now).PausedFor)
		now = alone(t, &h, r, c, now)
	}
	const ms = time.Millisecond
	assert.Equal(t, []time.Duration{250 * ms, 250 * ms, 500 * ms, 1000 * ms, 2000 * ms, 4000 * ms, 8000 * ms, 16000 * ms, 30000 * ms, 30000 * ms, 30000 * ms}, pauses)
	now += 10 * ms
	accept(&h, r, c, now)
	c = new(retrip.Call)
	now = alone(t, &h, r, c, now)
	refuse(&h, r, c, 0, now)
	assert.Less(t, h.State(r, now).PausedFor, time.Second)
}

// Nor is a word obeyed again and again that has proved too short.
func TestGate_WordTooShort(t *testing.T) {
	var h retrip.Host
	r := rulesOf(t, retrip.Policy{MaxAttempts: 100, Gate: retrip.On})
	c := new(retrip.Call)
	now := time.Duration(0)
	var pauses []time.Duration
	for range 9 {
		c.Attempts = 1
		require.True(t, refuse(&h, r, c, time.Second, now).Retry)
		pauses = append(pauses, h.State(r, now).PausedFor)
		now = alone(t, &h, r, c, now)
	}
	const s = time.Second
	assert.Equal(t, []time.Duration{s, s, s, 2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s}, pauses)
}

// A refusal of what was sent before the pause says nothing about the pace, but
// a word that goes further is obeyed.
func TestGate_StaleRefusals(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	calls := make([]retrip.Call, 5)
	for i := range calls {
		h.First(r, &calls[i], 0, 0)
		calls[i].Attempts = 1
	}
	refuse(&h, r, &calls[0], 8*time.Second, 0)
	refuse(&h, r, &calls[1], 0, time.Second)
	refuse(&h, r, &calls[2], time.Second, time.Second)
	assert.Equal(t, 7*time.Second, h.State(r, time.Second).PausedFor)
	refuse(&h, r, &calls[3], 8*time.Second, time.Second)
	assert.Equal(t, 8*time.Second, h.State(r, time.Second).PausedFor)
	at := alone(t, &h, r, &retrip.Call{}, time.Second)
	assert.GreaterOrEqual(t, at, 9*time.Second)
	assert.LessOrEqual(t, at, 10*time.Second, "the gap is that of 8 s")
}

// The probe falls to the next after two refusals, so that the request at the
// front doesn't use up its attempts.
func TestGate_ProbeIsPassedOn(t *testing.T) {
	var h retrip.Host
	r := rulesOf(t, retrip.Policy{Gate: retrip.On}) // four attempts
	throttle(&h, r, 0, 0)
	calls := line(t, &h, r, 10, 0)
	refused := make([]int, len(calls))
	now := time.Duration(0)
	next := func() int {
		for {
			for i, c := range calls {
				ask := h.First
				if c.Attempts > 0 {
					ask = h.Wake
				}
				d := ask(r, c, now, drawLowest)
				require.True(t, d.Retry)
				if d.Wait == 0 {
					return i
				}
			}
			woken(&h)
			now += 50 * time.Millisecond
		}
	}
	for range 12 {
		i := next()
		refused[i]++
		calls[i].Attempts++
		require.True(t, refuse(&h, r, calls[i], 0, now).Retry, "after %v", refused)
		h.Wake(r, calls[i], now, drawLowest)
	}
	t.Log(refused)
	for i, n := range refused {
		assert.LessOrEqual(t, n, 3, "of %d", i)
	}
	// And then the one that has waited longest goes first again.
	first := next()
	calls[first].Attempts++
	accept(&h, r, calls[first], now)
	h.Return(r, calls[first])
	calls = append(calls[:first], calls[first+1:]...)
	assert.Zero(t, next())
}

// A gate at which nobody waits is forgotten after the plateau, or a minute:
// until then its pace is worth keeping.
func TestGate_Idle(t *testing.T) {
	r := gated(t)
	for word, over := range map[time.Duration]time.Duration{
		time.Second:     time.Second + time.Minute,
		8 * time.Second: 8*time.Second + 16*8*time.Second,
	} {
		var h retrip.Host
		throttle(&h, r, word, 0)
		assert.False(t, h.Healed(over), "%v", word)
		assert.True(t, h.Healed(over+1), "%v", word)
		for range 100 {
			assert.Zero(t, h.First(r, &retrip.Call{}, over+1, 0).Wait)
		}

		h = retrip.Host{}
		throttle(&h, r, word, 0)
		waits := line(t, &h, r, 1, 0)
		assert.False(t, h.Healed(over+time.Hour), "somebody waits")
		h.Return(r, waits[0])
		assert.True(t, h.Healed(over+time.Hour))
	}
}

// A request that was sent before the gate was forgotten is a stranger when it
// comes back.
func TestGate_ForgottenMeanwhile(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, time.Second, 0)
	old := line(t, &h, r, 1, 0)[0]
	now := alone(t, &h, r, old, 0)
	now += time.Hour
	h.First(r, &retrip.Call{}, now, 0)
	throttle(&h, r, 8*time.Second, now)
	calls := line(t, &h, r, 3, now)
	require.True(t, refuse(&h, r, old, time.Second, now).Retry)
	h.Wake(r, old, now, drawLowest)
	assert.Equal(t, 4, h.State(r, now).Waiting, "its number is nobody else's")
	at := alone(t, &h, r, old, now)
	assert.GreaterOrEqual(t, at, now+8*time.Second)
	assert.LessOrEqual(t, at, now+9*time.Second)
	accept(&h, r, old, at)
	for _, c := range calls {
		at = alone(t, &h, r, c, at)
	}
}

// A pause that requests without a gate have met holds back those with one, and
// its end has no burst.
func TestGate_MindsPause(t *testing.T) {
	for name, used := range map[string]bool{"fresh host": false, "host that has had a gate": true} {
		t.Run(name, func(t *testing.T) {
			var h retrip.Host
			r := gated(t)
			now := time.Hour
			if used {
				throttle(&h, r, time.Second, 0)
			}
			pause(t, &h, 5*time.Second, now)
			d := h.First(r, &retrip.Call{Deadline: now + time.Second}, now, 0)
			assert.Equal(t, retrip.Decision{Reason: retrip.ReasonHostPaused}, d)
			calls := line(t, &h, r, 3, now)
			at := alone(t, &h, r, calls[0], now)
			assert.GreaterOrEqual(t, at, now+5*time.Second)
			accept(&h, r, calls[0], at)
			assert.Greater(t, alone(t, &h, r, calls[1], at), at)
		})
	}
}

// Also while the gate is pacing.
func TestGate_MindsLaterPause(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, time.Second, 0)
	call := line(t, &h, r, 1, 0)[0]
	pause(t, &h, 5*time.Second, 2*time.Second)
	assert.Equal(t, 7*time.Second, alone(t, &h, r, call, 2*time.Second))
}

// What the gate holds back anyway costs nothing: a 429 with a word or without.
func TestGate_Prices(t *testing.T) {
	for _, tt := range []struct {
		name   string
		gate   bool
		status int
		word   time.Duration
		tokens float64
	}{
		{"429", true, 429, time.Second, 5},
		{"429 without a word", true, 429, 0, 5},
		{"503", true, 503, time.Second, 4.5},
		{"503 without a word", true, 503, 0, 4.5},
		{"429 without a gate", false, 429, time.Second, 4.5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var h retrip.Host
			r := rulesOf(t, retrip.Policy{Gate: toggle(tt.gate)})
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

// The success of a retry that cost nothing pays nothing back, and an empty
// budget doesn't hold back those who obey.
func TestGate_WithEmptyBudget(t *testing.T) {
	var h retrip.Host
	drain(t, &h, 0)
	r := gated(t)
	call := retrip.Call{Attempts: 1}
	require.True(t, refuse(&h, r, &call, time.Second, 0).Retry)
	now := alone(t, &h, r, &call, 0)
	call.Attempts++
	accept(&h, r, &call, now)
	assert.Zero(t, h.State(r, now).Tokens)
}

// An attempt that the breaker holds back was none: the probe is due again.
func TestGate_AndBreaker(t *testing.T) {
	var h retrip.Host
	r := rulesOf(t, retrip.Policy{MaxAttempts: 10, Gate: retrip.On, Budget: retrip.Unlimited, Breaker: retrip.Breaker{Ratio: .5, MinVolume: 2, OpenFor: time.Minute}})
	throttle(&h, r, time.Second, 0)
	calls := line(t, &h, r, 2, 0)
	for range 5 {
		h.Next(r, &retrip.Call{Attempts: 1}, repeatable(500), 0, 0)
	}
	woken(&h)
	require.Equal(t, "open", h.State(r, 0).Breaker)
	d := h.First(r, calls[0], 2*time.Second, 0)
	assert.Equal(t, retrip.Decision{Reason: retrip.ReasonBreakerOpen, Wakes: true}, withoutChange(d))
	assert.Equal(t, []any{1}, unique(woken(&h)))
	d = h.First(r, calls[1], 3*time.Second, 0)
	assert.Equal(t, retrip.ReasonBreakerOpen, d.Reason, "it needn't wait for a probe that never went")
	assert.Zero(t, h.State(r, 0).Waiting)
}

func unique(all []any) (each []any) {
	seen := map[any]bool{}
	for _, x := range all {
		if !seen[x] {
			seen[x] = true
			each = append(each, x)
		}
	}
	return each
}

// Each key has a gate of its own; a pause of the host is for all of them.
func TestGate_OnePerKey(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	call := func(key string) *retrip.Call { return &retrip.Call{Gate: key, Waiter: key} }
	a := call("a")
	refuse(&h, r, a, 8*time.Second, 0)
	assert.Positive(t, h.Wake(r, a, 0, 0).Wait)
	assert.Positive(t, h.First(r, call("a"), 0, 0).Wait)
	assert.Equal(t, retrip.Decision{Retry: true}, h.First(r, call("b"), 0, 0))
	assert.Equal(t, retrip.Decision{Retry: true}, h.First(r, call(""), 0, 0))
	s := h.State(r, 0)
	assert.Equal(t, 2, s.Waiting)
	assert.Equal(t, 8*time.Second, s.PausedFor)
	refuse(&h, r, call("b"), time.Second, 0)
	assert.LessOrEqual(t, alone(t, &h, r, call("b"), 0), 2*time.Second)

	pause(t, &h, 5*time.Second, 10*time.Second)
	assert.GreaterOrEqual(t, alone(t, &h, r, call("c"), 10*time.Second), 15*time.Second)
	assert.False(t, h.Healed(time.Minute))
	h.Return(r, a)
	assert.False(t, h.Healed(time.Hour), "one of a's waits")
}

// Keys beyond the bound share the gate of the host, and those that are
// forgotten make room.
func TestGate_KeysAreBounded(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	call := func(i int) *retrip.Call { return &retrip.Call{Gate: fmt.Sprint("key ", i), Attempts: 1} }
	const bound = 4096
	for i := range bound {
		refuse(&h, r, call(i), time.Second, 0)
	}
	first := func(i int, now time.Duration) time.Duration {
		d := h.First(r, &retrip.Call{Gate: fmt.Sprint("key ", i)}, now, 0)
		require.True(t, d.Retry)
		return d.Wait
	}
	assert.Positive(t, first(17, 0))
	assert.Zero(t, first(bound+1, 0), "nothing has refused it")
	refuse(&h, r, call(bound+1), 8*time.Second, 0)
	assert.Positive(t, first(bound+1, 0))
	assert.Positive(t, first(bound+2, 0), "they share one")
	assert.Positive(t, h.First(r, &retrip.Call{}, 0, 0).Wait, "that of the host")

	const later = time.Hour
	refuse(&h, r, call(bound+3), time.Second, later)
	assert.Positive(t, first(bound+3, later))
	assert.Zero(t, first(bound+4, later))
}

// toggle returns a Switch that is on or off.
func toggle(on bool) retrip.Switch {
	if on {
		return retrip.On
	}
	return retrip.Off
}

// 200 requests at once at a server that allows 10 a second.
func TestGate_Workers(t *testing.T) {
	run := func(gate bool) (succeeded, throttled, atOnce int, took time.Duration) {
		var h retrip.Host
		r := rulesOf(t, retrip.Policy{Gate: toggle(gate)})
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
	assert.LessOrEqual(t, throttled-atOnce, 10)
	assert.Less(t, took, 30*time.Second, "it finds the rate")

	without, more, _, _ := run(false)
	t.Logf("without: %d succeed, %d refusals later", without, more-atOnce)
	assert.Less(t, without, 200)
}
