// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

// guarded are the rules of most tests here: no retries, so that every attempt
// is a request of its own.
func guarded(t testing.TB) *retrip.Rules {
	return rulesOf(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{
		Ratio: 0.5, Window: 10 * time.Second, MinVolume: 4, OpenFor: 6 * time.Second, Probes: 2,
	}})
}

// begin lets an attempt through at h, or fails the test.
func begin(t testing.TB, h *retrip.Host, r *retrip.Rules, now time.Duration) *retrip.Call {
	t.Helper()
	var call retrip.Call
	require.Equal(t, retrip.Decision{Retry: true}, plain(h.First(r, &call, now, drawLowest)))
	call.Attempts = 1
	return &call
}

// plain is d without what only a Transport sees.
func plain(d retrip.Decision) retrip.Decision {
	return retrip.Decision{Retry: d.Retry, Wait: d.Wait, Reason: d.Reason}
}

func refused(h *retrip.Host, r *retrip.Rules, now time.Duration) bool {
	d := h.First(r, &retrip.Call{}, now, drawLowest)
	return !d.Retry && d.Reason == retrip.ReasonBreakerOpen && d.Wait == 0
}

// attempts makes attempts at h that end at once in the given statuses.
func attempts(t testing.TB, h *retrip.Host, r *retrip.Rules, now time.Duration, statuses ...int) {
	t.Helper()
	for _, status := range statuses {
		h.Next(r, begin(t, h, r, now), repeatable(status), now, drawLowest)
	}
}

// opened returns a host whose breaker opened at the instant 0 and may be
// probed from 3 s on.
func opened(t testing.TB, r *retrip.Rules) *retrip.Host {
	t.Helper()
	var h retrip.Host
	attempts(t, &h, r, 0, 503, 503, 503)
	h.Next(r, begin(t, &h, r, 0), repeatable(503), 0, drawThatOpensFor(r, 3*time.Second))
	require.Equal(t, "open", h.State(r, 0).Breaker)
	require.InDelta(t, 3*time.Second, h.State(r, 0).OpenFor, float64(10*time.Millisecond))
	return &h
}

// drawThatOpensFor looks for a draw that keeps a breaker open for about d.
func drawThatOpensFor(r *retrip.Rules, d time.Duration) uint64 {
	random := rand.New(rand.NewPCG(1, 1))
	for {
		draw := random.Uint64()
		if got := openTime(r, draw); got >= d && got < d+10*time.Millisecond {
			return draw
		}
	}
}

// openTime returns for how long a breaker opens with a draw.
func openTime(r *retrip.Rules, draw uint64) time.Duration {
	var h retrip.Host
	for range r.Policy().Breaker.MinVolume {
		h.Next(r, &retrip.Call{Attempts: 1}, repeatable(503), 0, draw)
	}
	return h.State(r, 0).OpenFor
}

