// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

func withAccount(t *testing.T, s Scenario) Scenario {
	t.Helper()
	p, err := Preset("account", s.Policy.Retry)
	require.NoError(t, err)
	s.Policy = p
	return s
}

// recoveryOf returns the recovery of s, as the median over the given number of
// seeds. It returns an hour if s never recovers.
func recoveryOf(t *testing.T, s Scenario, seeds int) time.Duration {
	t.Helper()
	d := middle(ranAll(t, s.Seeds(seeds)), recoverySeconds)
	return time.Duration(min(3600, d) * float64(time.Second))
}

// A fleet with an account recovers as fast as without retries, whatever its
// size: within 2 s more at up to 80 % load, and within 1.3 times the time above
// that.
//
//retrip:promise P22
func TestAccount_Recovery(t *testing.T) {
	seeds := testenv.Size(1, 5)
	for _, load := range rows([]float64{0.7, 0.9}, []float64{0.7, 0.8, 0.9, 0.95}) {
		plain := Overload().LoadOf(load)
		plain.Policy.Retry.MaxAttempts = 1
		without := recoveryOf(t, plain, seeds)
		for _, clients := range rows([]int{100, 10_000}, []int{100, 300, 1000, 3000, 10_000, 100_000, 1_000_000}) {
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
//
//retrip:promise P22
func TestAccount_Success(t *testing.T) {
	for _, clients := range rows([]int{10_000}, []int{100, 10_000}) {
		for _, share := range rows([]float64{0.3}, []float64{0.1, 0.2, 0.3}) {
			s := Faults(share)
			s.Fleet.Clients = clients
			local := ran(t, s).SuccessRate()
			assert.InDelta(t, local, ran(t, withAccount(t, s)).SuccessRate(), 0.001, "%d clients, p = %v", clients, share)
		}
	}
}

// The deposits of few successes make the level of an account wander, which must
// not forbid retries of which the successes pay for nearly all.
//
//retrip:promise P22
func TestAccount_SuccessNearItsLimit(t *testing.T) {
	for _, clients := range rows([]int{10_000}, []int{1000, 10_000, 100_000}) {
		for _, silent := range []bool{false, true} {
			s := Faults(0.34)
			s.Fleet.Clients, s.Backend.Silent, s.Seed = clients, silent, 7
			for _, one := range s.Seeds(testenv.Size(1, 5)) {
				local := ran(t, one).SuccessRate()
				assert.InDelta(t, local, ran(t, withAccount(t, one)).SuccessRate(), 0.003, "%d clients, silent: %v, seed %d", clients, silent, one.Seed)
			}
		}
	}
}

// Clients whose own network is dead don't spend the tokens that others need.
//
//retrip:promise P22
func TestAccount_DeadClients(t *testing.T) {
	for _, dead := range []float64{0.1, 0.2} {
		s := withAccount(t, Faults(0.1))
		s.Fleet.Clients, s.Fleet.Dead = 10_000, dead
		r := ran(t, s)
		assert.InDelta(t, dead, float64(r.DeadRequests)/float64(r.Requests), 0.01)
		assert.GreaterOrEqual(t, r.AliveRate(), 0.999, "%v are dead", dead)
	}
}

//retrip:promise P22
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
		{Store{Size: 20}, true},
		{Store{Size: 500}, true},
		{Store{DownFor: 150 * time.Second}, false},
	} {
		if brief && test.store.Delay == ms {
			continue
		}
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
//
//retrip:promise P22
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
	assert.InDelta(t, 28, float64(r.StoreOperations)/r.Until.Seconds(), 2, "one success in 25 pays")
	s = withAccount(t, Overload())
	s.Fleet.Clients = 10_000
	r = ran(t, s)
	assert.Less(t, r.StorePeak, 1600.0, "about one per failing request")
	for share, want := range map[float64]float64{0.1: 212, 0.3: 570} {
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
	if !testenv.Tables() {
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

// An account that follows the size of the traffic recovers as without retries,
// whatever the clients' timeout and the length of the brownout.
//
//retrip:promise P22
func TestAccount_RecoversWithAnyTimeout(t *testing.T) {
	seeds := testenv.Size(1, 5)
	for _, timeout := range []time.Duration{300 * time.Millisecond, time.Second, 2 * time.Second} {
		for _, length := range rows([]time.Duration{time.Second}, []time.Duration{time.Second, 3 * time.Second, 10 * time.Second}) {
			for _, slowdown := range rows([]float64{1 / 0.303, 100}, []float64{1 / 0.303, 100, 10}) {
				plain := Overload()
				plain.Fleet.Timeout, plain.Trigger.For, plain.Trigger.Slowdown = timeout, length, slowdown
				plain.Backend.Queue, plain.Horizon, plain.Seed = 10_000, 90*time.Second, 42
				with := withAccount(t, plain)
				plain.Policy.Retry.MaxAttempts = 1
				without := recoveryOf(t, plain, seeds)
				for _, clients := range rows([]int{1000}, []int{100, 1000, 10_000, 100_000}) {
					with.Fleet.Clients = clients
					assert.LessOrEqual(t, recoveryOf(t, with, seeds), without+2*time.Second, "timeout %v, %v of a slowdown of %v, %d clients", timeout, length, slowdown, clients)
				}
			}
		}
	}
}

// A server may ask all clients to wait. Their retries then come back together, and
// the account holds back those that are too many.
//
//retrip:promise P22
func TestAccount_RetryAfter(t *testing.T) {
	const ms = time.Millisecond
	seeds := testenv.Size(1, 3)
	for _, clients := range rows([]int{3000}, []int{300, 1000, 3000, 10_000, 30_000}) {
		for _, wait := range rows([]int{10}, []int{2, 5, 10, 20, 30}) {
			for _, timeout := range rows([]time.Duration{300 * ms}, []time.Duration{300 * ms, 2000 * ms}) {
				s := Overload()
				s.Fleet.Clients, s.Fleet.Timeout, s.Horizon, s.Seed = clients, timeout, 100*time.Second, 11
				s.Trigger.Slowdown, s.Trigger.FailureRate, s.Trigger.RetryAfter = 0, 1, time.Duration(wait)*time.Second
				var alone, got float64
				for _, one := range s.Seeds(seeds) {
					alone += ran(t, one).SuccessRate() / float64(seeds)
					got += ran(t, withAccount(t, one)).SuccessRate() / float64(seeds)
				}
				assert.GreaterOrEqual(t, got, 0.88, "%d clients, %d s, timeout %v", clients, wait, timeout)
				if wait == 10 && timeout < time.Second {
					assert.Less(t, alone, 0.86, "%d clients, the budgets alone", clients)
				}
			}
		}
	}
}

// A share of all responses asks for a wait, whatever the load. The account costs
// nothing while most retries succeed.
//
//retrip:promise P22
func TestAccount_SuccessAfterPauses(t *testing.T) {
	for _, clients := range rows([]int{10_000}, []int{100, 1000, 10_000}) {
		for _, wait := range rows([]int{2}, []int{2, 5, 10, 20}) {
			for _, share := range rows([]float64{0.3}, []float64{0.1, 0.15, 0.2, 0.25, 0.3}) {
				s := Faults(0)
				s.Fleet.Clients = clients
				s.Trigger = Trigger{For: s.Horizon, FailureRate: share, RetryAfter: time.Duration(wait) * time.Second}
				local := ran(t, s).SuccessRate()
				assert.InDelta(t, local, ran(t, withAccount(t, s)).SuccessRate(), 0.003, "%d clients, p = %v, %d s", clients, share, wait)
			}
		}
	}
}
