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
	"github.com/retrip/retrip/internal/breaker"
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
