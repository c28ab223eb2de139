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

// budgetCell is one line of the table of cases for which retrip's budget was
// designed.
type budgetCell struct {
	name     string
	scenario Scenario
	measure  budgetMeasure
	goal     float64              // for retrip's default: a maximum in seconds or attempts, or a minimum in %
	tune     func(*retrip.Policy) // changes retrip's default; nil doesn't
}

// budgetMeasure is a result of a run.
type budgetMeasure struct {
	of    func(*Result) float64
	share bool // a share of successes: more is better
}

var (
	toRecover = budgetMeasure{budgetSeconds, false}
	perCall   = budgetMeasure{func(r *Result) float64 { return r.Amplification }, false}
	succeeds  = budgetMeasure{func(r *Result) float64 { return 100 * r.SuccessRate() }, true}
	healthy   = budgetMeasure{func(r *Result) float64 { return 100 * r.AliveRate() }, true}
	made      = budgetMeasure{func(r *Result) float64 { return r.Amplification }, true}
	saved     = budgetMeasure{func(r *Result) float64 {
		return 100 * r.Goodput * blip.Seconds() / float64(r.TriggerRequests)
	}, true}
)

// blip is the length of a short outage.
const blip = 200 * time.Millisecond

// meets reports whether x is as good as the goal.
func (c *budgetCell) meets(x float64) bool {
	if c.measure.share {
		return x >= c.goal
	}
	return x >= 0 && x <= c.goal // negative means never
}

// budgetCells returns the lines of the table.
func budgetCells() []budgetCell {
	var cells []budgetCell
	add := func(m budgetMeasure, goal float64, s Scenario, name string, args ...any) {
		cells = append(cells, budgetCell{fmt.Sprintf(name, args...), s, m, goal, nil})
	}
	tuned := func(tune func(*retrip.Policy)) { cells[len(cells)-1].tune = tune }
	brownout := func(length time.Duration, clients int, goal float64) {
		s := Overload()
		s.Trigger.For, s.Fleet.Clients = length, clients
		s.Horizon = 180 * time.Second
		add(toRecover, goal, s, "brownout of %v, %d clients: recovery", length, clients)
	}
	brownout(time.Second, 1000, 7)
	brownout(time.Second, 3000, 13)
	brownout(time.Second, 10_000, 33)
	brownout(10*time.Second, 3000, 5)
	brownout(10*time.Second, 10_000, 27)
	for i, p := range []float64{0.1, 0.2, 0.3} {
		s := Faults(p)
		s.Backend.Silent = true
		add(succeeds, []float64{99.97, 99.6, 95}[i], s, "%v %% time out: success", 100*p)
	}
	usual := Faults(0.1)
	usual.Backend.Silent, usual.Backend.Service, usual.Backend.Spread = true, usual.Fleet.Timeout/2, 0.2
	add(succeeds, 99.7, usual, "10 %% time out, answers take half the timeout: success")
	add(perCall, 1.01, Faults(1), "all fail: attempts per request")
	for i, p := range []float64{0.1, 0.2, 0.3, 0.45, 0.6} {
		add(succeeds, []float64{99.98, 99.66, 98.5, 93, 60}[i], Faults(p), "%v %% fail: success", 100*p)
	}
	for i, clients := range []int{10, 100, 1000, 3000, 10_000} {
		s := TenBackends(clients)
		if clients > 1000 {
			s.Horizon = 150 * time.Second
		}
		add(succeeds, []float64{78, 78, 78, 65, 40}[i], s.LoadOf(0.9), "90 %% load on ten backends, %d clients: success", clients)
	}
	for i, clients := range []int{1, 10, 100, 1000} {
		s := TenBackends(clients)
		s.Backend.Dead = 3
		add(succeeds, []float64{85, 84, 83, 75}[i], s.LoadOf(0.7), "70 %% load on ten backends, 3 of them dead, %d clients: success", clients)
	}
	for i, share := range []float64{0.05, 0.1, 0.2, 0.3} {
		s := Faults(0.1)
		s.Backend.BrokenShare = share
		add(healthy, []float64{99.95, 99.9, 99.7, 97.5}[i], s, "10 %% fail, and %v %% go to a broken route: success of the others", 100*share)
	}
	silent := Faults(0.1)
	silent.Backend.BrokenShare, silent.Backend.BrokenSilent = 0.2, true
	add(healthy, 99.5, silent, "10 %% fail, and 20 %% go to a route that times out: success of the others")
	alone := Faults(1)
	alone.Fleet.Clients, alone.Arrivals.Count = 1, 1
	add(made, 10, alone, "MaxAttempts 10, a lone request fails: attempts")
	tuned(func(p *retrip.Policy) { p.MaxAttempts = 10 })
	alone.Backend.Silent = true
	for _, c := range []struct{ size, want float64 }{{5, 3}, {10, 5}, {22.5, 10}} {
		add(made, c.want, alone, "MaxAttempts 10, Size %v, a lone request times out: attempts", c.size)
		tuned(func(p *retrip.Policy) { p.MaxAttempts, p.Budget = 10, c.size })
	}
	for _, c := range []struct{ size, want float64 }{{5, 0}, {50, 5}, {200, 90}, {500, 90}} {
		s := Overload()
		s.Fleet.Clients, s.Trigger, s.Horizon = 1, Trigger{At: 10 * time.Second, For: blip, FailureRate: 1}, 30*time.Second
		add(saved, c.want, s, "outage of %v, Size %v, one client: requests saved", blip, c.size)
		tuned(func(p *retrip.Policy) { p.Budget = c.size })
	}
	return cells
}

// budgetSeconds is the time to recover; negative if it never does.
func budgetSeconds(r *Result) float64 { return max(-1, r.Recovery.Seconds()) }

// under returns the median for p, over so many seeds.
func (c *budgetCell) under(t *testing.T, p Policy, seeds int) float64 {
	t.Helper()
	s := c.scenario
	s.Policy = p
	if brief {
		s.Horizon = min(s.Horizon, 120*time.Second)
	}
	if c.tune != nil && p.limit == nil {
		c.tune(&s.Policy.Retry)
	}
	return middle(ranAll(t, s.Seeds(seeds)), c.measure.of)
}

// The default reaches the goals of its design.
//
//retrip:promise P14
func TestBudgetReachesItsGoals(t *testing.T) {
	cells := budgetCells()
	require.Len(t, cells, 37)
	for i := range cells {
		c := &cells[i]
		if brief && c.scenario.Fleet.Clients > 100 {
			continue
		}
		got := c.under(t, c.scenario.Policy, testenv.Size(1, 5))
		assert.True(t, c.meets(got), "%s: %v, for %v", c.name, got, c.goal)
	}
}

// The budget without its other rules misses them.
func TestBudgetGoalsTell(t *testing.T) {
	var fails []string
	cells := budgetCells()
	for i := range cells {
		c := &cells[i]
		if plain := as(t, c.scenario, "plain-budget").Policy; c.scenario.Fleet.Clients <= 100 && !c.meets(c.under(t, plain, 1)) {
			fails = append(fails, c.name)
		}
	}
	assert.Subset(t, fails, []string{"30 % fail: success", "45 % fail: success", "60 % fail: success",
		"90 % load on ten backends, 10 clients: success", "90 % load on ten backends, 100 clients: success"})
	assert.False(t, cells[0].meets(-1), "never is no goal")
}
