// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/retrip/retrip/internal/sim"
)

const maxLoad = 10 // as a share of the capacity

// overload runs the most important scenario, with changes.
func overload(f *flags) work {
	s := sim.Overload()
	f.IntVar(&s.Fleet.Clients, f.field("clients", "Fleet.Clients"), s.Fleet.Clients, "processes with a Transport, each with a budget of its own")
	f.DurationVar(&s.Fleet.Timeout, f.field("timeout", "Fleet.Timeout"), s.Fleet.Timeout, "timeout of an attempt, if the policy sets none")
	f.Float64Var(&s.Arrivals.Rate, f.field("rate", "Arrivals.Rate"), s.Arrivals.Rate, "requests per second of all clients; the backend gets the workers that have this rate at -load, unless -workers is given")
	f.Func("load", "`share` of the backend's capacity that arrives (default 0.7)", func(v string) error {
		share, err := strconv.ParseFloat(v, 64)
		if err != nil || !(share > 0 && share <= maxLoad) {
			return fmt.Errorf("it must be a share, more than 0 and at most %v: 0.7 is 70 %%", maxLoad)
		}
		f.loadShare = share
		return nil
	})
	f.IntVar(&s.Backend.Workers, f.field("workers", "Backend.Workers"), s.Backend.Workers, "workers of the backend; 0 means unlimited")
	f.DurationVar(&s.Backend.Service, f.field("service", "Backend.Service"), s.Backend.Service, "mean time to serve a request")
	f.queue()
	f.Float64Var(&s.Backend.Well, f.field("well", "Backend.Well"), s.Backend.Well, "share of requests that are always answered at once: those to another shard or tenant of the host; only the others count")
	f.Float64Var(&s.Backend.BrokenShare, f.field("dead-route", "Backend.BrokenShare"), s.Backend.BrokenShare, "share of requests to a route that answers everything with 503")
	f.Float64Var(&s.Backend.FailureRate, f.field("failures", "Backend.FailureRate"), s.Backend.FailureRate, "share of requests that get a 503 whatever the load")
	f.DurationVar(&s.Trigger.At, f.field("trigger-at", "Trigger.At"), s.Trigger.At, "time at which the trigger of the overload begins")
	f.DurationVar(&s.Trigger.For, f.field("trigger-for", "Trigger.For"), s.Trigger.For, "length of the trigger; 0 means none")
	f.DurationVar(&s.Horizon, f.field("horizon", "Horizon"), s.Horizon, "end of the simulated time")
	f.Uint64Var(&s.Seed, "seed", s.Seed, "seed of the random numbers")
	f.choice("retrip")
	f.repeats(3)
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		if err := f.size(&s); err != nil {
			return nil, err
		}
		groups, err := f.byPolicy(ctx, s, progress)
		if len(groups) == 0 {
			return nil, err
		}
		r := &report{
			title: fmt.Sprintf("%d clients at %.0f %% load; brownout from %v to %v", s.Fleet.Clients, 100*s.Load(), s.Trigger.At, s.Trigger.At+s.Trigger.For),
			table: [][]string{{"policy", "recovery", "answered/s during", "success", "attempts/request", "during", "peak/s", "at the end/s", "p50", "p99"}},
			json:  groups,
		}
		for _, group := range groups {
			r.table = append(r.table, loadRow(group))
		}
		if s.Trigger.For > 0 {
			r.notes = append(r.notes, "recovery: from the end of the brownout until 95 % of the arriving requests are answered; during: of the requests that arrive during the brownout, those answered, and the attempts made per request; peak: in one second")
		}
		for _, group := range groups {
			if s.Backend.BrokenShare > 0 {
				r.notes = append(r.notes, fmt.Sprintf("%s: the dead route gets %.2f attempts per request, and %.2f %% of the other requests succeed", group[0].Policy,
					mid(group, func(r *sim.Result) float64 { return float64(r.DeadAttempts) / float64(max(1, r.DeadRequests)) }),
					mid(group, func(r *sim.Result) float64 { return 100 * r.AliveRate() })))
			}
			if group[0].StoreOperations > 0 {
				r.notes = append(r.notes, fmt.Sprintf("%s: the store handles %.0f operations/s, and %.0f in its busiest second", group[0].Policy,
					mid(group, func(r *sim.Result) float64 { return float64(r.StoreOperations) / r.Until.Seconds() }),
					mid(group, func(r *sim.Result) float64 { return r.StorePeak })))
			}
		}
		for _, p := range f.chosen {
			s.Policy = p
			if d, e := s.PurseTime(); e == nil && d > 0 {
				r.notes = append(r.notes, fmt.Sprintf("%s: when everything fails, the budget of a client stops its retries in about %v", p.Name, round(d)))
			}
		}
		return r, err
	}
}

