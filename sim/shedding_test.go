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

func TestShedding_Validates(t *testing.T) {
	_, err := sim.Shedding{}.Run(t.Context())
	var wrong *sim.ParameterError
	require.ErrorAs(t, err, &wrong)
	assert.ErrorContains(t, err, "Workers")
}
