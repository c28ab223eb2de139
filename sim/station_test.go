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

// Measures for the owner of a server, with 1000 and 10 000 clients: seconds to
// recover. The expected figures come from an independent, coarser model that knows the
// plain budget.
func TestServerRows(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*Backend)
		preset string
		want   [2]float64
	}{
		{"as it is", func(*Backend) {}, "plain-budget", [2]float64{3, 45}},
		{"sheds retries", func(b *Backend) { b.ShedRetries = 200 }, "plain-budget", [2]float64{3, 2}},
		{"sheds retries", func(b *Backend) { b.ShedRetries = 200 }, "no-budget", [2]float64{3, 3}},
		{"refusals cost 0.1", func(b *Backend) { b.ShedRetries, b.RefusalCost = 200, 0.1 }, "plain-budget", [2]float64{3, 5}},
		{"refusals cost 0.5", func(b *Backend) { b.ShedRetries, b.RefusalCost = 200, 0.5 }, "plain-budget", [2]float64{5, 33}},
		{"forbids retries too", func(b *Backend) { b.ShedRetries, b.RefusalCost, b.NoRetry = 200, 0.1, true }, "plain-budget", [2]float64{3, 3}},
		{"only forbids retries", func(b *Backend) { b.NoRetry = true }, "plain-budget", [2]float64{7, 75}},
		{"short queue", func(b *Backend) { b.Queue = 200 }, "no-budget", [2]float64{0, 0}},
		{"last in first out", func(b *Backend) { b.Order = LastInFirstOut }, "no-budget", [2]float64{0, 0}},
		{"patience", func(b *Backend) { b.Patience = 200 * time.Millisecond }, "no-budget", [2]float64{0, 0}},
	} {
		for i, clients := range []int{1000, 10_000} {
			if brief && i > 0 {
				continue
			}
			s := of(as(t, Overload(), row.preset), clients)
			s.Horizon = 150 * time.Second
			row.change(&s.Backend)
			assert.InDelta(t, row.want[i], median(t, s), 2+0.15*row.want[i], "%s: %s with %d clients", row.name, row.preset, clients)
		}
	}
}

// In front of ten backends behind one name, a budget of tokens alone tips over
// at a load that is sustainable without retries. With three of the backends
// dead, retries help as long as the others have capacity left.
func TestInstances(t *testing.T) {
	s := Overload().LoadOf(0.9)
	s.Trigger = Trigger{}
	s.Backend.Instances, s.Backend.Workers, s.Backend.Queue = 10, 1, 100
	s.Policy.Retry.AttemptTimeout = 500 * time.Millisecond
	success := func(s Scenario) float64 {
		r, err := s.Run(t.Context(), nil)
		require.NoError(t, err)
		return r.SuccessRate()
	}
	assert.InDelta(t, 0.99, success(as(t, s, "no-retries")), 0.01)
	assert.Less(t, success(as(t, s, "no-budget")), 0.3)
	s.Backend.Dead, s.Policy.Retry.AttemptTimeout = 3, 0
	s.Arrivals.Rate = 500
	assert.InDelta(t, 0.7, success(as(t, s, "no-retries")), 0.01)
	assert.Greater(t, success(s), 0.95)
	assert.Equal(t, 500.0/1000, s.Load())
}

// An attempt after one that timed out needs a new connection, and so more work.
func TestConnect(t *testing.T) {
	s := Faults(0)
	s.Arrivals = Arrivals{Rate: 10, Count: 1, Regular: true}
	s.Policy.Retry = retrip.Policy{MaxAttempts: 4, Budget: retrip.Off}
	s.Backend.Service, s.Backend.Fixed = 200*time.Millisecond, true
	s.Fleet.Timeout = 300 * time.Millisecond
	s.Backend.Connect = 150 * time.Millisecond
	r, err := s.Run(t.Context(), nil)
	require.NoError(t, err)
	assert.EqualValues(t, []int64{1, 1}, []int64{r.Succeeded, r.Attempts}, "a first attempt needs none")
	s.Trigger = Trigger{For: time.Millisecond, Slowdown: 2}
	r, err = s.Run(t.Context(), nil)
	require.NoError(t, err)
	assert.EqualValues(t, []int64{0, 4}, []int64{r.Succeeded, r.Attempts}, "350 ms are too long, again and again")
}

// CoDel leaves short queues alone, and refuses faster the longer a queue stays
// too long.
func TestCoDel(t *testing.T) {
	const target = 20 * time.Millisecond
	var c codel
	var dropped []time.Duration
	for now := time.Duration(0); now < time.Second; now += time.Millisecond {
		if c.drops(int64(now), target-1, target) {
			t.Fatal("refused although nobody waits for long")
		}
	}
	for now := time.Second; now < 3*time.Second; now += time.Millisecond {
		if c.drops(int64(now), 5*target, target) {
			dropped = append(dropped, now)
		}
	}
	require.Greater(t, len(dropped), 20)
	assert.Equal(t, 1100*time.Millisecond, dropped[0], "an interval after the first long wait")
	assert.Equal(t, 1200*time.Millisecond, dropped[1])
	assert.InDelta(t, 1271, dropped[2].Milliseconds(), 1, "100 ms / √2 later")
	for i := 2; i < len(dropped); i++ {
		assert.LessOrEqual(t, dropped[i]-dropped[i-1], dropped[i-1]-dropped[i-2]+time.Millisecond)
	}
	assert.False(t, c.drops(int64(3*time.Second), target-1, target))
	assert.False(t, c.drops(int64(3*time.Second+1), 5*target, target), "a short wait restarts it")
}