// saved returns the share of the requests on broken connections that succeed, in per cent.
func saved(r *sim.Result) float64 { return 100 * float64(r.Saved) / float64(max(1, r.Lost)) }

// size sets the workers of s, or its rate of arrivals.
func (f *flags) size(s *sim.Scenario) error {
	b, load := &s.Backend, cmp.Or(f.loadShare, sim.Overload().Load())
	switch {
	case f.given("rate") && f.given("workers") && f.loadShare > 0:
		return errors.New("-load, -rate and -workers conflict: give two of them")
	case f.given("rate") && !f.given("workers") && s.Arrivals.Rate > 0 && b.Service > 0:
		want := s.Arrivals.Rate * (1 - b.Well) * b.Service.Seconds() / load
		if b.Workers = int(math.Round(want)); math.Abs(float64(b.Workers)-want) > 0.1*want {
			return fmt.Errorf("-rate is %s: at %.0f %% load, a backend has %.2g workers; give -workers, or a longer -service", f.typed("rate", 0), 100*load, want)
		}
	case f.loadShare > 0:
		if *s = s.LoadOf(load); s.Arrivals.Rate == 0 {
			return fmt.Errorf("-load is %v: with -workers 0 there is no capacity to share; use -rate", load)
		}
	}
	return nil
}

// byPolicy runs s with each policy as often as -runs says, and returns the
// results by policy. If ctx ends, it omits the policies whose runs aren't
// complete.
func (f *flags) byPolicy(ctx context.Context, s sim.Scenario, progress func(float64)) ([][]*sim.Result, error) {
	policies, err := f.load(s.Policy.Retry)
	if err != nil {
		return nil, err
	}
	var all []sim.Scenario
	for _, p := range policies {
		if s.Policy = p; s.Backend.Workers > 0 {
			f.setQueue(&s)
		}
		all = append(all, s.Seeds(f.runs)...)
	}
	results, err := sim.RunAll(ctx, all, progress)
	var groups [][]*sim.Result
	for group := range slices.Chunk(results, f.runs) {
		if !slices.ContainsFunc(group, func(r *sim.Result) bool { return r == nil || r.Partial }) {
			groups = append(groups, group)
		}
	}
	return groups, err
}

func loadRow(group []*sim.Result) []string {
	number := func(format string, of func(*sim.Result) float64) string { return fmt.Sprintf(format, mid(group, of)) }
	return []string{group[0].Policy, recovery(group),
		number("%.0f", func(r *sim.Result) float64 { return r.Goodput }),
		successText(group),
		number("%.2f", func(r *sim.Result) float64 { return r.Amplification }),
		number("%.2f", during),
		number("%.0f", func(r *sim.Result) float64 { return r.PeakSecond }),
		number("%.0f", func(r *sim.Result) float64 { return r.Steady }),
		percentile(group, func(r *sim.Result) time.Duration { return r.P50 }),
		percentile(group, func(r *sim.Result) time.Duration { return r.P99 })}
}

// bistable is the difference in percentage points between runs from which on
// a table has a range: the outcome then depends on the seed.
const bistable = 5

// successText returns the share of requests that succeed: the median, or the range
// if it differs much from seed to seed.
func successText(group []*sim.Result) string {
	least, most := 100.0, 0.0
	percent := func(r *sim.Result) float64 { return 100 * r.SuccessRate() }
	for _, r := range group {
		least, most = min(least, percent(r)), max(most, percent(r))
	}
	if most-least > bistable {
		return fmt.Sprintf("%.0f–%.0f %%", least, most)
	}
	return fmt.Sprintf("%.1f %%", mid(group, percent))
}

// percentile formats the median of a percentile to two digits.
func percentile(group []*sim.Result, of func(*sim.Result) time.Duration) string {
	d := time.Duration(mid(group, func(r *sim.Result) float64 { return float64(of(r)) }))
	if d <= 0 {
		return "–" // nothing succeeds
	}
	unit, name := time.Second, "s"
	switch {
	case d < time.Millisecond:
		unit, name = time.Microsecond, "µs"
	case d < 995*time.Millisecond:
		unit, name = time.Millisecond, "ms"
	}
	x := float64(d) / float64(unit)
	step := math.Pow(10, math.Floor(math.Log10(x))-1)
	return fmt.Sprintf("≈ %s %s", number(math.Round(x/step)*step), name)
}

