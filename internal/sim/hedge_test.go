// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

var (
	noHedges  = Policy{}
	hedged    = Policy{Retry: retrip.Policy{Hedge: 0.05}}
	unlimited = Policy{Retry: retrip.Policy{Hedge: 0.05}, Hedging: Hedging{After: 48 * time.Millisecond}}
)

// stalls is Stalls in less time.
func stalls(clients int) Scenario {
	s := Stalls(clients)
	s.WarmUp, s.Horizon = 60*time.Second, 130*time.Second
	return s
}

// queued is a fleet before ten backends of one worker, without stalls.
func queued(clients int, load float64) Scenario {
	s := Overload()
	s.Trigger, s.Horizon, s.WarmUp = Trigger{}, 130*time.Second, 60*time.Second
	s.Backend.Instances, s.Backend.Workers, s.Backend.Queue = 10, 1, 100
	s.Backend.Latency = Latency{Median: 20 * time.Millisecond, Spread: 0.4}
	s.Fleet.Timeout, s.Fleet.Clients = 500*time.Millisecond, clients
	return s.LoadOf(load)
}

// fresh returns the results of some seeds: fresh ones that no table uses.
func fresh(t *testing.T, s Scenario, p Policy) []*Result {
	t.Helper()
	p.Retry.Backoff = s.Policy.Retry.Backoff
	s.Seed, s.Policy = 4711, p
	return ranAll(t, s.Seeds(testenv.Size(1, 10)))
}

func p99(r *Result) float64   { return r.P99.Seconds() * 1000 }
func p999(r *Result) float64  { return r.Percentile(0.999).Seconds() * 1000 }
func extra(r *Result) float64 { return 100 * float64(r.Hedges) / float64(r.Requests) }

func lowest(list []*Result) float64 {
	return slices.MinFunc(list, func(a, b *Result) int { return int(a.Succeeded - a.Requests - b.Succeeded + b.Requests) }).SuccessRate()
}

// With 1 % of stalls, one request in a thousand takes 106 ms instead of 585 ms, and the
// 99th percentile is 64 ms, for 2 % more requests. Clients with too few requests per
// second don't hedge.
func TestHedge_Stalls(t *testing.T) {
	testenv.OneGoroutine(t)
	for _, clients := range []int{10, 100, 1000} {
		without, with := fresh(t, stalls(clients), noHedges), fresh(t, stalls(clients), hedged)
		assert.InDelta(t, 600, middle(without, p999), 60)
		if clients == 1000 {
			assert.Equal(t, middle(without, p999), middle(with, p999))
			assert.Zero(t, middle(with, extra))
			continue
		}
		assert.InDelta(t, 64, middle(with, p99), 2)
		assert.Less(t, middle(with, p999), map[int]float64{10: 115, 100: 250}[clients])
		assert.InDelta(t, 1.9, middle(with, extra), 0.15)
	}
}

// While the stalls are those of requests and not of answers, or there are none, hedges
// rarely win and become rare.
func TestHedge_LosersStop(t *testing.T) {
	testenv.OneGoroutine(t)
	s := stalls(10)
	s.Backend.Latency.StallShare = 0
	assert.Less(t, middle(fresh(t, s, hedged), extra), 0.8)
}

// After ten seconds at a third of the capacity, a backend recovers as soon as without
// hedges. From the second second on, fewer than 1 % of the requests are hedged.
func TestHedge_Recovery(t *testing.T) {
	testenv.OneGoroutine(t)
	for _, clients := range rows([]int{100}, []int{10, 100, 1000}) {
		s := Overload().LoadOf(0.8)
		s.Fleet.Clients = clients
		s.Backend.Latency = Latency{Median: 20 * time.Millisecond, Spread: 0.4, StallShare: 0.01, StallMedian: 200 * time.Millisecond, StallSpread: 0.3}
		with := fresh(t, s, hedged)
		assert.LessOrEqual(t, middle(with, recoverySeconds), middle(fresh(t, s, noHedges), recoverySeconds)+1, "%d clients", clients)
		for _, r := range with {
			begin := int(s.Trigger.At / r.Bin)
			for second, p := range r.Series[begin+1 : begin+10] {
				assert.Less(t, float64(p.Hedges), 0.01*s.Arrivals.Rate*r.Bin.Seconds(), "hedges in second %d of the brownout, %d clients", second+2, clients)
			}
		}
		assert.Equal(t, never, middle(fresh(t, s, unlimited), recoverySeconds), "a fixed delay without a limit")
	}
}

// At loads that aren't too high, everything succeeds with hedges too.
func TestHedge_Load(t *testing.T) {
	testenv.OneGoroutine(t)
	for _, clients := range rows([]int{100}, []int{10, 100, 1000}) {
		for _, load := range rows([]float64{0.8}, []float64{0.7, 0.8}) {
			for _, shorter := range []bool{false, true} {
				s := queued(clients, load)
				s.Backend.ShorterOfTwo = shorter
				assert.GreaterOrEqual(t, lowest(fresh(t, s, hedged)), 0.9999, "%d clients, load %v, shorter %v", clients, load, shorter)
			}
		}
		assert.Less(t, lowest(fresh(t, queued(clients, 0.7), unlimited)), 0.1, "a fixed delay without a limit")
	}
}
