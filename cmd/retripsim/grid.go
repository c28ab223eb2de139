// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip/sim"
)

// axis is a parameter that varies from one row or column of a grid to the next.
type axis struct {
	name   string
	title  string // for a picture with this axis as columns
	labels []string
	with   func(s sim.Scenario, i int) sim.Scenario
}

// cell is one scenario of a grid, with its position and result.
type cell struct {
	Policy    string
	Load      float64 // share of the capacity
	Clients   int
	PerClient float64 // requests per second and client
	Trigger   float64 // length of the trigger in seconds
	QueueWait float64 // seconds in a full queue, after the trigger
	Timeout   float64 // of an attempt, in seconds, where the policy sets none
	Seconds   float64 // median time to recover; negative means never
	Without   float64 // the same without retries; negative means never, NaN not simulated
}

func (c cell) MarshalJSON() ([]byte, error) {
	without := "null"
	if !math.IsNaN(c.Without) {
		without = number(c.Without)
	}
	return fmt.Appendf(nil, `{"Policy":%q,"Load":%s,"Clients":%d,"PerClient":%s,"Trigger":%s,"QueueWait":%s,"Timeout":%s,"Seconds":%s,"Without":%s}`,
		c.Policy, number(c.Load), c.Clients, number(c.PerClient), number(c.Trigger), number(c.QueueWait), number(c.Timeout), number(c.Seconds), without), nil
}

func newCell(s sim.Scenario) cell {
	return cell{
		Policy:    s.Policy.Name,
		Load:      s.Load(),
		Clients:   s.Fleet.Clients,
		PerClient: s.Arrivals.Rate / float64(s.Fleet.Clients),
		Trigger:   s.Trigger.For.Seconds(),
		QueueWait: float64(s.Backend.Queue) / float64(s.Backend.Workers) * s.Backend.Service.Seconds(),
		Timeout:   s.Fleet.Timeout.Seconds(),
		Without:   math.NaN(),
	}
}

// grid is a table of scenarios, one table per policy. The rows are all
// combinations of the row axes; the last axis varies fastest.
type grid struct {
	policies []sim.Policy
	rows     []axis
	columns  axis
	runs     int
	compared bool // also simulate without retries

	// edge is the column before which a picture has a line; 0 means no line.
	edge     int
	edgeName string
}

// run simulates s for every policy, row and column, and returns the cells in
// this order. Cells that are missing because ctx ended are nil.
func (g *grid) run(ctx context.Context, s sim.Scenario, progress func(float64)) ([]*cell, error) {
	asked := g.policies
	if g.compared {
		without, err := sim.Preset("no-retries", s.Policy.Retry)
		if err != nil {
			return nil, err
		}
		asked = append([]sim.Policy{without}, asked...)
	}
	var all []sim.Scenario
	for _, p := range asked {
		s.Policy = p
		g.each(s, func(one sim.Scenario) { all = append(all, one.Seeds(g.runs)...) })
	}
	results, err := sim.RunAll(ctx, all, progress)
	cells := make([]*cell, len(all)/g.runs)
	for i := range cells {
		group := results[i*g.runs : (i+1)*g.runs]
		whole := true
		for _, r := range group {
			whole = whole && r != nil && !r.Partial
		}
		if whole {
			c := newCell(all[i*g.runs])
			if c.Seconds = mid(group, recoverySeconds); c.Seconds >= neverSeconds {
				c.Seconds = -1
			}
			cells[i] = &c
		}
	}
	if g.compared {
		size := len(cells) / len(asked)
		without := cells[:size]
		cells = cells[size:]
		for i, c := range cells {
			if w := without[i%size]; c != nil && w != nil {
				c.Without = w.Seconds
			}
		}
	}
	return cells, err
}

// each calls do with s modified for each position of the grid.
func (g *grid) each(s sim.Scenario, do func(sim.Scenario)) {
	axes := append(append([]axis{}, g.rows...), g.columns)
	var descend func(s sim.Scenario, axes []axis)
	descend = func(s sim.Scenario, axes []axis) {
		if len(axes) == 0 {
			do(s)
			return
		}
		for i := range axes[0].labels {
			descend(axes[0].with(s, i), axes[1:])
		}
	}
	descend(s, axes)
}

