// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// small is CupFinal with a 500th of its players and capacity.
func small() Stadium {
	m := CupFinal()
	m.Players /= 500
	m.Capacity /= 500
	return m
}

func watch(t *testing.T, m Stadium) *StadiumResult {
	t.Helper()
	r, err := m.Run(t.Context(), nil)
	require.NoError(t, err)
	return r
}

func TestStadium(t *testing.T) {
	m := small()
	r := watch(t, m)
	assert.EqualValues(t, 5*m.Players, r.Fetches)
	assert.LessOrEqual(t, r.Retries, r.Failed+r.Refused)
	assert.Greater(t, r.PeakLoad, m.Capacity)
	assert.Positive(t, r.Refused)
	assert.Positive(t, r.PeakWaiting)
	var fetches, retries, failed, refused int64
	for _, p := range r.Series {
		fetches += int64(p.Fetches)
		retries += int64(p.Retries)
		failed += int64(p.Failed)
		refused += int64(p.Refused)
	}
	assert.Equal(t, []int64{r.Fetches, r.Retries, r.Failed, r.Refused}, []int64{fetches, retries, failed, refused})
}

// No refused player returns before the time the server asked for.
func TestStadiumHeedsRetryAfter(t *testing.T) {
	m := small()
	m.For = 0 // no blip: an origin that is too small
	m.Capacity = 10_000
	m.RetryAfter = 3 * time.Second
	r := watch(t, m)
	assert.Zero(t, r.Failed)
	for i, p := range r.Series {
		if time.Duration(i+1)*r.Bin <= 3*time.Second {
			assert.Zero(t, p.Retries)
		}
	}
	assert.Positive(t, r.Retries)
	assert.LessOrEqual(t, r.Retries, int64(m.Players), "one retry in 30 s")
}

// With a gate, a refused player requests no segment before the time the server
// asked for.
func TestStadiumGate(t *testing.T) {
	run := func(gate retrip.Switch) *StadiumResult {
		m := small()
		m.For = 0
		m.Capacity = 10_000
		m.RetryAfter = 10 * time.Second
		m.Policy.Retry = retrip.Policy{MaxAttempts: 1, Gate: retrip.Gate{Enabled: gate}}
		return watch(t, m)
	}
	without, with := run(retrip.Off), run(retrip.On)
	assert.EqualValues(t, 5*small().Players, without.Fetches)
	assert.Zero(t, without.PeakWaiting)
	assert.Less(t, with.Fetches, without.Fetches*9/10)
	assert.Positive(t, with.PeakWaiting)
	assert.Zero(t, with.Retries)
}
