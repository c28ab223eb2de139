// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package backoff_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/lend"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

var (
	jitters = []retrip.Jitter{retrip.FullJitter, retrip.EqualJitter, retrip.DecorrelatedJitter, retrip.NoJitter}
	forever = time.Duration(math.MaxInt64)
)

// wait asks a healthy host for the wait after an attempt that ended like o.
func wait(t testing.TB, r play.Judge, call decide.Call, o decide.Outcome, draw uint64) time.Duration {
	t.Helper()
	d := r.Next(new(host.Record), &call, o, 0, draw)
	require.True(t, d.Retry, "%+v after %+v", d, call)
	require.Equal(t, d.Wait, call.Wait, "the call stores the wait for the next one")
	return d.Wait
}

// drawWait asks a healthy host for the wait after a failed attempt.
func drawWait(t testing.TB, r play.Judge, call decide.Call, word time.Duration, draw uint64) time.Duration {
	t.Helper()
	return wait(t, r, call, asking(http.StatusBadGateway, word), draw)
}

// asking returns the outcome of an attempt that failed with a Retry-After.
func asking(status int, word time.Duration) decide.Outcome {
	o := play.Repeatable(status)
	o.RetryAfter = word
	return o
}

// A wait is drawn from a window that depends on the jitter. A 429 that names no wait has
// a Base of its own.
func TestBackoff_Window(t *testing.T) {
	const ms, s, off = time.Millisecond, time.Second, retrip.Off
	type window struct{ lo, hi time.Duration }
	type windows [4]window // in the order of the jitters
	of := func(base, limit, throttle time.Duration) retrip.Backoff {
		return retrip.Backoff{Base: base, Cap: limit, ThrottleBase: throttle}
	}
	short, usual := of(100*ms, s, 0), retrip.Backoff{}
	for _, tt := range []struct {
		backoff  retrip.Backoff
		is429    bool
		retry    int
		previous time.Duration
		word     time.Duration // Retry-After
		want     windows
	}{
		{short, false, 1, 0, 0, windows{{0, 100 * ms}, {50 * ms, 100 * ms}, {100 * ms, 300 * ms}, {100 * ms, 100 * ms}}},
		{short, false, 2, 50 * ms, 0, windows{{0, 200 * ms}, {100 * ms, 200 * ms}, {100 * ms, 300 * ms}, {200 * ms, 200 * ms}}},
		{short, false, 3, 200 * ms, 0, windows{{0, 400 * ms}, {200 * ms, 400 * ms}, {100 * ms, 600 * ms}, {400 * ms, 400 * ms}}},
		{short, false, 4, 333 * ms, 0, windows{{0, 800 * ms}, {400 * ms, 800 * ms}, {100 * ms, 999 * ms}, {800 * ms, 800 * ms}}},
		{short, false, 5, s / 3, 0, windows{{0, s}, {500 * ms, s}, {100 * ms, s - 1}, {s, s}}},
		{short, false, 9, 334 * ms, 0, windows{{0, s}, {500 * ms, s}, {100 * ms, s}, {s, s}}},
		{short, false, 50, 20 * s, 0, windows{{0, s}, {500 * ms, s}, {100 * ms, s}, {s, s}}},
		{usual, false, 1, 0, 0, windows{{0, 100 * ms}, {50 * ms, 100 * ms}, {100 * ms, 300 * ms}, {100 * ms, 100 * ms}}},
		{usual, false, 7, 0, 0, windows{{0, 6400 * ms}, {3200 * ms, 6400 * ms}, {100 * ms, 300 * ms}, {6400 * ms, 6400 * ms}}},
		{usual, false, 8, 0, 0, windows{{0, 10 * s}, {5 * s, 10 * s}, {100 * ms, 300 * ms}, {10 * s, 10 * s}}},
		{of(off, 0, 0), false, 3, s, 0, windows{}},

		// With a Retry-After T, from max(T, lo) to T + max(ceiling, T/2).
		{short, false, 1, 0, 10 * s, windows{{10 * s, 15 * s}, {10 * s, 15 * s}, {10 * s, 15 * s}, {10 * s, 15 * s}}},
		{short, false, 1, 0, 10 * ms, windows{{10 * ms, 110 * ms}, {50 * ms, 110 * ms}, {100 * ms, 110 * ms}, {100 * ms, 110 * ms}}},
		{short, false, 4, 0, 100 * ms, windows{{100 * ms, 900 * ms}, {400 * ms, 900 * ms}, {100 * ms, 900 * ms}, {800 * ms, 900 * ms}}},
		{of(off, 0, 0), false, 3, 0, 2 * s, windows{{2 * s, 3 * s}, {2 * s, 3 * s}, {2 * s, 3 * s}, {2 * s, 3 * s}}},

		{usual, true, 1, 0, 0, windows{{0, s}, {500 * ms, s}, {s, 3 * s}, {s, s}}},
		{usual, true, 2, 2 * s, 0, windows{{0, 2 * s}, {s, 2 * s}, {s, 6 * s}, {2 * s, 2 * s}}},
		{usual, true, 3, 0, 0, windows{{0, 4 * s}, {2 * s, 4 * s}, {s, 3 * s}, {4 * s, 4 * s}}},
		{usual, true, 6, 6 * s, 0, windows{{0, 10 * s}, {5 * s, 10 * s}, {s, 10 * s}, {10 * s, 10 * s}}},
		{of(50*ms, 3*s, 2*s), true, 1, 0, 0, windows{{0, 2 * s}, {s, 2 * s}, {2 * s, 3 * s}, {2 * s, 2 * s}}},
		{of(100*ms, 500*ms, 0), true, 1, 0, 0, windows{{0, 500 * ms}, {250 * ms, 500 * ms}, {500 * ms, 500 * ms}, {500 * ms, 500 * ms}}},
		{of(5*s, 20*s, 0), true, 1, 0, 0, windows{{0, 5 * s}, {2500 * ms, 5 * s}, {5 * s, 15 * s}, {5 * s, 5 * s}}},
		{of(off, 0, 0), true, 1, 0, 0, windows{{0, s}, {500 * ms, s}, {s, 3 * s}, {s, s}}},
		{of(0, 0, off), true, 1, 0, 0, windows{{0, 100 * ms}, {50 * ms, 100 * ms}, {100 * ms, 300 * ms}, {100 * ms, 100 * ms}}},
		{of(off, 0, off), true, 3, s, 0, windows{}},
		{of(forever, forever, forever), true, 2, forever, 0, windows{{0, forever}, {forever / 2, forever}, {forever, forever}, {forever, forever}}},
	} {
		for i, j := range jitters {
			t.Run(fmt.Sprintf("%v/429 %v/retry %d/previous %v/word %v/%v", tt.backoff, tt.is429, tt.retry, tt.previous, tt.word, j), func(t *testing.T) {
				tt.backoff.Jitter = j
				r := play.Rules(t, retrip.Policy{MaxAttempts: 100, Backoff: tt.backoff})
				outcomes := []decide.Outcome{asking(429, tt.word)}
				if !tt.is429 {
					outcomes = []decide.Outcome{asking(502, tt.word), asking(503, tt.word), asking(0, tt.word),
						{Status: 200, Verdict: decide.Retryable, Repeatable: true, Replay: true, RetryAfter: tt.word}}
				}
				if tt.word > 0 {
					outcomes = append(outcomes, asking(429, tt.word))
				}
				for _, o := range outcomes {
					call := decide.Call{Attempts: tt.retry, Wait: tt.previous}
					assert.Equal(t, tt.want[i], window{wait(t, r, call, o, play.Lowest), wait(t, r, call, o, play.Highest)}, "%+v", o)
				}
			})
		}
	}
}

