// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip/sim"
)

// sheddingCell is a server of one kind, with the best fixed limit and with the
// limit that shed.Handler finds.
type sheddingCell struct {
	Workers     int
	Service     time.Duration
	Times       string
	Usual       bool // at most 500 workers and 1 to 500 ms, also after a change
	Best        int
	BestGoodput float64
	BestP99     time.Duration
	sim.SheddingResult
}

// shedding compares the limit that shed.Handler finds with the best fixed one.
func shedding(f *flags) func(context.Context, func(float64)) (*report, error) {
	m := sim.Shedding{Seed: 1, Retries: 0.3, WorkersBy: 1, ServiceBy: 1}
	f.Uint64Var(&m.Seed, "seed", m.Seed, "seed of the random numbers")
	f.Float64Var(&m.Load, "load", 2, "requests as a multiple of the server's capacity")
	f.Float64Var(&m.WorkersBy, "workers-by", 1, "factor by which the workers change after 10 s")
	f.Float64Var(&m.ServiceBy, "service-by", 1, "factor by which the time of a request changes after 10 s")
	only := f.Int("workers", 0, "run only servers with this many workers (0: all)")
	f.noPicture = true
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		r := &report{
			title: fmt.Sprintf("%g times the capacity, with any retry policy: the best fixed limit, and the limit that shed.Handler finds", m.Load),
			table: [][]string{{"workers", "service", "times", "best limit", "goodput", "p99 ms", "found", "goodput", "of the best", "p99 ms", "× the best"}},
			notes: []string{"p99: of first attempts, from arrival to answer; measured from the 10th second on, or 10 s after a change"},
		}
		var cells []sheddingCell
		kinds := []sim.Times{sim.ConstantTimes, sim.ExponentialTimes, sim.BimodalTimes}
		sizes := []int{1, 3, 10, 50, 500}
		services := []time.Duration{time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond}
		if *only > 0 {
			sizes = []int{*only}
		}
		all := len(sizes) * len(services) * len(kinds)
		for i := range all {
			m := m
			m.Workers, m.Service, m.Times = sizes[i/len(services)/len(kinds)], services[i/len(kinds)%len(services)], kinds[i%len(kinds)]
			if rate := m.Load * float64(m.Workers) / m.Service.Seconds(); max(rate, rate*m.WorkersBy/m.ServiceBy) > 25_000 {
				continue // takes too long
			}
			m.From = 10 * time.Second
			if m.WorkersBy != 1 || m.ServiceBy != 1 {
				m.At, m.From = m.From, 2*m.From
			}
			// Slow servers need several runs for enough requests.
			workers, service := max(1, math.Round(float64(m.Workers)*m.WorkersBy)), m.Service.Seconds()*m.ServiceBy
			rate := workers / service
			span := min(max(4000/rate, 5), 60)
			if rate*m.Load > 5000 {
				span = 3
			}
			m.Until = m.From + time.Duration(span*float64(time.Second))
			m.Runs = int(min(max(5000/(rate*span), 1), 40))
			cell := sheddingCell{Workers: m.Workers, Service: m.Service, Times: m.Times.String(), Usual: workers <= 500 && service > 0.0009 && service < 0.51}
			best, fixed, err := m.Best(ctx)
			if err != nil {
				return nil, err
			}
			found, err := m.Run(ctx)
			if err != nil {
				return nil, err
			}
			progress(float64(i+1) / float64(all))
			cell.Best, cell.BestGoodput, cell.BestP99, cell.SheddingResult = best, fixed.Goodput, fixed.P99, *found
			cells = append(cells, cell)
			r.table = append(r.table, []string{strconv.Itoa(cell.Workers), cell.Service.String(), cell.Times, strconv.Itoa(best), fmt.Sprintf("%.1f %%", 100*fixed.Goodput), strconv.FormatInt(fixed.P99.Milliseconds(), 10),
				fmt.Sprintf("%.0f", found.MeanLimit), fmt.Sprintf("%.1f %%", 100*found.Goodput), fmt.Sprintf("%.1f %%", 100*found.Goodput/fixed.Goodput), strconv.FormatInt(found.P99.Milliseconds(), 10), fmt.Sprintf("%.1f", float64(found.P99)/float64(fixed.P99))})
		}
		var usual []sheddingCell
		for _, c := range cells {
			if c.Usual {
				usual = append(usual, c)
			}
		}
		r.notes = append(r.notes, marks("servers", cells))
		if len(usual) < len(cells) {
			r.notes = append(r.notes, marks("of them have at most 500 workers and 1 to 500 ms after the change, too", usual))
		}
		r.json = cells
		r.csv = func(w io.Writer) error {
			out := csv.NewWriter(w)
			out.Write(strings.Split("workers,service seconds,times,best limit,best goodput,best p99 seconds,limit,goodput,p99 seconds", ","))
			for _, c := range cells {
				out.Write([]string{strconv.Itoa(c.Workers), number(c.Service.Seconds()), c.Times, strconv.Itoa(c.Best), number(c.BestGoodput), number(c.BestP99.Seconds()),
					number(c.MeanLimit), number(c.Goodput), number(c.P99.Seconds())})
			}
			out.Flush()
			return out.Error()
		}
		return r, nil
	}
}

// marks counts how many servers do nearly as well as with the best fixed limit.
func marks(what string, cells []sheddingCell) string {
	var busy, quick, both int
	for _, c := range cells {
		b, q := c.Goodput >= 0.97*c.BestGoodput, c.P99 <= c.BestP99*3/2
		if b {
			busy++
		}
		if q {
			quick++
		}
		if b && q {
			both++
		}
	}
	return fmt.Sprintf("%d %s: goodput of at least 97 %% of the best %d, p99 of at most 1.5 times the best %d, both %d", len(cells), what, busy, quick, both)
}
