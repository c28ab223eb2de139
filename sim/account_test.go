// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

func withAccount(t *testing.T, s Scenario) Scenario {
	t.Helper()
	p, err := Preset("account", s.Policy.Retry)
	require.NoError(t, err)
	s.Policy = p
	return s
}

func ran(t *testing.T, s Scenario) *Result {
	t.Helper()
	r, err := s.Run(t.Context(), nil)
	require.NoError(t, err)
	return r
}

// recoveryOf returns the recovery of s, as the median over the given number of
// seeds. It returns an hour if s never recovers.
func recoveryOf(t *testing.T, s Scenario, seeds int) time.Duration {
	t.Helper()
	var list []time.Duration
	for _, one := range s.Seeds(seeds) {
		d := ran(t, one).Recovery
		if d == Never {
			d = time.Hour
		}
		list = append(list, d)
	}
	slices.Sort(list)
	return list[len(list)/2]
}

// A fleet with an account recovers as fast as without retries, whatever its
// size: within 2 s more at up to 80 % load, and within 1.3 times the time above
// that.
func TestAccount_Recovery(t *testing.T) {
	fleets, loads, seeds := []int{100, 10_000}, []float64{0.7, 0.9}, 1
	if os.Getenv("RETRIP_TABLES") != "" {
		fleets, loads, seeds = []int{100, 300, 1000, 3000, 10_000, 100_000, 1_000_000}, []float64{0.7, 0.8, 0.9, 0.95}, 5
	}
	for _, load := range loads {
		plain := Overload().LoadOf(load)
		plain.Policy.Retry.MaxAttempts = 1
		without := recoveryOf(t, plain, seeds)
		for _, clients := range fleets {
			s := withAccount(t, Overload()).LoadOf(load)
			s.Fleet.Clients = clients
			got := recoveryOf(t, s, seeds)
			most := without + 2*time.Second
			if load > 0.8 {
				most = max(without+time.Second, time.Duration(1.3*float64(without)))
			}
			assert.LessOrEqual(t, got, most, "%d clients, load %v; without retries %v", clients, load, without)
		}
	}
	s := Overload()
	s.Fleet.Clients = 10_000
	assert.Greater(t, recoveryOf(t, s, 1), 15*time.Second, "the budgets alone")
}

// If failures are independent of load, an account costs no more than the
// budgets alone, as long as most retries succeed.
func TestAccount_Success(t *testing.T) {
	for _, clients := range []int{100, 10_000} {
		for _, share := range []float64{0.1, 0.2, 0.3} {
			s := Faults(share)
			s.Fleet.Clients = clients
			local := ran(t, s).SuccessRate()
			assert.InDelta(t, local, ran(t, withAccount(t, s)).SuccessRate(), 0.001, "%d clients, p = %v", clients, share)
		}
	}
}

// Clients whose own network is dead don't spend the tokens that others need.
func TestAccount_DeadClients(t *testing.T) {
	for _, dead := range []float64{0.1, 0.2} {
		s := withAccount(t, Faults(0.1))
		s.Fleet.Clients, s.Fleet.Dead = 10_000, dead
		r := ran(t, s)
		assert.InDelta(t, dead, float64(r.DeadRequests)/float64(r.Requests), 0.01)
		assert.GreaterOrEqual(t, r.AliveRate(), 0.999, "%v are dead", dead)
	}
}

func TestAccount_Store(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		store    Store
		recovers bool
	}{
		{Store{Delay: ms}, true},
		{Store{Delay: 45 * ms}, true},
		{Store{Delay: 60 * ms}, false}, // the store counts as away
		{Store{Lag: 3 * time.Second}, true},
		{Store{Size: 100}, true},
		{Store{Size: 2000}, true},
		{Store{DownFor: 150 * time.Second}, false},
	} {
		t.Run(fmt.Sprintf("%+v", test.store), func(t *testing.T) {
			s := withAccount(t, Overload())
			s.Fleet.Clients, s.Horizon, s.Store = 10_000, 150*time.Second, test.store
			got := recoveryOf(t, s, 1)
			if test.recovers {
				assert.LessOrEqual(t, got, 5*time.Second)
			} else {
				local := s
				local.Policy = Overload().Policy
				assert.InDelta(t, recoveryOf(t, local, 1).Seconds(), got.Seconds(), 5, "like without a store")
			}
		})
	}
}

// If the store is down, every decision is that of the local budget.
func TestAccount_StoreDownIsTheLocalRule(t *testing.T) {
	s := Overload()
	s.Fleet.Clients, s.Horizon = 1000, 60*time.Second
	s.Store = Store{DownFor: s.Horizon}
	// These waits are longer than a request waits for a store that is down.
	s.Policy.Retry.Backoff = retrip.Backoff{Base: 100 * time.Millisecond, Cap: time.Second, Jitter: retrip.EqualJitter}
	local, with := ran(t, s), ran(t, withAccount(t, s))
	with.Policy, with.StoreOperations, with.StorePeak = local.Policy, 0, 0
	assert.Equal(t, local, with)
}

func TestAccount_Operations(t *testing.T) {
	s := withAccount(t, Overload())
	s.Fleet.Clients = 10_000
	s.Trigger = Trigger{}
	r := ran(t, s)
	assert.InDelta(t, 7, float64(r.StoreOperations)/r.Until.Seconds(), 1, "one success in a hundred pays")
	s = withAccount(t, Overload())
	s.Fleet.Clients = 10_000
	r = ran(t, s)
	assert.Less(t, r.StorePeak, 1600.0, "about one per failing request")
	for share, want := range map[float64]float64{0.1: 83, 0.3: 274} {
		s = withAccount(t, Overload())
		s.Fleet.Clients, s.Trigger = 10_000, Trigger{}
		s.Backend.Workers, s.Backend.FailureRate = 0, share
		r = ran(t, s)
		assert.InEpsilon(t, want, float64(r.StoreOperations)/r.Until.Seconds(), 0.1, "%v of the attempts fail", share)
	}
}

// Split in a hundred shards, the account of a million clients that make 70 000
// requests per second is as good as one, and no shard has more to do than the
// account of 10 000 clients.
func TestAccount_Shards(t *testing.T) {
	if os.Getenv("RETRIP_TABLES") == "" {
		t.Skip("a row of the tables: make tables")
	}
	for _, shards := range []int{1, 100} {
		s := withAccount(t, Overload())
		s.Fleet.Clients, s.Horizon = 1_000_000, 60*time.Second
		s.Arrivals.Rate, s.Backend.Workers, s.Backend.Queue = 70_000, 1000, 100_000
		s.Store.Shards = shards
		r := ran(t, s)
		assert.LessOrEqual(t, r.Recovery, 5*time.Second, "%d shards", shards)
		assert.Less(t, r.StorePeak, 140_000.0, "about one operation for each request that fails")
	}
}
