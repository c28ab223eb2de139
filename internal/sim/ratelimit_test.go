// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

func rateLimitCase(t testing.TB, name string) RateLimit {
	t.Helper()
	for _, c := range RateLimits() {
		if c.Name == name {
			return c.Model
		}
	}
	t.Fatalf("there is no case %q", name)
	return RateLimit{}
}

//retrip:promise P23
func TestRateLimits(t *testing.T) {
	for _, c := range RateLimits() {
		must := c.Must
		if brief && strings.Contains(c.Name, "00/s, burst") && c.Name != "100/s, burst 100" && c.Name != "100/s, burst 1" {
			continue // many requests
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			r := c.Model.run(t)
			t.Logf("%.1f %% of the limit, %.1f %% refused, the longest wait %v, × fair %.2f", 100*r.Used, 100*r.Refusals, r.Worst, float64(r.Worst)/float64(r.Fair))
			assert.GreaterOrEqual(t, 100*r.Used, must.used)
			if must.refusals > 0 {
				assert.LessOrEqual(t, 100*r.Refusals, must.refusals)
			}
			if must.worst > 0 {
				assert.LessOrEqual(t, float64(r.Worst)/float64(r.Fair), must.worst)
			}
			if must.last > 0 {
				assert.LessOrEqual(t, r.Last, must.last)
				assert.EqualValues(t, c.Model.Burst*c.Model.Processes, r.Accepted, "all of them")
			}
			assert.Zero(t, r.Early, "within the time that the server asked for")
			failed := r.GaveUp
			if must.used > 0 {
				assert.LessOrEqual(t, failed[retrip.ReasonMaxAttempts], r.Accepted/25+2)
			}
			delete(failed, retrip.ReasonMaxAttempts)
			switch {
			case c.Model.Deadline > 0:
				delete(failed, retrip.ReasonDeadline)
				delete(failed, retrip.ReasonHostPaused)
			case c.Model.Policy.MaxWait == 0:
				assert.Positive(t, failed[retrip.ReasonWaitTooLong])
				delete(failed, retrip.ReasonWaitTooLong)
			}
			assert.Empty(t, failed)
		})
	}
}

// Two processes share a limit without one locking out the other, and slow
// limits cost few refusals, for any seed.
//
//retrip:promise P23
func TestRateLimits_Seeds(t *testing.T) {
	for name, must := range map[string]struct{ share, refusals, used float64 }{
		"10/s, burst 10, 2 processes": {.7, .08, .92},
		"0.5/s, burst 1":              {1, .04, .92},
		"0.2/s, burst 1":              {1, .12, .88},
		"1/s, burst 1, 50 workers":    {1, .04, .92},
	} {
		m := rateLimitCase(t, name)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(testenv.Size(2, 24)) {
				m.Seed = seed + 1
				r := m.run(t)
				assert.LessOrEqual(t, r.Share, must.share, "seed %d", m.Seed)
				assert.LessOrEqual(t, r.Refusals, must.refusals, "seed %d", m.Seed)
				assert.GreaterOrEqual(t, r.Used, must.used, "seed %d", m.Seed)
			}
		})
	}
	t.Run("rise", func(t *testing.T) {
		m := rateLimitCase(t, "10/s rises to 100/s: 30 to 60 s after")
		used := 0.0
		seeds := testenv.Size(3, 6)
		for seed := range seeds {
			m.Seed = uint64(seed + 1)
			used += m.run(t).Used / float64(seeds)
		}
		t.Logf("%.1f %%", 100*used)
		assert.GreaterOrEqual(t, used, .88)
	})
}

// With a gate per key, one key's limit doesn't affect another key.
//
//retrip:promise P23
func TestRateLimit_Keys(t *testing.T) {
	one, used := rateLimitCase(t, "keys with 1/s and 100/s, one gate"), []float64{}
	for one.Seed = range uint64(3) {
		used = append(used, one.run(t).Used)
	}
	slices.Sort(used)
	assert.Less(t, used[1], .05, "usually, all wait for the slowest")
	m := rateLimitCase(t, "keys with 1/s and 100/s, a gate each")
	each := m.run(t)
	assert.Greater(t, each.Used, .97)
	counted := (m.Horizon - m.WarmUp).Seconds()
	for k, rate := range []float64{1, 100} {
		assert.GreaterOrEqual(t, float64(each.Tenants[k])/(rate*counted), .92)
	}
}

// The gate makes the difference.
func TestRateLimit_WithoutAGate(t *testing.T) {
	m := rateLimitCase(t, "10/s, burst 10, always 1 s")
	m.Policy.Gate.Enabled, m.WarmUp, m.Horizon = retrip.Off, 10*time.Second, 30*time.Second
	r := m.run(t)
	assert.Greater(t, r.Refusals, 1.0, "more refusals than answers")
}

// Which of the requests at given times the servers accept, and after which time they
// would accept those that they refuse.
func TestRateLimit_Servers(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for _, tt := range []struct {
		name   string
		limit  ServerLimit
		at     []time.Duration // in ms
		wait   []time.Duration // in ms; 0 if accepted
		allows float64         // in ten seconds
	}{
		{"bucket", ServerLimit{Rate: 2, Count: 2},
			[]time.Duration{0, 0, 0, 250, 500, 500, 10_000, 10_000, 10_000}, []time.Duration{0, 0, 500, 250, 0, 500, 0, 0, 500}, 20},
		{"bucket for a time slower", ServerLimit{Rate: 2, Count: 1, From: s, To: 3 * s, Meanwhile: .5},
			[]time.Duration{0, 500, 1000, 2000, 3000, 3000}, []time.Duration{0, 0, 0, 1000, 0, 500}, 17},
		{"fixed window", ServerLimit{Kind: FixedWindow, Count: 2, Window: s, Phase: 300 * ms},
			[]time.Duration{0, 0, 0, 299, 300, 1200, 1299, 1300}, []time.Duration{0, 0, 300, 1, 0, 0, 1, 0}, 20},
		{"sliding window", ServerLimit{Kind: SlidingWindow, Count: 2, Window: s},
			[]time.Duration{0, 400, 900, 1000, 1000, 1400}, []time.Duration{0, 0, 100, 0, 400, 0}, 20},
		{"outage", ServerLimit{Kind: Outage, Until: s}, []time.Duration{0, 999, 1000}, []time.Duration{1000, 1, 0}, 0},
		{"concurrency", ServerLimit{Kind: Concurrency, Count: 2}, []time.Duration{0, 0, 0}, []time.Duration{0, 0, 500}, 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := RateLimit{Limit: tt.limit, Service: s}
			server := m.servers()[0]
			var waits []time.Duration
			for _, at := range tt.at {
				_, exact := server.arrive(at * ms)
				waits = append(waits, exact.Round(time.Microsecond)/ms)
			}
			assert.Equal(t, tt.wait, waits)
			assert.InDelta(t, tt.allows, server.allows(0, 10*s), 1e-9)
			if tt.limit.Kind == Concurrency {
				leave(server)
				ok, _ := server.arrive(0)
				assert.True(t, ok)
			}
		})
	}
}
