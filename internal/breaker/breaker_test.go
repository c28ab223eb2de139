// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package breaker_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
)

// guarded returns the rules of most tests here. They allow no retries, so that
// every attempt is a request of its own.
func guarded(t testing.TB) play.Judge {
	return probing(2, play.Rules(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{
		Ratio: 0.5, Window: 10 * time.Second, MinVolume: 4, OpenFor: 6 * time.Second,
	}}))
}

// begin begins an attempt at h, or fails the test.
func begin(t testing.TB, h *host.Record, r play.Judge, now time.Duration) *decide.Call {
	t.Helper()
	var call decide.Call
	require.Equal(t, play.Decision{Retry: true}, plain(r.First(h, &call, now, play.Lowest)))
	call.Attempts = 1
	return &call
}

// plain returns d without the parts that only a Transport uses.
func plain(d play.Decision) play.Decision {
	return play.Decision{Retry: d.Retry, Wait: d.Wait, Reason: d.Reason}
}

func refused(h *host.Record, r play.Judge, now time.Duration) bool {
	d := r.First(h, &decide.Call{}, now, play.Lowest)
	return !d.Retry && d.Reason == decide.BreakerOpen && d.Wait == r.State(h, now).OpenFor
}

// attempts makes attempts at h that end at once with the given statuses.
func attempts(t testing.TB, h *host.Record, r play.Judge, now time.Duration, statuses ...int) {
	t.Helper()
	for _, status := range statuses {
		r.Next(h, begin(t, h, r, now), play.Repeatable(status), now, play.Lowest)
	}
}

// opened returns a host whose breaker opened at the instant 0 and allows a
// probe from 3 s on.
func opened(t testing.TB, r play.Judge) *host.Record {
	t.Helper()
	var h host.Record
	attempts(t, &h, r, 0, 503, 503, 503)
	r.Next(&h, begin(t, &h, r, 0), play.Repeatable(503), 0, drawThatOpensFor(r, 3*time.Second))
	require.Equal(t, breaker.Open, r.State(&h, 0).Breaker)
	require.InDelta(t, 3*time.Second, r.State(&h, 0).OpenFor, float64(10*time.Millisecond))
	return &h
}

// drawThatOpensFor returns a draw that keeps a breaker open for about d.
func drawThatOpensFor(r play.Judge, d time.Duration) uint64 {
	random := rand.New(rand.NewPCG(1, 1))
	for {
		draw := random.Uint64()
		if got := openTime(r, draw); got >= d && got < d+10*time.Millisecond {
			return draw
		}
	}
}

// openTime returns how long a draw keeps a breaker open.
func openTime(r play.Judge, draw uint64) time.Duration {
	var h host.Record
	for range r.Breaker.MinVolume {
		r.Next(&h, &decide.Call{Attempts: 1}, play.Repeatable(503), 0, draw)
	}
	return r.State(&h, 0).OpenFor
}

