// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package breaker_test

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

func TestMain(m *testing.M) { testenv.RareGC(m) }

// once returns rules that allow no retries, so that every attempt is a request of its
// own, with a breaker of so many probes.
func once(t testing.TB, probes int, b retrip.Breaker) play.Judge {
	r := play.Rules(t, retrip.Policy{MaxAttempts: 1, Breaker: b})
	r.Breaker.Probes = probes
	return r
}

// guarded returns the rules of most tests here.
func guarded(t testing.TB) play.Judge {
	return once(t, 2, retrip.Breaker{Ratio: 0.5, Window: 10 * time.Second, MinVolume: 4, OpenFor: 6 * time.Second})
}

// begin begins an attempt at h, or fails the test.
func begin(t testing.TB, h *host.Record, r play.Judge, now time.Duration) *decide.Call {
	t.Helper()
	var call decide.Call
	d := r.First(h, &call, now, play.Lowest)
	require.True(t, d.Retry && d.Wait == 0, "%+v", d)
	call.Attempts = 1
	return &call
}

// attempts makes attempts that end at once.
func attempts(t testing.TB, h *host.Record, r play.Judge, now time.Duration, statuses ...int) {
	t.Helper()
	for _, status := range statuses {
		r.Next(h, begin(t, h, r, now), play.Repeatable(status), now, play.Lowest)
	}
}

// A row has the statuses of attempts (0: an error), and instants behind an @.
func TestBreaker_Opens(t *testing.T) {
	for _, tt := range []struct {
		name, results string
		want          breaker.State
	}{
		{"at the volume", "503 503 503 503", breaker.Open},
		{"errors", "0 0 0 0", breaker.Open},
		{"429s", "429 429 429 429", breaker.Open},
		{"below the ratio", "503 200 200 200 503", breaker.Closed},
		{"at the ratio", "503 200 200 503", breaker.Open},
		{"successes before the first failure aren't seen", "200 200 200 200 200 503 503 503 503", breaker.Open},
		{"within the window", "503 @3s 503 @6s 503 @9s 503", breaker.Open},
		{"within the window, with nothing between", "503 503 503 @9s 503", breaker.Open},
		{"the oldest has left the window", "503 @3s 200 @6s 503 @10s 503", breaker.Closed},
		{"the window slides", "503 @3s 200 @6s 503 @10s 503 @12s 503", breaker.Open},
		{"successes leave the window too", "503 200 200 200 200 @11s 503 503 503 503", breaker.Open},
		// If the window holds too few results, this many failures in a row open the breaker.
		{"in a row, at a low rate", "503 @20s 503 @40s 503 @60s 503", breaker.Open},
		{"a success between", "503 @20s 503 @40s 503 @50s 200 @60s 503 @80s 503 @100s 503", breaker.Closed},
		{"a success between, and in a row after it", "503 @20s 200 @40s 503 @60s 503 @80s 503 @100s 503", breaker.Open},
		{"an hour between", "503 503 503 @1h 503", breaker.Open},
		{"more than an hour between", "503 503 503 @1h0m0.000000001s 503 503 503", breaker.Closed},
		{"hours in all", "503 @1h 503 @2h 503 @3h 503", breaker.Open},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var h host.Record
			var now time.Duration
			r := guarded(t)
			for word := range strings.FieldsSeq(tt.results) {
				if at, ok := strings.CutPrefix(word, "@"); ok {
					now = play.Must(time.ParseDuration(at))
					continue
				}
				require.Equal(t, breaker.Closed, r.State(&h, now).Breaker)
				attempts(t, &h, r, now, play.Must(strconv.Atoi(word)))
			}
			assert.Equal(t, tt.want, r.State(&h, now).Breaker)
			d := r.First(&h, &decide.Call{}, now, play.Lowest)
			assert.Equal(t, tt.want == breaker.Open, !d.Retry && d.Reason == decide.BreakerOpen && d.Wait == r.State(&h, now).OpenFor, "%+v", d)
		})
	}
}

func TestBreaker_StaysClosed(t *testing.T) {
	for name, b := range map[string]retrip.Breaker{
		"default":             {},
		"off":                 {Ratio: retrip.Off},
		"volume out of reach": {Ratio: 0.01, MinVolume: math.MaxInt},
	} {
		r := play.Rules(t, retrip.Policy{MaxAttempts: 1, Breaker: b})
		var h host.Record
		attempts(t, &h, r, 0, slices.Repeat([]int{503}, 1000)...)
		assert.Equal(t, breaker.Closed, r.State(&h, 0).Breaker, name)
	}
}

// Policies with different breakers, and with none, may share a host.
func TestBreaker_OfTwoPolicies(t *testing.T) {
	long, none := guarded(t), play.Rules(t, retrip.Policy{})
	short := once(t, 2, retrip.Breaker{Ratio: 0.5, Window: 1, MinVolume: 3})
	var h host.Record
	attempts(t, &h, long, time.Second, 503, 503, 503)
	attempts(t, &h, short, time.Second, 200, 503)
	assert.Equal(t, breaker.Closed, long.State(&h, time.Second).Breaker, "the window starts again")
	attempts(t, &h, short, time.Second, 503)
	assert.Equal(t, breaker.Open, long.State(&h, time.Second).Breaker)
	assert.True(t, none.First(&h, &decide.Call{}, time.Second, 0).Retry, "a breaker holds back only requests whose policy has one")
}

// Ratio also decides on probes, as soon as the remaining ones can't change the answer.
func TestBreaker_ProbesDecide(t *testing.T) {
	for _, tt := range []struct {
		ratio   float64
		probes  int
		results []int
		want    breaker.State
	}{
		{.8, 2, []int{200}, breaker.Closed},
		{.8, 2, []int{503}, breaker.HalfOpen},
		{.8, 2, []int{503, 200}, breaker.Closed},
		{.5, 3, []int{503, 200, 200}, breaker.Closed},
		{.5, 3, []int{503, 200, 503}, breaker.Open},
		{.28, 25, slices.Repeat([]int{503}, 7), breaker.Open}, // 0.28·25 is more than 7 in floating point
		{.28, 25, slices.Repeat([]int{200}, 19), breaker.Closed},
		{.5, math.MaxInt, slices.Repeat([]int{200, 503}, 100), breaker.HalfOpen},
	} {
		r := once(t, tt.probes, retrip.Breaker{Ratio: tt.ratio, MinVolume: 1})
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
	var h host.Record
	r := guarded(t)
	attempts(t, &h, r, 0, 503, 503, 503, 503)
	now := 10 * time.Second
	call := begin(t, &h, r, now)
	r.Return(&h, call)
	r.Next(&h, call, play.Repeatable(200), now, 0)
	attempts(t, &h, r, now, 200)
	assert.Equal(t, breaker.HalfOpen, r.State(&h, now).Breaker, "one of two")
}

// A new policy may ask for fewer probes than have already succeeded.
func TestBreaker_FewerProbes(t *testing.T) {
	b := retrip.Breaker{Ratio: 0.1, MinVolume: 1, OpenFor: time.Second}
	three, two := once(t, 3, b), once(t, 2, b)
	var h host.Record
	attempts(t, &h, three, 0, 503)
	attempts(t, &h, three, 2*time.Second, 200)
	attempts(t, &h, three, 3*time.Second, 200)
	require.Equal(t, breaker.HalfOpen, three.State(&h, 4*time.Second).Breaker)
	attempts(t, &h, two, 4*time.Second, 200)
	assert.Equal(t, breaker.Closed, two.State(&h, 4*time.Second).Breaker)
}
