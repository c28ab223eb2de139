// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip/sim"
)

func limit(f *flags) func(context.Context, func(float64)) (*report, error) {
	s := sim.Overload()
	f.noPicture = true
	f.scenario(&s)
	f.choice("retrip")
	f.first = strings.Fields("policy host clients rate load service workers queue")
	lengths := []time.Duration{time.Second, 10 * time.Second, time.Minute}
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		if err := f.settle(&s); err != nil {
			return nil, err
		}
		if f.given("trigger-for") {
			lengths = []time.Duration{s.Trigger.For}
		}
		policies, err := f.load(s.Policy.Retry)
		if err != nil {
			return nil, err
		}
		r := &report{
			title: fmt.Sprintf("the largest that recovers at most 5 s later than without retries, after a brownout of %s, everything else being as it is (%d clients, %.0f %% load)",
				list(lengths), s.Fleet.Clients, 100*s.Load()),
			table: [][]string{{"policy", "clients", "load", "budget size", "attempts"}},
		}
		type answer struct {
			Policy string
			sim.Limit
		}
		var answers []answer
		r.csv = func(w io.Writer) error {
			out := csv.NewWriter(w)
			out.Write(strings.Split("policy,quantity,largest,unbounded", ","))
			for _, a := range answers {
				out.Write([]string{a.Policy, a.Quantity.String(), number(a.Value), strconv.FormatBool(a.Unbounded)})
			}
			out.Flush()
			return out.Error()
		}
		r.json = []answer{}
		quantities := []sim.Quantity{sim.OfClients, sim.OfLoad, sim.OfBudgetSize, sim.OfMaxAttempts}
		for i, p := range policies {
			s.Policy = p
			row := []string{p.Name}
			for j, q := range quantities {
				if q == sim.OfBudgetSize && !p.HasBudget() {
					row = append(row, "no budget")
					continue
				}
				part := float64(i*len(quantities) + j)
				l, err := largest(ctx, s, q, lengths, func(done float64) { progress((part + done) / float64(len(policies)*len(quantities))) })
				if err != nil {
					if l.Value > 0 {
						row = append(row, "at least "+limitText(l))
					}
					if len(row) == 1 && len(answers) == 0 {
						return nil, err
					}
					r.table = append(r.table, row)
					return r, err
				}
				answers = append(answers, answer{p.Name, l})
				r.json = answers
				row = append(row, limitText(l))
			}
			r.table = append(r.table, row)
		}
		return r, err
	}
}

// largest returns the largest value with which s recovers from triggers of all lengths.
func largest(ctx context.Context, s sim.Scenario, q sim.Quantity, lengths []time.Duration, progress func(float64)) (least sim.Limit, err error) {
	for i, d := range lengths {
		s.Trigger.For = d
		l, err := sim.Largest(ctx, s, q, func(done float64) { progress((float64(i) + done) / float64(len(lengths))) })
		if i == 0 || l.Value < least.Value || err != nil {
			least = l
		}
		if err != nil {
			return least, err
		}
	}
	return least, nil
}

func list(lengths []time.Duration) string {
	var texts []string
	for _, d := range lengths {
		texts = append(texts, number(d.Seconds()))
	}
	return strings.Join(texts, ", ") + " s"
}

func limitText(l sim.Limit) string {
	text := number(l.Value)
	if l.Quantity == sim.OfLoad {
		text = fmt.Sprintf("%.0f %%", 100*l.Value)
	}
	switch {
	case l.Value == 0:
		return "none recovers"
	case l.Unbounded:
		return text + " and more"
	}
	return text
}
