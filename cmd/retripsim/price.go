// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/retrip/retrip/internal/sim"
)

// priced is the result of a case with or without retries, in per cent.
type priced struct {
	Policy string  `json:"policy"`
	Case   string  `json:"case"`
	Remedy string  `json:"remedy"`
	Least  float64 `json:"least"`
	Median float64 `json:"median"`
	Most   float64 `json:"most"`
}

// priceRuns is how many seeds the price takes. In some cases, backends collapse with
// one seed and not with another.
const priceRuns = 15

// blip is the length of a short outage, and inFlight how many requests a connection has.
const (
	blip     = 200 * time.Millisecond
	inFlight = 200
)

// priceOf measures what a policy costs clients that send perClient requests per
// second each, and what happens without retries: in cases in which retries,
// or a budget, cost or save much, two results each.
func priceOf(ctx context.Context, p sim.Policy, perClient float64, seed uint64) ([]priced, error) {
	clients := func(rate float64) int { return min(100_000, max(1, int(rate/perClient+0.5))) }
	steady, refuse := tenBackends(0.9, perClient), tenBackends(0.7, perClient)
	refuse.Backend.Dead = 3
	outage := sim.Overload()
	outage.Fleet.Clients, outage.Trigger, outage.Horizon = clients(700), sim.Trigger{At: 10 * time.Second, For: blip, FailureRate: 1}, 30*time.Second
	dead, lost := sim.Faults(0.1), sim.Faults(0)
	dead.Fleet.Clients, dead.Backend.BrokenShare, dead.Horizon = clients(dead.Arrivals.Rate), 0.2, 30*time.Second
	lost.Fleet.Clients, lost.Arrivals.Rate, lost.Backend.Service, lost.Backend.Fixed = 1, inFlight/0.05, 50*time.Millisecond, true
	lost.Trigger, lost.Horizon = sim.Trigger{At: time.Second, For: time.Millisecond, Loses: true}, 4*time.Second
	success := func(r *sim.Result) float64 { return 100 * r.SuccessRate() }
	inOutage := func(r *sim.Result) float64 { return 100 * r.Goodput * blip.Seconds() / float64(r.TriggerRequests) }
	cases := []struct {
		name string
		s    sim.Scenario
		of   func(*sim.Result) float64
	}{
		{fmt.Sprintf("90 %% load on ten backends, %d clients: success", steady.Fleet.Clients), steady, success},
		{fmt.Sprintf("70 %% load on ten backends, 3 of them refuse, %d clients: success", refuse.Fleet.Clients), refuse, success},
		{fmt.Sprintf("outage of %v, %.4g requests/s per client: requests saved", blip, outage.Arrivals.Rate/float64(outage.Fleet.Clients)), outage, inOutage},
		{fmt.Sprintf("10 %% fail at random and a fifth of the requests go to a dead route, %d clients: success of the others", dead.Fleet.Clients), dead,
			func(r *sim.Result) float64 { return 100 * r.AliveRate() }},
		{fmt.Sprintf("a connection with %d requests in flight breaks: requests saved", inFlight), lost, saved},
	}
	none, err := sim.Preset("no-retries", p.Retry)
	if err != nil {
		return nil, err
	}
	var all []sim.Scenario
	for _, c := range cases {
		for _, policy := range []sim.Policy{none, p} {
			c.s.Policy, c.s.Seed = policy, seed
			all = append(all, c.s.Seeds(priceRuns)...)
		}
	}
	results, err := sim.RunAll(ctx, all, nil)
	if err != nil {
		return nil, err
	}
	var found []priced
	for group := range slices.Chunk(results, priceRuns) {
		c := cases[len(found)/2]
		values := make([]float64, len(group))
		for i, r := range group {
			values[i] = c.of(r)
		}
		slices.Sort(values)
		remedy := [...]string{"without retries", "as it is"}[len(found)%2]
		found = append(found, priced{p.Name, c.name, remedy, values[0], values[len(values)/2], values[len(values)-1]})
	}
	return found, nil
}

// tenBackends returns a fleet before ten backends at a steady load.
func tenBackends(load, perClient float64) sim.Scenario {
	s := sim.TenBackends(min(100_000, max(1, int(1000*load/perClient+0.5)))).LoadOf(load)
	s.Horizon = 150 * time.Second
	return s
}