// ThrottleBase doesn't apply if a pause names the wait or a gate sets the pace.
func TestBackoff_ThrottledElsewhere(t *testing.T) {
	gated := play.Rules(t, retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}})
	d := gated.Next(new(host.Record), &decide.Call{}, asking(429, 250*time.Millisecond), 0, play.Highest)
	assert.True(t, d.AtGate)
	assert.InDelta(t, 265*time.Millisecond, d.Wait, float64(16*time.Millisecond))

	r := play.Rules(t, retrip.Policy{})
	var h host.Record
	r.Next(&h, &decide.Call{}, asking(503, 100*time.Millisecond), 0, 0)
	assert.Equal(t, 200*time.Millisecond, r.Next(&h, &decide.Call{}, play.Repeatable(429), 0, play.Highest).Wait)
	assert.Equal(t, time.Second, r.Next(&h, &decide.Call{}, play.Repeatable(429), 100*time.Millisecond, play.Highest).Wait, "after the pause")
}

// After a 429, no wait begins that can't end before the deadline.
func TestBackoff_ThrottledDeadline(t *testing.T) {
	const ms = time.Millisecond
	for j, lo := range map[retrip.Jitter]time.Duration{retrip.FullJitter: 0, retrip.EqualJitter: 500 * ms, retrip.DecorrelatedJitter: 1000 * ms, retrip.NoJitter: 1000 * ms} {
		r := play.Rules(t, retrip.Policy{Backoff: retrip.Backoff{Jitter: j}})
		d := r.Next(new(host.Record), &decide.Call{Deadline: 700 * ms}, play.Repeatable(429), 0, play.Highest)
		if lo < 700*ms {
			assert.Equal(t, play.Decision{Retry: true, Wait: lo + (700*ms-lo)/3, Reason: decide.Throttled}, d, "%v", j)
		} else {
			assert.Equal(t, decide.Deadline, d.Reason, "%v", j)
		}
	}
}

