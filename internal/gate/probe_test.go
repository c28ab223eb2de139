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

// Only the next request has a timer. After the pause it goes alone, and the
// others wait for its outcome.
//
//retrip:promise P23
func TestGate_Probe(t *testing.T) {
	var h host.Record
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	calls := line(t, &h, r, 3, 0)
	assert.Equal(t, 3, r.State(&h, 0).Waiting)
	assert.Less(t, r.First(&h, calls[0], 0, 0).Wait, 9*time.Second)
	assert.Equal(t, play.Decision{Retry: true, Wait: untilWoken, AtGate: true}, r.First(&h, calls[1], 0, 0))

	now := 9 * time.Second
	d := r.First(&h, calls[0], now, 0)
	assert.Equal(t, play.Decision{Retry: true, Wakes: true}, d)
	assert.Equal(t, []any{1}, woken(&h), "it is next, and must know when")
	assert.Equal(t, 8*time.Second, r.First(&h, calls[1], now, 0).Wait, "as long as the pause, if the probe hangs")
	assert.Equal(t, untilWoken, r.First(&h, calls[2], now, 0).Wait)

	now += 100 * time.Millisecond
	d = accept(&h, r, calls[0], now)
	assert.True(t, d.Wakes)
	assert.Equal(t, []any{1}, woken(&h), "earlier than the caller was told")
	at := alone(t, &h, r, calls[1], now)
	assert.LessOrEqual(t, at, 10*time.Second, "a gap after the probe")
	assert.Equal(t, []any{2}, woken(&h))
	assert.LessOrEqual(t, alone(t, &h, r, calls[2], at), at+time.Second, "without waiting for an answer")
	assert.Zero(t, r.State(&h, at).Waiting)
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

// A probe whose outcome says nothing about the limit is followed by another at
// once.
func TestGate_ProbeSaysNothing(t *testing.T) {
	for name, end := range map[string]func(h *host.Record, r play.Judge, c *decide.Call, now time.Duration) bool{
		"500": func(h *host.Record, r play.Judge, c *decide.Call, now time.Duration) bool {
			return r.Next(h, c, play.Repeatable(500), now, 0).Wakes
		},
		"error": func(h *host.Record, r play.Judge, c *decide.Call, now time.Duration) bool {
			return r.Next(h, c, play.Repeatable(0), now, 0).Wakes
		},
		"hopeless error": func(h *host.Record, r play.Judge, c *decide.Call, now time.Duration) bool {
			return r.Next(h, c, decide.Outcome{Hopeless: true}, now, 0).Wakes
		},
		"canceled": func(h *host.Record, r play.Judge, c *decide.Call, now time.Duration) bool {
			return r.Next(h, c, decide.Outcome{Canceled: true}, now, 0).Wakes
		},
		"returned": func(h *host.Record, r play.Judge, c *decide.Call, _ time.Duration) bool { return r.Return(h, c) },
		"429 that is the answer": func(h *host.Record, r play.Judge, c *decide.Call, now time.Duration) bool {
			return r.Next(h, c, decide.Outcome{Status: 429, Verdict: decide.Final}, now, 0).Wakes
		},
	} {
		t.Run(name, func(t *testing.T) {
			var h host.Record
			r := gated(t)
			throttle(&h, r, 8*time.Second, 0)
			calls := line(t, &h, r, 2, 0)
			now := 9 * time.Second
			require.Zero(t, r.First(&h, calls[0], now, 0).Wait)
			require.Equal(t, []any{1}, woken(&h))
			require.Equal(t, 8*time.Second, r.First(&h, calls[1], now, 0).Wait)
			now += 100 * time.Millisecond
			calls[0].Attempts = 1
			require.True(t, end(&h, r, calls[0], now))
			assert.Equal(t, []any{1}, woken(&h))
			assert.LessOrEqual(t, alone(t, &h, r, calls[1], now), 10*time.Second)
		})
	}
}

// A refusal of a request that was sent before the pause says nothing about the
// pace. A Retry-After that extends the pause is obeyed nevertheless.
func TestGate_StaleRefusals(t *testing.T) {
	var h host.Record
	r := gated(t)
	calls := make([]decide.Call, 5)
	for i := range calls {
		r.First(&h, &calls[i], 0, 0)
		calls[i].Attempts = 1
	}
	refuse(&h, r, &calls[0], 8*time.Second, 0)
	refuse(&h, r, &calls[1], 0, time.Second)
	refuse(&h, r, &calls[2], time.Second, time.Second)
	assert.Equal(t, 7*time.Second, r.State(&h, time.Second).PausedFor)
	refuse(&h, r, &calls[3], 8*time.Second, time.Second)
	assert.Equal(t, 8*time.Second, r.State(&h, time.Second).PausedFor)
	at := alone(t, &h, r, &decide.Call{}, time.Second)
	assert.GreaterOrEqual(t, at, 9*time.Second)
	assert.LessOrEqual(t, at, 10*time.Second, "the gap follows from the pause of 8 s")
}

// After two refusals, the next request becomes the probe, so that the request
// at the front doesn't use up its attempts.
//
//retrip:promise P23
func TestGate_ProbeIsPassedOn(t *testing.T) {
	var h host.Record
	r := play.Rules(t, retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}}) // four attempts
	throttle(&h, r, time.Second, 0)
	calls := line(t, &h, r, 10, 0)
	refused := make([]int, len(calls))
	now := time.Duration(0)
	next := func() int {
		for {
			for i, c := range calls {
				ask := r.First
				if c.Attempts > 0 {
					ask = r.Wake
				}
				d := ask(&h, c, now, play.Lowest)
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
		require.True(t, refuse(&h, r, calls[i], time.Second, now).Retry, "after %v", refused)
		r.Wake(&h, calls[i], now, play.Lowest)
	}
	t.Log(refused)
	for i, n := range refused {
		assert.LessOrEqual(t, n, 3, "of %d", i)
	}
	// After that, the request that has waited longest goes first again.
	first := next()
	calls[first].Attempts++
	accept(&h, r, calls[first], now)
	r.Return(&h, calls[first])
	calls = append(calls[:first], calls[first+1:]...)
	assert.Zero(t, next())
}