// freeLoad returns the highest of some steady loads of ten backends at which the retries
// of p cost nothing; 0 for none of these.
func freeLoad(ctx context.Context, p sim.Policy, perClient float64, seed uint64) (float64, error) {
	none, err := sim.Preset("no-retries", p.Retry)
	if err != nil {
		return 0, err
	}
	for _, load := range []float64{0.85, 0.8, 0.75, 0.7, 0.6, 0.5} {
		const runs, free = 3, 0.001 // of the requests
		with := tenBackends(load, perClient)
		with.Seed, with.Policy = seed, p
		without := with
		without.Policy = none
		results, err := sim.RunAll(ctx, append(with.Seeds(runs), without.Seeds(runs)...), nil)
		if err != nil {
			return 0, err
		}
		costs := false
		for i := range runs {
			costs = costs || results[i].SuccessRate() < results[runs+i].SuccessRate()-free
		}
		if !costs {
			return load, nil
		}
	}
	return 0, nil
}

// steadyAdvice says what to do about what the retries of a policy cost at a steady load of
// 90 %, if they cost anything. free is what freeLoad returns.
func steadyAdvice(found []priced, free float64) string {
	below := "they cost something at half of that load, too: set a longer AttemptTimeout"
	switch {
	case !costly(found):
		return ""
	case free > 0:
		below = fmt.Sprintf("at %.0f %% load they cost nothing: stay below it", 100*free)
	}
	return fmt.Sprintf(" (%s, or let the servers shed retries, see docs/shed.md; the fleet's account doesn't help here)", below)
}

// costly reports whether retries cost something at a steady load of 90 %.
func costly(found []priced) bool { return found[1].Median < found[0].Median-0.1 }

// text is the median, or the range if the outcome depends on the seed.
func (p *priced) text() string {
	if p.Most-p.Least > bistable {
		return fmt.Sprintf("%.0f–%.0f %%", p.Least, p.Most)
	}
	return fmt.Sprintf("%.1f %%", p.Median)
}

func priceSentence(found []priced, perClient, free float64) string {
	return fmt.Sprintf("what %s costs clients with %.3g requests/s each: at a steady 90 %% load on ten backends chosen at random %s of the requests succeed, without retries %s%s; "+
		"if 3 of the ten refuse everything at 70 %% load %s, without %s; of the requests in an outage of %v, retries save %s, and of %d on a connection that breaks %s; beside a dead route, %s of the requests to others succeed if one in ten fails at random, without %s",
		found[0].Policy, perClient, found[1].text(), found[0].text(), steadyAdvice(found, free), found[3].text(), found[2].text(), blip, found[5].text(), inFlight, found[9].text(), found[7].text(), found[6].text())
}

// hedgeCost is what hedges cost where nothing but the queue makes requests late.
type hedgeCost struct {
	Load    float64 `json:"load"`
	Share   float64 `json:"hedges_per_request"`
	P99     float64 `json:"p99_seconds"`
	Without float64 `json:"p99_seconds_without_hedges"`
}

// hedgesOf measures the hedges of the policy of s at a steady load.
func hedgesOf(ctx context.Context, s sim.Scenario, load float64) (*hedgeCost, error) {
	const runs = 3
	s = s.LoadOf(load)
	s.Trigger, s.WarmUp, s.Horizon = sim.Trigger{}, 30*time.Second, time.Minute
	without := s
	without.Policy.Retry.Hedge = 0
	results, err := sim.RunAll(ctx, append(s.Seeds(runs), without.Seeds(runs)...), nil)
	if err != nil {
		return nil, err
	}
	p99 := func(r *sim.Result) float64 { return r.P99.Seconds() }
	return &hedgeCost{load, hedgeExtra.in(&s, results[:runs]) / 100, mid(results[:runs], p99), mid(results[runs:], p99)}, nil
}

func (c *hedgeCost) sentence(p sim.Policy, perClient float64) string {
	switch {
	case perClient < hedgeRate:
		return fmt.Sprintf("%s has no hedges here: each client sends %.3g requests/s to the host, fewer than %d", p.Name, perClient, hedgeRate)
	default:
		return fmt.Sprintf("%s sends hedges for %.1f %% of the requests at %v %% load, where only the queue makes requests late: the 99th percentile is %.0f ms, without hedges %.0f ms (retripsim hedge: stalls, slow servers)",
			p.Name, 100*c.Share, percent(c.Load), 1000*c.P99, 1000*c.Without)
	}
}

// hedgeRate is the number of requests per second and host below which a client doesn't
// hedge.
const hedgeRate = 2
