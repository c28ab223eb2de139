// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip/sim"
)

const maxLoad = 10 // as a share of the capacity

// scenario declares the flags for all parts of s.
func (f *flags) scenario(s *sim.Scenario) {
	f.first = strings.Fields("policy host clients fleets rate per-client load loads lengths queues timeouts trigger-for runs o")
	f.timeouts()
	f.IntVar(&s.Fleet.Clients, f.field("clients", "Fleet.Clients"), s.Fleet.Clients, "clients, each with a budget of its own")
	f.BoolVar(&s.Fleet.Unequal, "unequal", s.Fleet.Unequal, "a few clients send most of the requests")
	f.DurationVar(&s.Fleet.Timeout, f.field("timeout", "Fleet.Timeout"), s.Fleet.Timeout, "timeout of an attempt, if the policy sets none")
	f.Float64Var(&s.Fleet.Dead, f.field("dead-clients", "Fleet.Dead"), s.Fleet.Dead, "share of clients whose own network is dead")
	f.layers()
	f.Float64Var(&s.Arrivals.Rate, f.field("rate", "Arrivals.Rate"), s.Arrivals.Rate, "requests per second")
	f.Func("load", "requests per second as a `share` of the capacity, instead of -rate", func(v string) error {
		share, err := strconv.ParseFloat(v, 64)
		if err != nil || !(share > 0 && share <= maxLoad) {
			return fmt.Errorf("it must be a share, more than 0 and at most %v: 0.7 is 70 %%", maxLoad)
		}
		f.loadShare = share
		return nil
	})
	f.BoolVar(&s.Arrivals.Regular, "regular", s.Arrivals.Regular, "requests arrive evenly spaced, not at random")
	f.BoolVar(&s.Arrivals.AtOnce, "at-once", s.Arrivals.AtOnce, "all -requests arrive at t = 0")
	f.IntVar(&s.Arrivals.Count, f.field("requests", "Arrivals.Count"), s.Arrivals.Count, "`number` of requests after which arrivals end; 0 means never")
	f.IntVar(&s.Backend.Workers, f.field("workers", "Backend.Workers"), s.Backend.Workers, "workers of the backend; 0 means unlimited")
	f.DurationVar(&s.Backend.Service, f.field("service", "Backend.Service"), s.Backend.Service, "mean time to serve a request")
	f.BoolVar(&s.Backend.Fixed, "fixed", s.Backend.Fixed, "serve all requests in the same time")
	f.Float64Var(&s.Backend.Spread, f.field("spread", "Backend.Spread"), s.Backend.Spread, "normally distributed service times, with this standard deviation as a share of the mean; 0 means exponentially distributed")
	f.IntVar(&s.Backend.Queue, f.field("queue", "Backend.Queue"), s.Backend.Queue, "maximum number of requests that wait for a worker; others get a 503")
	f.BoolVar(&s.Backend.DropAbandoned, "drop-abandoned", s.Backend.DropAbandoned, "don't work on requests whose client has gone")
	f.Float64Var(&s.Backend.FailureRate, f.field("failures", "Backend.FailureRate"), s.Backend.FailureRate, "share of requests that get a 503 whatever the load")
	f.Float64Var(&s.Backend.BrokenShare, f.field("broken", "Backend.BrokenShare"), s.Backend.BrokenShare, "share of requests that go to a broken route, which answers every attempt with a 503")
	f.BoolVar(&s.Backend.BrokenSilent, "broken-silent", s.Backend.BrokenSilent, "the -broken route gives no response")
	f.BoolVar(&s.Backend.Silent, "silent", s.Backend.Silent, "these requests, and attempts at -dead backends, get no response and time out")
	f.server(&s.Backend)
	f.store(&s.Store)
	f.DurationVar(&s.Network.Delay, f.field("delay", "Network.Delay"), s.Network.Delay, "delay of the network, each way")
	f.DurationVar(&s.Trigger.At, f.field("trigger-at", "Trigger.At"), s.Trigger.At, "time at which the trigger of the overload begins")
	f.DurationVar(&s.Trigger.For, f.field("trigger-for", "Trigger.For"), s.Trigger.For, "length of the trigger; 0 means none")
	f.Float64Var(&s.Trigger.Slowdown, f.field("slowdown", "Trigger.Slowdown"), s.Trigger.Slowdown, "during the trigger, requests take this many times as long; 0 means no change")
	f.Float64Var(&s.Trigger.Surge, f.field("surge", "Trigger.Surge"), s.Trigger.Surge, "during the trigger, this many times the requests arrive; 0 means no change")
	f.DurationVar(&s.Trigger.Delay, f.field("answer-delay", "Trigger.Delay"), s.Trigger.Delay, "during the trigger, responses are late by this time, although the work is done in time")
	f.Float64Var(&s.Trigger.FailureRate, f.field("trigger-failures", "Trigger.FailureRate"), s.Trigger.FailureRate, "during the trigger, this share of requests gets a 503 at once")
	f.DurationVar(&s.Trigger.RetryAfter, f.field("trigger-retry-after", "Trigger.RetryAfter"), s.Trigger.RetryAfter, "wait that these answers ask for; 0 means none")
	f.DurationVar(&s.Horizon, f.field("horizon", "Horizon"), s.Horizon, "end of the simulated time")
	f.DurationVar(&s.Bin, f.field("bin", "Bin"), s.Bin, "width of the intervals of time series; 0 means a second")
	f.Uint64Var(&s.Seed, "seed", s.Seed, "seed of the random numbers")
	f.excludes("load", "rate")
	f.excludes("fixed", "spread")
	f.excludes("unequal", "regular", "at-once")
	f.excludes("at-once", "regular", "rate", "load")
	f.excludes("attempt-timeout", "timeout")
}

