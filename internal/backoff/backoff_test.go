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

// drawWait asks a healthy host for the wait after a failed attempt.
func drawWait(t testing.TB, r play.Judge, call decide.Call, word time.Duration, draw uint64) time.Duration {
	t.Helper()
	o := play.Repeatable(http.StatusBadGateway)
	o.RetryAfter = word
	d := r.Next(new(host.Record), &call, o, 0, draw)
	require.True(t, d.Retry, "%+v after %+v", d, call)
	require.Equal(t, d.Wait, call.Wait, "the call stores the wait for the next one")
	return d.Wait
}

func TestBackoff_Window(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	backoff := retrip.Backoff{Base: 100 * ms, Cap: time.Second}
	tests := []struct {
		jitter   retrip.Jitter
		retry    int
		previous time.Duration
		word     time.Duration // Retry-After
		lo, hi   time.Duration
	}{
		{jitter: retrip.FullJitter, retry: 1, hi: 100 * ms},
		{jitter: retrip.FullJitter, retry: 2, hi: 200 * ms},
		{jitter: retrip.FullJitter, retry: 3, hi: 400 * ms},
		{jitter: retrip.FullJitter, retry: 4, hi: 800 * ms},
		{jitter: retrip.FullJitter, retry: 5, hi: s},
		{jitter: retrip.FullJitter, retry: 50, hi: s},

		{jitter: retrip.EqualJitter, retry: 1, lo: 50 * ms, hi: 100 * ms},
		{jitter: retrip.EqualJitter, retry: 4, lo: 400 * ms, hi: 800 * ms},
		{jitter: retrip.EqualJitter, retry: 5, lo: 500 * ms, hi: s},

		{jitter: retrip.DecorrelatedJitter, retry: 1, lo: 100 * ms, hi: 300 * ms},
		{jitter: retrip.DecorrelatedJitter, retry: 2, previous: 50 * ms, lo: 100 * ms, hi: 300 * ms},
		{jitter: retrip.DecorrelatedJitter, retry: 2, previous: 200 * ms, lo: 100 * ms, hi: 600 * ms},
		{jitter: retrip.DecorrelatedJitter, retry: 2, previous: 333 * ms, lo: 100 * ms, hi: 999 * ms},
		{jitter: retrip.DecorrelatedJitter, retry: 2, previous: s / 3, lo: 100 * ms, hi: s - 1},
		{jitter: retrip.DecorrelatedJitter, retry: 2, previous: 334 * ms, lo: 100 * ms, hi: s},
		{jitter: retrip.DecorrelatedJitter, retry: 2, previous: 20 * s, lo: 100 * ms, hi: s},
		{jitter: retrip.DecorrelatedJitter, retry: 9, previous: 200 * ms, lo: 100 * ms, hi: 600 * ms},

		{jitter: retrip.NoJitter, retry: 1, lo: 100 * ms, hi: 100 * ms},
		{jitter: retrip.NoJitter, retry: 4, lo: 800 * ms, hi: 800 * ms},
		{jitter: retrip.NoJitter, retry: 5, lo: s, hi: s},

		// max(T, lo) to T + max(ceiling, T/2).
		{jitter: retrip.FullJitter, retry: 1, word: 10 * s, lo: 10 * s, hi: 15 * s},
		{jitter: retrip.FullJitter, retry: 4, word: 100 * ms, lo: 100 * ms, hi: 900 * ms},
		{jitter: retrip.EqualJitter, retry: 1, word: 10 * s, lo: 10 * s, hi: 15 * s},
		{jitter: retrip.EqualJitter, retry: 4, word: 100 * ms, lo: 400 * ms, hi: 900 * ms},
		{jitter: retrip.DecorrelatedJitter, retry: 1, word: 10 * s, lo: 10 * s, hi: 15 * s},
		{jitter: retrip.DecorrelatedJitter, retry: 1, word: 10 * ms, lo: 100 * ms, hi: 110 * ms},
		{jitter: retrip.NoJitter, retry: 1, word: 10 * s, lo: 10 * s, hi: 15 * s},
		{jitter: retrip.NoJitter, retry: 4, word: 100 * ms, lo: 800 * ms, hi: 900 * ms},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%v/retry %d/previous %v/word %v", tt.jitter, tt.retry, tt.previous, tt.word), func(t *testing.T) {
			backoff.Jitter = tt.jitter
			r := play.Rules(t, retrip.Policy{MaxAttempts: 100, Backoff: backoff})
			call := decide.Call{Attempts: tt.retry, Wait: tt.previous}
			assert.Equal(t, tt.lo, drawWait(t, r, call, tt.word, play.Lowest), "lo")
			assert.Equal(t, tt.hi, drawWait(t, r, call, tt.word, play.Highest), "hi")
		})
	}
}

