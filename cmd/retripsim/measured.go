// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	real "github.com/retrip/retrip/internal/storm"
)

// drawn reports what lab/cmd/fleet has measured. It is the only command that
// simulates nothing.
func drawn(f *flags) func(context.Context, func(float64)) (*report, error) {
	in := ""
	f.StringVar(&in, "in", "", "`file` written by lab/cmd/fleet")
	return func(context.Context, func(float64)) (*report, error) {
		if in == "" {
			return nil, errors.New("-in is missing: it must be a file written by lab/cmd/fleet")
		}
		data, err := os.ReadFile(in)
		if err != nil {
			return nil, fmt.Errorf("-in: %w", err)
		}
		var m real.Measured
		if err := json.Unmarshal(data, &m); err != nil {
			return nil, fmt.Errorf("-in: %s: %w", in, err)
		}
		if err := complete(m); err != nil {
			return nil, fmt.Errorf("-in: %s: %w", in, err)
		}
		return measuredReport(m), nil
	}
}

// complete returns an error if m can't be shown.
func complete(m real.Measured) error {
	if len(m.Runs) == 0 {
		return errors.New("it has no runs")
	}
	for _, r := range m.Runs {
		for _, series := range [][]int64{r.Requests, r.Answered, r.Attempts, r.Retries, r.Operations} {
			if len(series) != len(m.Runs[0].Requests) || float64(len(series)) <= m.To || !(m.From >= 1 && m.From < m.To) {
				return fmt.Errorf("the run %q isn't as long as it must be", r.Rule)
			}
		}
	}
	return nil
}

func measuredReport(m real.Measured) *report {
	r := &report{
		title: fmt.Sprintf("%d clients in %d processes make %s requests/s to a server that can do %s; brownout from %s to %s s",
			m.Clients, m.Processes, number(m.Rate), number(m.Capacity), number(m.From), number(m.To)),
		table: [][]string{real.TableHead},
		json:  m.Runs,
		unit:  "attempts/s",
	}
	var requests []line
	for _, run := range m.Runs {
		r.table = append(r.table, m.Row(run))
		attempts, arrived := line{name: run.Rule}, line{name: run.Rule}
		for i := range run.Attempts {
			attempts.add(float64(i), float64(run.Attempts[i]))
			arrived.add(float64(i), float64(run.Requests[i]))
		}
		r.lines, requests = append(r.lines, attempts), append(requests, arrived)
	}
	r.csv = linesCSV("seconds", r.lines, requests, "attempts", "requests")
	r.draw = func(t *theme) (*figure, error) { return measuredFigure(t, m, r.lines) }
	return r
}

// measuredFigure shows the attempts that arrived at the server.
func measuredFigure(t *theme, m real.Measured, lines []line) (*figure, error) {
	what := multiples{lines: lines, cause: "brownout", during: [2]float64{m.From, m.To}, limit: m.Capacity, limitKey: "capacity before and after"}
	var found []string
	for _, run := range m.Runs {
		found = append(found, fmt.Sprintf("%s (%s)", m.Recovered(run), run.Rule))
		note := "recovers in " + m.Recovered(run)
		if run.Recovery == real.Never {
			note = "doesn't recover while it is measured"
		}
		what.notes = append(what.notes, note)
	}
	f := &figure{
		title: fmt.Sprintf("Measured with %s clients in %d processes: recovery takes %s", count(int64(m.Clients)), m.Processes, and(found)),
		unit:  "Attempts per second at the server, by seconds", theme: t,
		about: fmt.Sprintf("%s requests/s, %.0f %% of the capacity; during the brownout the server can do less than half of them. Recovery: until 95 %% of the arriving requests are answered. Real processes, sockets and clocks on one machine, with a real redis-server.",
			tickText(m.Rate), 100*m.Rate/m.Capacity),
	}
	return f, f.multiples(what)
}