func TestBreaker_Opens(t *testing.T) {
	const s = time.Second
	type result struct {
		at     time.Duration
		status int
	}
	tests := []struct {
		name    string
		results []result
		want    breaker.State
	}{
		{"below the volume", []result{{0, 503}, {0, 503}, {0, 503}}, breaker.Closed},
		{"at the volume", []result{{0, 503}, {0, 503}, {0, 503}, {0, 503}}, breaker.Open},
		{"errors", []result{{0, 0}, {0, 0}, {0, 0}, {0, 0}}, breaker.Open},
		{"429s", []result{{0, 429}, {0, 429}, {0, 429}, {0, 429}}, breaker.Open},
		{"below the ratio", []result{{0, 503}, {0, 200}, {0, 200}, {0, 200}, {0, 503}}, breaker.Closed},
		{"at the ratio", []result{{0, 503}, {0, 200}, {0, 200}, {0, 503}}, breaker.Open},
		{"a success opens nothing", []result{{0, 503}, {0, 503}, {0, 503}, {0, 200}}, breaker.Closed},
		{"4xx come from a healthy host", []result{{0, 404}, {0, 401}, {0, 409}, {0, 400}, {0, 404}}, breaker.Closed},
		{"successes before the first failure aren't seen", []result{{0, 200}, {0, 200}, {0, 200}, {0, 200}, {0, 200}, {0, 503}, {0, 503}, {0, 503}, {0, 503}}, breaker.Open},
		{"within the window", []result{{0, 503}, {3 * s, 503}, {6 * s, 503}, {9 * s, 503}}, breaker.Open},
		{"within the window, with nothing between", []result{{0, 503}, {0, 503}, {0, 503}, {9 * s, 503}}, breaker.Open},
		{"the oldest has left the window", []result{{0, 503}, {3 * s, 200}, {6 * s, 503}, {10 * s, 503}}, breaker.Closed},
		{"the window slides", []result{{0, 503}, {3 * s, 200}, {6 * s, 503}, {10 * s, 503}, {12 * s, 503}}, breaker.Open},

		// If the window holds too few results, this many failures in a row open
		// the breaker.
		{"in a row, at a low rate", []result{{0, 503}, {20 * s, 503}, {40 * s, 503}, {60 * s, 503}}, breaker.Open},
		{"one fewer", []result{{0, 503}, {20 * s, 503}, {40 * s, 503}}, breaker.Closed},
		{"a success between", []result{{0, 503}, {20 * s, 503}, {40 * s, 503}, {50 * s, 200}, {60 * s, 503}, {80 * s, 503}, {100 * s, 503}}, breaker.Closed},
		{"a success between, and in a row after it", []result{{0, 503}, {20 * s, 200}, {40 * s, 503}, {60 * s, 503}, {80 * s, 503}, {100 * s, 503}}, breaker.Open},
		{"an hour between", []result{{0, 503}, {0, 503}, {0, 503}, {time.Hour, 503}}, breaker.Open},
		{"more than an hour between", []result{{0, 503}, {0, 503}, {0, 503}, {time.Hour + 1, 503}, {time.Hour + 1, 503}, {time.Hour + 1, 503}}, breaker.Closed},
		{"hours in all", []result{{0, 503}, {time.Hour, 503}, {2 * time.Hour, 503}, {3 * time.Hour, 503}}, breaker.Open},
		{"successes leave the window too", []result{{0, 503}, {0, 200}, {0, 200}, {0, 200}, {0, 200}, {11 * s, 503}, {11 * s, 503}, {11 * s, 503}, {11 * s, 503}}, breaker.Open},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var h host.Record
			r := guarded(t)
			last := time.Duration(0)
			for _, x := range tt.results {
				require.Equal(t, breaker.Closed, r.State(&h, x.at).Breaker)
				attempts(t, &h, r, x.at, x.status)
				last = x.at
			}
			assert.Equal(t, tt.want, r.State(&h, last).Breaker)
			assert.Equal(t, tt.want == breaker.Open, refused(&h, r, last))
		})
	}
}

// Ratio is exact: 7 of 25 are 0.28, although 0.28·25 is more than 7 in floating
// point.
func TestBreaker_RatioIsExact(t *testing.T) {
	for n := 2; n <= 100; n++ {
		for percent := 1; percent <= 100; percent++ {
			bad := n * percent / 100
			if bad < 2 || bad*100 != n*percent {
				continue
			}
			r := play.Rules(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: float64(percent) / 100, MinVolume: n}})
			var h host.Record
			// The host is watched from its first failure on.
			attempts(t, &h, r, 0, 503)
			attempts(t, &h, r, 0, slices.Repeat([]int{200}, n-bad)...)
			attempts(t, &h, r, 0, slices.Repeat([]int{503}, bad-2)...)
			require.Equal(t, breaker.Closed, r.State(&h, 0).Breaker)
			attempts(t, &h, r, 0, 503)
			assert.Equal(t, breaker.Open, r.State(&h, 0).Breaker, "%d of %d", bad, n)
		}
	}
}

func TestBreaker_Off(t *testing.T) {
	for name, p := range map[string]retrip.Policy{"default": {MaxAttempts: 1}, "Off": {MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: retrip.Off}}} {
		t.Run(name, func(t *testing.T) {
			var h host.Record
			r := play.Rules(t, p)
			for range 1000 {
				attempts(t, &h, r, 0, 503)
			}
			assert.Equal(t, breaker.Closed, r.State(&h, 0).Breaker)
		})
	}
	// A breaker doesn't hold back a request whose policy has none.
	r := play.Rules(t, retrip.Policy{})
	assert.True(t, r.First(opened(t, guarded(t)), &decide.Call{}, 0, 0).Retry)
}

// Two policies with different windows may share a host.
func TestBreaker_OfTwoPolicies(t *testing.T) {
	long := guarded(t)
	short := play.Rules(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 0.5, Window: 1, MinVolume: 3}})
	var h host.Record
	attempts(t, &h, long, time.Second, 503, 503, 503)
	attempts(t, &h, short, time.Second, 200, 503)
	assert.Equal(t, breaker.Closed, long.State(&h, time.Second).Breaker, "the window starts again")
	attempts(t, &h, short, time.Second, 503)
	assert.Equal(t, breaker.Open, long.State(&h, time.Second).Breaker)
}
