// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"time"

	"github.com/retrip/retrip/sim"
)

// accounts varies the size of the fleet's account and the requests per second
// that it serves. A backend's capacity, queue and clients are in proportion to
// the requests.
func accounts(f *flags) func(context.Context, func(float64)) (*report, error) {
	rates, tokens := []float64{70, 700, 7000}, []float64{20, 50, 100, 200, 500, 1000, 2000}
	seed := uint64(1)
	f.Var(floats(&rates), "rates", "`numbers` of requests per second of all clients")
	f.Var(floats(&tokens), f.field("sizes", "Store.Size"), "`numbers` of tokens of the account")
	f.Uint64Var(&seed, "seed", seed, "seed of the random numbers")
	f.repeats(3)
	f.noPicture = true
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		t := &accountTable{runs: f.runs, seed: seed}
		for _, rate := range rates {
			for _, policy := range []string{"no-retries", "retrip", "account"} {
				sizes := tokens
				if policy != "account" {
					sizes = []float64{0}
				}
				for _, size := range sizes {
					if err := t.add(policy, rate, size); err != nil {
						return nil, err
					}
				}
			}
		}
		results, err := sim.RunAll(ctx, t.scenarios, progress)
		if err != nil {
			return nil, err
		}
		return t.report(results), nil
	}
}

// accountFailures are shares of attempts that fail whatever the load: at once,
// and by a timeout.
var accountFailures = []float64{0.2, 0.3, 0.34}

type accountTable struct {
	runs      int
	seed      uint64
	scenarios []sim.Scenario
	rows      []accountRow
}

type accountRow struct {
	policy     string
	rate, size float64
}

// add adds the scenarios of a row: 36 overloads, one Retry-After, and failures
// whatever the load.
func (t *accountTable) add(policy string, rate, size float64) error {
	p, err := sim.Preset(policy, sim.Overload().Policy.Retry)
	if err != nil {
		return err
	}
	t.rows = append(t.rows, accountRow{policy, rate, size})
	add := func(clients float64, change func(*sim.Scenario)) {
		s := sim.Overload()
		scale := rate / s.Arrivals.Rate
		s.Policy, s.Store.Size, s.Seed = p, size, t.seed
		s.Arrivals.Rate, s.Fleet.Clients = rate, max(1, int(clients*scale))
		s.Backend.Workers = max(1, int(float64(s.Backend.Workers)*scale))
		s.Horizon = 90 * time.Second
		change(&s)
		s.Backend.Queue = int(float64(s.Backend.Queue) * scale)
		t.scenarios = append(t.scenarios, s.Seeds(t.runs)...)
	}
	for _, slowdown := range []float64{1 / 0.303, 100} {
		for _, timeout := range []time.Duration{300 * time.Millisecond, time.Second, 2 * time.Second} {
			for _, length := range []time.Duration{time.Second, 3 * time.Second, 10 * time.Second} {
				for _, clients := range []float64{1000, 10_000} {
					add(clients, func(s *sim.Scenario) {
						s.Trigger.Slowdown, s.Trigger.For, s.Fleet.Timeout, s.Backend.Queue = slowdown, length, timeout, 10_000
					})
				}
			}
		}
	}
	for _, clients := range []float64{3000, 10_000} {
		add(clients, func(s *sim.Scenario) {
			s.Trigger.Slowdown, s.Trigger.FailureRate, s.Trigger.RetryAfter, s.Horizon = 0, 1, 10*time.Second, 100*time.Second
		})
	}
	for _, silent := range []bool{false, true} {
		for _, share := range accountFailures {
			add(10_000, func(s *sim.Scenario) {
				s.Trigger, s.Backend.Workers, s.Backend.FailureRate, s.Backend.Silent = sim.Trigger{}, 0, share, silent
			})
		}
	}
	return nil
}

func (t *accountTable) report(results []*sim.Result) *report {
	r := &report{
		title: "the size of the fleet's account, by the requests per second of all clients",
		table: [][]string{{"policy", "requests/s", "recovery: mean", "worst", "Retry-After", "20 % fail", "30 %", "34 %", "20 % time out", "30 %", "34 %"}},
		notes: []string{"recovery: seconds after 36 overloads beyond those without retries: brownouts to 30 % and to 1 % of the capacity for 1, 3 and 10 s, timeouts of 0.3, 1 and 2 s, 1.4 and 14 clients per request/s, a queue of 10 s, at 70 % load",
			"Retry-After: requests that succeed in 100 s of which 10 s have only 503s with Retry-After: 10; fail, time out: requests that succeed if such a share of attempts fails at once, or without an answer"},
		json: results,
	}
	const overloads, after = 36, 2
	width := len(results) / len(t.rows)
	var without []*sim.Result
	for i, row := range t.rows {
		mine := results[i*width : (i+1)*width]
		if row.policy == "no-retries" {
			without = mine
		}
		line := []string{row.policy, fmt.Sprint(row.rate)}
		if row.size > 0 {
			line[0] = fmt.Sprintf("%s, %v tokens", row.policy, row.size)
		}
		sum, worst := 0.0, 0.0
		for i, r := range mine[:overloads*t.runs] {
			beyond := 90.0
			if r.Recovery != sim.Never {
				beyond = recoverySeconds(r) - recoverySeconds(without[i])
			}
			sum, worst = sum+beyond, max(worst, beyond)
		}
		line = append(line, fmt.Sprintf("%.1f s", sum/float64(overloads*t.runs)), fmt.Sprintf("%.0f s", worst))
		share := func(from, n int) string {
			var good, all int64
			for _, r := range mine[from*t.runs : (from+n)*t.runs] {
				good, all = good+r.Succeeded, all+r.Requests
			}
			return fmt.Sprintf("%.1f %%", 100*float64(good)/float64(all))
		}
		line = append(line, share(overloads, after))
		for k := range 2 * len(accountFailures) {
			line = append(line, share(overloads+after+k, 1))
		}
		r.table = append(r.table, line)
	}
	r.csv = func(w io.Writer) error { return csv.NewWriter(w).WriteAll(r.table) }
	return r
}
