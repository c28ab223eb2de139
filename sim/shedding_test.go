// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/sim"
)

// The limit that a Handler finds keeps a server busy, whatever its size and
// times, without many requests inside.
func TestShedding(t *testing.T) {
	for _, workers := range []int{1, 10, 50} {
		for _, service := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond} {
			for times := sim.ConstantTimes; times <= sim.BimodalTimes; times++ {
				m := sim.Shedding{Workers: workers, Service: service, Times: times, Load: 2, Retries: 0.3, From: 10 * time.Second, Until: 15 * time.Second}
				limit, best, err := m.Best(t.Context())
				require.NoError(t, err)
				fixed := m
				fixed.Limit = limit
				result, err := fixed.Run(t.Context())
				require.NoError(t, err)
				assert.Equal(t, result, best)
				got, err := m.Run(t.Context())
				require.NoError(t, err)
				assert.GreaterOrEqual(t, got.Goodput, 0.9*best.Goodput, "%+v", m)
				assert.LessOrEqual(t, got.P99, 8*best.P99, "%+v", m)
				again, err := m.Run(t.Context())
				require.NoError(t, err)
				assert.Equal(t, got, again)
			}
		}
	}
}

// A server of a few workers whose times vary keeps them busy, and its requests
// don't wait inside: it is the order in which they end that tells how many there
// are. By the times alone, a server of four loses over 5 %.
func TestShedding_FewWorkers(t *testing.T) {
	for workers := 3; workers <= 6; workers++ {
		for times := sim.ExponentialTimes; times <= sim.BimodalTimes; times++ {
			m := sim.Shedding{Workers: workers, Service: 60 * time.Millisecond, Times: times, Load: 5, Retries: 0.3, From: 10 * time.Second, Until: 30 * time.Second, Runs: 10}
			_, best, err := m.Best(t.Context())
			require.NoError(t, err)
			got, err := m.Run(t.Context())
			require.NoError(t, err)
			assert.GreaterOrEqual(t, got.Goodput, 0.95*best.Goodput, "%+v", m)
			assert.LessOrEqual(t, got.P99, best.P99*3/2, "%+v", m)
		}
	}
}

// Below the capacity of the server, the search costs hardly any requests: that
// few begin isn't a server that has become slow, and no lower level is measured.
func TestShedding_BelowCapacity(t *testing.T) {
	for _, workers := range []int{10, 50} {
		for _, service := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond} {
			for times := sim.ConstantTimes; times <= sim.BimodalTimes; times++ {
				for _, load := range []float64{0.5, 0.8} {
					m := sim.Shedding{Workers: workers, Service: service, Times: times, Load: load, From: 10 * time.Second, Until: 20 * time.Second, Runs: 8}
					got, err := m.Run(t.Context())
					require.NoError(t, err)
					m.Limit = 6 * workers
					fixed, err := m.Run(t.Context())
					require.NoError(t, err)
					assert.GreaterOrEqual(t, got.Goodput, 0.97*fixed.Goodput, "%+v", m)
				}
			}
		}
	}
}

// A new process that is large enough serves most of what comes from the start,
// also if requests are slow.
func TestShedding_Starts(t *testing.T) {
	for _, service := range []time.Duration{50 * time.Millisecond, 500 * time.Millisecond} {
		for times := sim.ConstantTimes; times <= sim.BimodalTimes; times++ {
			m := sim.Shedding{Workers: 160, Service: service, Times: times, Load: 0.8, Until: 5 * time.Second, Runs: 10}
			got, err := m.Run(t.Context())
			require.NoError(t, err)
			m.Limit = 10 * m.Workers
			fixed, err := m.Run(t.Context())
			require.NoError(t, err)
			t.Log(service, times, got.Goodput/fixed.Goodput)
			assert.GreaterOrEqual(t, got.Goodput, 0.6*fixed.Goodput, "%+v", m)
		}
	}
}

// A limit that equals the number of workers doesn't hide that there are more.
func TestShedding_Grows(t *testing.T) {
	for workers := 1; workers <= 6; workers++ {
		m := sim.Shedding{Workers: workers, Service: 70 * time.Millisecond, Load: 2, At: 15 * time.Second, From: 25 * time.Second, Until: 30 * time.Second, WorkersBy: 10}
		for m.Seed = range 10 {
			got, err := m.Run(t.Context())
			require.NoError(t, err)
			assert.GreaterOrEqual(t, got.Goodput, 0.8, "%+v", m)
		}
	}
}

// The best limit is chosen with other random numbers than it is measured with.
// With those of its own seed, another one is the best by chance.
func TestShedding_BestIsFresh(t *testing.T) {
	m := sim.Shedding{Workers: 10, Service: 100 * time.Millisecond, Times: sim.ExponentialTimes, Load: 2, Retries: 0.3, Until: 2 * time.Second}
	choose := func(seed uint64) (best int) {
		m := m
		m.Seed = seed
		var results []*sim.SheddingResult
		most, limits := 0.0, []int{10, 11, 12, 13, 15, 20, 30, 40, 60}
		for _, m.Limit = range limits {
			r, err := m.Run(t.Context())
			require.NoError(t, err)
			results, most = append(results, r), max(most, r.Goodput)
		}
		lowest := time.Hour
		for i, r := range results {
			if r.Goodput >= 0.99*most && r.P99 < lowest {
				best, lowest = limits[i], r.P99
			}
		}
		return best
	}
	differ := 0
	for m.Seed = range 20 {
		best, _, err := m.Best(t.Context())
		require.NoError(t, err)
		assert.Equal(t, choose(^m.Seed), best)
		if choose(m.Seed) != best {
			differ++
		}
	}
	assert.Greater(t, differ, 3)
}

func TestShedding_Validates(t *testing.T) {
	_, err := sim.Shedding{}.Run(t.Context())
	var wrong *sim.ParameterError
	require.ErrorAs(t, err, &wrong)
	assert.ErrorContains(t, err, "Workers")
}
