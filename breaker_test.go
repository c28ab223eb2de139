// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// guarded returns the rules of most tests here. They allow no retries, so that
// every attempt is a request of its own.
func guarded(t testing.TB) *retrip.Rules {
	return rulesOf(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{
		Ratio: 0.5, Window: 10 * time.Second, MinVolume: 4, OpenFor: 6 * time.Second, Probes: 2,
	}})
}

// begin begins an attempt at h, or fails the test.
func begin(t testing.TB, h *retrip.Host, r *retrip.Rules, now time.Duration) *retrip.Call {
	t.Helper()
	var call retrip.Call
	require.Equal(t, retrip.Decision{Retry: true}, plain(h.First(r, &call, now, drawLowest)))
	call.Attempts = 1
	return &call
}

// plain returns d without the parts that only a Transport uses.
func plain(d retrip.Decision) retrip.Decision {
	return retrip.Decision{Retry: d.Retry, Wait: d.Wait, Reason: d.Reason}
}

func refused(h *retrip.Host, r *retrip.Rules, now time.Duration) bool {
	d := h.First(r, &retrip.Call{}, now, drawLowest)
	return !d.Retry && d.Reason == retrip.ReasonBreakerOpen && d.Wait == 0
}

// attempts makes attempts at h that end at once with the given statuses.
func attempts(t testing.TB, h *retrip.Host, r *retrip.Rules, now time.Duration, statuses ...int) {
	t.Helper()
	for _, status := range statuses {
		h.Next(r, begin(t, h, r, now), repeatable(status), now, drawLowest)
	}
}

// opened returns a host whose breaker opened at the instant 0 and allows a
// probe from 3 s on.
func opened(t testing.TB, r *retrip.Rules) *retrip.Host {
	t.Helper()
	var h retrip.Host
	attempts(t, &h, r, 0, 503, 503, 503)
	h.Next(r, begin(t, &h, r, 0), repeatable(503), 0, drawThatOpensFor(r, 3*time.Second))
	require.Equal(t, "open", h.State(r, 0).Breaker)
	require.InDelta(t, 3*time.Second, h.State(r, 0).OpenFor, float64(10*time.Millisecond))
	return &h
}

// drawThatOpensFor returns a draw that keeps a breaker open for about d.
func drawThatOpensFor(r *retrip.Rules, d time.Duration) uint64 {
	random := rand.New(rand.NewPCG(1, 1))
	for {
		draw := random.Uint64()
		if got := openTime(r, draw); got >= d && got < d+10*time.Millisecond {
			return draw
		}
	}
}

// openTime returns how long a draw keeps a breaker open.
func openTime(r *retrip.Rules, draw uint64) time.Duration {
	var h retrip.Host
	for range r.Policy().Breaker.MinVolume {
		h.Next(r, &retrip.Call{Attempts: 1}, repeatable(503), 0, draw)
	}
	return h.State(r, 0).OpenFor
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

		// If the window holds too few results, this many failures in a row open
		// the breaker.
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

// Ratio is exact: 7 of 25 are 0.28, although 0.28·25 is more than 7 in floating
// point.
func TestBreaker_RatioIsExact(t *testing.T) {
	for n := 2; n <= 100; n++ {
		for percent := 1; percent <= 100; percent++ {
			bad := n * percent / 100
			if bad < 2 || bad*100 != n*percent {
				continue
			}
			r := rulesOf(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: float64(percent) / 100, MinVolume: n}})
			var h retrip.Host
			// The host is watched from its first failure on.
			attempts(t, &h, r, 0, 503)
			attempts(t, &h, r, 0, slices.Repeat([]int{200}, n-bad)...)
			attempts(t, &h, r, 0, slices.Repeat([]int{503}, bad-2)...)
			require.Equal(t, "closed", h.State(r, 0).Breaker)
			attempts(t, &h, r, 0, 503)
			assert.Equal(t, "open", h.State(r, 0).Breaker, "%d of %d", bad, n)
		}
	}
}

