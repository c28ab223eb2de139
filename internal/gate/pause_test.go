// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package gate_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
)

// A refusal closes the gate for exactly the time that the server names. The
// first request after that goes within one gap, an eighth of the pause.
//
//retrip:promise P9 P23
func TestGate_Pause(t *testing.T) {
	r := gated(t)
	for draw := range uint64(100) {
		var h host.Record
		o := play.Repeatable(429)
		o.RetryAfter = 8 * time.Second
		d := r.Next(&h, &decide.Call{Attempts: 1}, o, 0, draw)
		require.True(t, d.Retry && d.AtGate)
		require.Equal(t, decide.Throttled, d.Reason)
		require.Equal(t, 8*time.Second, r.State(&h, 0).PausedFor)
		at := alone(t, &h, r, &decide.Call{}, time.Second)
		require.GreaterOrEqual(t, at, 8*time.Second, "never before the end of the pause")
		require.LessOrEqual(t, at, 9*time.Second)
	}
}

// A refusal that names no wait holds back only its own request, which backs off as
// without a gate, as long as few are refused.
func TestGate_RefusedAlone(t *testing.T) {
	var h host.Record
	r := gated(t)
	var now time.Duration
	for i := range 200 {
		c := new(decide.Call)
		require.Equal(t, play.Decision{Retry: true}, r.First(&h, c, now, play.Lowest))
		if i%10 == 0 {
			d := refuse(&h, r, c, 0, now)
			require.True(t, d.Retry && !d.AtGate)
			require.Zero(t, r.State(&h, now).PausedFor)
			require.Equal(t, 5.0, r.State(&h, now).Tokens)
			require.Equal(t, play.Decision{Retry: true}, withoutChange(r.First(&h, new(decide.Call), now+time.Millisecond, play.Lowest)), "nobody else waits")
			require.Equal(t, play.Decision{Retry: true}, withoutChange(r.Wake(&h, c, now+max(d.Wait, 2*time.Millisecond), play.Lowest)))
		}
		now += 100 * time.Millisecond
		accept(&h, r, c, now)
	}
}

// ruled returns a host whose gate has a pace that rules, because the server has
// refused most requests without naming a wait, and the instant of the last refusal.
func ruled(t testing.TB, r play.Judge) (*host.Record, time.Duration) {
	t.Helper()
	h := new(host.Record)
	now := time.Duration(0)
	for i := range 33 {
		c := new(decide.Call)
		require.Equal(t, play.Decision{Retry: true}, withoutChange(r.First(h, c, now, play.Lowest)), "until then, the pace is free")
		now += 20 * time.Millisecond
		if i%3 == 1 {
			accept(h, r, c, now)
		} else {
			refuse(h, r, c, 0, now)
			r.Return(h, c)
		}
	}
	require.Positive(t, r.State(h, now).PausedFor, "the evidence of a limit")
	return h, now
}

// Once there is evidence of a limit, the gate makes a pause if the server names
// none. It doubles each time that nothing was accepted since, up to 30 s.
func TestGate_OwnPause(t *testing.T) {
	r := play.Rules(t, retrip.Policy{MaxAttempts: 100, Gate: retrip.Gate{Enabled: retrip.On}})
	h, now := ruled(t, r)
	c := new(decide.Call)
	now = alone(t, h, r, c, now)
	var pauses []time.Duration
	for range 10 {
		c.Attempts = 1
		require.True(t, refuse(h, r, c, 0, now).Retry)
		pauses = append(pauses, r.State(h, now).PausedFor)
		now = alone(t, h, r, c, now)
	}
	const ms = time.Millisecond
	assert.Equal(t, []time.Duration{250 * ms, 500 * ms, 1000 * ms, 2000 * ms, 4000 * ms, 8000 * ms, 16000 * ms, 30000 * ms, 30000 * ms, 30000 * ms}, pauses)
	now += 10 * ms
	accept(h, r, c, now)
	c = new(decide.Call)
	now = alone(t, h, r, c, now)
	refuse(h, r, c, 0, now)
	assert.Less(t, r.State(h, now).PausedFor, time.Second)
}

// The gate doesn't follow a Retry-After again and again that has proved too
// short.
func TestGate_WordTooShort(t *testing.T) {
	var h host.Record
	r := play.Rules(t, retrip.Policy{MaxAttempts: 100, Gate: retrip.Gate{Enabled: retrip.On}})
	c := new(decide.Call)
	now := time.Duration(0)
	var pauses []time.Duration
	for range 9 {
		c.Attempts = 1
		require.True(t, refuse(&h, r, c, time.Second, now).Retry)
		pauses = append(pauses, r.State(&h, now).PausedFor)
		now = alone(t, &h, r, c, now)
	}
	const s = time.Second
	assert.Equal(t, []time.Duration{s, s, s, 2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s}, pauses)
}

// A pause caused by requests without a gate also holds back those with a gate,
// and no burst follows its end.
func TestGate_MindsPause(t *testing.T) {
	for name, used := range map[string]bool{"fresh host": false, "host that has had a gate": true} {
		t.Run(name, func(t *testing.T) {
			var h host.Record
			r := gated(t)
			now := time.Hour
			if used {
				throttle(&h, r, time.Second, 0)
			}
			play.Pause(t, &h, 5*time.Second, now)
			d := r.First(&h, &decide.Call{Deadline: now + time.Second}, now, 0)
			assert.Equal(t, play.Decision{Reason: decide.HostPaused, Wait: 5 * time.Second}, d)
			calls := line(t, &h, r, 3, now)
			at := alone(t, &h, r, calls[0], now)
			assert.GreaterOrEqual(t, at, now+5*time.Second)
			accept(&h, r, calls[0], at)
			assert.Greater(t, alone(t, &h, r, calls[1], at), at)
		})
	}
}

// The same applies while the gate paces requests.
func TestGate_MindsLaterPause(t *testing.T) {
	var h host.Record
	r := gated(t)
	throttle(&h, r, time.Second, 0)
	call := line(t, &h, r, 1, 0)[0]
	play.Pause(t, &h, 5*time.Second, 2*time.Second)
	assert.Equal(t, 7*time.Second, alone(t, &h, r, call, 2*time.Second))
}
