// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

//retrip:promise P14
func TestCheckRecovery(t *testing.T) {
	s := of(Overload(), 100)
	require.NoError(t, CheckRecovery(t.Context(), s))

	err := CheckRecovery(t.Context(), as(t, s, "finagle"))
	var e *RecoveryError
	require.ErrorAs(t, err, &e)
	assert.Equal(t, 100, e.Clients)
	assert.InDelta(t, 7, e.PerClient, 1e-9)
	assert.Equal(t, Never, e.Recovery)
	assert.InDelta(t, 1.9, e.Steady, 0.2)
	assert.Greater(t, e.Recovers, 10)
	assert.Less(t, e.Recovers, 100)
	assert.Regexp(t, `^sim: 100 clients with 7 requests/s each, at 70 % load: after 10s in which work takes 3\.3 × as long, `+
		`finagle has still not recovered after 1m0s, and sends 1\.9 × capacity; without retries it takes 3s; `+
		`in time is up to about \d\d clients \(\d\d requests/s each\)$`, err.Error())
	if brief {
		return
	}

	// A slow recovery isn't reported as never.
	err = CheckRecovery(t.Context(), of(as(t, Overload(), "aws-standard"), 1000))
	require.ErrorAs(t, err, &e)
	assert.Greater(t, e.Recovery, 8*time.Second)
	assert.False(t, e.Relapsed)
	assert.Contains(t, err.Error(), "aws-standard takes "+e.Recovery.String()+" to recover; without retries it takes ")
}

// Where retries are harmless, the check reports nothing, whatever else goes
// wrong.
func TestCheckRecovery_Harmless(t *testing.T) {
	faulty := Overload()
	faulty.Backend.FailureRate = 0.06
	worse := Overload()
	worse.Backend.FailureRate = 0.3
	slow := Overload()
	slow.Policy.Retry.Backoff = retrip.Backoff{Base: 10 * time.Second, Cap: time.Minute}
	for name, s := range map[string]Scenario{
		"6 % fail":                  faulty,
		"6 % fail, without retries": as(t, faulty, "no-retries"),
		"30 % fail":                 worse,
		"slow backoff":              slow,
	} {
		if brief && name != "6 % fail" {
			continue
		}
		assert.NoError(t, CheckRecovery(t.Context(), s), name)
	}
}

// The check finds storms that the scenario itself doesn't show: in a shorter
// trigger, at a higher load, in a backend that fails anyway, in long waits,
// behind a long warm-up.
func TestCheckRecovery_Storms(t *testing.T) {
	faulty := as(t, Overload(), "no-budget")
	faulty.Backend.FailureRate = 0.06
	slow := as(t, Overload(), "no-budget")
	slow.Policy.Retry.Backoff = retrip.Backoff{Base: 10 * time.Second, Cap: time.Minute}
	two := as(t, Overload(), "no-budget")
	two.Policy.Retry.MaxAttempts = 2
	outage := as(t, Overload(), "no-budget")
	outage.Trigger = Trigger{}
	for name, s := range map[string]Scenario{
		"6 % fail": faulty, "slow backoff": slow, "two attempts": two, "no trigger of its own": outage,
		"short triggers": of(Overload(), 1000), "aws": as(t, Overload(), "aws-standard"), "polly": as(t, Overload(), "polly"),
	} {
		if brief && name != "6 % fail" && name != "two attempts" {
			continue
		}
		var e *RecoveryError
		assert.ErrorAs(t, CheckRecovery(t.Context(), s), &e, name)
	}
}

// A budget of the default size passes, and one that is far too large for the fleet
// doesn't.
func TestCheckRecovery_LargeBudget(t *testing.T) {
	s := of(Overload(), 10)
	check := RecoveryCheck{}
	if brief {
		check.Troubles = []Trouble{}
	}
	assert.NoError(t, check.Run(t.Context(), s))
	s.Policy.Retry.Budget = 10_000
	var e *RecoveryError
	assert.ErrorAs(t, check.Run(t.Context(), s), &e)
}

