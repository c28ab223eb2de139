// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package gate_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
)

func gated(t testing.TB) play.Judge {
	return play.Rules(t, retrip.Policy{MaxAttempts: 10, Gate: retrip.Gate{Enabled: retrip.On}})
}

// throttle gets one request at h refused with a 429 that asks for word, or for
// nothing if word is 0.
func throttle(h *host.Record, r play.Judge, word, now time.Duration) play.Decision {
	return refuse(h, r, &decide.Call{Attempts: 1}, word, now)
}

// refuse ends the attempt of c with a refusal.
func refuse(h *host.Record, r play.Judge, c *decide.Call, word, now time.Duration) play.Decision {
	o := play.Repeatable(http.StatusTooManyRequests)
	o.RetryAfter = word
	c.Attempts = max(c.Attempts, 1)
	return r.Next(h, c, o, now, play.Lowest)
}

// accept ends the attempt of c with a 200.
func accept(h *host.Record, r play.Judge, c *decide.Call, now time.Duration) play.Decision {
	c.Attempts = max(c.Attempts, 1)
	return r.Next(h, c, play.Repeatable(http.StatusOK), now, play.Lowest)
}

// alone asks for an attempt of c, which is alone at its gate, until the gate
// allows it, and returns the instant.
func alone(t testing.TB, h *host.Record, r play.Judge, c *decide.Call, now time.Duration) time.Duration {
	t.Helper()
	ask := r.First
	if c.Attempts > 0 {
		ask = r.Wake
	}
	for {
		d := ask(h, c, now, play.Lowest)
		require.True(t, d.Retry, "%s", d.Reason)
		require.Less(t, d.Wait, time.Hour, "it waits for another")
		if d.Wait == 0 {
			return now
		}
		now += d.Wait
	}
}

// line queues n calls at h, whose Waiters are their indices.
func line(t testing.TB, h *host.Record, r play.Judge, n int, now time.Duration) []*decide.Call {
	t.Helper()
	calls := make([]*decide.Call, n)
	for i := range calls {
		calls[i] = &decide.Call{Waiter: i}
		d := r.First(h, calls[i], now, play.Lowest)
		require.True(t, d.Retry && d.Wait > 0 && d.AtGate, "%+v", d)
	}
	return calls
}

// A request that was sent before its gate was forgotten is new when it comes
// back.
//
//retrip:promise P23
func TestGate_ForgottenMeanwhile(t *testing.T) {
	var h host.Record
	r := gated(t)
	throttle(&h, r, time.Second, 0)
	old := line(t, &h, r, 1, 0)[0]
	now := alone(t, &h, r, old, 0)
	now += time.Hour
	r.First(&h, &decide.Call{}, now, 0)
	throttle(&h, r, 8*time.Second, now)
	calls := line(t, &h, r, 3, now)
	require.True(t, refuse(&h, r, old, time.Second, now).Retry)
	r.Wake(&h, old, now, play.Lowest)
	assert.Equal(t, 4, r.State(&h, now).Waiting, "no other request has its number")
	at := alone(t, &h, r, old, now)
	assert.GreaterOrEqual(t, at, now+8*time.Second)
	assert.LessOrEqual(t, at, now+9*time.Second)
	accept(&h, r, old, at)
	for _, c := range calls {
		at = alone(t, &h, r, c, at)
	}
}

// A refusal closes the gate for exactly the time that the server names. The
// first request after that goes within one gap, an eighth of the pause: processes that
// got the same Retry-After don't start at the same instant.
//
//retrip:promise P9 P23
func TestGate_Pause(t *testing.T) {
	r := gated(t)
	first := map[time.Duration]bool{}
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
		first[at] = true
	}
	assert.Greater(t, len(first), 90)
}

// If a probe gets no response for long, another one goes.
//
//retrip:promise P23
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
			var h host.Record
			r := gated(t)
			throttle(&h, r, tt.word, 0)
			var known decide.Call
			now := alone(t, &h, r, &known, 0)
			if tt.took > 0 {
				// The estimate starts at a quarter of the first duration.
				now += tt.took
				accept(&h, r, &known, now)
				throttle(&h, r, tt.word, now)
				var next decide.Call
				now = alone(t, &h, r, &next, now)
				refuse(&h, r, &next, tt.word, now)
				known = decide.Call{}
				now = alone(t, &h, r, &known, now)
			}
			for range 5 {
				var probe decide.Call
				at := alone(t, &h, r, &probe, now)
				assert.Equal(t, tt.after, at-now)
				now = at
			}
		})
	}
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

// A request that can't get through before its deadline fails at once, with the
// reason: the pause or the queue. An attempt that can't succeed any more isn't made.
//
//retrip:promise P10
func TestGate_Deadline(t *testing.T) {
	r := gated(t)
	h, now := settled(t, r)
	var c decide.Call
	turn := now + r.First(h, &c, now, play.Lowest).Wait
	r.Return(h, &c)
	assert.False(t, r.First(h, &decide.Call{Deadline: turn - 1}, now, play.Lowest).Retry)
	c = decide.Call{Deadline: turn}
	assert.True(t, r.First(h, &c, now, play.Lowest).Retry, "its turn comes just in time")
	r.Return(h, &c)
	line(t, h, r, 30, now)
	d := r.First(h, &decide.Call{Deadline: now + 15*time.Second}, now, play.Lowest)
	assert.Equal(t, play.Decision{Reason: decide.Deadline}, d, "the queue is too long for it")
	d = r.First(h, &decide.Call{Deadline: now + 5*time.Second}, now, play.Lowest)
	assert.Equal(t, play.Decision{Reason: decide.HostPaused, Wait: 8 * time.Second}, d, "the pause alone is too long")
	assert.True(t, r.First(h, &decide.Call{Deadline: now + 5*time.Minute}, now, play.Lowest).Retry)
	assert.Equal(t, 31, r.State(h, now).Waiting, "those that fail take no place")
	now += time.Hour
	assert.Equal(t, decide.Deadline, r.First(h, &decide.Call{Deadline: now}, now+1, play.Lowest).Reason)
}