func TestBreakerOpens(t *testing.T) {
	const s = time.Second
	type result struct {
		at     time.Duration
		status int
	}
	tests := []struct {
		name    string
		results []result
		want    string
	}{
		{"below the volume", []result{{0, 503}, {0, 503}, {0, 503}}, "closed"},
		{"at the volume", []result{{0, 503}, {0, 503}, {0, 503}, {0, 503}}, "open"},
		{"errors", []result{{0, 0}, {0, 0}, {0, 0}, {0, 0}}, "open"},
		{"429s", []result{{0, 429}, {0, 429}, {0, 429}, {0, 429}}, "open"},
		{"below the ratio", []result{{0, 503}, {0, 200}, {0, 200}, {0, 200}, {0, 503}}, "closed"},
		{"at the ratio", []result{{0, 503}, {0, 200}, {0, 200}, {0, 503}}, "open"},
		{"a success opens nothing", []result{{0, 503}, {0, 503}, {0, 503}, {0, 200}}, "closed"},
		{"4xx come from a healthy host", []result{{0, 404}, {0, 401}, {0, 409}, {0, 400}, {0, 404}}, "closed"},
		{"successes before the first failure aren't seen", []result{{0, 200}, {0, 200}, {0, 200}, {0, 200}, {0, 200}, {0, 503}, {0, 503}, {0, 503}, {0, 503}}, "open"},
		{"within the window", []result{{0, 503}, {3 * s, 503}, {6 * s, 503}, {9 * s, 503}}, "open"},
		{"within the window, with nothing between", []result{{0, 503}, {0, 503}, {0, 503}, {9 * s, 503}}, "open"},
		{"the oldest has left the window", []result{{0, 503}, {3 * s, 200}, {6 * s, 503}, {10 * s, 503}}, "closed"},
		{"the window slides", []result{{0, 503}, {3 * s, 200}, {6 * s, 503}, {10 * s, 503}, {12 * s, 503}}, "open"},

		// Where the window holds too few, so many in a row do.
		{"in a row, at a low rate", []result{{0, 503}, {20 * s, 503}, {40 * s, 503}, {60 * s, 503}}, "open"},
		{"one fewer", []result{{0, 503}, {20 * s, 503}, {40 * s, 503}}, "closed"},
		{"a success between", []result{{0, 503}, {20 * s, 503}, {40 * s, 503}, {50 * s, 200}, {60 * s, 503}, {80 * s, 503}, {100 * s, 503}}, "closed"},
		{"a success between, and in a row after it", []result{{0, 503}, {20 * s, 200}, {40 * s, 503}, {60 * s, 503}, {80 * s, 503}, {100 * s, 503}}, "open"},
		{"an hour between", []result{{0, 503}, {0, 503}, {0, 503}, {time.Hour, 503}}, "open"},
		{"more than an hour between", []result{{0, 503}, {0, 503}, {0, 503}, {time.Hour + 1, 503}, {time.Hour + 1, 503}, {time.Hour + 1, 503}}, "closed"},
		{"hours in all", []result{{0, 503}, {time.Hour, 503}, {2 * time.Hour, 503}, {3 * time.Hour, 503}}, "open"},
		{"successes leave the window too", []result{{0, 503}, {0, 200}, {0, 200}, {0, 200}, {0, 200}, {11 * s, 503}, {11 * s, 503}, {11 * s, 503}, {11 * s, 503}}, "open"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var h retrip.Host
			r := guarded(t)
			last := time.Duration(0)
			for _, x := range tt.results {
				require.Equal(t, "closed", h.State(r, x.at).Breaker)
				attempts(t, &h, r, x.at, x.status)
				last = x.at
			}
			assert.Equal(t, tt.want, h.State(r, last).Breaker)
			assert.Equal(t, tt.want == "open", refused(&h, r, last))
		})
	}
}

// The ratio is met to the result: 7 of 25 are 0.28, though 0.28·25 is more than
// 7 in floating point.
func TestBreakerRatioIsExact(t *testing.T) {
	for n := 2; n <= 100; n++ {
		for percent := 1; percent <= 100; percent++ {
			bad := n * percent / 100
			if bad < 2 || bad*100 != n*percent {
				continue
			}
			r := rulesOf(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: float64(percent) / 100, MinVolume: n}})
			var h retrip.Host
			// The first failure is when the host begins to be watched.
			attempts(t, &h, r, 0, 503)
			attempts(t, &h, r, 0, slices.Repeat([]int{200}, n-bad)...)
			attempts(t, &h, r, 0, slices.Repeat([]int{503}, bad-2)...)
			require.Equal(t, "closed", h.State(r, 0).Breaker)
			attempts(t, &h, r, 0, 503)
			assert.Equal(t, "open", h.State(r, 0).Breaker, "%d of %d", bad, n)
		}
	}
}

