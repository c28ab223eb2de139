// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package breaker_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/backoff"
	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
)

// probing returns r with a breaker of n probes.
func probing(n int, r play.Judge) play.Judge {
	r.Breaker.Probes = n
	return r
}

// Ratio also decides in the half-open state, as soon as the remaining probes
// can't change the answer.
func TestBreaker_ProbesDecide(t *testing.T) {
	tests := []struct {
		ratio   float64
		probes  int
		results []int
		want    breaker.State
	}{
		{.8, 1, []int{200}, breaker.Closed},
		{.8, 1, []int{503}, breaker.Open},
		{.8, 2, []int{200}, breaker.Closed},
		{.8, 2, []int{503}, breaker.HalfOpen},
		{.8, 2, []int{503, 200}, breaker.Closed},
		{.8, 2, []int{503, 503}, breaker.Open},
		{.5, 2, []int{503}, breaker.Open},
		{.5, 2, []int{200}, breaker.HalfOpen},
		{.5, 2, []int{200, 503}, breaker.Open},
		{.5, 2, []int{200, 200}, breaker.Closed},
		{.5, 3, []int{503, 200}, breaker.HalfOpen},
		{.5, 3, []int{503, 200, 200}, breaker.Closed},
		{.5, 3, []int{503, 200, 503}, breaker.Open},
		{.1, 3, []int{503}, breaker.Open},
		{.1, 3, []int{200, 200}, breaker.HalfOpen},
		{.1, 3, []int{200, 200, 200}, breaker.Closed},
		{1, 3, []int{503, 503}, breaker.HalfOpen},
		{1, 3, []int{503, 503, 200}, breaker.Closed},
		{1, 3, []int{503, 503, 503}, breaker.Open},
		{.28, 25, slices.Repeat([]int{503}, 6), breaker.HalfOpen},
		{.28, 25, slices.Repeat([]int{503}, 7), breaker.Open}, // 0.28·25 is more than 7 in floating point
		{.28, 25, slices.Repeat([]int{200}, 18), breaker.HalfOpen},
		{.28, 25, slices.Repeat([]int{200}, 19), breaker.Closed},
		{.5, math.MaxInt, slices.Repeat([]int{200, 503}, 100), breaker.HalfOpen},
	}
	for _, tt := range tests {
		r := probing(tt.probes, play.Rules(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: tt.ratio, MinVolume: 1}}))
		var h host.Record
		attempts(t, &h, r, 0, 503)
		now := time.Minute
		for i, status := range tt.results {
			if i > 0 {
				require.Equal(t, breaker.HalfOpen, r.State(&h, now).Breaker, "%+v after %d", tt, i)
			}
			attempts(t, &h, r, now, status)
			now += time.Minute
		}
		assert.Equal(t, tt.want, r.State(&h, now).Breaker, "%+v", tt)
	}
}

// Probes are limited in number and spread out in time.
func TestBreaker_Probes(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	now := 4 * time.Second
	first := new(decide.Call)
	require.True(t, r.First(h, first, now, play.Highest).Retry)
	first.Attempts = 1
	// 6 s, divided by twice the number of probes.
	const gap = 1500 * time.Millisecond
	assert.Equal(t, gap, r.State(h, now).OpenFor)
	assert.True(t, refused(h, r, now), "the second probe has its own time")
	assert.True(t, refused(h, r, now+gap-1))
	second := begin(t, h, r, now+gap)
	assert.True(t, refused(h, r, now+2*gap), "two are enough")

	r.Next(h, first, play.Repeatable(200), now+2*gap, 0)
	assert.True(t, refused(h, r, now+2*gap), "one has succeeded, one is in flight")
	r.Next(h, second, play.Repeatable(200), now+2*gap, 0)
	assert.False(t, refused(h, r, now+2*gap))
	assert.Equal(t, breaker.Closed, r.State(h, now+2*gap).Breaker)
}

