// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package gate_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
)

// A request that can't get through before its deadline fails at once, with the
// reason: the pause or the queue.
//
//retrip:promise P10
func TestGate_Deadline(t *testing.T) {
	var h host.Record
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	ask := func(deadline, now time.Duration) play.Decision {
		return r.First(&h, &decide.Call{Deadline: deadline}, now, play.Lowest)
	}
	assert.Equal(t, play.Decision{Reason: decide.HostPaused, Wait: 8 * time.Second}, ask(8*time.Second-1, 0))
	assert.Zero(t, r.State(&h, 0).Waiting, "it takes no place")
	assert.True(t, ask(9*time.Second, 0).Retry)

	// Until the gate knows the rate, it knows only the pause.
	line(t, &h, r, 50, 0)
	assert.True(t, ask(10*time.Second, 0).Retry)
}

// settled returns a host whose gate has a pace that rules, of more than one request
// in 15 s, because the server has refused every second request.
func settled(t testing.TB, r play.Judge) (*host.Record, time.Duration) {
	t.Helper()
	h := new(host.Record)
	throttle(h, r, 8*time.Second, 0)
	now := time.Duration(0)
	for range 16 {
		c := new(decide.Call)
		now = alone(t, h, r, c, now)
		accept(h, r, c, now)
		c = new(decide.Call)
		now = alone(t, h, r, c, now)
		refuse(h, r, c, 8*time.Second, now)
		r.Return(h, c)
	}
	return h, now
}

//retrip:promise P10
func TestGate_DeadlineInTheQueue(t *testing.T) {
	r := gated(t)
	h, now := settled(t, r)
	line(t, h, r, 30, now)
	d := r.First(h, &decide.Call{Deadline: now + 15*time.Second}, now, play.Lowest)
	assert.Equal(t, play.Decision{Reason: decide.Deadline}, d, "the queue is too long for it")
	d = r.First(h, &decide.Call{Deadline: now + 5*time.Second}, now, play.Lowest)
	assert.Equal(t, play.Decision{Reason: decide.HostPaused, Wait: 8 * time.Second}, d, "the pause alone is too long")
	assert.True(t, r.First(h, &decide.Call{Deadline: now + 5*time.Minute}, now, play.Lowest).Retry)
	assert.Equal(t, 31, r.State(h, now).Waiting)
}

// At the beginning of a pause, waiting requests that can't wait for its end
// fail at once, and the others don't wait for them.
//
//retrip:promise P10
func TestGate_Dismisses(t *testing.T) {
	r := gated(t)
	var h host.Record
	throttle(&h, r, time.Second, 0)
	calls := line(t, &h, r, 3, 0)
	late := &decide.Call{Waiter: "late", Deadline: 10 * time.Second}
	require.True(t, r.First(&h, late, 0, play.Lowest).Retry)
	now := 2 * time.Second
	require.Zero(t, r.First(&h, calls[0], now, 0).Wait)
	woken(&h)
	require.True(t, refuse(&h, r, calls[0], 20*time.Second, now).Wakes)
	assert.Contains(t, woken(&h), "late")
	assert.Equal(t, 2, r.State(&h, now).Waiting)
	assert.Equal(t, play.Decision{Reason: decide.HostPaused, Wait: 20 * time.Second}, r.First(&h, late, now, play.Lowest))
}

// The wait of a request ends at its deadline, even if nothing wakes it.
//
//retrip:promise P10
func TestGate_GivesUpInTime(t *testing.T) {
	var h host.Record
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	calls := line(t, &h, r, 2, 0)
	c := &decide.Call{Deadline: 30 * time.Second}
	assert.Equal(t, 30*time.Second, r.First(&h, c, 0, play.Lowest).Wait)
	assert.Equal(t, 10*time.Second, r.First(&h, c, 20*time.Second, play.Lowest).Wait)
	assert.Equal(t, decide.Deadline, r.First(&h, c, 30*time.Second, play.Lowest).Reason)
	assert.Equal(t, 2, r.State(&h, 0).Waiting)
	r.Return(&h, calls[0])
	r.Return(&h, calls[1])

	// An attempt that can't succeed any more isn't made either.
	c = &decide.Call{Deadline: 40 * time.Second}
	assert.Equal(t, decide.Deadline, r.First(&h, c, 40*time.Second+1, play.Lowest).Reason)
}

// A pause lasts as long as the server says, whatever MaxWait is, and nothing is
// sent during it. Requests that must not wait that long fail at once.
//
//retrip:promise P9
func TestGate_MaxWait(t *testing.T) {
	var h host.Record
	short := play.Rules(t, retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, MaxWait: 30 * time.Second})
	long := play.Rules(t, retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, MaxWait: time.Minute})
	d := throttle(&h, short, time.Minute, 0)
	assert.Equal(t, play.Decision{Reason: decide.WaitTooLong, Wait: time.Minute}, withoutChange(d))
	assert.Equal(t, time.Minute, short.State(&h, 0).PausedFor)
	for _, now := range []time.Duration{0, 29 * time.Second, 30*time.Second - 1} {
		d := short.First(&h, &decide.Call{}, now, play.Lowest)
		assert.Equal(t, play.Decision{Reason: decide.WaitTooLong, Wait: time.Minute - now}, d, "%v", now)
	}
	assert.True(t, short.First(&h, &decide.Call{}, 30*time.Second, play.Lowest).Retry, "the pause is short enough from here on")
	patient := &decide.Call{}
	h = host.Record{}
	throttle(&h, short, time.Minute, 0)
	assert.GreaterOrEqual(t, alone(t, &h, long, patient, 0), time.Minute)

	// A server's mistake can't close the gate forever.
	h = host.Record{}
	throttle(&h, short, math.MaxInt64, 0)
	assert.Equal(t, 24*time.Hour, short.State(&h, 0).PausedFor)

	// MaxWait applies only to waits that a server asked for.
	h = host.Record{}
	none := play.Rules(t, retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, MaxWait: 1})
	assert.True(t, throttle(&h, none, 0, 0).Retry)
	assert.True(t, none.First(&h, &decide.Call{}, 0, play.Lowest).Retry)
}

// withoutChange returns d without what it changed about the host.
func withoutChange(d play.Decision) play.Decision {
	return play.Decision{Retry: d.Retry, Wait: d.Wait, Reason: d.Reason, AtGate: d.AtGate, Wakes: d.Wakes}
}
