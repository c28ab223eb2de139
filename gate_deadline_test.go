// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// A request that can't get through before its deadline fails at once, with the
// reason: the pause or the queue.
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

	// Until the gate knows the rate, it knows only the pause.
	line(t, &h, r, 50, 0)
	assert.True(t, ask(10*time.Second, 0).Retry)
}

// settled returns a host whose gate knows its pace, about one request per
// second, because the server has refused a request at a gap of a second.
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
	assert.Equal(t, retrip.Decision{Reason: retrip.ReasonHostPaused}, d, "the pause alone is too long")
	assert.True(t, h.First(r, &retrip.Call{Deadline: now + 5*time.Minute}, now, drawLowest).Retry)
	assert.Equal(t, 31, h.State(r, now).Waiting)
}

// At the beginning of a pause, waiting requests that can't wait for its end
// fail at once, and the others don't wait for them.
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

// The wait of a request ends at its deadline, even if nothing wakes it.
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

	// An attempt that can't succeed any more isn't made either.
	c = &retrip.Call{Deadline: 40 * time.Second}
	assert.Equal(t, retrip.ReasonDeadline, h.First(r, c, 40*time.Second+1, drawLowest).Reason)
}

// A retry that can't get through before its deadline gives up with the response
// in hand. One that is already waiting also gives its token back.
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

// A pause lasts as long as the server says, whatever MaxWait is, and nothing is
// sent during it. Requests that must not wait that long fail at once.
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
	assert.True(t, h.First(short, &retrip.Call{}, 30*time.Second, drawLowest).Retry, "the pause is short enough from here on")
	patient := &retrip.Call{}
	h = retrip.Host{}
	throttle(&h, short, time.Minute, 0)
	assert.GreaterOrEqual(t, alone(t, &h, long, patient, 0), time.Minute)

	// A server's mistake can't close the gate forever.
	h = retrip.Host{}
	throttle(&h, short, math.MaxInt64, 0)
	assert.Equal(t, 24*time.Hour, h.State(short, 0).PausedFor)

	// MaxWait applies only to waits that a server asked for.
	h = retrip.Host{}
	none := rulesOf(t, retrip.Policy{Gate: retrip.On, MaxWait: 1})
	assert.True(t, throttle(&h, none, 0, 0).Retry)
	assert.True(t, h.First(none, &retrip.Call{}, 0, drawLowest).Retry)
}

// withoutChange returns d without its unexported fields.
func withoutChange(d retrip.Decision) retrip.Decision {
	return retrip.Decision{Retry: d.Retry, Wait: d.Wait, Reason: d.Reason, AtGate: d.AtGate, Wakes: d.Wakes}
}