// What is no failure of the host's doesn't count as one, nor as a success.
func TestBreakerIgnores(t *testing.T) {
	for name, o := range map[string]retrip.Outcome{
		"canceled":    {Canceled: true},
		"hopeless":    {Hopeless: true},
		"Final error": {Verdict: retrip.Final},
	} {
		t.Run(name, func(t *testing.T) {
			var h retrip.Host
			r := guarded(t)
			for range 100 {
				h.Next(r, begin(t, &h, r, 0), o, 0, drawLowest)
			}
			assert.Equal(t, "closed", h.State(r, 0).Breaker)
			attempts(t, &h, r, 0, 503)
			for range 100 {
				h.Next(r, begin(t, &h, r, 0), o, 0, drawLowest)
			}
			attempts(t, &h, r, 0, 503, 503, 503)
			assert.Equal(t, "open", h.State(r, 0).Breaker)
		})
	}
}

func TestBreakerOff(t *testing.T) {
	for name, p := range map[string]retrip.Policy{"default": {MaxAttempts: 1}, "Off": {MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: retrip.Off}}} {
		t.Run(name, func(t *testing.T) {
			var h retrip.Host
			r := rulesOf(t, p)
			for range 1000 {
				attempts(t, &h, r, 0, 503)
			}
			assert.Equal(t, "closed", h.State(r, 0).Breaker)
		})
	}
	// A request whose policy has none isn't held back by that of others.
	r := rulesOf(t, retrip.Policy{})
	assert.True(t, opened(t, guarded(t)).First(r, &retrip.Call{}, 0, 0).Retry)
}

func TestBreakerOpenTime(t *testing.T) {
	r := guarded(t)
	random := rand.New(rand.NewPCG(2, 3))
	var times []time.Duration
	for range 1000 {
		d := openTime(r, random.Uint64())
		require.GreaterOrEqual(t, d, 3*time.Second)
		require.LessOrEqual(t, d, 9*time.Second)
		times = append(times, d)
	}
	slices.Sort(times)
	assert.InDelta(t, 6*time.Second, times[500], float64(300*time.Millisecond), "the median is OpenFor")
	assert.InDelta(t, 3*time.Second, times[0], float64(100*time.Millisecond))
	assert.InDelta(t, 9*time.Second, times[999], float64(100*time.Millisecond))
}

func TestBreakerFailsFast(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	for _, now := range []time.Duration{0, time.Second, 2999 * time.Millisecond} {
		assert.True(t, refused(h, r, now), "at %v", now)
		assert.Equal(t, "open", h.State(r, now).Breaker)
	}
	assert.False(t, refused(h, r, 3010*time.Millisecond))
	assert.Equal(t, "half-open", h.State(r, 3010*time.Millisecond).Breaker)
}

func TestBreakerCloses(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	now := 4 * time.Second
	attempts(t, h, r, now, 200)
	assert.Equal(t, "half-open", h.State(r, now).Breaker)
	attempts(t, h, r, now, 404)
	assert.Equal(t, "closed", h.State(r, now).Breaker)
	assert.Zero(t, h.State(r, now).OpenFor)
	attempts(t, h, r, now, 503, 503, 503)
	assert.Equal(t, "closed", h.State(r, now).Breaker, "what was before is forgotten")
	attempts(t, h, r, now, 503)
	assert.Equal(t, "open", h.State(r, now).Breaker)
}

func TestBreakerReopens(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	now := 4 * time.Second
	attempts(t, h, r, now, 200, 503)
	assert.Equal(t, "open", h.State(r, now).Breaker)
	assert.GreaterOrEqual(t, h.State(r, now).OpenFor, 3*time.Second)
	assert.True(t, refused(h, r, now+3*time.Second-1))
}

// Ratio decides in half-open, too, and as soon as the probes to come can't
// change what it says.
func TestBreakerProbesDecide(t *testing.T) {
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

// The probes are limited in number, and one comes after another.
func TestBreakerProbes(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	now := 4 * time.Second
	first := new(retrip.Call)
	require.True(t, h.First(r, first, now, drawHighest).Retry)
	first.Attempts = 1
	// 6 s spread over twice as many places as there are probes.
	const gap = 1500 * time.Millisecond
	assert.Equal(t, gap, h.State(r, now).OpenFor)
	assert.True(t, refused(h, r, now), "the second probe has its own time")
	assert.True(t, refused(h, r, now+gap-1))
	second := begin(t, h, r, now+gap)
	assert.True(t, refused(h, r, now+2*gap), "two are enough")

	h.Next(r, first, repeatable(200), now+2*gap, 0)
	assert.True(t, refused(h, r, now+2*gap), "one has succeeded, one is under way")
	h.Next(r, second, repeatable(200), now+2*gap, 0)
	assert.False(t, refused(h, r, now+2*gap))
	assert.Equal(t, "closed", h.State(r, now+2*gap).Breaker)
}

// A probe that said nothing makes room for another.
func TestBreakerProbeReturned(t *testing.T) {
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
			assert.True(t, refused(h, r, now), "room for one, not for two")
		})
	}
}

