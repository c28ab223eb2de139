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

// Layers that retry multiply their attempts. Without a budget, the backend gets
// the product of all layers' attempts. With a budget, it gets hardly more than
// one per request during a long outage, and several while the outage is young.
//
//retrip:promise P14
func TestLayers(t *testing.T) {
	s := Faults(1).Layered(2)
	s.Arrivals.Count = 20_000 // all of which end before the horizon
	r, err := as(t, s, "no-budget").Run(t.Context(), nil)
	require.NoError(t, err)
	assert.EqualValues(t, 20_000*4*4*4, r.Attempts)
	require.Len(t, r.Layers, 3)
	for i, l := range r.Layers {
		assert.Equal(t, int64(20_000)<<(2*i), l.Requests, i)
		assert.Equal(t, 4*l.Requests, l.Attempts, i)
	}
	assert.Equal(t, r.PeakSecond, r.Layers[2].PeakSecond)
	assert.Greater(t, r.PeakSecond, 7*r.Layers[0].PeakSecond)
	r, err = s.Run(t.Context(), nil)
	require.NoError(t, err)
	assert.Less(t, r.Amplification, 1.1)
}

// The average over a long run hides the cost of a young outage.
func TestLayersPeak(t *testing.T) {
	s := of(Overload(), 1000).Layered(2)
	s.Trigger.Slowdown, s.Trigger.FailureRate = 0, 1
	r, err := s.Run(t.Context(), nil)
	require.NoError(t, err)
	assert.InDelta(t, 4.0, float64(r.TriggerAttempts)/float64(r.TriggerRequests), 0.1)
	assert.InEpsilon(t, 7563, r.PeakSecond, 0.1)
	assert.Less(t, r.Amplification, 1.3)
}

// Each layer follows its own policy, with its own timeout and number of
// processes.
func TestServices(t *testing.T) {
	s := Faults(1)
	s.Policy.Retry.Budget = retrip.Off
	s.Arrivals.Count = 10_000
	s.Fleet.Services = []Service{
		{Policy: &Policy{Retry: retrip.Policy{MaxAttempts: 1}}, Replicas: 3},
		{Policy: &Policy{Retry: retrip.Policy{MaxAttempts: 2}}},
	}
	run, err := newRun(&s)
	require.NoError(t, err)
	r, err := run.run(t.Context(), nil)
	require.NoError(t, err)
	assert.Len(t, run.hosts, 100+3+3)
	assert.Equal(t, []int64{40_000, 40_000}, []int64{r.Layers[0].Attempts, r.Layers[1].Attempts})
	assert.InDelta(t, 40_000, r.Layers[2].Attempts, 100, "a budget of 5 for each of three processes")
	assert.Greater(t, r.Layers[2].Attempts, int64(40_000))
	assert.Equal(t, r.Attempts, r.Layers[2].Attempts)
}

// When a caller stops waiting, the services stop working for it, unless they
// are detached. No request is lost in either case.
func TestServicesAbandoned(t *testing.T) {
	for _, preset := range append(PresetNames(), "gate", "breaker") {
		s := Faults(0)
		if preset == "gate" {
			s.Policy.Retry.Gate.Enabled = retrip.On
		} else {
			s = as(t, s, preset)
		}
		s.Policy.Retry.MaxAttempts = 1
		s.Arrivals = Arrivals{Rate: 100, Count: 500, Regular: true}
		s.Backend.Service, s.Backend.Fixed = time.Second, true
		s.Fleet.Timeout = 250 * time.Millisecond
		inner := s.Policy
		inner.Retry.MaxAttempts, inner.Retry.Backoff.Jitter = 4, retrip.NoJitter
		s.Fleet.Services = []Service{{Policy: &inner, Timeout: 70 * time.Millisecond}, {Policy: &inner, Timeout: 50 * time.Millisecond}}
		var attempts [2]int64
		for i, detached := range []bool{false, true} {
			s.Fleet.Services[0].Detached, s.Fleet.Services[1].Detached = detached, detached
			run, err := newRun(&s)
			require.NoError(t, err)
			r, err := run.run(t.Context(), nil)
			require.NoError(t, err)
			attempts[i] = r.Attempts
			assert.Len(t, run.free, len(run.requests), preset)
			assert.Zero(t, r.Succeeded, preset)
			for i := range run.hosts {
				assert.Zero(t, run.hosts[i].Troubles(s.Horizon).Waiting, "%s: at the gate", preset)
			}
			for _, l := range run.layers {
				if e, ok := l.limit.(*envoy); ok {
					assert.Equal(t, make([]int32, len(e.out)), e.out, "requests in flight")
					assert.Equal(t, make([]int32, len(e.out)), e.retries, "retries in flight")
				}
			}
		}
		if preset == "no-budget" {
			assert.EqualValues(t, 500*2, attempts[0], "one for each attempt that the first service has time for")
			assert.Greater(t, attempts[1], 3*attempts[0])
		} else {
			assert.GreaterOrEqual(t, attempts[1], attempts[0], preset)
		}
	}
}