// Pearson's chi-square over 100 bins: with 99 degrees of freedom a uniform
// source stays below 148.2 in 999 of 1000 cases.
func TestBackoff_Uniform(t *testing.T) {
	testenv.OneGoroutine(t)
	testenv.Slow(t)
	const draws, bins, critical = 10_000, 100, 148.2
	for _, j := range jitters {
		for _, word := range []time.Duration{0, 10 * time.Second} {
			t.Run(fmt.Sprintf("%v/word %v", j, word), func(t *testing.T) {
				r := play.Rules(t, retrip.Policy{Backoff: retrip.Backoff{Jitter: j}})
				call := decide.Call{Attempts: 3, Wait: 150 * time.Millisecond}
				lo, hi := drawWait(t, r, call, word, play.Lowest), drawWait(t, r, call, word, play.Highest)
				random := rand.New(rand.NewPCG(1, uint64(j)))
				var count [bins]int
				distinct := map[time.Duration]bool{}
				for range draws {
					wait := drawWait(t, r, call, word, random.Uint64())
					require.GreaterOrEqual(t, wait, lo)
					require.LessOrEqual(t, wait, hi)
					distinct[wait] = true
					count[int64(wait-lo)*bins/int64(hi-lo+1)]++
				}
				if lo == hi {
					require.Equal(t, retrip.NoJitter, j)
					return
				}
				assert.Greater(t, len(distinct), draws*99/100)
				const expected = draws / bins
				var chi2 float64
				for _, n := range count {
					chi2 += float64((n-expected)*(n-expected)) / expected
				}
				assert.Less(t, chi2, critical)
			})
		}
	}
}