// The result of a probe that was given back isn't counted all the same.
func TestBreakerProbeReturnedTwice(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	now := 4 * time.Second
	call := begin(t, h, r, now)
	h.Return(r, call)
	h.Next(r, call, repeatable(200), now, 0)
	attempts(t, h, r, now, 200)
	assert.Equal(t, "half-open", h.State(r, now).Breaker, "one of two")
}

// A probe given back after its breaker has gone on changes nothing.
func TestBreakerStaleProbeReturned(t *testing.T) {
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

// The result of an attempt that was let through in an earlier state counts for
// nothing.
func TestBreakerStaleResults(t *testing.T) {
	r := guarded(t)
	var h retrip.Host
	var before []*retrip.Call
	for range 10 {
		before = append(before, begin(t, &h, r, 0))
	}
	attempts(t, &h, r, 0, 503, 503, 503, 503)
	require.Equal(t, "open", h.State(r, 0).Breaker)
	until := h.State(r, 0).OpenFor

	h.Next(r, before[0], repeatable(503), until-1, 0)
	assert.EqualValues(t, 1, h.State(r, until-1).OpenFor, "a failure doesn't open it anew")
	h.Next(r, before[1], repeatable(200), until-1, 0)
	assert.Equal(t, "open", h.State(r, until-1).Breaker, "a success doesn't close it")

	probe := begin(t, &h, r, until)
	h.Next(r, before[2], repeatable(503), until, 0)
	h.Next(r, before[3], repeatable(200), until, 0)
	h.Next(r, before[4], repeatable(200), until, 0)
	assert.Equal(t, "half-open", h.State(r, until).Breaker, "only probes count")
	h.Next(r, probe, repeatable(200), until, 0)
	attempts(t, &h, r, until, 200)
	require.Equal(t, "closed", h.State(r, until).Breaker)

	attempts(t, &h, r, until, 503, 503, 503)
	for _, call := range before[5:] {
		h.Next(r, call, repeatable(503), until, 0)
	}
	assert.Equal(t, "closed", h.State(r, until).Breaker, "nor are they counted later")
}

// Probes that never come back don't keep a host out of reach for ever, and
// when they do come back they have nothing to say.
// A new policy that asks for fewer probes than have succeeded already must not
// keep the host shut for good.
func TestBreakerFewerProbes(t *testing.T) {
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

func TestBreakerHungProbe(t *testing.T) {
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

// One of several that hangs is enough to be done without.
func TestBreakerOneHungProbe(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	now := 4 * time.Second
	begin(t, h, r, now)
	attempts(t, h, r, now, 200)
	require.True(t, refused(h, r, now+6*time.Second-1))
	begin(t, h, r, now+6*time.Second)
}

// Where no probe is under way, those that have succeeded count however long
// ago it was.
func TestBreakerSlowProbes(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	attempts(t, h, r, 4*time.Second, 200)
	attempts(t, h, r, time.Hour, 200)
	assert.Equal(t, "closed", h.State(r, time.Hour).Breaker)
}

// All probes together take half of OpenFor at most.
func TestBreakerProbesTakeHalfOfOpenFor(t *testing.T) {
	r := rulesOf(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 1, MinVolume: 1, OpenFor: 6 * time.Second, Probes: 3}})
	var h retrip.Host
	attempts(t, &h, r, 0, 503)
	require.True(t, h.First(r, &retrip.Call{}, time.Minute, drawHighest).Retry)
	assert.Equal(t, time.Second, h.State(r, time.Minute).OpenFor)
}

// A retry that comes as the breaker may be probed is waited for; one a
// nanosecond earlier isn't.
func TestBreakerRetryInTimeForTheProbe(t *testing.T) {
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

// The time of a next probe says nothing any more once the breaker has closed.
func TestBreakerRetryAfterItHasClosed(t *testing.T) {
	r := rulesOf(t, retrip.Policy{
		Backoff: retrip.Backoff{Base: retrip.Off},
		Breaker: retrip.Breaker{Ratio: 1, MinVolume: 3, OpenFor: 6 * time.Second, Probes: 1},
	})
	var h retrip.Host
	for range 3 {
		h.Next(r, begin(t, &h, r, 0), repeatable(503), 0, 0)
	}
	const now = time.Minute
	var probe retrip.Call
	require.True(t, h.First(r, &probe, now, drawHighest).Retry)
	h.Next(r, &probe, repeatable(200), now, 0)
	require.Equal(t, "closed", h.State(r, now).Breaker)
	assert.True(t, h.Next(r, begin(t, &h, r, now), repeatable(503), now, 0).Retry)
}

// A retry isn't waited for if the breaker will refuse it anyway; and its token
// comes back if the breaker opens meanwhile.
func TestBreakerAndRetry(t *testing.T) {
	r := rulesOf(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: 1, MinVolume: 2, OpenFor: time.Minute}})
	var h retrip.Host
	call := begin(t, &h, r, 0)
	d := h.Next(r, call, repeatable(503), 0, drawHighest)
	require.True(t, d.Retry)
	other := begin(t, &h, r, 0)
	assert.Equal(t, retrip.ReasonBreakerOpen, h.Next(r, other, repeatable(503), 0, 0).Reason)
	assert.Equal(t, 4.5, h.State(r, 0).Tokens, "what isn't made isn't paid for")

	assert.Equal(t, retrip.Decision{Reason: retrip.ReasonBreakerOpen}, plain(h.Wake(r, call, d.Wait, 0)))
	assert.Equal(t, 5.0, h.State(r, 0).Tokens)
}

