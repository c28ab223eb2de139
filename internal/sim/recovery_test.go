// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"slices"
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
