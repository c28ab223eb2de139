// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/sim"
)

// hedgeCase is a row of a table of hedges.
type hedgeCase struct {
	name     string
	scenario sim.Scenario
}

// hedgeTables are the columns of the tables of hedges, by name.
var hedgeTables = map[string][]hedgeColumn{
	"tails":    {hedgeP99, hedgeP999, hedgeExtra, hedgeWon},
	"load":     {hedgeSuccess, hedgeP99, hedgeExtra, hedgeWon},
	"recovery": {hedgeRecovery, hedgeExtra},
}

// hedgeCases returns the cases of a table for a fleet of so many clients.
func hedgeCases(table string, clients int) (list []hedgeCase) {
	add := func(s sim.Scenario, change func(*sim.Scenario), name string, args ...any) {
		change(&s)
		list = append(list, hedgeCase{fmt.Sprintf(name, args...), s})
	}
	stalls, brownout := sim.Stalls(clients), stalling(clients)
	switch table {
	case "tails":
		add(stalls, func(*sim.Scenario) {}, "1 %% of the answers stall")
		add(stalls, func(s *sim.Scenario) { s.Backend.Latency.StallShare = 0.05 }, "5 %% of the answers stall")
		add(stalls, func(s *sim.Scenario) {
			s.Backend.Instances, s.Backend.Slow, s.Backend.SlowBy = 10, 1, 10
		}, "one of ten backends takes ten times as long")
		add(stalls, func(s *sim.Scenario) {
			s.Trigger = sim.Trigger{At: 100 * time.Second, For: s.Horizon - 100*time.Second, Latency: 3}
		}, "all answers take three times as long from the 100th second on")
		add(stalls, func(s *sim.Scenario) { s.Backend.Latency.StallSticks = true }, "1 %% of the requests stall, whoever answers")
		add(stalls, func(s *sim.Scenario) { s.Backend.Latency.StallShare = 0 }, "no stalls")
	case "load":
		for _, balance := range []struct {
			name    string
			shorter bool
			loads   []float64
		}{{"random choice", false, []float64{0.7, 0.8, 0.85, 0.9}}, {"the shorter of two queues", true, []float64{0.8, 0.85, 0.9}}} {
			for _, load := range balance.loads {
				add(sim.TenBackends(clients).LoadOf(load), func(s *sim.Scenario) {
					s.Backend.Latency = sim.Latency{Median: 20 * time.Millisecond, Spread: 0.4}
					s.Backend.ShorterOfTwo, s.WarmUp = balance.shorter, 150*time.Second
				}, "ten backends, %s, %v %% load", balance.name, percent(load))
			}
		}
		for _, load := range []float64{0.8, 0.9, 0.95} {
			add(brownout.LoadOf(load), func(s *sim.Scenario) {
				s.WarmUp, s.Horizon, s.Trigger = 150*time.Second, 300*time.Second, sim.Trigger{}
			}, "ten workers, 1 %% stalls, %v %% load", percent(load))
		}
	case "recovery":
		for _, load := range []float64{0.7, 0.8, 0.9, 0.95} {
			add(brownout.LoadOf(load), func(*sim.Scenario) {}, "a third of the capacity for 10 s, %v %% load", percent(load))
		}
	}
	return list
}

// stalling is the brownout of a backend of which 1 % of the answers stall.
func stalling(clients int) sim.Scenario {
	s := sim.Overload()
	s.Fleet.Clients, s.Horizon, s.Trigger.At = clients, 190*time.Second, 60*time.Second
	s.Backend.Latency = sim.Latency{Median: 20 * time.Millisecond, Spread: 0.4, StallShare: 0.01, StallMedian: 200 * time.Millisecond, StallSpread: 0.3}
	return s
}

// hedgeColumn is a figure of a case for each way to hedge.
type hedgeColumn struct {
	name   string
	of     func(*sim.Scenario, *sim.Result) float64
	format string
	worst  bool // the lowest of the runs, not the median
	always bool // also without hedges
}

var (
	hedgeP99 = hedgeColumn{name: "p99 ms", format: "%.0f", always: true,
		of: func(_ *sim.Scenario, r *sim.Result) float64 { return r.P99.Seconds() * 1000 }}
	hedgeP999 = hedgeColumn{name: "p99.9 ms", format: "%.0f", always: true,
		of: func(_ *sim.Scenario, r *sim.Result) float64 { return r.Percentile(0.999).Seconds() * 1000 }}
	hedgeExtra = hedgeColumn{name: "hedges", format: "%.1f %%",
		of: func(s *sim.Scenario, r *sim.Result) float64 {
			requests := sumBetween(r, s.WarmUp, s.Horizon, func(p sim.Point) int32 { return p.Requests })
			return 100 * hedgesBetween(r, s.WarmUp, s.Horizon) / max(1, requests)
		}}
	hedgeWon = hedgeColumn{name: "won", format: "%.0f %%",
		of: func(_ *sim.Scenario, r *sim.Result) float64 {
			return 100 * float64(r.HedgesWon) / float64(max(1, r.Hedges))
		}}
	hedgeSuccess = hedgeColumn{name: "success", format: "%.2f %%", worst: true, always: true,
		of: func(_ *sim.Scenario, r *sim.Result) float64 { return 100 * r.SuccessRate() }}
	hedgeRecovery = hedgeColumn{name: "recovery s", format: "%.0f", always: true,
		of: func(_ *sim.Scenario, r *sim.Result) float64 { return recoverySeconds(r) }}
)

