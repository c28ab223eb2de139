// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"testing"

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
	passes := func() error { return RecoveryCheck{Troubles: []Trouble{}}.Run(t.Context(), s) }

	size := largest(s, OfBudgetSize)
	assert.False(t, size.Unbounded, "a larger size allows more failed retries in a row")
	assert.InDelta(t, 35, size.Value, 10)

	clients := largest(s, OfClients)
	assert.False(t, clients.Unbounded)
	assert.InDelta(t, 4000, clients.Value, 1000)
	s.Fleet.Clients = int(clients.Value)
	assert.NoError(t, passes())
	s.Fleet.Clients = int(1.5 * clients.Value)
	assert.ErrorAs(t, passes(), new(*RecoveryError))
	s.Fleet.Clients = 1000

	s.Policy.Retry.Budget = retrip.Off
	assert.Equal(t, Limit{Quantity: OfMaxAttempts, Value: 1}, largest(s, OfMaxAttempts))
	assert.Equal(t, Limit{Quantity: OfClients}, largest(s, OfClients))

	load := largest(s, OfLoad)
	assert.InDelta(t, 0.25, load.Value, 0.1, "four attempts per request have to fit")
	assert.Equal(t, Limit{Quantity: OfClients, Value: 100_000, Unbounded: true}, largest(as(t, s, "no-retries"), OfClients))
}

func TestLargestRefuses(t *testing.T) {
	_, err := Largest(t.Context(), as(t, Overload(), "finagle"), OfBudgetSize, nil)
	assert.ErrorContains(t, err, "finagle has no Budget")
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

//retrip:promise P14
func TestPurseTime(t *testing.T) {
	d, err := of(Overload(), 10_000).PurseTime()
	require.NoError(t, err)
	// 7 retries at 3 a request, one request in 14.3 s.
	assert.InDelta(t, 33.3, d.Seconds(), 0.1)
	small := of(Overload(), 10_000)
	small.Policy.Retry.Budget = 1
	d, err = small.PurseTime()
	require.NoError(t, err)
	assert.InDelta(t, 19.0, d.Seconds(), 0.1, "four retries")
	d, err = as(t, Overload(), "no-budget").PurseTime()
	require.NoError(t, err)
	assert.Equal(t, Never, d)
	d, err = as(t, Overload(), "no-retries").PurseTime()
	require.NoError(t, err)
	assert.Zero(t, d)
}
