// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/retrip/retrip/sim"
)

// cell is one square of the map.
type cell struct {
	Policy  string
	Clients int
	Load    float64
	Seconds float64 // median time to recover; negative is never
}

func heatMap(f *flags) func(context.Context, func(float64)) (*report, error) {
	s := sim.Overload()
	clients := []int{10, 30, 100, 300, 1000, 3000, 10_000}
	loads := []float64{0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}
	f.scenario(&s)
	f.Var(ints(&clients), f.field("fleets", "Fleet.Clients"), "`numbers` of clients, instead of -clients")
	f.Var(floats(&loads), "loads", "`shares` of the capacity, instead of -load and -rate")
	f.choice("retrip")
	f.repeats(1)
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		policies, err := f.load(s.Policy.Retry)
		if err != nil {
			return nil, err
		}
		for _, load := range loads {
			if !(load > 0 && load <= maxLoad) {
				return nil, fmt.Errorf("-loads is %v: each must be more than 0 and at most %v", load, maxLoad)
			}
		}
		if s.LoadOf(1).Arrivals.Rate == 0 {
			return nil, errors.New("-workers is 0: it must be positive, for a load to mean anything")
		}
		var all []sim.Scenario
		for _, p := range policies {
			for _, load := range loads {
				for _, n := range clients {
					one := s.LoadOf(load)
					one.Policy, one.Fleet.Clients = p, n
					all = append(all, one.Seeds(f.runs)...)
				}
			}
		}
		results, err := sim.RunAll(ctx, all, progress)
		r := &report{title: "seconds from the end of the trouble until the backend has recovered", table: [][]string{{"policy", "load"}}}
		for _, n := range clients {
			r.table[0] = append(r.table[0], strconv.Itoa(n))
		}
		var cells []cell
		maps := make([][][]float64, len(policies))
		for i, p := range policies {
			for j, load := range loads {
				row := []string{p.Name, fmt.Sprintf("%.0f %%", 100*load)}
				var values []float64
				for k, n := range clients {
					at := ((i*len(loads)+j)*len(clients) + k) * f.runs
					group := results[at : at+f.runs]
					if group[len(group)-1] == nil || group[len(group)-1].Partial || group[0] == nil {
						row = append(row, "")
						values = append(values, unknownSeconds)
						continue
					}
					seconds := mid(group, recoverySeconds)
					values = append(values, seconds)
					if seconds >= neverSeconds {
						seconds = -1
					}
					cells = append(cells, cell{p.Name, n, load, seconds})
					row = append(row, recovery(group))
				}
				r.table = append(r.table, row)
				maps[i] = append(maps[i], values)
			}
		}
		if len(cells) == 0 {
			return nil, err
		}
		r.json = cells
		r.csv = func(w io.Writer) error {
			out := csv.NewWriter(w)
			out.Write(strings.Split("policy,clients,load,seconds", ","))
			for _, c := range cells {
				out.Write([]string{c.Policy, strconv.Itoa(c.Clients), number(c.Load), number(c.Seconds)})
			}
			out.Flush()
			return out.Error()
		}
		r.notes = append(r.notes, fmt.Sprintf("never: not within the %v that were simulated after the trouble", s.Horizon-s.Trigger.At-s.Trigger.For))
		r.draw = func() (*figure, error) { return mapFigure(policies, clients, loads, maps) }
		return r, err
	}
}

func limit(f *flags) func(context.Context, func(float64)) (*report, error) {
	s := sim.Overload()
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
					if len(answers) == 0 {
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
		r.csv = func(w io.Writer) error {
			out := csv.NewWriter(w)
			out.Write(strings.Split("policy,quantity,largest,unbounded", ","))
			for _, a := range answers {
				out.Write([]string{a.Policy, a.Quantity.String(), number(a.Value), strconv.FormatBool(a.Unbounded)})
			}
			out.Flush()
			return out.Error()
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
