// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package storm

import (
	"fmt"
	"slices"
)

// Measured is the result of lab/cmd/fleet, which retripsim draws: the same load
// by fleets with different rules.
type Measured struct {
	Clients   int
	Processes int
	Rate      float64 // requests per second of all clients together
	Capacity  float64 // requests per second that the server can answer
	From, To  float64 // when the server is slow, in seconds
	Runs      []Run
}

// Run is one load. All series are per second.
type Run struct {
	Rule       string
	Recovery   int     // seconds, or Never
	Requests   []int64 // by the second of their arrival
	Answered   []int64 // of those requests, how many got a 200 in the end
	Attempts   []int64 // attempts that arrived at the server
	Retries    []int64 // of those attempts, how many were retries
	Operations []int64 // operations of the store
}

// TableHead is the header of a table of runs.
var TableHead = []string{"policy", "recovery", "answered during", "attempts/s: before", "worst second", "10 s after",
	"store operations/s: before", "worst second", "10 s after"}

// Row is a row of a table of runs.
func (m *Measured) Row(r Run) []string {
	from, to := int(m.From), int(m.To)
	after := min(to+10, len(r.Attempts))
	row := []string{r.Rule, m.Recovered(r), fmt.Sprintf("%.0f %%", 100*mean(r.Answered[from:to])/mean(r.Requests[from:to]))}
	for _, series := range [][]int64{r.Attempts, r.Operations} {
		row = append(row, fmt.Sprintf("%.0f", mean(series[:from])), fmt.Sprint(slices.Max(series)), fmt.Sprintf("%.0f", mean(series[to:after])))
	}
	return row
}

// Recovered says when the server recovered, or that it didn't within the
// observed time.
func (m *Measured) Recovered(r Run) string {
	if r.Recovery == Never {
		return fmt.Sprintf("> %.0f s", float64(len(r.Requests))-m.To-3)
	}
	return fmt.Sprintf("%d s", r.Recovery)
}

func mean(series []int64) float64 {
	sum := 0.0
	for _, n := range series {
		sum += float64(n)
	}
	return sum / float64(len(series))
}