func hedgesBetween(r *sim.Result, from, to time.Duration) float64 {
	return sumBetween(r, from, to, func(p sim.Point) int32 { return p.Hedges })
}

func sumBetween(r *sim.Result, from, to time.Duration, of func(sim.Point) int32) (sum float64) {
	for i, p := range r.Series {
		if at := time.Duration(i) * r.Bin; at >= from && at < to {
			sum += float64(of(p))
		}
	}
	return sum
}

// hedgeWay is a way to hedge.
type hedgeWay struct {
	name    string
	share   float64
	hedging sim.Hedging
}

// hedgeCell is a case with one way to hedge.
type hedgeCell struct {
	Case    string
	Clients int
	Hedging string
	Values  map[string]float64 // by column; the median of the runs, or the lowest success
}

// hedges compares ways to hedge.
func hedges(f *flags) work {
	seed, share, fixed := uint64(1), 0.05, time.Duration(0)
	clients := []int{10, 100}
	names := []string{"tails", "load", "recovery"}
	table := names[0]
	f.StringVar(&table, "table", table, "what to compare: "+strings.Join(names, ", "))
	f.Var(ints(&clients), "clients", "sizes of the fleet, which sends 700 requests per second in most cases: `numbers`")
	f.Float64Var(&share, "hedge", share, "Policy.Hedge")
	f.DurationVar(&fixed, f.field("fixed", "Policy.Hedging.After"), fixed, "also hedge every request after this delay, without a limit; 0: don't")
	only := f.String("only", "", "run only the cases whose names contain `text`")
	f.Uint64Var(&seed, "seed", seed, "seed of the random numbers")
	f.repeats(3)
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		columns, ok := hedgeTables[table]
		if !ok {
			return nil, fmt.Errorf("-table is %q: it must be one of %s", table, strings.Join(names, ", "))
		}
		ways := []hedgeWay{{name: "no hedges"}, {name: fmt.Sprintf("Hedge: %v", share), share: share}}
		if fixed > 0 {
			ways = append(ways, hedgeWay{"a fixed delay of " + seconds(fixed), share, sim.Hedging{After: fixed}})
		}
		var tried []string
		for _, w := range ways {
			tried = append(tried, w.name)
		}
		var cases []hedgeCase
		var all []sim.Scenario
		for _, n := range clients {
			for _, c := range hedgeCases(table, n) {
				if !strings.Contains(c.name, *only) {
					continue
				}
				cases = append(cases, c)
				for _, w := range ways {
					s := c.scenario
					s.Seed, s.Policy.Name, s.Policy.Retry.Hedge, s.Policy.Hedging = seed, w.name, w.share, w.hedging
					all = append(all, s.Seeds(f.runs)...)
				}
			}
		}
		if len(cases) == 0 {
			return nil, fmt.Errorf("-only is %q: no case contains it", *only)
		}
		results, err := sim.RunAll(ctx, all, progress)
		if err != nil {
			return nil, err
		}
		r := &report{title: "hedges: " + table, table: [][]string{{"case", "clients"}},
			notes: []string{fmt.Sprintf("%s; the medians of %d runs, but of success the lowest; retrip's default policy, but for hedges", strings.Join(tried, " / "), f.runs)}}
		for _, c := range columns {
			r.table[0] = append(r.table[0], c.name)
		}
		var cells []hedgeCell
		groups := make([][][]*sim.Result, len(cases))
		for i := range cases {
			c := &cases[i]
			row := []string{c.name, strconv.Itoa(c.scenario.Fleet.Clients)}
			for j := range ways {
				groups[i] = append(groups[i], results[(i*len(ways)+j)*f.runs:][:f.runs])
				cells = append(cells, hedgeCell{c.name, c.scenario.Fleet.Clients, ways[j].name, map[string]float64{}})
			}
			for _, column := range columns {
				var texts []string
				for j, group := range groups[i] {
					x := column.in(&c.scenario, group)
					cells[i*len(ways)+j].Values[column.name] = x
					if j > 0 || column.always {
						texts = append(texts, column.text(x))
					}
				}
				row = append(row, strings.Join(texts, " / "))
			}
			r.table = append(r.table, row)
		}
		r.json = cells
		return r, nil
	}
}

// in returns the figure of a group of runs.
func (c *hedgeColumn) in(s *sim.Scenario, group []*sim.Result) float64 {
	var values []float64
	for _, r := range group {
		values = append(values, c.of(s, r))
	}
	slices.Sort(values)
	if c.worst {
		return values[0]
	}
	return values[len(values)/2]
}

func (c *hedgeColumn) text(x float64) string {
	switch {
	case x >= neverSeconds:
		return "never"
	case x == 0 && strings.HasSuffix(c.name, " ms"): // nothing succeeded
		return "–"
	}
	return fmt.Sprintf(c.format, x)
}