func number(x float64) string { return strconv.FormatFloat(x, 'g', 8, 64) }

func percent(share float64) float64 { return float64(int(share*1e6+0.5)) / 1e4 }

// mid returns the median of what the function of returns for the results in
// group.
func mid(group []*sim.Result, of func(*sim.Result) float64) float64 {
	var list []float64
	for _, r := range group {
		list = append(list, of(r))
	}
	slices.Sort(list)
	return list[len(list)/2]
}

// during returns the number of attempts made during the trigger per request
// that arrived during it.
func during(r *sim.Result) float64 {
	return float64(r.TriggerAttempts) / float64(max(1, r.TriggerRequests))
}

func recovery(group []*sim.Result) string {
	least, most := float64(neverSeconds), 0.0
	for _, r := range group {
		least, most = min(least, recoverySeconds(r)), max(most, recoverySeconds(r))
	}
	switch {
	case least >= neverSeconds:
		return "never"
	case most >= neverSeconds: // it depends on the seed
		return fmt.Sprintf("%.0f s–never", least)
	}
	return fmt.Sprintf("%.0f s", mid(group, recoverySeconds))
}

const neverSeconds = 1e9

func recoverySeconds(r *sim.Result) float64 {
	if r.Recovery == sim.Never {
		return neverSeconds
	}
	return r.Recovery.Seconds()
}

func round(d time.Duration) time.Duration {
	switch {
	case d > 10*time.Second:
		return d.Round(100 * time.Millisecond)
	case d > time.Second:
		return d.Round(10 * time.Millisecond)
	default:
		return d.Round(100 * time.Microsecond)
	}
}

// published is the published table that [sim.Storm] with a passing crowd
// reproduces.
var published = map[string]string{"no-retries": "540", "no-jitter": "4380", "equal": "1820", "full": "720"}

// storm runs an outage with a crowd of callers.
func storm(f *flags) work {
	crowds := []string{"passing", "continuing", "herd"} // in the order of sim.Crowd
	crowd, clients, seed, length := "continuing", 1000, uint64(1), 200*time.Millisecond
	f.StringVar(&crowd, "crowd", crowd, "passing (arrives before the outage), continuing (keeps arriving) or herd (fails at one instant)")
	f.IntVar(&clients, f.field("clients", "Fleet.Clients"), clients, "clients that take turns")
	f.DurationVar(&length, f.field("trigger-for", "Trigger.For"), length, "length of the outage")
	f.Uint64Var(&seed, "seed", seed, "seed of the random numbers")
	f.choice("no-retries,no-jitter,equal,full,decorrelated,gaussian")
	f.repeats(1)
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		k := slices.Index(crowds, crowd)
		if k < 0 {
			return nil, fmt.Errorf("-crowd is %q: it must be passing, continuing or herd", crowd)
		}
		s := sim.Storm(sim.Crowd(k))
		s.Fleet.Clients, s.Trigger.For, s.Seed = clients, length, seed
		groups, err := f.byPolicy(ctx, s, progress)
		if len(groups) == 0 {
			return nil, err
		}
		r := &report{
			title: fmt.Sprintf("%s crowd; outage from %v to %v", crowd, s.Trigger.At, s.Trigger.At+s.Trigger.For),
			table: [][]string{{"policy", "peak served/s", "peak attempts/s", "success", "attempts/request", "during the outage", "p99"}},
			json:  groups,
		}
		if crowd == "passing" {
			r.table[0] = append(r.table[0], "published")
		}
		for _, group := range groups {
			row := []string{group[0].Policy,
				fmt.Sprintf("%.0f", mid(group, func(r *sim.Result) float64 { return r.PeakServed })),
				fmt.Sprintf("%.0f", mid(group, func(r *sim.Result) float64 { return r.Peak })),
				successText(group),
				fmt.Sprintf("%.2f", mid(group, func(r *sim.Result) float64 { return r.Amplification })),
				fmt.Sprintf("%.2f", mid(group, during)),
				percentile(group, func(r *sim.Result) time.Duration { return r.P99 })}
			if crowd == "passing" {
				row = append(row, published[group[0].Policy])
			}
			r.table = append(r.table, row)
		}
		return r, err
	}
}