func TestBackoff_NeverOverflows(t *testing.T) {
	for _, j := range jitters {
		for _, base := range []time.Duration{1, 3, time.Millisecond, time.Hour, 1 << 62, forever} {
			for _, limit := range []time.Duration{base, 10 * time.Second, forever} {
				if base > limit {
					continue
				}
				r := play.Rules(t, retrip.Policy{MaxAttempts: 1000, MaxWait: forever, Backoff: retrip.Backoff{Base: base, Cap: limit, Jitter: j}})
				previous, doubled := time.Duration(0), base
				for retry := 1; retry <= 100; retry++ {
					call := decide.Call{Attempts: retry, Wait: previous}
					lo, hi := drawWait(t, r, call, 0, play.Lowest), drawWait(t, r, call, 0, play.Highest)
					require.GreaterOrEqual(t, lo, time.Duration(0))
					require.GreaterOrEqual(t, hi, lo)
					require.LessOrEqual(t, hi, limit)
					require.GreaterOrEqual(t, hi, previous, "a ceiling never falls: %v base %v cap %v retry %d", j, base, limit, retry)
					previous = hi
					if j == retrip.NoJitter {
						require.Equal(t, doubled, hi, "it doubles up to the last step that fits")
					}
					if doubled = min(limit, 2*doubled); doubled <= 0 {
						doubled = limit
					}

					require.Equal(t, forever, drawWait(t, r, call, forever, play.Lowest))
					require.Equal(t, forever, drawWait(t, r, call, forever, play.Highest))
				}
				assert.Equal(t, limit, previous, "%v base %v: the ceiling arrives at the cap", j, base)
				if lo := drawWait(t, r, decide.Call{Attempts: 100, Wait: previous}, 0, play.Lowest); j != retrip.NoJitter && base < limit {
					assert.Less(t, lo, limit, "%v base %v cap %v: still jittered at the cap", j, base, limit)
				}
			}
		}
	}
}

func FuzzBackoff(f *testing.F) {
	f.Add(int64(100*time.Millisecond), int64(10*time.Second), int64(time.Second), byte(1), 1, int64(0), int64(0), uint64(0))
	f.Add(int64(1), int64(math.MaxInt64), int64(math.MaxInt64), byte(4), 64, int64(math.MaxInt64), int64(0), uint64(math.MaxUint64))
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), int64(-1), byte(3), math.MaxInt, int64(-1), int64(math.MaxInt64), uint64(1))
	f.Add(int64(-1), int64(1), int64(2), byte(2), -5, int64(1), int64(1), uint64(1<<63))
	f.Fuzz(func(t *testing.T, base, limit, throttle int64, jitter byte, attempts int, previous, word int64, draw uint64) {
		p := retrip.Policy{
			MaxAttempts: math.MaxInt,
			MaxWait:     forever,
			Backoff: retrip.Backoff{Base: time.Duration(base), Cap: time.Duration(limit), ThrottleBase: time.Duration(throttle),
				Jitter: retrip.Jitter(jitter)},
		}
		rules, resolved, err := lend.Rules(p)
		if err != nil || attempts == math.MaxInt {
			return
		}
		b := resolved.Backoff
		asked := max(0, time.Duration(word))
		call := decide.Call{Attempts: attempts, Wait: time.Duration(previous)}
		check := func(base, wait time.Duration) {
			switch {
			case wait < 0:
				t.Fatalf("negative wait %v", wait)
			case wait < asked:
				t.Fatalf("wait %v is earlier than the server said: %v", wait, asked)
			case asked == 0 && wait > b.Cap:
				t.Fatalf("wait %v above the cap %v", wait, b.Cap)
			case asked == 0 && base > 0 && b.Jitter == retrip.DecorrelatedJitter && wait < base:
				t.Fatalf("wait %v below the base %v", wait, base)
			case asked > 0 && float64(wait)-float64(asked) > 1.001*math.Max(float64(b.Cap), float64(asked)/2):
				t.Fatalf("wait %v is spread too far behind the server's %v", wait, asked)
			}
		}
		r := play.Judge{Rules: rules}
		plain := drawWait(t, r, call, asked, draw)
		check(b.Base, plain)

		throttled := wait(t, r, call, asking(http.StatusTooManyRequests, asked), draw)
		check(min(b.Cap, max(b.Base, b.ThrottleBase)), throttled)
		require.GreaterOrEqual(t, throttled, plain, "after a 429 and a 502")
	})
}