// report returns the table of the cells, or nil if there are none.
func (g *grid) report(title string, cells []*cell) *report {
	r := &report{title: title, table: [][]string{{"policy"}}}
	rows := 1
	for _, a := range g.rows {
		r.table[0] = append(r.table[0], a.name)
		rows *= len(a.labels)
	}
	r.table[0] = append(r.table[0], g.columns.labels...)
	var found []cell
	columns := len(g.columns.labels)
	for i, p := range g.policies {
		for j := range rows {
			row := []string{p.Name}
			rest, below := j, rows
			for _, a := range g.rows {
				below /= len(a.labels)
				row = append(row, a.labels[rest/below])
				rest %= below
			}
			for _, c := range cells[(i*rows+j)*columns:][:columns] {
				text := ""
				if c != nil {
					text = c.text()
					found = append(found, *c)
				}
				row = append(row, text)
			}
			r.table = append(r.table, row)
		}
	}
	if len(found) == 0 {
		return nil
	}
	r.json = found
	r.csv = cellsCSV(found)
	return r
}

func (c *cell) text() string {
	text := secondsText(c.Seconds)
	if !math.IsNaN(c.Without) {
		text += " (" + secondsText(c.Without) + ")"
	}
	return text
}

func secondsText(seconds float64) string {
	if seconds < 0 {
		return "never"
	}
	return fmt.Sprintf("%.0f s", seconds)
}

func cellsCSV(cells []cell) func(io.Writer) error {
	return func(w io.Writer) error {
		out := csv.NewWriter(w)
		out.Write(strings.Split("policy,load,clients,per client,trigger,queue wait,timeout,seconds,without", ","))
		for _, c := range cells {
			without := ""
			if !math.IsNaN(c.Without) {
				without = number(c.Without)
			}
			out.Write([]string{c.Policy, number(c.Load), strconv.Itoa(c.Clients), number(c.PerClient), number(c.Trigger),
				number(c.QueueWait), number(c.Timeout), number(c.Seconds), without})
		}
		out.Flush()
		return out.Error()
	}
}

// neverNote defines "never" for a grid in which each trigger leaves as much
// time as the longest.
func neverNote(s sim.Scenario, longest time.Duration) string {
	return fmt.Sprintf("never: not within the %v that were simulated after the trigger", s.Horizon-s.Trigger.At-longest)
}

// loadAxis varies the load, in shares of the capacity.
func loadAxis(s sim.Scenario, loads []float64) (axis, error) {
	for _, load := range loads {
		if !(load > 0 && load <= maxLoad) {
			return axis{}, fmt.Errorf("-loads is %v: each must be more than 0 and at most %v", load, maxLoad)
		}
	}
	if s.LoadOf(1).Arrivals.Rate == 0 {
		return axis{}, errors.New("-workers is 0: it must be positive to define a load")
	}
	a := axis{name: "load", with: func(s sim.Scenario, i int) sim.Scenario { return s.LoadOf(loads[i]) }}
	for _, load := range loads {
		a.labels = append(a.labels, fmt.Sprintf("%v %%", percent(load)))
	}
	return a, nil
}

func clientsAxis(clients []int) axis {
	a := axis{name: "clients", title: "clients", with: func(s sim.Scenario, i int) sim.Scenario {
		s.Fleet.Clients = clients[i]
		return s
	}}
	for _, n := range clients {
		a.labels = append(a.labels, strconv.Itoa(n))
	}
	return a
}

// perClientAxis varies the requests per second of each client by varying the
// size of the fleet.
func perClientAxis(rates []float64) (axis, error) {
	a := axis{name: "requests/s per client", with: func(s sim.Scenario, i int) sim.Scenario {
		s.Fleet.Clients = max(1, int(math.Round(s.Arrivals.Rate/rates[i])))
		return s
	}}
	for _, rate := range rates {
		if !(rate > 0 && rate <= 1e6) {
			return axis{}, fmt.Errorf("-per-client is %v: each must be more than 0 and at most 1000000", rate)
		}
		a.labels = append(a.labels, number(rate))
	}
	return a, nil
}

// durationsAxis varies a duration.
func durationsAxis(name string, list []time.Duration, set func(s *sim.Scenario, d time.Duration)) axis {
	a := axis{name: name, title: name + " in seconds", with: func(s sim.Scenario, i int) sim.Scenario {
		set(&s, list[i])
		return s
	}}
	for _, d := range list {
		a.labels = append(a.labels, d.String())
	}
	return a
}

func queuesAxis(s sim.Scenario, queues []int) axis {
	a := axis{name: "queue", title: "seconds in a full queue", with: func(s sim.Scenario, i int) sim.Scenario {
		s.Backend.Queue = queues[i]
		return s
	}}
	for i, n := range queues {
		wait := time.Duration(newCell(a.with(s, i)).QueueWait * float64(time.Second))
		a.labels = append(a.labels, fmt.Sprintf("%d: %v", n, round(wait)))
	}
	return a
}