// The check takes as long for a large fleet as for a small one, and gives the
// same result.
func TestCheckRecovery_Reduced(t *testing.T) {
	large := of(Overload(), 10_000)
	large.Arrivals.Rate, large.Backend.Workers, large.Backend.Queue = 70_000, 1000, 100_000
	small := large.reduced()
	assert.InDelta(t, 7, small.Arrivals.Rate/float64(small.Fleet.Clients), 0.1)
	assert.InDelta(t, 0.7, small.Load(), 1e-9)
	assert.Equal(t, 100*small.Backend.Workers, small.Backend.Queue)
	assert.LessOrEqual(t, small.Arrivals.Rate, 700.0)
	assert.Equal(t, of(Overload(), 100), of(Overload(), 100).reduced())
	if brief {
		return
	}
	want := CheckRecovery(t.Context(), as(t, of(Overload(), 100), "no-budget"))
	var few, many *RecoveryError
	require.ErrorAs(t, want, &few)
	require.ErrorAs(t, CheckRecovery(t.Context(), as(t, large, "no-budget")), &many)
	assert.Equal(t, 100*few.Clients, many.Clients)
	assert.InDelta(t, few.Steady, many.Steady, 0.1)
}

// The check rejects scenarios that prove nothing, and names the field.
func TestCheckRecovery_RefusesVacuousScenarios(t *testing.T) {
	for want, change := range map[string]func(*Scenario){
		"Backend.Workers is 0: it must be positive, for there to be an overload": func(s *Scenario) { s.Backend.Workers = 0 },
		"Arrivals.Count is 20000: it must be 0: when nothing arrives any more":   func(s *Scenario) { s.Arrivals.Count = 20_000 },
		"Arrivals.AtOnce is true: it must be false":                              func(s *Scenario) { s.Arrivals.AtOnce, s.Arrivals.Count = true, 9 },
		"Arrivals.Rate is 1: it must be 5 to":                                    func(s *Scenario) { s.Arrivals.Rate = 1 },
		"Trigger is of no effect":                                                func(s *Scenario) { s.Trigger.Slowdown = 1.1 },
		"Arrivals.Rate is 1100: it must be less":                                 func(s *Scenario) { s.Arrivals.Rate = 1100 },
		"Backend.Queue is 100: it must be longer: nothing fails here, not even":  func(s *Scenario) { s.Backend.Queue = 100 },
		"since a full queue takes 1s and clients wait 2s for an attempt":         func(s *Scenario) { s.Policy.Retry.AttemptTimeout = 2 * time.Second },
		"full queue takes 1s and clients wait 3s for an attempt":                 func(s *Scenario) { s.Fleet.Timeout, s.Policy.Retry.Deadline = 0, 3*time.Second },
		"full queue takes 1s and clients wait without end for an attempt":        func(s *Scenario) { s.Fleet.Timeout = 0 },
		"Fleet.Clients is 0": func(s *Scenario) { s.Fleet.Clients = 0 },
	} {
		if brief && (strings.Contains(want, "queue") || strings.Contains(want, "Queue")) {
			continue
		}
		s := Overload()
		change(&s)
		err := CheckRecovery(t.Context(), s)
		var p *ParameterError
		assert.ErrorAs(t, err, &p, want)
		assert.ErrorContains(t, err, want)
	}
	for want, c := range map[string]RecoveryCheck{
		"Allowed is -1ns":          {Allowed: -1},
		"Troubles.Kind is 4":       {Troubles: []Trouble{{4, time.Second}}},
		"Troubles.For is 0s":       {Troubles: []Trouble{{BrownOut, 0}}},
		"Loads is 0: it must be":   {Loads: []float64{0}},
		"Fleets is -1: it must be": {Fleets: []float64{-1}},
	} {
		assert.ErrorContains(t, c.Run(t.Context(), Overload()), want)
	}
}

// The width of Bin doesn't change a verdict.
func TestCheckRecovery_Bin(t *testing.T) {
	if brief {
		t.Skip("TestBinChangesNothing is faster")
	}
	c := RecoveryCheck{Troubles: []Trouble{}}
	s := as(t, Overload(), "finagle")
	want := c.Run(t.Context(), s)
	require.Error(t, want)
	s.Bin = 7 * time.Second
	assert.Equal(t, want, c.Run(t.Context(), s))
}

// The full matrix has every kind of trouble, at several loads and fleets.
func TestFullRecovery(t *testing.T) {
	places := FullRecovery().places(Overload())
	assert.Len(t, places, 13*4*3)
	own := 0
	for _, p := range places {
		require.NoError(t, p.Validate())
		if p.own {
			own++
		}
	}
	assert.Equal(t, 1, own)
	// One cell of the matrix.
	c := RecoveryCheck{Troubles: []Trouble{{LateAnswers, time.Second}}, Fleets: []float64{0.1}}
	assert.NoError(t, c.Run(t.Context(), Overload()))
}