// A retry that comes late enough may be the probe.
func TestBreakerRetryAsProbe(t *testing.T) {
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

// Breakers with windows of different lengths may meet at one host.
func TestBreakerOfTwoPolicies(t *testing.T) {
	long := guarded(t)
	short := rulesOf(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 0.5, Window: 1, MinVolume: 3}})
	var h retrip.Host
	attempts(t, &h, long, time.Second, 503, 503, 503)
	attempts(t, &h, short, time.Second, 200, 503)
	assert.Equal(t, "closed", h.State(long, time.Second).Breaker, "the window begins anew")
	attempts(t, &h, short, time.Second, 503)
	assert.Equal(t, "open", h.State(long, time.Second).Breaker)
}

// Where the window holds enough results, their share decides, whatever the
// last ones were.
func TestBreakerRunWithinTheWindow(t *testing.T) {
	r := rulesOf(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 1, MinVolume: 4}})
	var h retrip.Host
	attempts(t, &h, r, 0, 503, 200, 503, 503, 503, 503, 503, 503)
	assert.Equal(t, "closed", h.State(r, 0).Breaker)
	attempts(t, &h, r, 10*time.Second, 503)
	assert.Equal(t, "open", h.State(r, 10*time.Second).Breaker, "once the success has left it")
}

// What is no failure of the host's neither lengthens a row of failures nor ends
// it, and neither does a result of an earlier state.
func TestBreakerRunIgnores(t *testing.T) {
	r := guarded(t)
	var h retrip.Host
	const gap = 20 * time.Second
	late := begin(t, &h, r, 0)
	for i := range time.Duration(4) {
		require.Equal(t, "closed", h.State(r, i*gap).Breaker)
		for _, o := range []retrip.Outcome{{Canceled: true}, {Hopeless: true}, {Verdict: retrip.Final}} {
			h.Next(r, begin(t, &h, r, i*gap), o, i*gap, 0)
		}
		attempts(t, &h, r, i*gap, 503)
	}
	require.Equal(t, "open", h.State(r, 3*gap).Breaker)

	// Opening and closing begin it anew.
	now := 3*gap + time.Minute
	attempts(t, &h, r, now, 200, 200)
	require.Equal(t, "closed", h.State(r, now).Breaker)
	h.Next(r, late, repeatable(503), now, 0)
	for i := range time.Duration(3) {
		attempts(t, &h, r, now+i*gap, 503)
	}
	assert.Equal(t, "closed", h.State(r, now+2*gap).Breaker)
}

