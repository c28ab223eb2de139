// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

// A fleet with an account recovers as fast as without retries, whatever its
// size: within 2 s more at up to 80 % load, and within 1.3 times the time above
// that.
//
//retrip:promise P22
func TestAccount_Recovery(t *testing.T) {
	for _, load := range rows([]float64{0.7, 0.9}, []float64{0.7, 0.8, 0.9, 0.95}) {
		s := Overload().LoadOf(load)
		without := median(t, as(t, s, "no-retries"))
		most := without + 2
		if load > 0.8 {
			most = max(without+1, 1.3*without)
		}
		for _, clients := range rows([]int{100, 10_000}, []int{100, 300, 1000, 3000, 10_000, 100_000, 1_000_000}) {
			assert.LessOrEqual(t, median(t, of(as(t, s, "account"), clients)), most, "%d clients, load %v; without retries %v", clients, load, without)
		}
	}
	assert.Greater(t, median(t, of(Overload(), 10_000)), 15.0, "the budgets alone")
}

// An account that follows the size of the traffic recovers as without retries,
// whatever the clients' timeout and the length of the brownout.
//
//retrip:promise P22
func TestAccount_RecoversWithAnyTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{300 * time.Millisecond, time.Second, 2 * time.Second} {
		for _, length := range rows([]time.Duration{time.Second}, []time.Duration{time.Second, 3 * time.Second, 10 * time.Second}) {
			for _, slowdown := range rows([]float64{1 / 0.303, 100}, []float64{1 / 0.303, 100, 10}) {
				s := Overload()
				s.Fleet.Timeout, s.Trigger.For, s.Trigger.Slowdown = timeout, length, slowdown
				s.Backend.Queue, s.Horizon, s.Seed = 10_000, 90*time.Second, 42
				without := median(t, as(t, s, "no-retries"))
				for _, clients := range rows([]int{1000}, []int{100, 1000, 10_000, 100_000}) {
					with := median(t, of(as(t, s, "account"), clients))
					assert.LessOrEqual(t, with, without+2, "timeout %v, %v of a slowdown of %v, %d clients", timeout, length, slowdown, clients)
				}
			}
		}
	}
}

// Failures that are independent of load cost no more with an account than with the
// budgets alone, while most retries succeed: whether or not a server answers, and
// asks for waits. The level of an account wanders with the deposits of few successes,
// which must not forbid retries of which the successes pay for nearly all.
//
//retrip:promise P22
func TestAccount_Success(t *testing.T) {
	same := func(within float64, s Scenario, name string, args ...any) {
		t.Helper()
		if brief {
			s.Horizon = 60 * time.Second
			s.Trigger.For = min(s.Trigger.For, s.Horizon)
		}
		local, with := ran(t, s).SuccessRate(), ran(t, as(t, s, "account")).SuccessRate()
		assert.InDelta(t, local, with, within, "%d clients, seed %d: %s", s.Fleet.Clients, s.Seed, fmt.Sprintf(name, args...))
	}
	for _, clients := range rows([]int{10_000}, []int{100, 1000, 10_000, 100_000}) {
		for _, share := range rows([]float64{0.3}, []float64{0.1, 0.2, 0.3}) {
			same(0.001, of(Faults(share), clients), "p = %v", share)
		}
		for _, silent := range []bool{false, true} {
			s := of(Faults(0.34), clients)
			s.Backend.Silent, s.Seed = silent, 7
			for _, one := range s.Seeds(testenv.Size(1, 5)) {
				same(0.003, one, "p = 0.34, silent: %v", silent)
			}
		}
		for _, wait := range rows([]time.Duration{2}, []time.Duration{2, 5, 10, 20}) {
			for _, share := range rows([]float64{0.3}, []float64{0.1, 0.15, 0.2, 0.25, 0.3}) {
				s := of(Faults(0), clients)
				s.Trigger = Trigger{For: s.Horizon, FailureRate: share, RetryAfter: wait * time.Second}
				same(0.003, s, "p = %v, with waits of %d s", share, wait)
			}
		}
	}
}