// store declares the flags for the store of the fleet's account.
func (f *flags) store(s *sim.Store) {
	f.Float64Var(&s.Size, f.field("account-size", "Store.Size"), s.Size, "size of the fleet's account in tokens; 0 means 175")
	f.IntVar(&s.Shards, f.field("account-shards", "Store.Shards"), s.Shards, "number of accounts into which it is split; 0 means one")
	f.DurationVar(&s.Delay, f.field("store-delay", "Store.Delay"), s.Delay, "round-trip time of an operation of the store")
	f.DurationVar(&s.Lag, f.field("store-lag", "Store.Lag"), s.Lag, "age of the level in the store's answers")
	f.DurationVar(&s.DownAt, f.field("store-down-at", "Store.DownAt"), s.DownAt, "time at which the store stops answering")
	f.DurationVar(&s.DownFor, f.field("store-down-for", "Store.DownFor"), s.DownFor, "how long the store doesn't answer; 0 means that it always does")
	f.needs("store-down-at", "store-down-for")
}

// settle applies flags to s that depend on each other.
func (f *flags) settle(s *sim.Scenario) error {
	if f.loadShare > 0 {
		*s = s.LoadOf(f.loadShare)
		if s.Arrivals.Rate == 0 {
			return fmt.Errorf("-load is %v: with -workers 0 there is no capacity to share; use -rate", f.loadShare)
		}
	}
	return f.settleLayers(s)
}

// byPolicy runs s with each policy as often as -runs says, and returns the
// results by policy. If ctx ends, it omits the missing results, and partial ones of
// a policy that has a complete one.
func (f *flags) byPolicy(ctx context.Context, s sim.Scenario, progress func(float64)) ([][]*sim.Result, error) {
	policies, err := f.load(s.Policy.Retry)
	if err != nil {
		return nil, err
	}
	var all []sim.Scenario
	for _, p := range policies {
		s.Policy = p
		all = append(all, s.Seeds(f.runs)...)
	}
	results, err := sim.RunAll(ctx, all, progress)
	var groups [][]*sim.Result
	for group := range slices.Chunk(results, f.runs) {
		if group = ended(group); len(group) > 0 {
			groups = append(groups, group)
		}
	}
	return groups, err
}

// ended returns the results that exist, without the partial ones if there is a
// complete one.
func ended(group []*sim.Result) []*sim.Result {
	group = slices.DeleteFunc(group, func(r *sim.Result) bool { return r == nil })
	cut := func(r *sim.Result) bool { return r.Partial }
	if whole := slices.DeleteFunc(slices.Clone(group), cut); len(whole) > 0 {
		return whole
	}
	return group
}

func overload(f *flags) func(context.Context, func(float64)) (*report, error) {
	return underLoad(f, "retrip", 3)
}

func compare(f *flags) func(context.Context, func(float64)) (*report, error) {
	return underLoad(f, "no-retries,no-budget,finagle,aws-standard,retrip", 3)
}

