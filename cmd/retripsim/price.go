// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/sim"
)

// priceCase is a case in which retries, or a budget, cost much.
type priceCase struct {
	name     string
	scenario sim.Scenario
	measure  budgetMeasure
}

// priceRuns is how many seeds the price takes. In some cases, backends collapse with
// one seed and not with another.
const priceRuns = 15

// steadyLoad is a fleet before ten backends chosen at random, at 90 % load.
func steadyLoad(clients int) priceCase {
	s := tenBackends(clients).LoadOf(0.9)
	s.Horizon = 150 * time.Second
	return priceCase{fmt.Sprintf("90 %% load on ten backends, %d clients: success", clients), s, succeeds}
}

// threeRefuse is a fleet before ten backends of which three refuse everything.
func threeRefuse(clients int) priceCase {
	s := tenBackends(clients)
	s.Backend.Dead, s.Horizon = 3, 150*time.Second
	return priceCase{fmt.Sprintf("70 %% load on ten backends, 3 of them refuse, %d clients: success", clients), s.LoadOf(0.7), succeeds}
}

// shortOutage is a total outage of 200 ms for clients that send 700 requests per
// second in all.
func shortOutage(clients int) priceCase {
	s := sim.Overload()
	s.Fleet.Clients, s.Trigger, s.Horizon = clients, sim.Trigger{At: 10 * time.Second, For: blip, FailureRate: 1}, 30*time.Second
	return priceCase{fmt.Sprintf("outage of %v, %.4g requests/s per client: requests saved", blip, s.Arrivals.Rate/float64(clients)), s, saved}
}

// clientsOf returns the size of a fleet whose clients send perClient requests per
// second each, and rate in all.
func clientsOf(rate, perClient float64) int {
	return min(100_000, max(1, int(rate/perClient+0.5)))
}

// remedy is a change that may lower the price.
type remedy struct {
	name   string
	change func(*sim.Scenario) error // of a scenario with the policy in question
	budget bool                      // only for a policy with a budget
}

// accountSize is the default of Policy.FleetBudget.
const accountSize = 175

// moreTokens is a budget that outlasts a short outage.
const moreTokens = 200

var remedies = []remedy{
	{"without retries", func(s *sim.Scenario) error { return preset(s, "no-retries") }, false},
	{"as it is", func(*sim.Scenario) error { return nil }, false},
	{"with the fleet's account", func(s *sim.Scenario) error {
		s.Store.Size = cmp.Or(max(0, s.Policy.Retry.FleetBudget), accountSize)
		return preset(s, "account")
	}, true},
	{"servers shed retries", func(s *sim.Scenario) error {
		s.Backend.ShedRetries, s.Backend.NoRetry = max(1, s.Backend.Queue/5), true
		return nil
	}, false},
	{fmt.Sprintf("Size %d", moreTokens), func(s *sim.Scenario) error {
		s.Policy.Retry.Budget = moreTokens
		return nil
	}, true},
}

// preset replaces the policy of s by a preset with the same settings.
func preset(s *sim.Scenario, name string) error {
	p, err := sim.Preset(name, s.Policy.Retry)
	s.Policy = p
	return err
}

// priced is the result of a case with one remedy, in per cent.
type priced struct {
	Policy string  `json:"policy"`
	Case   string  `json:"case"`
	Remedy string  `json:"remedy"`
	Least  float64 `json:"least"`
	Median float64 `json:"median"`
	Most   float64 `json:"most"`
}

func newPriced(policy string, c priceCase, remedy string, group []*sim.Result) priced {
	values := make([]float64, len(group))
	for i, r := range group {
		values[i] = c.measure.of(r)
	}
	slices.Sort(values)
	return priced{Policy: policy, Case: c.name, Remedy: remedy, Least: values[0], Median: values[len(values)/2], Most: values[len(values)-1]}
}

// text is the median, or the range if the outcome depends on the seed.
func (p *priced) text() string {
	if p.Most-p.Least > bistable {
		return fmt.Sprintf("%.0f–%.0f %%", p.Least, p.Most)
	}
	return fmt.Sprintf("%.1f %%", p.Median)
}

// pricesOf measures a policy in each case with each remedy, in this order; without
// a remedy that the policy can't have.
func pricesOf(ctx context.Context, p sim.Policy, cases []priceCase, list []remedy, runs int, seed uint64, progress func(float64)) ([]priced, error) {
	var all []sim.Scenario
	var found []priced
	for _, c := range cases {
		for _, r := range list {
			if r.budget && !p.HasBudget() {
				continue
			}
			s := c.scenario
			s.Policy, s.Seed = p, seed
			if err := r.change(&s); err != nil {
				return nil, err
			}
			all = append(all, s.Seeds(runs)...)
			found = append(found, priced{Case: c.name, Remedy: r.name})
		}
	}
	results, err := sim.RunAll(ctx, all, progress)
	if err != nil {
		return nil, err
	}
	for i := range found {
		k := slices.IndexFunc(cases, func(c priceCase) bool { return c.name == found[i].Case })
		found[i] = newPriced(p.Name, cases[k], found[i].Remedy, results[i*runs:(i+1)*runs])
	}
	return found, nil
}

// price shows the cases in which retries or a budget cost most, and what helps.
func price(f *flags) func(context.Context, func(float64)) (*report, error) {
	seed := uint64(1)
	f.Uint64Var(&seed, "seed", seed, "seed of the random numbers")
	f.choice("retrip")
	f.repeats(priceRuns)
	f.noPicture = true
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		policies, err := f.load(retrip.Policy{})
		if err != nil {
			return nil, err
		}
		cases := []priceCase{steadyLoad(3000), steadyLoad(10_000), threeRefuse(10_000), shortOutage(1)}
		r := &report{
			title: "where retries or their budget cost most, and what helps",
			table: [][]string{{"policy", "case"}},
			notes: []string{fmt.Sprintf("the median of %d runs, or the range where the outcome depends on the seed; as it is: each client with its own budget; shed: refuse retries while the queue is a fifth full, as package shed does; Size: Budget", f.runs)},
		}
		for _, x := range remedies {
			r.table[0] = append(r.table[0], x.name)
		}
		var all []priced
		for i, p := range policies {
			found, err := pricesOf(ctx, p, cases, remedies, f.runs, seed, func(done float64) { progress((float64(i) + done) / float64(len(policies))) })
			if err != nil {
				if len(all) == 0 {
					return nil, err
				}
				return r, err
			}
			all = append(all, found...)
			r.json = all
			for _, c := range cases {
				row := []string{p.Name, c.name}
				for _, x := range remedies {
					text := "–"
					if k := slices.IndexFunc(found, func(f priced) bool { return f.Case == c.name && f.Remedy == x.name }); k >= 0 {
						text = found[k].text()
					}
					row = append(row, text)
				}
				r.table = append(r.table, row)
			}
		}
		r.csv = func(w io.Writer) error {
			out := csv.NewWriter(w)
			out.Write(strings.Split("policy,case,remedy,least,median,most", ","))
			for _, p := range all {
				out.Write([]string{p.Policy, p.Case, p.Remedy, number(p.Least), number(p.Median), number(p.Most)})
			}
			out.Flush()
			return out.Error()
		}
		return r, nil
	}
}