// The check blames a breaker that keeps a backend down, not the size of the fleet.
func TestCheckRecovery_Breaker(t *testing.T) {
	s := Overload()
	s.Policy.Retry.Breaker = retrip.Breaker{Ratio: 0.5, OpenFor: time.Minute}
	err := RecoveryCheck{Troubles: []Trouble{}}.Run(t.Context(), s)
	var e *RecoveryError
	require.ErrorAs(t, err, &e)
	assert.True(t, e.Breaker)
	assert.Equal(t, e.Clients, e.WithoutBreaker)
	assert.ErrorContains(t, err, "without its breaker it recovers in time")

	// Where the fleet is too large as well, it is said how large it may be with and
	// without the breaker.
	s.Fleet.Clients, s.Policy.Retry.Breaker = 3000, retrip.Breaker{Ratio: 0.5}
	err = RecoveryCheck{Troubles: []Trouble{{BrownOut, time.Second}}}.Run(t.Context(), s)
	require.ErrorAs(t, err, &e)
	assert.False(t, e.Breaker)
	assert.Less(t, e.Recovers, 10)
	assert.InDelta(t, 900, e.WithoutBreaker, 600)
	assert.ErrorContains(t, err, fmt.Sprintf("; without its breaker, in time is up to about %d clients (", e.WithoutBreaker))
	assert.Regexp(t, `requests/s each\), and with it (no fleet size|only up to \d)$`, err.Error())
}

// A backend that asks for a wait is watched until the waits are over.
func TestCheckRecovery_WatchesWaits(t *testing.T) {
	s := Overload()
	assert.Equal(t, recoveryTail, s.tail())
	s.Backend.RetryAfter = 25 * time.Second
	assert.Equal(t, 50*time.Second, s.tail())
	s.Backend.RetryAfter = 31 * time.Second // more than MaxWait: nobody waits
	assert.Equal(t, recoveryTail, s.tail())
	s.Trigger.RetryAfter = 20 * time.Second
	assert.Equal(t, 40*time.Second, s.tail())
	s.Policy.Retry.MaxWait = 5 * time.Minute
	s.Trigger.RetryAfter = 3 * time.Minute
	assert.Equal(t, 6*time.Minute, s.tail())
}

// The check sees the herd that an outage sends away for a while: all come back
// together, long after the backend has recovered.
func TestCheckRecovery_Herd(t *testing.T) {
	s := of(Overload(), 1000)
	for _, wait := range []time.Duration{25 * time.Second, 30 * time.Second} {
		s.Trigger = Trigger{For: 10 * time.Second, FailureRate: 1, RetryAfter: wait}
		var e *RecoveryError
		err := RecoveryCheck{Troubles: []Trouble{}}.Run(t.Context(), s)
		require.ErrorAs(t, err, &e, wait)
		assert.True(t, e.Relapsed)
		assert.ErrorContains(t, err, fmt.Sprintf("100 %% of attempts fail with Retry-After: %.0f, ", wait.Seconds()))
		if brief {
			return
		}
	}
	s.Trigger.RetryAfter = 31 * time.Second // nobody waits that long
	assert.NoError(t, RecoveryCheck{}.Run(t.Context(), of(s, 100)))
}

// A client with only a deadline waits for an attempt until then.
func TestCheckRecovery_Deadline(t *testing.T) {
	s := Overload()
	s.Fleet.Timeout = 0
	assert.Zero(t, s.attemptTimeout())
	s.Policy.Retry.Deadline = 2 * time.Second
	assert.Equal(t, 2*time.Second, s.attemptTimeout())
	s.Policy.Retry.AttemptTimeout = time.Second
	assert.Equal(t, time.Second, s.attemptTimeout())
}

// Cases measures all cases, also after one that fails, and returns the error of Run.
func TestRecoveryCheck_Cases(t *testing.T) {
	c := RecoveryCheck{Loads: []float64{0.9}, Troubles: []Trouble{{BrownOut, time.Second}, {BrownOut, 10 * time.Second}}}
	s := Overload()
	s.Trigger.For = 0
	s.Fleet.Clients = 3000
	done := 0.0
	cases, err := c.Cases(t.Context(), s, func(d float64) { assert.Greater(t, d, done); done = d })
	require.Len(t, cases, 4)
	assert.Less(t, done, 1.0)
	run := c.Run(t.Context(), s)
	assert.Equal(t, run, err)
	assert.ErrorContains(t, err, "after 1s")
	assert.False(t, cases[0].OK)
	for _, one := range cases {
		assert.Equal(t, one.OK, one.Recovery <= one.Without+5*time.Second, one)
		assert.LessOrEqual(t, one.Good, one.GoodWithout+0.01, one)
	}
}
