// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// recovers tries brownouts at the load of s; by default one of 10 s.
func recovers(t *testing.T, s Scenario, brownouts ...time.Duration) error {
	t.Helper()
	if brownouts == nil {
		brownouts = []time.Duration{10 * time.Second}
	}
	_, err := RecoveryCheck{Brownouts: brownouts}.Cases(t.Context(), s, nil)
	return err
}

//retrip:promise P14
func TestCheckRecovery(t *testing.T) {
	s := of(Overload(), 100)
	require.NoError(t, recovers(t, s))

	err := recovers(t, as(t, s, "envoy"))
	var e *RecoveryError
	require.ErrorAs(t, err, &e)
	assert.Equal(t, 100, e.Clients)
	assert.InDelta(t, 7, e.PerClient, 1e-9)
	assert.Equal(t, Never, e.Recovery)
	assert.InDelta(t, 1.5, e.Steady, 0.2)
	assert.Greater(t, e.Recovers, 10)
	assert.Less(t, e.Recovers, 100)
	assert.Regexp(t, `^sim: 100 clients with 7 requests/s each, at 70 % load: after 10s in which work takes 3\.3 × as long, `+
		`envoy has still not recovered after 1m0s, and sends 1\.5 × capacity; without retries it takes 3s; `+
		`in time is up to about \d\d clients \(\d\d requests/s each\)$`, err.Error())
	if brief {
		return
	}
	require.NoError(t, recovers(t, s, time.Second, 10*time.Second, time.Minute))

	// A slow recovery isn't reported as never.
	err = recovers(t, of(as(t, Overload(), "aws-standard"), 1000))
	require.ErrorAs(t, err, &e)
	assert.Greater(t, e.Recovery, 8*time.Second)
	assert.False(t, e.Relapsed)
	assert.Contains(t, err.Error(), "aws-standard takes "+e.Recovery.String()+" to recover; without retries it takes ")
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
		{"a large budget", large, true, true},
		{"short triggers", of(Overload().LoadOf(0.8), 1000), true, false},
	} {
		if brief && !c.telling {
			continue
		}
		if !c.storm {
			assert.NoError(t, recovers(t, c.s), c.name)
			continue
		}
		var e *RecoveryError
		assert.ErrorAs(t, recovers(t, c.s, time.Second, 10*time.Second), &e, c.name)
	}
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
	want := recovers(t, as(t, of(Overload(), 100), "no-budget"))
	var few, many *RecoveryError
	require.ErrorAs(t, want, &few)
	require.ErrorAs(t, recovers(t, as(t, large, "no-budget")), &many)
	assert.Equal(t, 100*few.Clients, many.Clients)
	assert.InDelta(t, few.Steady, many.Steady, 0.1)
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
		err := recovers(t, s)
		var p *ParameterError
		assert.ErrorAs(t, err, &p, want)
		assert.ErrorContains(t, err, want)
	}
	for want, c := range map[string]RecoveryCheck{
		"Brownouts is 0s":        {Brownouts: []time.Duration{0}},
		"Loads is 0: it must be": {Loads: []float64{0}},
	} {
		_, err := c.Cases(t.Context(), Overload(), nil)
		assert.ErrorContains(t, err, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := RecoveryCheck{Brownouts: []time.Duration{time.Second}}.Cases(ctx, Overload(), nil)
	assert.ErrorIs(t, err, context.Canceled)
}

// A backend that is overloaded without retries, too, is no reproach to the policy.
func TestCheckRecovery_Overloaded(t *testing.T) {
	s := Overload().LoadOf(1.1)
	cases, err := RecoveryCheck{Brownouts: []time.Duration{time.Second}}.Cases(t.Context(), as(t, s, "no-retries"), nil)
	require.NoError(t, err)
	require.Len(t, cases, 1)
	assert.Equal(t, Never, cases[0].Without)
	assert.True(t, cases[0].OK)
}

// The check blames a breaker that keeps a backend down, not the size of the fleet.
func TestCheckRecovery_Breaker(t *testing.T) {
	s := Overload()
	s.Policy.Retry.Breaker = retrip.Breaker{Ratio: 0.5, OpenFor: time.Minute}
	err := recovers(t, s)
	var e *RecoveryError
	require.ErrorAs(t, err, &e)
	assert.True(t, e.Breaker)
	assert.Equal(t, e.Clients, e.WithoutBreaker)
	assert.ErrorContains(t, err, "without its breaker it recovers in time")

	if brief {
		return
	}
	// Where the fleet is too large as well, it is said how large it may be with and
	// without the breaker.
	s.Fleet.Clients, s.Policy.Retry.Breaker = 3000, retrip.Breaker{Ratio: 0.5}
	err = recovers(t, s, time.Second)
	require.ErrorAs(t, err, &e)
	assert.False(t, e.Breaker)
	assert.Less(t, e.Recovers, 10)
	assert.InDelta(t, 900, e.WithoutBreaker, 600)
	assert.ErrorContains(t, err, fmt.Sprintf("; without its breaker, in time is up to about %d clients (", e.WithoutBreaker))
	assert.Regexp(t, `requests/s each\), and with it (no fleet size|only up to \d)$`, err.Error())
}

// A recovered backend is watched until the waits before retries are over. A client with
// only a deadline waits for an attempt until then.
func TestCheckRecovery_Waits(t *testing.T) {
	s := Overload()
	p := &s.Policy.Retry
	assert.Equal(t, recoveryTail, s.tail())
	p.Backoff = retrip.Backoff{Base: 10 * time.Second, Cap: 20 * time.Second}
	assert.Equal(t, 50*time.Second, s.tail())
	p.MaxAttempts = 20
	assert.Equal(t, recoveryLonger, s.tail())

	s.Fleet.Timeout = 0
	assert.Zero(t, s.attemptTimeout())
	p.Deadline = 2 * time.Second
	assert.Equal(t, 2*time.Second, s.attemptTimeout())
	p.AttemptTimeout = time.Second
	assert.Equal(t, time.Second, s.attemptTimeout())
}

// Cases measures all cases, also after one that fails.
func TestRecoveryCheck_Cases(t *testing.T) {
	c := RecoveryCheck{Brownouts: []time.Duration{time.Second, 10 * time.Second}}
	s := of(Overload(), 3000)
	done := 0.0
	cases, err := c.Cases(t.Context(), s, func(d float64) { assert.Greater(t, d, done); done = d })
	require.Len(t, cases, 2)
	assert.Less(t, done, 1.0)
	assert.ErrorContains(t, err, "after 1s")
	assert.False(t, cases[0].OK)
	for _, one := range cases {
		assert.Equal(t, one.OK, one.Recovery <= one.Without+5*time.Second, one)
		assert.LessOrEqual(t, one.Good, one.GoodWithout+0.01, one)
	}
}

// bisect finds the largest number that passes.
func TestBisect(t *testing.T) {
	for _, most := range []int{1, 2, 7, 100, 4011} {
		for want := range min(most, 100) + 1 {
			got, err := bisect(most, func(n int) (bool, error) { return n <= want, nil })
			require.NoError(t, err)
			assert.Equal(t, want, got, "of %d", most)
		}
	}
	got, err := bisect(100_000, func(n int) (bool, error) { return n <= 4011, nil })
	require.NoError(t, err)
	assert.InEpsilon(t, 4011, got, 0.011)
}
