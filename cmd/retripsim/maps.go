// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/retrip/retrip/sim"
)

// heatMap varies the size of the fleet and the load.
func heatMap(f *flags) func(context.Context, func(float64)) (*report, error) {
	s := sim.Overload()
	clients := []int{10, 30, 100, 300, 1000, 3000, 10_000}
	loads := []float64{0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}
	f.scenario(&s)
	f.Var(ints(&clients), f.field("fleets", "Fleet.Clients"), "`numbers` of clients of the fleet")
	f.Var(floats(&loads), "loads", "loads, as `shares` of the capacity")
	f.choice("retrip")
	f.repeats(1)
	f.replaces("loads", "load", "rate")
	f.replaces("fleets", "clients")
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		g, err := f.grid(&s, loads)
		if err != nil {
			return nil, err
		}
		g.columns = clientsAxis(clients)
		cells, err := g.run(ctx, s, progress)
		r := g.report("seconds from the end of the trigger until the backend has recovered, by load and clients", cells)
		if r == nil {
			return nil, err
		}
		r.notes = append(r.notes, neverNote(s, s.Trigger.For))
		r.draw = g.draws(s, cells, fmt.Sprintf("%s of %s; the capacity is %s requests/s; k: thousand.",
			capital(cause(s.Trigger)), seconds(s.Trigger.For), tickText(s.LoadOf(1).Arrivals.Rate)))
		return r, err
	}
}

// grid returns a grid of the chosen policies by load.
func (f *flags) grid(s *sim.Scenario, loads []float64) (*grid, error) {
	if err := f.settle(s); err != nil {
		return nil, err
	}
	policies, err := f.load(s.Policy.Retry)
	if err != nil {
		return nil, err
	}
	a, err := loadAxis(*s, loads)
	if err != nil {
		return nil, err
	}
	return &grid{policies: policies, rows: []axis{a}, runs: f.runs}, nil
}

// triggers varies the length of the trigger and the requests per second of each
// client.
func triggers(f *flags) func(context.Context, func(float64)) (*report, error) {
	s := sim.Overload()
	s.Horizon = 300 * time.Second
	lengths := []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, 60 * time.Second}
	rates := []float64{7, 2.3, 0.7, 0.23, 0.07}
	loads := []float64{0.7, 0.8, 0.9}
	f.scenario(&s)
	f.Var(durations(&lengths), f.field("lengths", "Trigger.For"), "lengths of the trigger: `durations`")
	f.Var(floats(&rates), f.field("per-client", "Fleet.Clients"), "`numbers` of requests per second and client")
	f.Var(floats(&loads), "loads", "loads, as `shares` of the capacity")
	f.choice("retrip")
	f.repeats(3)
	f.replaces("loads", "load", "rate")
	f.replaces("lengths", "trigger-for")
	f.replaces("per-client", "clients")
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		g, err := f.grid(&s, loads)
		if err != nil {
			return nil, err
		}
		perClient, err := perClientAxis(rates)
		if err != nil {
			return nil, err
		}
		for _, d := range lengths {
			if d <= 0 {
				return nil, fmt.Errorf("-lengths is %v: each must be positive", d)
			}
		}
		g.rows = append(g.rows, perClient)
		g.columns = durationsAxis("trigger", lengths, func(s *sim.Scenario, d time.Duration) { s.Trigger.For = d })
		g.compared = true
		cells, err := g.run(ctx, s, progress)
		r := g.report("seconds from the end of the trigger until the backend has recovered, by its length (in brackets: without retries)", cells)
		if r == nil {
			return nil, err
		}
		r.notes = append(r.notes, neverNote(s, slices.Max(lengths)))
		longest := s
		longest.Trigger.For = slices.Max(lengths)
		r.draw = g.draws(longest, cells, fmt.Sprintf("The capacity is %s requests/s; without retries: over all lengths.", tickText(s.LoadOf(1).Arrivals.Rate)))
		for _, p := range g.policies {
			s.Policy, s.Fleet.Clients = p, 1
			s.Arrivals.Rate = 1
			if d, e := s.PurseTime(); e == nil && d > 0 {
				r.notes = append(r.notes, fmt.Sprintf("%s: when everything fails, the budget of a client stops its retries within %.2f of its own requests", p.Name, d.Seconds()))
			}
		}
		return r, err
	}
}

// queues varies the time requests wait in the backend's queue, or the time
// clients wait for an answer.
func queues(f *flags) func(context.Context, func(float64)) (*report, error) {
	s := sim.Overload()
	lengths := []int{100, 200, 250, 300, 350, 400, 500, 1000}
	var timeouts []time.Duration
	loads := []float64{0.5, 0.6, 0.7, 0.8, 0.9, 0.95}
	f.scenario(&s)
	f.Var(ints(&lengths), f.field("queues", "Backend.Queue"), "`numbers` of requests that wait for a worker")
	f.Var(durations(&timeouts), f.field("timeouts", "Fleet.Timeout"), "timeouts of an attempt: `durations`, varied instead of the queue")
	f.Var(floats(&loads), "loads", "loads, as `shares` of the capacity")
	f.choice("no-retries,no-budget,retrip")
	f.repeats(3)
	f.replaces("loads", "load", "rate")
	f.excludes("queues", "queue", "timeouts")
	f.excludes("timeouts", "timeout", "attempt-timeout")
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		g, err := f.grid(&s, loads)
		if err != nil {
			return nil, err
		}
		title, note := "by queue: the time in it", fmt.Sprintf("clients wait %v for an attempt, unless their policy says otherwise", s.Fleet.Timeout)
		if timeouts == nil {
			if f.given("queue") {
				return nil, errors.New("-queue: use -queues, or -timeouts with it")
			}
			g.columns = queuesAxis(s, lengths)
		} else {
			title = "by how long clients wait for an attempt"
			note = fmt.Sprintf("a full queue, of %d, takes %v", s.Backend.Queue, round(queueWait(s)))
			g.columns = durationsAxis("timeout", timeouts, func(s *sim.Scenario, d time.Duration) { s.Fleet.Timeout = d })
		}
		cells, err := g.run(ctx, s, progress)
		r := g.report("seconds from the end of the trigger until the backend has recovered, "+title, cells)
		if r == nil {
			return nil, err
		}
		r.notes = append(r.notes, note, neverNote(s, s.Trigger.For))
		g.findEdge(s)
		about := fmt.Sprintf("%s of %s. Clients wait %s for an attempt.", capital(cause(s.Trigger)), seconds(s.Trigger.For), seconds(s.Fleet.Timeout))
		if timeouts != nil {
			about = fmt.Sprintf("%s of %s. A full queue takes %s.", capital(cause(s.Trigger)), seconds(s.Trigger.For), seconds(queueWait(s)))
		}
		r.draw = g.draws(s, cells, about)
		return r, err
	}
}

// queueWait returns the time a request spends in a full queue.
func queueWait(s sim.Scenario) time.Duration {
	return time.Duration(newCell(s).QueueWait * float64(time.Second))
}

// findEdge marks the column at which the time in a full queue exceeds the time
// that clients wait.
func (g *grid) findEdge(s sim.Scenario) {
	late := func(i int) bool {
		c := newCell(g.columns.with(s, i))
		return c.QueueWait >= c.Timeout
	}
	for i := 1; i < len(g.columns.labels); i++ {
		if late(i) != late(i-1) {
			g.edge, g.edgeName = i, "right of it clients wait for longer than a full queue takes"
			if late(i) {
				g.edgeName = "right of it a full queue takes as long as clients wait, or longer"
			}
			return
		}
	}
}