// Clients whose own network is dead don't spend the tokens that others need.
//
//retrip:promise P22
func TestAccount_DeadClients(t *testing.T) {
	for _, dead := range []float64{0.1, 0.2} {
		s := of(as(t, Faults(0.1), "account"), 10_000)
		s.Fleet.Dead = dead
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
		{Store{Delay: 45 * ms}, true},
		{Store{Delay: 60 * ms}, false}, // the store counts as away
		{Store{Size: 20}, true},
		{Store{Size: 500}, true},
		{Store{DownFor: 90 * time.Second}, false},
	} {
		s := of(Overload(), 10_000)
		s.Horizon, s.Store = 90*time.Second, test.store
		got := recoverySeconds(ran(t, as(t, s, "account")))
		if test.recovers {
			assert.LessOrEqual(t, got, 5.0, "%+v", test.store)
		} else {
			assert.InDelta(t, recoverySeconds(ran(t, s)), got, 5, "%+v: like without a store", test.store)
		}
	}
}

// If the store is down, every decision is that of the local budget.
//
//retrip:promise P22
func TestAccount_StoreDownIsTheLocalRule(t *testing.T) {
	s := of(Overload(), 1000)
	s.Horizon = 60 * time.Second
	s.Store = Store{DownFor: s.Horizon}
	// These waits are longer than a request waits for a store that is down.
	s.Policy.Retry.Backoff = retrip.Backoff{Base: 100 * time.Millisecond, Cap: time.Second, Jitter: retrip.EqualJitter}
	local, with := ran(t, s), ran(t, as(t, s, "account"))
	with.Policy, with.StoreOperations, with.StorePeak = local.Policy, 0, 0
	assert.Equal(t, local, with)
}

// One success in 25 pays, and each request that fails asks once.
func TestAccount_Operations(t *testing.T) {
	s := of(as(t, Overload(), "account"), 10_000)
	assert.Less(t, ran(t, s).StorePeak, 1600.0)
	for share, bounds := range map[float64][2]float64{0: {26, 30}, 0.1: {191, 233}, 0.3: {513, 627}} {
		s = of(as(t, Faults(share), "account"), 10_000)
		r := ran(t, s)
		perSecond := float64(r.StoreOperations) / r.Until.Seconds()
		assert.True(t, perSecond >= bounds[0] && perSecond <= bounds[1], "%v of the attempts fail: %v", share, perSecond)
	}
}

// A server may ask all clients to wait. Their retries then come back together, and
// the account holds back those that are too many.
//
//retrip:promise P22
func TestAccount_RetryAfter(t *testing.T) {
	const ms = time.Millisecond
	average := func(s Scenario) float64 {
		sum, seeds := 0.0, testenv.Size(1, 3)
		for _, r := range ranAll(t, s.Seeds(seeds)) {
			sum += r.SuccessRate()
		}
		return sum / float64(seeds)
	}
	for _, clients := range rows([]int{3000}, []int{300, 1000, 3000, 10_000, 30_000}) {
		for _, wait := range rows([]time.Duration{10}, []time.Duration{2, 5, 10, 20, 30}) {
			for _, timeout := range rows([]time.Duration{300 * ms}, []time.Duration{300 * ms, 2000 * ms}) {
				s := of(Overload(), clients)
				s.Fleet.Timeout, s.Horizon, s.Seed = timeout, 100*time.Second, 11
				s.Trigger = Trigger{At: s.Trigger.At, For: s.Trigger.For, FailureRate: 1, RetryAfter: wait * time.Second}
				least := 0.88
				if clients == 300 {
					least = 0.85
				}
				assert.GreaterOrEqual(t, average(as(t, s, "account")), least, "%d clients, %d s, timeout %v", clients, wait, timeout)
				if wait == 10 && timeout < time.Second {
					assert.Less(t, average(s), 0.86, "%d clients, the budgets alone", clients)
				}
			}
		}
	}
}
