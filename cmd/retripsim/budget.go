// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/sim"
)

// budgetCell is one line of the table of cases for which retrip's budget was
// designed.
type budgetCell struct {
	name     string
	scenario sim.Scenario
	measure  budgetMeasure
	goal     float64              // for retrip's default: a maximum in seconds or attempts, or a minimum in %
	tune     func(*retrip.Policy) // changes retrip's default; nil doesn't
}

// budgetMeasure is a result of a run, with its format.
type budgetMeasure struct {
	of     func(*sim.Result) float64
	format string
	share  bool // a share of successes: more is better
}

var (
	toRecover = budgetMeasure{recoverySeconds, "%.0f s", false}
	perCall   = budgetMeasure{func(r *sim.Result) float64 { return r.Amplification }, "%.2f×", false}
	succeeds  = budgetMeasure{func(r *sim.Result) float64 { return 100 * r.SuccessRate() }, "%.2f %%", true}
	healthy   = budgetMeasure{func(r *sim.Result) float64 { return 100 * r.AliveRate() }, "%.2f %%", true}
	made      = budgetMeasure{func(r *sim.Result) float64 { return r.Amplification }, "%.0f", true}
	saved     = budgetMeasure{func(r *sim.Result) float64 {
		return 100 * r.Goodput * blip.Seconds() / float64(r.TriggerRequests)
	}, "%.0f %%", true}
)

// blip is the length of a short outage.
const blip = 200 * time.Millisecond

func (m budgetMeasure) text(x float64) string {
	if x < 0 {
		return "never"
	}
	return fmt.Sprintf(m.format, x)
}

// meets reports whether x is as good as the goal.
func (c *budgetCell) meets(x float64) bool {
	if c.measure.share {
		return x >= c.goal
	}
	return x >= 0 && x <= c.goal // negative means never
}

func (c *budgetCell) goalText() string {
	if c.measure.share {
		return "≥ " + c.measure.text(c.goal)
	}
	return "≤ " + c.measure.text(c.goal)
}

// budgetCells returns the lines of the table.
func budgetCells() []budgetCell {
	var cells []budgetCell
	add := func(m budgetMeasure, goal float64, s sim.Scenario, name string, args ...any) {
		cells = append(cells, budgetCell{fmt.Sprintf(name, args...), s, m, goal, nil})
	}
	tuned := func(tune func(*retrip.Policy)) { cells[len(cells)-1].tune = tune }
	brownout := func(length time.Duration, clients int, goal float64) {
		s := sim.Overload()
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
		s := sim.Faults(p)
		s.Backend.Silent = true
		add(succeeds, []float64{99.97, 99.6, 95}[i], s, "%v %% time out: success", percent(p))
	}
	usual := sim.Faults(0.1)
	usual.Backend.Silent, usual.Backend.Service, usual.Backend.Spread = true, usual.Fleet.Timeout/2, 0.2
	add(succeeds, 99.7, usual, "10 %% time out, answers take half the timeout: success")
	add(perCall, 1.01, sim.Faults(1), "all fail: attempts per request")
	for i, p := range []float64{0.1, 0.2, 0.3, 0.45, 0.6} {
		add(succeeds, []float64{99.98, 99.66, 98.5, 93, 60}[i], sim.Faults(p), "%v %% fail: success", percent(p))
	}
	for i, clients := range []int{10, 100, 1000, 3000, 10_000} {
		s := tenBackends(clients)
		if clients > 1000 {
			s.Horizon = 150 * time.Second
		}
		add(succeeds, []float64{78, 78, 78, 65, 40}[i], s.LoadOf(0.9), "90 %% load on ten backends, %d clients: success", clients)
	}
	for i, clients := range []int{1, 10, 100, 1000} {
		s := tenBackends(clients)
		s.Backend.Dead = 3
		add(succeeds, []float64{85, 84, 83, 75}[i], s.LoadOf(0.7), "70 %% load on ten backends, 3 of them dead, %d clients: success", clients)
	}
	for i, share := range []float64{0.05, 0.1, 0.2, 0.3} {
		s := sim.Faults(0.1)
		s.Backend.BrokenShare = share
		add(healthy, []float64{99.95, 99.9, 99.7, 97.5}[i], s, "10 %% fail, and %v %% go to a broken route: success of the others", percent(share))
	}
	silent := sim.Faults(0.1)
	silent.Backend.BrokenShare, silent.Backend.BrokenSilent = 0.2, true
	add(healthy, 99.5, silent, "10 %% fail, and 20 %% go to a route that times out: success of the others")
	alone := sim.Faults(1)
	alone.Fleet.Clients, alone.Arrivals.Count = 1, 1
	add(made, 10, alone, "MaxAttempts 10, a lone request fails: attempts")
	tuned(func(p *retrip.Policy) { p.MaxAttempts = 10 })
	alone.Backend.Silent = true
	for _, c := range []struct{ size, want float64 }{{5, 3}, {10, 5}, {22.5, 10}} {
		add(made, c.want, alone, "MaxAttempts 10, Size %v, a lone request times out: attempts", c.size)
		tuned(func(p *retrip.Policy) { p.MaxAttempts, p.Budget = 10, c.size })
	}
	for _, c := range []struct{ size, want float64 }{{5, 0}, {50, 5}, {200, 90}, {500, 90}} {
		s := sim.Overload()
		s.Fleet.Clients, s.Trigger, s.Horizon = 1, sim.Trigger{At: 10 * time.Second, For: blip, FailureRate: 1}, 30*time.Second
		add(saved, c.want, s, "outage of %v, Size %v, one client: requests saved", blip, c.size)
		tuned(func(p *retrip.Policy) { p.Budget = c.size })
	}
	return cells
}

