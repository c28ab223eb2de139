// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/retrip/retrip/sim"
)

// sizes varies the size of the budget, the length of the trigger and the fleet.
func sizes(f *flags) func(context.Context, func(float64)) (*report, error) {
	s := sim.Overload()
	s.Horizon = 240 * time.Second
	tokens := []float64{5, 10, 20, 50, 500}
	clients := []int{1, 10, 100, 1000, 3000, 10_000}
	lengths := []time.Duration{time.Second, 10 * time.Second}
	f.scenario(&s)
	f.Var(floats(&tokens), f.field("sizes", "Budget"), "`numbers` of tokens of the budget")
	f.Var(ints(&clients), f.field("fleets", "Fleet.Clients"), "`numbers` of clients of the fleet")
	f.Var(durations(&lengths), f.field("lengths", "Trigger.For"), "lengths of the trigger: `durations`")
	f.repeats(5)
	f.noPicture = true
	f.replaces("fleets", "clients")
	f.replaces("lengths", "trigger-for")
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		if err := f.settle(&s); err != nil {
			return nil, err
		}
		g := &grid{runs: f.runs, columns: clientsAxis(clients)}
		g.rows = []axis{durationsAxis("trigger", lengths, func(s *sim.Scenario, d time.Duration) { s.Trigger.For = d })}
		for _, size := range tokens {
			p := sim.Policy{Name: fmt.Sprintf("retrip, Size %v", size), Retry: s.Policy.Retry}
			p.Retry.Budget = size
			g.policies = append(g.policies, p)
		}
		cells, err := g.run(ctx, s, progress)
		return g.report("seconds from the end of the trigger until the backend has recovered, by the size of the budget, length and clients", cells), err
	}
}
