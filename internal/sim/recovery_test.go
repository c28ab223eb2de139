// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

// worst tries brownouts at the load of s, by default one of 10 s, and returns the
// worst case.
func worst(t *testing.T, s Scenario, brownouts ...time.Duration) RecoveryCase {
	t.Helper()
	if brownouts == nil {
		brownouts = []time.Duration{10 * time.Second}
	}
	cases, err := RecoveryCheck{Brownouts: brownouts}.Cases(t.Context(), s, nil)
	require.NoError(t, err)
	return slices.MaxFunc(cases, func(a, b RecoveryCase) int { return cmp.Compare(a.Verdict, b.Verdict) })
}

//retrip:promise P14
func TestCheckRecovery(t *testing.T) {
	s := of(Overload(), 100)
	good := worst(t, s)
	assert.Equal(t, Passes, good.Verdict)
	assert.Equal(t, 5, good.Passed)

	envoy := as(t, s, "envoy")
	bad := worst(t, envoy)
	assert.Equal(t, Fails, bad.Verdict)
	assert.Zero(t, bad.Passed)
	assert.Equal(t, Never, bad.Recovery)
	assert.Equal(t, time.Minute, bad.Watched)
	assert.InDelta(t, 1.5, bad.Steady, 0.2)
	if brief {
		return
	}
	assert.Equal(t, Passes, worst(t, s, time.Second, 10*time.Second, time.Minute).Verdict)

	// A slow recovery isn't reported as never.
	bad = worst(t, of(as(t, Overload(), "aws-standard"), 1000))
	assert.Equal(t, Fails, bad.Verdict)
	assert.Greater(t, bad.Recovery, 8*time.Second)
	assert.False(t, bad.InTime())
}

// What the check says depends on neither the seed nor the number of clients with the same
// rate each, and more clients for the same rate never do better.
func TestCheckRecovery_Chance(t *testing.T) {
	fleet := func(clients int, rate float64) Scenario {
		s := of(Overload(), clients)
		s.Arrivals.Rate = rate
		return s.Part(0.7).LoadOf(0.9)
	}
	assert.Equal(t, fleet(400, 2000), fleet(500, 2500))
	assert.Equal(t, fleet(400, 2000), fleet(600, 3000))
	before := Passes
	for _, clients := range rows([]int{40, 3000}, []int{10, 40, 100, 120, 140, 160, 200, 300, 1000, 3000}) {
		least, most := Fails, Passes
		for seed := range uint64(testenv.Size(1, 4)) {
			s := fleet(clients, 700)
			s.Seed += 100 * seed
			c := worst(t, s, time.Second)
			least, most = min(least, c.Verdict), max(most, c.Verdict)
			if c.Verdict == Borderline {
				assert.Equal(t, 15, c.Seeds)
			}
		}
		assert.LessOrEqual(t, most-least, Borderline-Passes, "%d clients", clients)
		assert.GreaterOrEqual(t, most, before, "%d clients", clients)
		before = least
	}
	assert.Equal(t, Fails, before)
}

// The part keeps the rate per client, the load and the service time.
func TestPart(t *testing.T) {
	for _, c := range []struct {
		clients int
		rate    float64
		load    float64
		service time.Duration
		want    [2]int // clients and workers of the part
	}{
		{100, 700, 0.7, 10 * time.Millisecond, [2]int{100, 10}},
		{10_000, 70_000, 0.7, 10 * time.Millisecond, [2]int{100, 10}},
		{1, 7, 0.7, 10 * time.Millisecond, [2]int{100, 10}},
		{400, 2000, 0.7, 10 * time.Millisecond, [2]int{140, 10}},
		{400, 2000, 0.9, 10 * time.Millisecond, [2]int{180, 10}},
		{200, 2000, 0.6, 8 * time.Millisecond, [2]int{75, 10}},
		{2, 1000, 0.7, 10 * time.Millisecond, [2]int{2, 14}}, // ten workers would be 1.4 clients
		{100, 700, 0.7, time.Second, [2]int{100, 1000}},
		{100, 700, 0.7, 2 * time.Millisecond, [2]int{200, 4}},
		{100, 700, 0.7, 500 * time.Microsecond, [2]int{200, 1}},
	} {
		s := of(Overload(), c.clients)
		s.Arrivals.Rate, s.Backend.Service = c.rate, c.service
		p := s.Part(c.load)
		assert.Equal(t, c.want, [2]int{p.Fleet.Clients, p.Backend.Workers}, c)
		assert.InEpsilon(t, c.rate/float64(c.clients), p.Arrivals.Rate/float64(p.Fleet.Clients), 0.031, c)
		assert.InEpsilon(t, c.load, p.Load(), 1e-9, c)
		assert.GreaterOrEqual(t, p.Arrivals.Rate, 699.9, c)
		assert.InEpsilon(t, p.Arrivals.Rate/4, p.Store.Size, 1e-9, c)
		assert.Equal(t, c.service, p.Backend.Service, c)
	}
	short := Overload()
	short.Backend.Service = time.Microsecond
	short = short.Part(0.7)
	assert.InDelta(t, 500*time.Microsecond, short.Backend.Service, 1)
	assert.InEpsilon(t, 1400, short.Arrivals.Rate, 1e-4)
}

