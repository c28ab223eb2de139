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
	"strings"
	"time"

	"github.com/retrip/retrip/internal/sim"
)

// checked is the result of check for one policy.
type checked struct {
	Policy     string        `json:"policy"`
	OK         bool          `json:"ok"`
	Verdict    string        `json:"verdict"`
	Sentence   string        `json:"sentence"`
	PassesWith string        `json:"passes_with,omitempty"`
	Cases      []checkedCase `json:"cases"`
	Price      []priced      `json:"price,omitempty"`
	FreeLoad   float64       `json:"load_without_price,omitempty"` // the highest that was tried, below 0.9
	Hedges     *hedgeCost    `json:"hedges,omitempty"`

	rows  [][]string
	notes []string
}

// checkedCase is a case with times in seconds. A time that was not seen to end is null.
type checkedCase struct {
	Load            float64  `json:"load"`
	Well            float64  `json:"well,omitempty"` // share of the host's requests that always succeed
	Brownout        float64  `json:"brownout_seconds"`
	Recovery        *float64 `json:"recovery_seconds"`
	Without         *float64 `json:"recovery_seconds_without_retries"`
	Answered        float64  `json:"answered"`
	AnsweredWithout float64  `json:"answered_without_retries"`
	Passed          int      `json:"passed"`
	Seeds           int      `json:"seeds"`
	Verdict         string   `json:"verdict"`
	OK              bool     `json:"ok"`
}

func newCheckedCase(c sim.RecoveryCase) checkedCase {
	seconds := func(d time.Duration) *float64 {
		if d == sim.Never {
			return nil
		}
		return new(d.Seconds())
	}
	share := func(x float64) float64 { return math.Round(x*1e4) / 1e4 }
	return checkedCase{share(c.Load), c.Well, c.Trigger.For.Seconds(), seconds(c.Recovery), seconds(c.Without), share(c.Good), share(c.GoodWithout),
		c.Passed, c.Seeds, c.Verdict.String(), c.Verdict != sim.Fails}
}

// checking is the command check with its flags.
type checking struct {
	*flags
	fleet   sim.Scenario // with the numbers that the user gave
	loads   []float64
	well    []float64
	lengths []time.Duration
	price   bool
}

// check runs a sim.RecoveryCheck for a backend of which the caller knows little.
func check(f *flags) work {
	c := &checking{flags: f, fleet: sim.Overload(), loads: []float64{0.7, 0.9}, well: []float64{0.5}, lengths: []time.Duration{time.Second, 10 * time.Second, time.Minute}}
	s := &c.fleet
	f.IntVar(&s.Fleet.Clients, f.field("clients", "Fleet.Clients"), s.Fleet.Clients, "processes with a Transport, each with a budget of its own")
	f.Float64Var(&s.Arrivals.Rate, f.field("rate", "Arrivals.Rate"), s.Arrivals.Rate, "requests per second of all clients to this host, at the first of the loads")
	f.DurationVar(&s.Backend.Service, f.field("service", "Backend.Service"), s.Backend.Service, "mean time to serve a request")
	f.queue()
	f.DurationVar(&s.Backend.Gateway, f.field("gateway", "Backend.Gateway"), s.Backend.Gateway, "time after which a gateway answers with 504, while the backend works on; 0 means none")
	f.Var(&numbers[float64]{&c.well, parseFloat, "number"}, f.field("well", "Well"), "`shares` of the host's requests that always succeed, for the case that only the rest is overloaded; 0 for no such case")
	f.DurationVar(&s.Fleet.Timeout, f.field("timeout", "Fleet.Timeout"), s.Fleet.Timeout, "timeout of an attempt, if the policy sets none")
	f.Var(&numbers[float64]{&c.loads, parseFloat, "number"}, f.field("loads", "Loads"), "`shares` of the backend's capacity that arrive")
	f.Var(&numbers[time.Duration]{&c.lengths, time.ParseDuration, "duration"}, f.field("lengths", "Brownouts"), "lengths of the brownouts: `durations`")
	f.Uint64Var(&s.Seed, "seed", s.Seed, "seed of the random numbers")
	f.BoolVar(&c.price, "price", true, "also measure what the policy costs where no overload ends: some seconds")
	f.choice("retrip")
	return c.run
}

