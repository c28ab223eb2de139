// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

func TestLargest(t *testing.T) {
	if brief {
		t.Skip("dozens of runs, each of one goroutine")
	}
	largest := func(s Scenario, q Quantity) Limit {
		t.Helper()
		calls := 0
		l, err := Largest(t.Context(), s, q, func(done float64) { calls++; assert.Less(t, done, 1.0) })
		require.NoError(t, err)
		assert.Positive(t, calls)
		assert.Equal(t, q, l.Quantity)
		return l
	}
	s := of(Overload(), 1000)
	s.Horizon = 60 * time.Second

	budget := largest(s, OfBudgetSize)
	assert.False(t, budget.Unbounded)
	assert.InDelta(t, 30, budget.Value, 20)
	s.Policy.Retry.Budget.Size = budget.Value
	assert.NotEqual(t, never, median(t, s))
	s.Policy.Retry.Budget.Size = 1.5 * budget.Value
	assert.Equal(t, never, median(t, s))

	s.Policy.Retry.Budget = retrip.Unlimited
	assert.Equal(t, Limit{Quantity: OfMaxAttempts, Value: 1}, largest(s, OfMaxAttempts))
	assert.Equal(t, Limit{Quantity: OfClients}, largest(s, OfClients))

	load := largest(s, OfLoad)
	assert.InDelta(t, 0.25, load.Value, 0.1, "four attempts per request have to fit")
	assert.Equal(t, Limit{Quantity: OfClients, Value: 100_000, Unbounded: true}, largest(as(t, s, "no-retries"), OfClients))
}

func TestLargestRefuses(t *testing.T) {
	_, err := Largest(t.Context(), as(t, Overload(), "finagle"), OfBudgetSize, nil)
	assert.ErrorContains(t, err, "finagle has no Budget.Size")
	_, err = Largest(t.Context(), Faults(0.1), OfLoad, nil)
	assert.ErrorContains(t, err, "Backend.Workers")
	_, err = Largest(t.Context(), Faults(0.1), OfClients, nil)
	assert.ErrorContains(t, err, "Trigger.For is 0s")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Largest(ctx, Overload(), OfClients, nil)
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorIs(t, CheckRecovery(ctx, Overload()), context.Canceled)
}

func TestPurseTime(t *testing.T) {
	d, err := of(Overload(), 10_000).PurseTime()
	require.NoError(t, err)
	// 5 tokens at 3 a request, one request in 14.3 s.
	assert.InDelta(t, 23.8, d.Seconds(), 0.1)
	d, err = as(t, Overload(), "no-budget").PurseTime()
	require.NoError(t, err)
	assert.Equal(t, Never, d)
	d, err = as(t, Overload(), "no-retries").PurseTime()
	require.NoError(t, err)
	assert.Zero(t, d)
}
