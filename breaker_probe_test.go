// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// Ratio also decides in the half-open state, as soon as the remaining probes
// can't change the answer.
func TestBreaker_ProbesDecide(t *testing.T) {
	tests := []struct {
		ratio   float64
		probes  int
		results []int
		want    string
	}{
		{.8, 1, []int{200}, "closed"},
		{.8, 1, []int{503}, "open"},
		{.8, 2, []int{200}, "closed"},
		{.8, 2, []int{503}, "half-open"},
		{.8, 2, []int{503, 200}, "closed"},
		{.8, 2, []int{503, 503}, "open"},
		{.5, 2, []int{503}, "open"},
		{.5, 2, []int{200}, "half-open"},
		{.5, 2, []int{200, 503}, "open"},
		{.5, 2, []int{200, 200}, "closed"},
		{.5, 3, []int{503, 200}, "half-open"},
		{.5, 3, []int{503, 200, 200}, "closed"},
		{.5, 3, []int{503, 200, 503}, "open"},
		{.1, 3, []int{503}, "open"},
		{.1, 3, []int{200, 200}, "half-open"},
		{.1, 3, []int{200, 200, 200}, "closed"},
		{1, 3, []int{503, 503}, "half-open"},
		{1, 3, []int{503, 503, 200}, "closed"},
		{1, 3, []int{503, 503, 503}, "open"},
		{.28, 25, slices.Repeat([]int{503}, 6), "half-open"},
		{.28, 25, slices.Repeat([]int{503}, 7), "open"}, // 0.28·25 is more than 7 in floating point
		{.28, 25, slices.Repeat([]int{200}, 18), "half-open"},
		{.28, 25, slices.Repeat([]int{200}, 19), "closed"},
		{.5, math.MaxInt, slices.Repeat([]int{200, 503}, 100), "half-open"},
	}
	for _, tt := range tests {
		r := rulesOf(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: tt.ratio, MinVolume: 1, Probes: tt.probes}})
		var h retrip.Host
		attempts(t, &h, r, 0, 503)
		now := time.Minute
		for i, status := range tt.results {
			if i > 0 {
				require.Equal(t, "half-open", h.State(r, now).Breaker, "%+v after %d", tt, i)
			}
			attempts(t, &h, r, now, status)
			now += time.Minute
		}
		assert.Equal(t, tt.want, h.State(r, now).Breaker, "%+v", tt)
	}
}

// Probes are limited in number and spread out in time.
func TestBreaker_Probes(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	now := 4 * time.Second
	first := new(retrip.Call)
	require.True(t, h.First(r, first, now, drawHighest).Retry)
	first.Attempts = 1
	// 6 s, divided by twice the number of probes.
	const gap = 1500 * time.Millisecond
	assert.Equal(t, gap, h.State(r, now).OpenFor)
	assert.True(t, refused(h, r, now), "the second probe has its own time")
	assert.True(t, refused(h, r, now+gap-1))
	second := begin(t, h, r, now+gap)
	assert.True(t, refused(h, r, now+2*gap), "two are enough")

	h.Next(r, first, repeatable(200), now+2*gap, 0)
	assert.True(t, refused(h, r, now+2*gap), "one has succeeded, one is in flight")
	h.Next(r, second, repeatable(200), now+2*gap, 0)
	assert.False(t, refused(h, r, now+2*gap))
	assert.Equal(t, "closed", h.State(r, now+2*gap).Breaker)
}

// A probe without a result makes room for another.
func TestBreaker_ProbeReturned(t *testing.T) {
	for name, giveUp := range map[string]func(*retrip.Host, *retrip.Rules, *retrip.Call, time.Duration){
		"Return": func(h *retrip.Host, r *retrip.Rules, c *retrip.Call, _ time.Duration) { h.Return(r, c); h.Return(r, c) },
		"canceled": func(h *retrip.Host, r *retrip.Rules, c *retrip.Call, now time.Duration) {
			h.Next(r, c, retrip.Outcome{Canceled: true}, now, 0)
		},
		"hopeless": func(h *retrip.Host, r *retrip.Rules, c *retrip.Call, now time.Duration) {
			h.Next(r, c, retrip.Outcome{Hopeless: true}, now, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := guarded(t)
			h := opened(t, r)
			now := 4 * time.Second
			begin(t, h, r, now)
			second := begin(t, h, r, now)
			require.True(t, refused(h, r, now))
			giveUp(h, r, second, now)
			begin(t, h, r, now)
			assert.True(t, refused(h, r, now), "room for one more, not for two")
		})
	}
}

// The result of a probe that was returned doesn't count.
func TestBreaker_ProbeReturnedTwice(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	now := 4 * time.Second
	call := begin(t, h, r, now)
	h.Return(r, call)
	h.Next(r, call, repeatable(200), now, 0)
	attempts(t, h, r, now, 200)
	assert.Equal(t, "half-open", h.State(r, now).Breaker, "one of two")
}