// A 429 that names no wait has a Base of its own, whatever the jitter.
func TestBackoff_Throttled(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	const off = retrip.Off
	type window struct{ lo, hi time.Duration }
	backoff := func(base, limit, throttle time.Duration) retrip.Backoff {
		return retrip.Backoff{Base: base, Cap: limit, ThrottleBase: throttle}
	}
	tests := []struct {
		name     string
		backoff  retrip.Backoff
		retry    int
		previous time.Duration
		want     [4]window // in the order of the jitters
	}{
		{"the default", retrip.Backoff{}, 1, 0, [4]window{{0, s}, {500 * ms, s}, {s, 3 * s}, {s, s}}},
		{"it doubles", retrip.Backoff{}, 3, 0, [4]window{{0, 4 * s}, {2 * s, 4 * s}, {s, 3 * s}, {4 * s, 4 * s}}},
		{"up to the cap", retrip.Backoff{}, 6, 6 * s, [4]window{{0, 10 * s}, {5 * s, 10 * s}, {s, 10 * s}, {10 * s, 10 * s}}},
		{"the wait before it", retrip.Backoff{}, 2, 2 * s, [4]window{{0, 2 * s}, {s, 2 * s}, {s, 6 * s}, {2 * s, 2 * s}}},
		{"set", backoff(50*ms, 3*s, 2*s), 1, 0, [4]window{{0, 2 * s}, {s, 2 * s}, {2 * s, 3 * s}, {2 * s, 2 * s}}},
		{"a cap below it", backoff(100*ms, 500*ms, 0), 1, 0, [4]window{{0, 500 * ms}, {250 * ms, 500 * ms}, {500 * ms, 500 * ms}, {500 * ms, 500 * ms}}},
		{"a base above it", backoff(5*s, 20*s, 0), 1, 0, [4]window{{0, 5 * s}, {2500 * ms, 5 * s}, {5 * s, 15 * s}, {5 * s, 5 * s}}},
		{"no base", backoff(off, 0, 0), 1, 0, [4]window{{0, s}, {500 * ms, s}, {s, 3 * s}, {s, s}}},
		{"off", backoff(0, 0, off), 1, 0, [4]window{{0, 100 * ms}, {50 * ms, 100 * ms}, {100 * ms, 300 * ms}, {100 * ms, 100 * ms}}},
		{"both off", backoff(off, 0, off), 3, s, [4]window{}},
		{"longest", backoff(forever, forever, forever), 2, forever, [4]window{{0, forever}, {forever / 2, forever}, {forever, forever}, {forever, forever}}},
	}
	for _, tt := range tests {
		for i, j := range jitters {
			t.Run(fmt.Sprintf("%s/%v", tt.name, j), func(t *testing.T) {
				tt.backoff.Jitter = j
				r := play.Rules(t, retrip.Policy{MaxAttempts: 100, Backoff: tt.backoff})
				draw := func(o decide.Outcome, draw uint64) time.Duration {
					d := r.Next(new(host.Record), &decide.Call{Attempts: tt.retry, Wait: tt.previous}, o, 0, draw)
					require.True(t, d.Retry)
					return d.Wait
				}
				assert.Equal(t, tt.want[i], window{draw(play.Repeatable(429), play.Lowest), draw(play.Repeatable(429), play.Highest)})

				// Any other failure, and a 429 that names a wait, use Base.
				for _, o := range []decide.Outcome{play.Repeatable(503), play.Repeatable(0), {Status: 200, Verdict: decide.Retryable, Idempotent: true, Replay: true}} {
					assert.Equal(t, draw(play.Repeatable(502), play.Highest), draw(o, play.Highest), "%+v", o)
				}
				named, other := play.Repeatable(429), play.Repeatable(502)
				named.RetryAfter, other.RetryAfter = 1, 1
				assert.Equal(t, draw(other, play.Lowest), draw(named, play.Lowest))
				assert.Equal(t, draw(other, play.Highest), draw(named, play.Highest))
			})
		}
	}
}