func (c *checking) run(ctx context.Context, progress func(float64)) (*report, error) {
	part, err := c.part()
	if err != nil {
		return nil, err
	}
	policies, err := c.load(c.fleet.Policy.Retry)
	if err != nil {
		return nil, err
	}
	r := &report{
		title: fmt.Sprintf("clients: %d, with %.3g requests/s each; seconds in which four of five runs recover from a backend that works three times as slowly",
			c.fleet.Fleet.Clients, c.perClient()),
		notes: slices.Clone(c.remarks),
		table: [][]string{{"policy", "load", "brownout", "recovers after", "without retries", "answered until 20 s after", "without retries", ""}},
	}
	var all []checked
	r.json = all
	for i, p := range policies {
		part.Policy = p
		one, err := c.try(ctx, part, func(done float64) { progress((float64(i) + done) / float64(len(policies))) })
		if err != nil && (ctx.Err() == nil || len(all) == 0 && len(one.Cases) == 0) {
			return nil, err
		}
		r.table, r.notes = append(r.table, one.rows...), append(r.notes, one.notes...)
		if one.Verdict != "" {
			all = append(all, *one)
			r.json, r.failed = all, r.failed || !one.OK
		}
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

func (c *checking) perClient() float64 { return c.fleet.Arrivals.Rate / float64(c.fleet.Fleet.Clients) }

// part returns the part of the fleet that is simulated.
func (c *checking) part() (s sim.Scenario, err error) {
	s = c.fleet
	if !(c.loads[0] > 0 && c.loads[0] < 1) {
		return s, &sim.ParameterError{Field: "Loads", Value: c.loads[0], Want: "more than 0 and less than 1: 0.7 is 70 % of the capacity"}
	}
	if err := s.Validate(); err != nil {
		return s, err
	}
	s.Trigger = sim.Trigger{}
	s = s.Part(c.loads[0])
	const most = 1_000_000 // clients, and workers, of a simulation
	if least := c.fleet.Arrivals.Rate * float64(s.Fleet.Clients) / most; s.Fleet.Clients > most {
		return s, fmt.Errorf("-rate is %s: with %d clients it must be at least %.3g", c.typed("rate", c.fleet.Arrivals.Rate), c.fleet.Fleet.Clients, least)
	}
	if s.Backend.Workers > most {
		return s, fmt.Errorf("-service is %s: %.0f requests/s would keep more than %d workers busy", c.typed("service", s.Backend.Service), s.Arrivals.Rate, most)
	}
	return s, nil
}

// try checks the policy of s. If ctx ends, what it returns has the cases measured
// until then.
func (c *checking) try(ctx context.Context, s sim.Scenario, progress func(float64)) (*checked, error) {
	p, one := s.Policy, &checked{Policy: s.Policy.Name}
	queue := c.setQueue(&s)
	cases, err := sim.RecoveryCheck{Loads: c.loads[1:], Brownouts: c.lengths, Well: c.well}.Cases(ctx, s, func(done float64) { progress(done / 2) })
	var idle *sim.ParameterError // a case in which no policy could fail
	harmless := errors.As(err, &idle) && idle.Field == "Backend.Queue"
	slices.SortStableFunc(cases, func(a, b sim.RecoveryCase) int { return cmp.Compare(b.Verdict, a.Verdict) })
	for _, k := range cases {
		one.Cases = append(one.Cases, newCheckedCase(k))
		one.rows = append(one.rows, caseRow(p.Name, k))
	}
	if err != nil && !harmless {
		return one, err
	}
	worst := &cases[0]
	one.OK, one.Verdict = worst.Verdict != sim.Fails, worst.Verdict.String()
	switch {
	case worst.Verdict != sim.Passes:
		one.Sentence = c.blame(p.Name, worst)
	case harmless:
		one.Sentence = fmt.Sprintf("any policy recovers here: a full queue of %v is worked off while clients still wait", queue)
	default:
		one.Sentence = p.Name + " recovers as fast as without retries, or at most 5 s later"
	}
	one.notes = append(one.notes, one.Sentence)
	one.notes = append(one.notes, c.assumed(&s, queue))
	if err := c.costs(ctx, s, one); err != nil || worst.Verdict == sim.Passes {
		return one, err
	}
	progress(0.8)
	found, ok, err := sim.PassesWith(ctx, p, cases)
	if err != nil {
		return one, err
	}
	one.PassesWith = c.remedies(p, found, ok)
	one.notes = append(one.notes, p.Name+" passes with: "+one.PassesWith)
	return one, nil
}

// assumed names what decides the verdict and what the policy doesn't say.
func (c *checking) assumed(s *sim.Scenario, queue time.Duration) string {
	list := []string{fmt.Sprintf("%s: assumed are requests that take %v (-service), and queues that take %v when they are full (-queue)", s.Policy.Name, s.Backend.Service, queue)}
	if gateway := s.Backend.Gateway; gateway > 0 {
		list = append(list, fmt.Sprintf("a gateway that answers 504 after %v, while the backend works on", gateway))
	} else {
		list = append(list, "no gateway that answers 504 while the backend works on (-gateway)")
	}
	if s.Policy.Retry.AttemptTimeout <= 0 {
		list = append(list, fmt.Sprintf("it sets no AttemptTimeout: an attempt is taken to end after %v, as -timeout says", s.Fleet.Timeout))
	}
	for _, share := range c.well {
		if share > 0 {
			list = append(list, fmt.Sprintf("\"of a part\": %.0f %% of the requests to the host always succeed, and the backend has the rest (-well)", 100*share))
		}
	}
	return strings.Join(list, "; ")
}

// costs adds what retries and hedges cost.
func (c *checking) costs(ctx context.Context, s sim.Scenario, one *checked) (err error) {
	p := s.Policy
	if c.price && p.Retry.MaxAttempts != 1 {
		if one.Price, err = priceOf(ctx, p, c.perClient(), s.Seed); err != nil {
			return err
		}
		if costly(one.Price) {
			if one.FreeLoad, err = freeLoad(ctx, p, c.perClient(), s.Seed); err != nil {
				return err
			}
		}
		one.notes = append(one.notes, priceSentence(one.Price, c.perClient(), one.FreeLoad))
	}
	if p.Retry.Hedge > 0 && p.Retry.MaxAttempts != 1 {
		if one.Hedges, err = hedgesOf(ctx, s, slices.Max(c.loads)); err != nil {
			return err
		}
		one.notes = append(one.notes, one.Hedges.sentence(p, c.perClient()))
	}
	return nil
}

// blame says what happens in the worst case of a policy that doesn't pass.
func (c *checking) blame(name string, k *sim.RecoveryCase) string {
	var does string
	switch runs := fmt.Sprintf("with %d of %d seeds", k.Passed, k.Seeds); {
	case k.Verdict == sim.Borderline:
		does = fmt.Sprintf("is borderline, since it recovers in time %s", runs)
	case k.Recovery == sim.Never:
		does = fmt.Sprintf("has still not recovered after %v, and sends %.1f × capacity", k.Watched, k.Steady)
	case k.InTime():
		does = fmt.Sprintf("recovers in %s, but for good only %s", after(k.Recovery, 0), runs)
	default:
		does = fmt.Sprintf("takes %s to recover", after(k.Recovery, 0))
	}
	part := ""
	if k.Well > 0 {
		part = fmt.Sprintf(" of a part of the host, beside %.0f %% of requests that always succeed", 100*k.Well)
	}
	return fmt.Sprintf("%d clients with %.3g requests/s each, at %.0f %% load%s: after %v in which work takes %.1f × as long, %s %s; without retries it takes %s",
		c.fleet.Fleet.Clients, c.perClient()*k.Load/c.loads[0], 100*k.Load, part, k.Trigger.For, k.Trigger.Slowdown, name, does, after(k.Without, 0))
}

// remedies says with which change a policy passes, or which changes don't help.
func (c *checking) remedies(p sim.Policy, found sim.Remedy, ok bool) string {
	if ok {
		return found.Of(c.fleet.Arrivals.Rate)
	}
	var tried []string
	for _, m := range p.Remedies() {
		tried = append(tried, m.Of(c.fleet.Arrivals.Rate))
	}
	return "nothing that check tried: " + strings.Join(tried, "; ") +
		". What is left: servers that shed retries first (docs/shed.md), a queue that is worked off while clients still wait, less load, or max_attempts 1 for this host"
}

func caseRow(policy string, c sim.RecoveryCase) []string {
	row := []string{policy, fmt.Sprintf("%.0f %%", 100*c.Load), fmt.Sprint(c.Trigger.For)}
	if c.Well > 0 {
		row[1] += " of a part"
	}
	share := func(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }
	if c.Without == sim.Never {
		return append(row, "–", "more than 120 s", "–", share(c.GoodWithout), "not due to retries")
	}
	if c.Idle {
		return append(row, "–", "–", "–", share(c.GoodWithout), "no effect")
	}
	verdict := map[sim.Verdict]string{sim.Borderline: "borderline", sim.Fails: "FAILS"}[c.Verdict]
	return append(row, after(c.Recovery, c.Watched), after(c.Without, 0), share(c.Good), share(c.GoodWithout), verdict)
}

func after(d, watched time.Duration) string {
	if d == sim.Never {
		return fmt.Sprintf("more than %.0f s", watched.Seconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