// Returning a probe after the breaker has changed its state has no effect.
func TestBreaker_StaleProbeReturned(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	stale, failed := begin(t, h, r, 4*time.Second), begin(t, h, r, 4*time.Second)
	h.Next(r, failed, repeatable(503), 4*time.Second, 0)
	now := h.State(r, 4*time.Second).OpenFor + 4*time.Second
	begin(t, h, r, now)
	begin(t, h, r, now)
	h.Return(r, stale)
	assert.True(t, refused(h, r, now))
}

// Probes that never end don't make a host unreachable forever, and their late
// results don't count. A new policy that asks for fewer probes than have
// already succeeded must not keep the breaker shut.
func TestBreaker_FewerProbes(t *testing.T) {
	three := rulesOf(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: 0.1, MinVolume: 1, OpenFor: time.Second, Probes: 3}})
	two := rulesOf(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: 0.1, MinVolume: 1, OpenFor: time.Second, Probes: 2}})
	var h retrip.Host
	attempts(t, &h, three, 0, 503)
	now := 2 * time.Second
	for range 2 {
		attempts(t, &h, three, now, 200)
		now += time.Second
	}
	require.Equal(t, "half-open", h.State(three, now).Breaker)
	attempts(t, &h, two, now, 200)
	assert.Equal(t, "closed", h.State(two, now).Breaker)
}

func TestBreaker_HungProbe(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	now := 4 * time.Second
	hung := []*retrip.Call{begin(t, h, r, now), begin(t, h, r, now)}
	assert.True(t, refused(h, r, now+6*time.Second-1))
	now += 6 * time.Second
	fresh := begin(t, h, r, now)
	h.Next(r, hung[0], repeatable(503), now, 0)
	h.Return(r, hung[1])
	assert.Equal(t, "half-open", h.State(r, now).Breaker)
	h.Next(r, fresh, repeatable(200), now, 0)
	attempts(t, h, r, now, 200)
	assert.Equal(t, "closed", h.State(r, now).Breaker)
}

// If one of several probes hangs, the breaker waits for it for OpenFor at most.
func TestBreaker_OneHungProbe(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	now := 4 * time.Second
	begin(t, h, r, now)
	attempts(t, h, r, now, 200)
	require.True(t, refused(h, r, now+6*time.Second-1))
	begin(t, h, r, now+6*time.Second)
}

// Without a probe in flight, earlier successes count, however old they are.
func TestBreaker_SlowProbes(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	attempts(t, h, r, 4*time.Second, 200)
	attempts(t, h, r, time.Hour, 200)
	assert.Equal(t, "closed", h.State(r, time.Hour).Breaker)
}

// All probes together take at most half of OpenFor.
func TestBreaker_ProbesTakeHalfOfOpenFor(t *testing.T) {
	r := rulesOf(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 1, MinVolume: 1, OpenFor: 6 * time.Second, Probes: 3}})
	var h retrip.Host
	attempts(t, &h, r, 0, 503)
	require.True(t, h.First(r, &retrip.Call{}, time.Minute, drawHighest).Retry)
	assert.Equal(t, time.Second, h.State(r, time.Minute).OpenFor)
}

// A retry waits if the breaker allows a probe at the end of its wait. One
// nanosecond less, and it doesn't.
func TestBreaker_RetryInTimeForTheProbe(t *testing.T) {
	r := guarded(t)
	for _, early := range []time.Duration{0, 1} {
		h := opened(t, r)
		p := r.Policy()
		p.MaxAttempts = 2
		wait := h.State(r, 0).OpenFor - early
		p.Backoff = retrip.Backoff{Base: wait, Cap: wait, Jitter: retrip.NoJitter}
		d := h.Next(rulesOf(t, p), &retrip.Call{Attempts: 1}, repeatable(500), 0, 0)
		if early > 0 {
			assert.Equal(t, retrip.Decision{Reason: retrip.ReasonBreakerOpen}, d)
		} else {
			assert.Equal(t, retrip.Decision{Retry: true, Wait: wait, Reason: retrip.ReasonServerError}, d)
		}
	}
}

// A retry that comes late enough may be a probe.
func TestBreaker_RetryAsProbe(t *testing.T) {
	r := rulesOf(t, retrip.Policy{
		Backoff: retrip.Backoff{Base: 10 * time.Second, Jitter: retrip.NoJitter},
		Breaker: retrip.Breaker{Ratio: 1, MinVolume: 1, OpenFor: time.Second, Probes: 1},
	})
	var h retrip.Host
	call := begin(t, &h, r, 0)
	d := h.Next(r, call, repeatable(503), 0, 0)
	require.True(t, d.Retry)
	require.Equal(t, "open", h.State(r, 0).Breaker)
	require.Equal(t, retrip.Decision{Retry: true}, plain(h.Wake(r, call, d.Wait, 0)))
	call.Attempts++
	h.Next(r, call, repeatable(200), d.Wait, 0)
	assert.Equal(t, "closed", h.State(r, d.Wait).Breaker)
	assert.Equal(t, 5.0, h.State(r, d.Wait).Tokens)
}