func underLoad(f *flags, policies string, runs int) func(context.Context, func(float64)) (*report, error) {
	s := sim.Overload()
	f.scenario(&s)
	f.choice(policies)
	f.repeats(runs)
	f.plots("load", "goodput", "waits")
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		if err := f.settle(&s); err != nil {
			return nil, err
		}
		groups, err := f.byPolicy(ctx, s, progress)
		if len(groups) == 0 {
			return nil, err
		}
		r := &report{
			title: fmt.Sprintf("%d clients at %.0f %% load; %s from %v to %v", s.Fleet.Clients, 100*s.Load(), cause(s.Trigger), s.Trigger.At, s.Trigger.At+s.Trigger.For),
			table: [][]string{{"policy", "recovery", "answered/s during", "success", "attempts/request", "during", "peak/s", "at the end/s", "p50", "p99"}},
			json:  groups,
			csv:   seriesCSV(groups),
		}
		for _, group := range groups {
			r.table = append(r.table, loadRow(group))
		}
		if s.Trigger.For > 0 {
			r.notes = append(r.notes, fmt.Sprintf("recovery: from the end of the %s until 95 %% of the arriving requests are answered; during: of the requests that arrive during the %[1]s, those answered, and the attempts made per request; peak: in one second", cause(s.Trigger)))
		}
		r.notes = append(r.notes, layerNotes(groups)...)
		r.notes = append(r.notes, storeNotes(groups)...)
		for _, p := range f.chosen {
			s.Policy = p
			if d, e := s.PurseTime(); e == nil && d > 0 {
				r.notes = append(r.notes, fmt.Sprintf("%s: when everything fails, the budget of a client stops its retries in about %v", p.Name, round(d)))
			}
		}
		r.lines = shownLines(groups, peakSecond, " in a second", func(p sim.Point) int32 { return p.Attempts })
		r.unit = "attempts/s"
		r.draw = func(t *theme) (*figure, error) {
			switch f.plot {
			case "goodput":
				return seriesFigure(t, s, groups, "Requests answered", func(p sim.Point) int32 { return p.Good })
			case "waits":
				return waitsFigure(t, groups)
			}
			return seriesFigure(t, s, groups, "Attempts", func(p sim.Point) int32 { return p.Attempts })
		}
		return r, err
	}
}

func loadRow(group []*sim.Result) []string {
	r := group[0]
	name := r.Policy
	if r.Partial {
		name += fmt.Sprintf(" (until %v)", round(r.Until))
	}
	return []string{name, recovery(group),
		fmt.Sprintf("%.0f", mid(group, func(r *sim.Result) float64 { return r.Goodput })),
		successText(group),
		fmt.Sprintf("%.2f", mid(group, func(r *sim.Result) float64 { return r.Amplification })),
		fmt.Sprintf("%.2f", mid(group, during)),
		peakText(group, peakSecond),
		fmt.Sprintf("%.0f", mid(group, func(r *sim.Result) float64 { return r.Steady })),
		percentile(group, func(r *sim.Result) time.Duration { return r.P50 }),
		percentile(group, func(r *sim.Result) time.Duration { return r.P99 })}
}

// cause names what a trigger does to the backend.
func cause(t sim.Trigger) string {
	switch {
	case t.Slowdown > 0 || t.Delay > 0:
		return "brownout"
	case t.Surge > 0:
		return "surge"
	case t.FailureRate >= 1:
		return "outage"
	case t.FailureRate > 0:
		return "partial outage"
	}
	return "brownout"
}

func peakSecond(r *sim.Result) float64 { return r.PeakSecond }
func peakServed(r *sim.Result) float64 { return r.PeakServed }

func peakText(group []*sim.Result, peak func(*sim.Result) float64) string {
	return fmt.Sprintf("%.0f", mid(group, peak))
}

// shownLines returns rates over time for the run of each group whose peak is the
// median, which is the one in the table.
// The unit of the peaks follows them.
func shownLines(groups [][]*sim.Result, peak func(*sim.Result) float64, unit string, of func(sim.Point) int32) []line {
	shown := make([][]*sim.Result, len(groups))
	for i, group := range groups {
		most := mid(group, peak)
		shown[i] = group[slices.IndexFunc(group, func(r *sim.Result) bool { return peak(r) == most }):]
	}
	lines := seriesLines(shown, of)
	for i, group := range groups {
		lines[i].peak = peakText(group, peak) + unit
	}
	return lines
}