// tenBackends is a fleet in front of ten backends of one worker, without a trigger.
func tenBackends(clients int) sim.Scenario {
	s := sim.Overload()
	s.Trigger, s.Horizon = sim.Trigger{}, 300*time.Second
	s.Backend.Instances, s.Backend.Workers, s.Backend.Queue = 10, 1, 100
	s.Fleet.Timeout, s.Fleet.Clients = 500*time.Millisecond, clients
	return s
}

// under returns the scenario of c under policy.
func (c *budgetCell) under(policy sim.Policy) sim.Scenario {
	s := c.scenario
	s.Policy = policy
	if c.tune != nil && (policy.Name == "" || policy.Name == "retrip") {
		c.tune(&s.Policy.Retry)
	}
	return s
}

// budgetResult is a line of the table under one policy.
type budgetResult struct {
	Scenario, Policy string
	Median, Worst    float64 // seconds, per cent or attempts; -1: never recovers
	Goal             float64 // for retrip's default
}

func newBudgetResult(c *budgetCell, policy string, group []*sim.Result) budgetResult {
	values := make([]float64, len(group))
	for i, r := range group {
		values[i] = c.measure.of(r)
	}
	slices.Sort(values)
	worst := values[len(values)-1]
	if c.measure.share {
		worst = values[0]
	}
	finite := func(x float64) float64 {
		if x >= neverSeconds {
			return -1
		}
		return x
	}
	return budgetResult{c.name, policy, finite(values[len(values)/2]), finite(worst), c.goal}
}

func (r *budgetResult) text(m budgetMeasure) string {
	if median, worst := m.text(r.Median), m.text(r.Worst); median != worst {
		return fmt.Sprintf("%s (%s)", median, worst)
	}
	return m.text(r.Median)
}

// misses reports the goals that retrip's default misses.
func misses(cells []budgetCell, found []budgetResult) (notes []string) {
	for _, b := range found {
		i := slices.IndexFunc(cells, func(c budgetCell) bool { return c.name == b.Scenario })
		if c := &cells[i]; b.Policy == "retrip" && !c.meets(b.Median) {
			notes = append(notes, fmt.Sprintf("retrip misses a goal: %s is %s, not %s", c.name, c.measure.text(b.Median), c.goalText()))
		}
	}
	return notes
}

// budget compares budgets in the cases for which retrip's budget was designed.
func budget(f *flags) func(context.Context, func(float64)) (*report, error) {
	var seed uint64
	f.Uint64Var(&seed, "seed", 1, "seed of the random numbers")
	f.choice("retrip,plain-budget,no-retries,aws-standard")
	f.repeats(5)
	f.noPicture = true
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		policies, err := f.load(sim.Overload().Policy.Retry)
		if err != nil {
			return nil, err
		}
		cells := budgetCells()
		var all []sim.Scenario
		for _, c := range cells {
			for _, p := range policies {
				s := c.under(p)
				s.Seed = seed
				all = append(all, s.Seeds(f.runs)...)
			}
		}
		results, err := sim.RunAll(ctx, all, progress)
		r := &report{
			title: "the cases for which retrip's budget was designed",
			table: [][]string{{"case", "goal"}},
			notes: []string{fmt.Sprintf("the median of %d runs, with the worst in brackets if it differs; goal: what the median of retrip's default policy should reach", f.runs)},
		}
		for _, p := range policies {
			r.table[0] = append(r.table[0], p.Name)
		}
		var found []budgetResult
		for i := range cells {
			row := []string{cells[i].name, cells[i].goalText()}
			for j, p := range policies {
				group := results[(i*len(policies)+j)*f.runs:][:f.runs]
				if slices.ContainsFunc(group, func(r *sim.Result) bool { return r == nil || r.Partial }) {
					row = append(row, "")
					continue
				}
				found = append(found, newBudgetResult(&cells[i], p.Name, group))
				row = append(row, found[len(found)-1].text(cells[i].measure))
			}
			r.table = append(r.table, row)
		}
		if len(found) == 0 {
			return nil, err
		}
		r.notes = append(r.notes, misses(cells, found)...)
		r.json = found
		r.csv = func(w io.Writer) error {
			out := csv.NewWriter(w)
			out.Write([]string{"scenario", "policy", "median", "worst", "goal"})
			for _, b := range found {
				out.Write([]string{b.Scenario, b.Policy, number(b.Median), number(b.Worst), number(b.Goal)})
			}
			out.Flush()
			return out.Error()
		}
		return r, err
	}
}