// The check finds storms in a shorter trigger, in a backend that fails anyway, and in
// long waits. Where retries are harmless, it reports nothing, whatever else goes wrong.
func TestCheckRecovery_Storms(t *testing.T) {
	failing := func(share float64) Scenario {
		s := Overload()
		s.Backend.FailureRate = share
		return s
	}
	slow, two, large := Overload(), Overload().LoadOf(0.8), of(Overload(), 10)
	slow.Policy.Retry.Backoff = retrip.Backoff{Base: 10 * time.Second, Cap: time.Minute}
	two.Policy.Retry.MaxAttempts = 2
	large.Policy.Retry.Budget = 10_000
	for _, c := range []struct {
		name    string
		s       Scenario
		storm   bool
		telling bool
	}{
		{"6 % fail", failing(0.06), false, true},
		{"6 % fail, without retries", as(t, failing(0.06), "no-retries"), false, false},
		{"30 % fail", failing(0.3), false, false},
		{"slow backoff", slow, false, false},
		{"6 % fail, without a budget", as(t, failing(0.06), "no-budget"), true, false},
		{"slow backoff, without a budget", as(t, slow, "no-budget"), true, false},
		{"two attempts", as(t, two, "no-budget"), true, false},
		{"a large budget", large, false, true}, // 200 failures in a row end it
		{"short triggers", of(Overload().LoadOf(0.8), 1000), true, false},
	} {
		if brief && !c.telling {
			continue
		}
		if !c.storm {
			assert.Equal(t, Passes, worst(t, c.s).Verdict, c.name)
			continue
		}
		assert.Equal(t, Fails, worst(t, c.s, time.Second, 10*time.Second).Verdict, c.name)
	}
}

// The check rejects scenarios that prove nothing, and names the field.
func TestCheckRecovery_RefusesVacuousScenarios(t *testing.T) {
	for want, change := range map[string]func(*Scenario){
		"Backend.Workers is 0: it must be positive, for there to be an overload": func(s *Scenario) { s.Backend.Workers = 0 },
		"Arrivals.Rate is 1: it must be 5 to":                                    func(s *Scenario) { s.Arrivals.Rate = 1 },
		"Backend.Queue is 100: it must be longer: nothing fails here, not even":  func(s *Scenario) { s.Backend.Queue = 100 },
		"since a full queue takes 1s and clients wait 2s for an attempt":         func(s *Scenario) { s.Policy.Retry.AttemptTimeout = 2 * time.Second },
		"full queue takes 1s and clients wait 3s for an attempt":                 func(s *Scenario) { s.Fleet.Timeout, s.Policy.Retry.Deadline = 0, 3*time.Second },
		"full queue takes 1s and clients wait without end for an attempt":        func(s *Scenario) { s.Fleet.Timeout = 0 },
		"Fleet.Clients is 0": func(s *Scenario) { s.Fleet.Clients = 0 },
	} {
		if brief && strings.Contains(want, "queue takes") {
			continue
		}
		s := Overload()
		change(&s)
		_, err := RecoveryCheck{Brownouts: []time.Duration{10 * time.Second}}.Cases(t.Context(), s, nil)
		var p *ParameterError
		assert.ErrorAs(t, err, &p, want)
		assert.ErrorContains(t, err, want)
	}
	for want, c := range map[string]RecoveryCheck{
		"Brownouts is 0s": {Brownouts: []time.Duration{0}},
		"Loads is 0: it must be more than 0 and less than 1": {Loads: []float64{0}},
		"Loads is 1: it must be more than 0 and less than 1": {Loads: []float64{0.5, 1}},
	} {
		_, err := c.Cases(t.Context(), Overload(), nil)
		assert.ErrorContains(t, err, want)
	}
}