// bistable is the difference in percentage points between runs from which on
// a table has a range: the outcome then depends on the seed.
const bistable = 5

// successText returns the share of requests that succeed: the median, or the range
// if it differs much from seed to seed.
func successText(group []*sim.Result) string {
	return shareText(group, func(r *sim.Result) float64 { return 100 * r.SuccessRate() })
}

func shareText(group []*sim.Result, percent func(*sim.Result) float64) string {
	least, most := 100.0, 0.0
	for _, r := range group {
		x := percent(r)
		least, most = min(least, x), max(most, x)
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

// storeNotes reports the load on the store of the fleet's account and, if some
// clients' network is dead, the success rate of the other clients.
func storeNotes(groups [][]*sim.Result) []string {
	var notes []string
	for _, group := range groups {
		name := group[0].Policy
		if group[0].StoreOperations > 0 {
			notes = append(notes, fmt.Sprintf("%s: the store handles %.0f operations/s, and %.0f in its busiest second", name,
				mid(group, func(r *sim.Result) float64 { return float64(r.StoreOperations) / r.Until.Seconds() }),
				mid(group, func(r *sim.Result) float64 { return r.StorePeak })))
		}
		if group[0].DeadRequests > 0 {
			notes = append(notes, fmt.Sprintf("%s: %.2f %% of the requests succeed that can, without those of clients with a dead network and those to a broken route", name,
				mid(group, func(r *sim.Result) float64 { return 100 * r.AliveRate() })))
		}
	}
	return notes
}

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
		if r.Partial && r.Recovery == sim.Never {
			return notYet
		}
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

// notYet stands for the recovery of a run that was interrupted before it.
const notYet = "not yet"

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

func storm(f *flags) func(context.Context, func(float64)) (*report, error) {
	s := sim.Storm(sim.Continuing)
	crowd := "continuing"
	f.StringVar(&crowd, "crowd", crowd, "passing (arrives before the outage), continuing (keeps arriving) or herd (fails at one instant)")
	f.scenario(&s)
	f.choice("no-retries,no-jitter,equal,full,decorrelated,gaussian")
	f.repeats(1)
	f.plots("served", "load", "waits")
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		for _, name := range []string{"at-once", "regular", "rate", "load", "unequal"} {
			if f.given(name) && (crowd == "herd" || name == "at-once") {
				return nil, fmt.Errorf("-%s and -crowd %s conflict", name, crowd)
			}
		}
		switch crowd {
		case "passing":
			if !f.given("requests") {
				s.Arrivals.Count = sim.Storm(sim.Passing).Arrivals.Count
			}
		case "herd":
			herd := sim.Storm(sim.Herd)
			s.Arrivals.AtOnce = true
			if !f.given("requests") {
				s.Arrivals.Count = herd.Arrivals.Count
			}
			if !f.given("trigger-at") {
				s.Trigger.At = herd.Trigger.At
			}
		case "continuing":
		default:
			return nil, fmt.Errorf("-crowd is %q: it must be passing, continuing or herd", crowd)
		}
		if err := f.settle(&s); err != nil {
			return nil, err
		}
		groups, err := f.byPolicy(ctx, s, progress)
		if len(groups) == 0 {
			return nil, err
		}
		r := &report{
			title: fmt.Sprintf("%s crowd; outage from %v to %v", crowd, s.Trigger.At, s.Trigger.At+s.Trigger.For),
			table: [][]string{{"policy", "peak served/s", "peak attempts/s", "success", "attempts/request", "during the outage", "p99"}},
			json:  groups,
			csv:   seriesCSV(groups),
			lines: shownLines(groups, peakServed, "", func(p sim.Point) int32 { return p.Served }),
			unit:  "served/s",
		}
		if crowd == "passing" {
			r.table[0] = append(r.table[0], "published")
		}
		for _, group := range groups {
			row := []string{group[0].Policy,
				peakText(group, peakServed),
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
		r.draw = func(t *theme) (*figure, error) {
			switch f.plot {
			case "waits":
				return waitsFigure(t, groups)
			case "load":
				return seriesFigure(t, s, groups, "Attempts", func(p sim.Point) int32 { return p.Attempts })
			}
			return seriesFigure(t, s, groups, "Answers", func(p sim.Point) int32 { return p.Served })
		}
		return r, err
	}
}