// ThrottleBase doesn't apply if a pause names the wait or a gate sets the pace.
func TestBackoff_ThrottledElsewhere(t *testing.T) {
	gated := play.Rules(t, retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}})
	told := play.Repeatable(429)
	told.RetryAfter = 250 * time.Millisecond
	d := gated.Next(new(host.Record), &decide.Call{}, told, 0, play.Highest)
	assert.True(t, d.AtGate)
	assert.InDelta(t, 265*time.Millisecond, d.Wait, float64(16*time.Millisecond))

	r := play.Rules(t, retrip.Policy{})
	var h host.Record
	pause := play.Repeatable(503)
	pause.RetryAfter = 100 * time.Millisecond
	r.Next(&h, &decide.Call{}, pause, 0, 0)
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
			assert.Equal(t, play.Decision{Retry: true, Wait: 700 * ms, Reason: decide.Throttled}, d, "%v", j)
		} else {
			assert.Equal(t, decide.Deadline, d.Reason, "%v", j)
		}
	}
}

func TestBackoff_Default(t *testing.T) {
	r := play.Rules(t, retrip.Policy{MaxAttempts: 100})
	for retry, hi := range map[int]time.Duration{1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 7: 6400 * time.Millisecond, 8: 10 * time.Second} {
		assert.Zero(t, drawWait(t, r, decide.Call{Attempts: retry}, 0, play.Lowest))
		assert.Equal(t, hi, drawWait(t, r, decide.Call{Attempts: retry}, 0, play.Highest))
	}
}

func TestBackoff_Off(t *testing.T) {
	for _, j := range jitters {
		r := play.Rules(t, retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off, Jitter: j}})
		assert.Zero(t, drawWait(t, r, decide.Call{Attempts: 3, Wait: time.Second}, 0, play.Highest), "%v", j)
		assert.Equal(t, 2*time.Second, drawWait(t, r, decide.Call{Attempts: 3}, 2*time.Second, play.Lowest), "%v: the server's word holds", j)
		assert.Equal(t, 3*time.Second, drawWait(t, r, decide.Call{Attempts: 3}, 2*time.Second, play.Highest), "%v: and is spread", j)
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
				previous := time.Duration(0)
				for retry := 1; retry <= 100; retry++ {
					call := decide.Call{Attempts: retry, Wait: previous}
					lo, hi := drawWait(t, r, call, 0, play.Lowest), drawWait(t, r, call, 0, play.Highest)
					require.GreaterOrEqual(t, lo, time.Duration(0))
					require.GreaterOrEqual(t, hi, lo)
					require.LessOrEqual(t, hi, limit)
					require.GreaterOrEqual(t, hi, previous, "a ceiling never falls: %v base %v cap %v retry %d", j, base, limit, retry)
					previous = hi

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

// The ceiling doubles up to the last step that fits into a duration.
func TestBackoff_DoublesToTheEnd(t *testing.T) {
	r := play.Rules(t, retrip.Policy{MaxAttempts: 100, Backoff: retrip.Backoff{Base: 1, Cap: forever, Jitter: retrip.NoJitter}})
	for retry := 1; retry <= 63; retry++ {
		require.Equal(t, time.Duration(1)<<(retry-1), drawWait(t, r, decide.Call{Attempts: retry}, 0, 0), "retry %d", retry)
	}
	assert.Equal(t, forever, drawWait(t, r, decide.Call{Attempts: 64}, 0, 0))
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

		o := play.Repeatable(http.StatusTooManyRequests)
		o.RetryAfter = asked
		d := r.Next(new(host.Record), &call, o, 0, draw)
		check(min(b.Cap, max(b.Base, b.ThrottleBase)), d.Wait)
		if !d.Retry || d.Wait < plain {
			t.Fatalf("%+v after a 429, %v after a 502", d, plain)
		}
	})
}