// A host is remembered while failures in a row may go on, for an hour at most.
func TestBreakerRunIsRemembered(t *testing.T) {
	r := guarded(t)
	var h retrip.Host
	attempts(t, &h, r, 0, 503, 200)
	assert.False(t, h.Healed(0), "the window holds it")
	assert.True(t, h.Healed(10*time.Second), "a success ends it")
	attempts(t, &h, r, time.Minute, 503)
	assert.False(t, h.Healed(time.Minute+time.Hour))
	assert.True(t, h.Healed(time.Minute+time.Hour+1))
}

// A Transport opens the breaker of a host that is down however rarely it is
// asked, also when nothing but the breaker remembers the host.
func TestTransport_BreakerAtALowRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := plays(replies(503))
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{OpenFor: time.Minute}}}
		get := func() error {
			resp, err := tr.RoundTrip(request(t, "GET", nil))
			if err == nil {
				finish(t, resp)
			}
			return err
		}
		for range 20 {
			require.Equal(t, "closed", must(tr.HostState("example.com:80")).Breaker)
			require.NoError(t, get())
			time.Sleep(20 * time.Second)
			tr.HostStates() // as metrics do: it drops what has healed
		}
		assert.Equal(t, "open", must(tr.HostState("example.com:80")).Breaker)
		var failure *retrip.Error
		require.ErrorAs(t, get(), &failure)
		assert.Equal(t, retrip.ReasonBreakerOpen, failure.Reason)
		assert.Len(t, base.at, 20)
	})
}

// 1000 clients see a host die in the same instant. When it is probed, the
// probes come one by one.
func TestBreakerProbesOfManyClients(t *testing.T) {
	testenv.Slow(t)
	const clients = 1000
	const window = 50 * time.Millisecond
	r := rulesOf(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 0.5}})
	w := newWorld(1)
	var probes []time.Duration
	for range clients {
		h := new(retrip.Host)
		serve := func() retrip.Outcome {
			if w.now > 0 {
				probes = append(probes, w.now)
			}
			return took(http.StatusServiceUnavailable, time.Millisecond)
		}
		for range 20 {
			w.request(h, r, serve, func(retrip.Outcome, retrip.Reason) {})
		}
		// Every client has a request ready at any time.
		var ask func()
		ask = func() {
			w.request(h, r, serve, func(retrip.Outcome, retrip.Reason) {})
			w.at(w.now+10*time.Millisecond, ask)
		}
		w.at(10*time.Millisecond, ask)
	}
	w.run(7500 * time.Millisecond)
	require.Greater(t, len(probes), clients, "each has probed at least once")
	assert.GreaterOrEqual(t, probes[0], 2500*time.Millisecond)
	burst := 0
	for i := range probes {
		j := i
		for j < len(probes) && probes[j] < probes[i]+window {
			j++
		}
		burst = max(burst, j-i)
	}
	// Evenly spread over 5 s it would be 10 probes in each 50 ms.
	t.Logf("%d probes, at most %d in %v", len(probes), burst, window)
	assert.Less(t, burst, 40)
}

