// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/testenv"
)

// as returns s with a preset on top of its policy.
func as(t *testing.T, s Scenario, preset string) Scenario {
	t.Helper()
	var err error
	s.Policy, err = Preset(preset, s.Policy.Retry)
	require.NoError(t, err)
	return s
}

func of(s Scenario, clients int) Scenario {
	s.Fleet.Clients = clients
	return s
}

// median returns the median time to recover in seconds, where never is the
// longest time.
func median(t *testing.T, s Scenario) float64 {
	t.Helper()
	return middle(ranAll(t, s.Seeds(testenv.Size(1, 3))), recoverySeconds)
}

func recoverySeconds(r *Result) float64 {
	if r.Recovery == Never {
		return never
	}
	return r.Recovery.Seconds()
}

// middle returns the median of a figure.
func middle(list []*Result, of func(*Result) float64) float64 {
	var all []float64
	for _, r := range list {
		all = append(all, of(r))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

const never = 1e9

// Seconds from the end of the brownout to 95 % goodput, by size of the fleet.
//
//retrip:promise P14
func TestOverloadReference(t *testing.T) {
	fleets := []int{10, 100, 1000, 3000, 10_000}
	for _, row := range []struct {
		preset  string
		seconds []float64
	}{
		{"no-retries", []float64{3, 3, 3, 3, 3}},
		{"no-budget", []float64{never, never, never, never, never}},
		{"envoy", []float64{3.5, never, never}},
		{"aws-standard", []float64{3, 3, 51}},
		{"plain-budget", []float64{3, 3, 3, 10, 43}},
		{"retrip", []float64{3, 3, 3, 5, 25}},
	} {
		for i, want := range row.seconds {
			if brief && i != 1 {
				continue
			}
			s := of(as(t, Overload(), row.preset), fleets[i])
			if fleets[i] > 1000 {
				s.Horizon = 300 * time.Second
			}
			got := median(t, s)
			assert.InDelta(t, want, got, 1+0.1*want, "%s with %d clients", row.preset, fleets[i])
		}
	}
}

// A trigger of 1 s is over before larger fleets have emptied their budgets, and
// what is left of them prolongs the overload. Without retries it ends after 1 s.
//
//retrip:promise P14
func TestOverloadShortTrigger(t *testing.T) {
	for i, clients := range []int{100, 300, 1000, 3000, 10_000} {
		if brief && i != 0 {
			continue
		}
		s := of(Overload(), clients)
		s.Trigger.For = time.Second
		s.Horizon = 150 * time.Second
		want := []float64{3, 4, 7, 13, 32}[i]
		assert.InDelta(t, want, median(t, s), 1+0.1*want, "%d clients", clients)
		plain := []float64{3, 4, 8, 19, 55}[i]
		assert.InDelta(t, plain, median(t, as(t, s, "plain-budget")), 1+0.1*plain, "%d clients with a plain budget", clients)
		assert.InDelta(t, 1, median(t, as(t, s, "no-retries")), 1, "%d clients without retries", clients)
	}
}

// After the trigger of 10 s, fleets of 100 and 1000 clients recover as fast as
// without retries, at loads of 80 to 95 %.
//
//retrip:promise P14
func TestOverloadByLoad(t *testing.T) {
	for _, clients := range []int{100, 1000} {
		for _, load := range []float64{0.8, 0.85, 0.9, 0.95} {
			if brief && load != 0.8 {
				continue
			}
			s := of(Overload().LoadOf(load), clients)
			s.Horizon = 180 * time.Second
			without := median(t, as(t, s, "no-retries"))
			ours := median(t, s)
			assert.InDelta(t, without, ours, 2+0.1*without, "%d clients at %v", clients, load)
			assert.NotEqual(t, never, without)
		}
	}
}

// Variations that could break a rule tuned on one model.
//
//retrip:promise P14
func TestOverloadVariants(t *testing.T) {
	unequal := Overload()
	unequal.Fleet.Unequal = true
	late := Overload()
	late.Trigger.Slowdown, late.Trigger.Delay = 0, time.Second
	surge := Overload()
	surge.Trigger = Trigger{At: 30 * time.Second, For: 30 * time.Second, Surge: 1.6}
	drops := Overload()
	drops.Backend.DropAbandoned = true
	for _, row := range []struct {
		name    string
		s       Scenario
		preset  string
		seconds [2]float64 // with 100 and 1000 clients
	}{
		{"unequal", unequal, "no-retries", [2]float64{3, 3}},
		{"unequal", unequal, "no-budget", [2]float64{never, never}},
		{"unequal", unequal, "aws-standard", [2]float64{5, 70}},
		{"unequal", unequal, "retrip", [2]float64{3, 4}},
		{"late", late, "no-retries", [2]float64{0, 0}},
		{"late", late, "no-budget", [2]float64{never, never}},
		{"late", late, "aws-standard", [2]float64{0, 46}},
		{"late", late, "retrip", [2]float64{0, 0}},
		{"surge", surge, "no-retries", [2]float64{3, 3}},
		{"surge", surge, "no-budget", [2]float64{never, never}},
		{"surge", surge, "aws-standard", [2]float64{3, 20}},
		{"surge", surge, "retrip", [2]float64{3, 3}},
		// If the backend wastes no work, retries don't prolong an
		// overload by much.
		{"drops", drops, "no-retries", [2]float64{0, 0}},
		{"drops", drops, "retrip", [2]float64{0, 0}},
	} {
		for i, clients := range []int{100, 1000} {
			if brief && i > 0 {
				continue
			}
			got := median(t, of(as(t, row.s, row.preset), clients))
			assert.InDelta(t, row.seconds[i], got, 1+0.25*row.seconds[i], "%s: %s with %d clients", row.name, row.preset, clients)
		}
	}
}

// A share of the attempts fails at once for 10 s: the goodput during that time.
//
//retrip:promise P14
func TestPartialOutage(t *testing.T) {
	s := Overload()
	s.Trigger.Slowdown, s.Trigger.FailureRate = 0, 0.34
	for preset, want := range map[string][2]float64{
		"no-retries":   {463, 463},
		"no-budget":    {684, 684},
		"aws-standard": {669, 669},
		"plain-budget": {649, 690},
		"retrip":       {691, 694},
	} {
		for i, clients := range []int{100, 1000} {
			if brief && i > 0 {
				continue
			}
			var sum float64
			seeds := testenv.Size(2, 5)
			for _, s := range of(as(t, s, preset), clients).Seeds(seeds) {
				sum += ran(t, s).Goodput
			}
			assert.InEpsilon(t, want[i], sum/float64(seeds), 0.04, "%s with %d clients", preset, clients)
		}
	}
}

// Success and attempts per request with independent failures.
//
//retrip:promise P14
func TestFaultsReference(t *testing.T) {
	for _, row := range []struct {
		p, without, attempts, plain, success float64
	}{
		{0.01, 99.99, 1.01, 100, 100},
		{0.05, 99.99, 1.05, 100, 100},
		{0.10, 99.98, 1.11, 99.99, 99.99},
		{0.20, 99.84, 1.25, 99.72, 99.84},
		{0.30, 99.18, 1.42, 95.41, 99.15},
		{0.45, 95.92, 1.74, 68.85, 94.3},
		{0.60, 86.98, 2.18, 45.62, 62},
		{1.00, 0, 4, 0, 0},
	} {
		if brief && row.p != 0.3 {
			continue
		}
		r := ran(t, as(t, Faults(row.p), "no-budget"))
		assert.InDelta(t, row.without, 100*r.SuccessRate(), 0.5, "p = %v without a budget", row.p)
		assert.InDelta(t, row.attempts, r.Amplification, 0.02, "p = %v without a budget", row.p)
		r = ran(t, Faults(row.p))
		within := 0.5
		if row.p > 0.3 {
			within = 1.5
		}
		assert.InDelta(t, row.success, 100*r.SuccessRate(), within, "p = %v", row.p)
		plain := ran(t, as(t, Faults(row.p), "plain-budget"))
		assert.InDelta(t, row.plain, 100*plain.SuccessRate(), within, "p = %v with a plain budget", row.p)
		if row.p == 1 {
			assert.Less(t, r.Amplification, 1.01)
		}
	}
}

// The simulator makes no decisions of its own: every decision of a run is the
// answer of a separate record that is asked the same with the same draw.
//
//retrip:promise P14
func TestDecisionsAreTheHosts(t *testing.T) {
	s := of(Overload(), 50)
	s.Policy.Retry.Breaker.Ratio = 0.9
	s.Policy.Retry.Deadline = 700 * time.Millisecond
	s.Policy.Retry.AttemptTimeout = s.Fleet.Timeout
	r, err := newRun(&s)
	require.NoError(t, err)
	rules, _, err := s.Policy.rules()
	require.NoError(t, err)
	hosts := make([]host.Record, 50)
	decisions, retries := 0, 0
	r.traceForget = func(client int32) { hosts[client] = host.Record{} }
	r.traceStep = func(client int32, call decide.Call, e decide.Event, now time.Duration, draw uint64, a decide.Action) {
		var got decide.Action
		call.Step(rules, &hosts[client], &e, &got, now, draw)
		require.Equal(t, a, got)
		if e.Kind == decide.Ended {
			decisions++
		}
		if a.Do == decide.Send && call.Attempts > 1 {
			retries++
		}
	}
	_, err = r.run(t.Context())
	require.NoError(t, err)
	assert.Greater(t, decisions, 50_000)
	assert.Greater(t, retries, 100)
}

// In front of ten backends behind one name, a budget of tokens alone tips over
// at a load that is sustainable without retries. With three of the backends
// dead, retries help as long as the others have capacity left.
func TestInstances(t *testing.T) {
	s := Overload().LoadOf(0.9)
	s.Trigger = Trigger{}
	s.Backend.Instances, s.Backend.Workers, s.Backend.Queue = 10, 1, 100
	s.Policy.Retry.AttemptTimeout = 500 * time.Millisecond
	success := func(s Scenario) float64 { return ran(t, s).SuccessRate() }
	assert.InDelta(t, 0.99, success(as(t, s, "no-retries")), 0.01)
	assert.Less(t, success(as(t, s, "no-budget")), 0.3)
	s.Backend.Dead, s.Policy.Retry.AttemptTimeout = 3, 0
	s.Arrivals.Rate = 500
	assert.InDelta(t, 0.7, success(as(t, s, "no-retries")), 0.01)
	assert.Greater(t, success(s), 0.95)
	assert.Equal(t, 500.0/1000, s.Load())
}

//retrip:promise P14
func TestPurseTime(t *testing.T) {
	small := of(Overload(), 10_000)
	small.Policy.Retry.Budget = 1
	for _, c := range []struct {
		s    Scenario
		want time.Duration
	}{
		{of(Overload(), 10_000), 33333 * time.Millisecond}, // 7 retries at 3 a request, one request in 14.3 s
		{small, 19048 * time.Millisecond},                  // four retries
		{as(t, Overload(), "no-budget"), Never},
		{as(t, Overload(), "no-retries"), 0},
	} {
		d, err := c.s.PurseTime()
		require.NoError(t, err)
		assert.InDelta(t, c.want, d, float64(time.Millisecond), c.s.Policy.Name)
	}
}