// An outcome that says nothing about the host counts neither as a failure nor
// as a success.
func TestBreaker_Ignores(t *testing.T) {
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

func TestBreaker_Off(t *testing.T) {
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
	// A breaker doesn't hold back a request whose policy has none.
	r := rulesOf(t, retrip.Policy{})
	assert.True(t, opened(t, guarded(t)).First(r, &retrip.Call{}, 0, 0).Retry)
}

func TestBreaker_OpenTime(t *testing.T) {
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

func TestBreaker_FailsFast(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	for _, now := range []time.Duration{0, time.Second, 2999 * time.Millisecond} {
		assert.True(t, refused(h, r, now), "at %v", now)
		assert.Equal(t, "open", h.State(r, now).Breaker)
	}
	assert.False(t, refused(h, r, 3010*time.Millisecond))
	assert.Equal(t, "half-open", h.State(r, 3010*time.Millisecond).Breaker)
}

func TestBreaker_Closes(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	now := 4 * time.Second
	attempts(t, h, r, now, 200)
	assert.Equal(t, "half-open", h.State(r, now).Breaker)
	attempts(t, h, r, now, 404)
	assert.Equal(t, "closed", h.State(r, now).Breaker)
	assert.Zero(t, h.State(r, now).OpenFor)
	attempts(t, h, r, now, 503, 503, 503)
	assert.Equal(t, "closed", h.State(r, now).Breaker, "earlier results don't count")
	attempts(t, h, r, now, 503)
	assert.Equal(t, "open", h.State(r, now).Breaker)
}

func TestBreaker_Reopens(t *testing.T) {
	r := guarded(t)
	h := opened(t, r)
	now := 4 * time.Second
	attempts(t, h, r, now, 200, 503)
	assert.Equal(t, "open", h.State(r, now).Breaker)
	assert.GreaterOrEqual(t, h.State(r, now).OpenFor, 3*time.Second)
	assert.True(t, refused(h, r, now+3*time.Second-1))
}

// The result of an attempt that began in an earlier state doesn't count.
func TestBreaker_StaleResults(t *testing.T) {
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
	assert.EqualValues(t, 1, h.State(r, until-1).OpenFor, "a failure doesn't open it again")
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
	assert.Equal(t, "closed", h.State(r, until).Breaker, "they don't count later either")
}

// The instant of the next probe has no meaning once the breaker has closed.
func TestBreaker_RetryAfterItHasClosed(t *testing.T) {
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

// A retry doesn't wait if the breaker will refuse it anyway. Its tokens come
// back if the breaker opens during the wait.
func TestBreaker_AndRetry(t *testing.T) {
	r := rulesOf(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: 1, MinVolume: 2, OpenFor: time.Minute}})
	var h retrip.Host
	call := begin(t, &h, r, 0)
	d := h.Next(r, call, repeatable(503), 0, drawHighest)
	require.True(t, d.Retry)
	other := begin(t, &h, r, 0)
	assert.Equal(t, retrip.ReasonBreakerOpen, h.Next(r, other, repeatable(503), 0, 0).Reason)
	assert.Equal(t, 4.5, h.State(r, 0).Tokens, "a retry that isn't made costs nothing")

	assert.Equal(t, retrip.Decision{Reason: retrip.ReasonBreakerOpen}, plain(h.Wake(r, call, d.Wait, 0)))
	assert.Equal(t, 5.0, h.State(r, 0).Tokens)
}

// Two policies with different windows may share a host.
func TestBreaker_OfTwoPolicies(t *testing.T) {
	long := guarded(t)
	short := rulesOf(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 0.5, Window: 1, MinVolume: 3}})
	var h retrip.Host
	attempts(t, &h, long, time.Second, 503, 503, 503)
	attempts(t, &h, short, time.Second, 200, 503)
	assert.Equal(t, "closed", h.State(long, time.Second).Breaker, "the window starts again")
	attempts(t, &h, short, time.Second, 503)
	assert.Equal(t, "open", h.State(long, time.Second).Breaker)
}

// If the window holds enough results, their ratio decides, even if the last
// ones were failures.
func TestBreaker_RunWithinTheWindow(t *testing.T) {
	r := rulesOf(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 1, MinVolume: 4}})
	var h retrip.Host
	attempts(t, &h, r, 0, 503, 200, 503, 503, 503, 503, 503, 503)
	assert.Equal(t, "closed", h.State(r, 0).Breaker)
	attempts(t, &h, r, 10*time.Second, 503)
	assert.Equal(t, "open", h.State(r, 10*time.Second).Breaker, "after the success has left the window")
}

// An outcome that says nothing about the host neither extends nor ends a run of
// failures. Neither does a result from an earlier state.
func TestBreaker_RunIgnores(t *testing.T) {
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

	// Opening and closing restart the count.
	now := 3*gap + time.Minute
	attempts(t, &h, r, now, 200, 200)
	require.Equal(t, "closed", h.State(r, now).Breaker)
	h.Next(r, late, repeatable(503), now, 0)
	for i := range time.Duration(3) {
		attempts(t, &h, r, now+i*gap, 503)
	}
	assert.Equal(t, "closed", h.State(r, now+2*gap).Breaker)
}

// A host stays in the table while a run of failures may go on, for at most an
// hour.
func TestBreaker_RunIsRemembered(t *testing.T) {
	r := guarded(t)
	var h retrip.Host
	attempts(t, &h, r, 0, 503, 200)
	assert.False(t, h.Healed(0), "the window holds it")
	assert.True(t, h.Healed(10*time.Second), "a success ends it")
	attempts(t, &h, r, time.Minute, 503)
	assert.False(t, h.Healed(time.Minute+time.Hour))
	assert.True(t, h.Healed(time.Minute+time.Hour+1))
}