// With the ratio that the documentation recommends, independent failures don't
// open the breaker; with a low one it makes a partial outage worse.
func TestBreakerIndependentFailures(t *testing.T) {
	testenv.Slow(t)
	rates := []float64{.1, .2, .3, .4, .5}
	success := map[float64][]float64{}
	for _, ratio := range []float64{retrip.Off, .8, .5, .1} {
		for _, p := range rates {
			percent, _ := independentFailures(rulesOf(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: ratio}}), p, 7)
			success[ratio] = append(success[ratio], percent)
		}
		t.Logf("%% that succeed where %v fail, with a ratio of %v: %.2f", rates, ratio, success[ratio])
	}
	for i, off := range success[retrip.Off] {
		// Where it opens for a few, the same draws fall on others.
		assert.GreaterOrEqual(t, success[.8][i], off-0.1, "the default costs next to nothing at %v", rates[i])
	}
	assert.GreaterOrEqual(t, success[.5][0], success[retrip.Off][0]-0.02)
	assert.Less(t, success[.5][4], success[retrip.Off][4]-10, "a lower ratio makes a partial outage worse")
	assert.Less(t, success[.1][0], success[retrip.Off][0]-10)
}

// At a low rate it takes so many failures in a row that independent ones, too,
// cost nothing.
func TestBreakerIndependentFailuresAtALowRate(t *testing.T) {
	for _, perSecond := range []float64{0.05, 0.2, 0.5} {
		for _, p := range []float64{.1, .3, .5} {
			off, _ := independentFailures(rulesOf(t, retrip.Policy{}), p, perSecond)
			on, _ := independentFailures(rulesOf(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: .8}}), p, perSecond)
			assert.GreaterOrEqual(t, on, off-0.02, "%v a second, %v of which fail", perSecond, p)
		}
	}
}

// How soon it opens at a host that is down, and what it then refuses, by the
// interval between requests. The table of docs/retry-storms.md is from here.
func TestBreakerAtALowRate(t *testing.T) {
	for _, openFor := range []time.Duration{0, time.Minute} {
		r := rulesOf(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: .8, OpenFor: openFor}})
		openFor = r.Policy().Breaker.OpenFor
		for _, every := range []time.Duration{50 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second,
			5 * time.Second, 8 * time.Second, 20 * time.Second, 91 * time.Second, 10 * time.Minute} {
			w := newWorld(1)
			var h retrip.Host
			requests, refused, opened := 0, 0, 0
			for i := range 2000 {
				w.at(time.Duration(i)*every, func() {
					requests++
					sent := false
					w.request(&h, r, func() retrip.Outcome {
						sent = true
						return took(http.StatusServiceUnavailable, 5*time.Millisecond)
					}, func(retrip.Outcome, retrip.Reason) {})
					if !sent {
						refused++
					}
					if opened == 0 && h.State(r, w.now).Breaker != "closed" {
						opened = requests
					}
				})
			}
			w.run(math.MaxInt64)
			share := float64(refused) / float64(requests)
			t.Logf("open for %v, a request every %v: open before request %d, %.1f %% are refused", openFor, every, opened, 100*share)
			assert.LessOrEqual(t, opened, 20)
			assert.NotZero(t, opened)
			switch {
			case every > openFor*3/2:
				assert.Zero(t, refused, "each is a probe")
			case every <= openFor/5:
				assert.Greater(t, share, .65)
			default:
				assert.NotZero(t, refused)
			}
		}
	}
}

// A host that is down costs next to no attempts while its breaker is open.
func TestBreakerSavesAttempts(t *testing.T) {
	testenv.Slow(t)
	_, off := independentFailures(rulesOf(t, retrip.Policy{}), 1, 20)
	_, on := independentFailures(rulesOf(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: 0.5}}), 1, 20)
	t.Logf("%.3f attempts per request without, %.3f with the breaker", off, on)
	assert.Less(t, on, 0.05)
	assert.Greater(t, off, 1.0)
}

// A window that holds more than one can count doesn't open a breaker.
func TestBreakerVolumeOutOfReach(t *testing.T) {
	r := rulesOf(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 0.01, MinVolume: math.MaxInt}})
	var h retrip.Host
	for range 1000 {
		attempts(t, &h, r, 0, 503)
	}
	assert.Equal(t, "closed", h.State(r, 0).Breaker)
}
