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

	"github.com/retrip/retrip/sim"
)

func limit(f *flags) func(context.Context, func(float64)) (*report, error) {
	s := sim.Overload()
	f.noPicture = true
	f.scenario(&s)
	f.choice("retrip")
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		if err := f.settle(&s); err != nil {
			return nil, err
		}
		policies, err := f.load(s.Policy.Retry)
		if err != nil {
			return nil, err
		}
		r := &report{
			title: fmt.Sprintf("the largest that recovers within %v of the trouble, everything else being as it is (%d clients, %.0f %% load)",
				s.Horizon-s.Trigger.At-s.Trigger.For, s.Fleet.Clients, 100*s.Load()),
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
				l, err := sim.Largest(ctx, s, q, func(done float64) { progress((part + done) / float64(len(policies)*len(quantities))) })
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
