// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"strings"
	"testing"

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