// A probe without a result makes room for another.
func TestBreaker_ProbeReturned(t *testing.T) {
	for name, giveUp := range map[string]func(*host.Record, play.Judge, *decide.Call, time.Duration){
		"Return": func(h *host.Record, r play.Judge, c *decide.Call, _ time.Duration) {
			r.Return(h, c)
			r.Return(h, c)
		},
		"canceled": func(h *host.Record, r play.Judge, c *decide.Call, now time.Duration) {
			r.Next(h, c, decide.Outcome{Canceled: true}, now, 0)
		},
		"hopeless": func(h *host.Record, r play.Judge, c *decide.Call, now time.Duration) {
			r.Next(h, c, decide.Outcome{Hopeless: true}, now, 0)
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
	r.Return(h, call)
	r.Next(h, call, play.Repeatable(200), now, 0)
	attempts(t, h, r, now, 200)
	assert.Equal(t, breaker.HalfOpen, r.State(h, now).Breaker, "one of two")
}

// Returning a probe after the breaker has changed its state has no effect.
func TestBreaker_StaleProbeReturned(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	stale, failed := begin(t, h, r, 4*time.Second), begin(t, h, r, 4*time.Second)
	r.Next(h, failed, play.Repeatable(503), 4*time.Second, 0)
	now := r.State(h, 4*time.Second).OpenFor + 4*time.Second
	begin(t, h, r, now)
	begin(t, h, r, now)
	r.Return(h, stale)
	assert.True(t, refused(h, r, now))
}

// A new policy that asks for fewer probes than have already succeeded must not
// keep the breaker from closing.
func TestBreaker_FewerProbes(t *testing.T) {
	three := probing(3, play.Rules(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: 0.1, MinVolume: 1, OpenFor: time.Second}}))
	two := probing(2, play.Rules(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: 0.1, MinVolume: 1, OpenFor: time.Second}}))
	var h host.Record
	attempts(t, &h, three, 0, 503)
	now := 2 * time.Second
	for range 2 {
		attempts(t, &h, three, now, 200)
		now += time.Second
	}
	require.Equal(t, breaker.HalfOpen, three.State(&h, now).Breaker)
	attempts(t, &h, two, now, 200)
	assert.Equal(t, breaker.Closed, two.State(&h, now).Breaker)
}

// Probes that never end don't make a host unreachable forever, and their late
// results don't count.
func TestBreaker_HungProbe(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	now := 4 * time.Second
	hung := []*decide.Call{begin(t, h, r, now), begin(t, h, r, now)}
	assert.True(t, refused(h, r, now+6*time.Second-1))
	now += 6 * time.Second
	fresh := begin(t, h, r, now)
	r.Next(h, hung[0], play.Repeatable(503), now, 0)
	r.Return(h, hung[1])
	assert.Equal(t, breaker.HalfOpen, r.State(h, now).Breaker)
	r.Next(h, fresh, play.Repeatable(200), now, 0)
	attempts(t, h, r, now, 200)
	assert.Equal(t, breaker.Closed, r.State(h, now).Breaker)
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
	assert.Equal(t, breaker.Closed, r.State(h, time.Hour).Breaker)
}

// All probes together take at most half of OpenFor.
func TestBreaker_ProbesTakeHalfOfOpenFor(t *testing.T) {
	r := probing(3, play.Rules(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 1, MinVolume: 1, OpenFor: 6 * time.Second}}))
	var h host.Record
	attempts(t, &h, r, 0, 503)
	require.True(t, r.First(&h, &decide.Call{}, time.Minute, play.Highest).Retry)
	assert.Equal(t, time.Second, r.State(&h, time.Minute).OpenFor)
}

// A retry waits if the breaker allows a probe at the end of its wait. One
// nanosecond less, and it doesn't.
func TestBreaker_RetryInTimeForTheProbe(t *testing.T) {
	r := guarded(t)
	for _, early := range []time.Duration{0, 1} {
		h := opened(t, r)
		wait := r.State(h, 0).OpenFor - early
		copied := *r.Rules
		twice := play.Judge{Rules: &copied}
		twice.MaxAttempts, twice.Backoff = 2, backoff.Rule{Base: wait, Cap: wait, Jitter: backoff.None}
		d := twice.Next(h, &decide.Call{Attempts: 1}, play.Repeatable(500), 0, 0)
		if early > 0 {
			assert.Equal(t, play.Decision{Reason: decide.BreakerOpen}, d)
		} else {
			assert.Equal(t, play.Decision{Retry: true, Wait: wait, Reason: decide.ServerError}, d)
		}
	}
}

// A retry that comes late enough may be a probe.
func TestBreaker_RetryAsProbe(t *testing.T) {
	r := probing(1, play.Rules(t, retrip.Policy{
		Backoff: retrip.Backoff{Base: 10 * time.Second, Jitter: retrip.NoJitter},
		Breaker: retrip.Breaker{Ratio: 1, MinVolume: 1, OpenFor: time.Second},
	}))
	var h host.Record
	call := begin(t, &h, r, 0)
	d := r.Next(&h, call, play.Repeatable(503), 0, 0)
	require.True(t, d.Retry)
	require.Equal(t, breaker.Open, r.State(&h, 0).Breaker)
	require.Equal(t, play.Decision{Retry: true}, plain(r.Wake(&h, call, d.Wait, 0)))
	call.Attempts++
	r.Next(&h, call, play.Repeatable(200), d.Wait, 0)
	assert.Equal(t, breaker.Closed, r.State(&h, d.Wait).Breaker)
	assert.Equal(t, 5.0, r.State(&h, d.Wait).Tokens)
}
