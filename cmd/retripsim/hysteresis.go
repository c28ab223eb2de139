// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/retrip/retrip/sim"
)

// loop holds, for one load, the requests answered per second on the way up and
// on the way down.
type loop struct {
	Policy         string
	Load, Up, Down float64
}

// hysteresis compares the goodput at each load with the goodput at the same
// load after an overload. A metastable system doesn't return to its earlier
// goodput.
func hysteresis(f *flags) func(context.Context, func(float64)) (*report, error) {
	s := sim.Overload()
	s.Trigger = sim.Trigger{At: 10 * time.Second, For: 30 * time.Second}
	s.Horizon = 160 * time.Second
	loads := []float64{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2}
	overload := 1.5
	f.scenario(&s)
	f.Var(floats(&loads), "loads", "loads, as `shares` of the capacity")
	f.Float64Var(&overload, "overload", overload, "load during the overload, as a share of the capacity")
	f.choice("no-retries,no-budget,aws-standard,retrip")
	f.repeats(1)
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		if s.LoadOf(1).Arrivals.Rate == 0 {
			return nil, errors.New("-workers is 0: it must be positive to define a load")
		}
		if !(overload > 0 && overload <= maxLoad) {
			return nil, fmt.Errorf("-overload is %v: it must be more than 0 and at most %v", overload, maxLoad)
		}
		if s.Trigger.For <= 0 || s.Horizon < s.Trigger.At+s.Trigger.For+settled+measured {
			return nil, fmt.Errorf("-horizon is %v: it must be at least %v after the end of the overload, and -trigger-for positive", s.Horizon, settled+measured)
		}
		policies, err := f.load(s.Policy.Retry)
		if err != nil {
			return nil, err
		}
		var all []sim.Scenario
		for _, p := range policies {
			for _, load := range loads {
				if !(load > 0 && load <= maxLoad) {
					return nil, fmt.Errorf("-loads is %v: each must be more than 0 and at most %v", load, maxLoad)
				}
				up := s.LoadOf(load)
				up.Policy = p
				down := up
				up.Trigger = sim.Trigger{}
				down.Trigger.Surge = overload / load
				all = append(all, append(up.Seeds(f.runs), down.Seeds(f.runs)...)...)
			}
		}
		results, err := sim.RunAll(ctx, all, progress)
		r := &report{
			title: "requests answered per second at each load: load rising / load falling from an overload",
			table: [][]string{{"policy"}},
			notes: []string{hysteresisAbout(&s, overload)},
			unit:  "answered/s",
		}
		for _, load := range loads {
			r.table[0] = append(r.table[0], fmt.Sprintf("%v %%", percent(load)))
		}
		var ups, downs []line
		for i, p := range policies {
			up, down := line{name: p.Name}, line{name: p.Name + " after it"}
			row := []string{p.Name}
			for j, load := range loads {
				group := results[(i*len(loads)+j)*2*f.runs:][:2*f.runs]
				if slices.ContainsFunc(group, func(r *sim.Result) bool { return r == nil || r.Partial }) {
					break
				}
				up.add(100*load, mid(group[:f.runs], lateGoodput))
				down.add(100*load, mid(group[f.runs:], lateGoodput))
				row = append(row, fmt.Sprintf("%.0f / %.0f", up.y[j], down.y[j]))
			}
			if len(up.x) == len(loads) {
				r.table = append(r.table, row)
				ups, downs = append(ups, up), append(downs, down)
			}
		}
		if len(ups) == 0 {
			return nil, err
		}
		r.lines, r.over = append(slices.Clone(ups), downs...), points("load", ups, " %")
		var found []loop
		for i, up := range ups {
			for j, load := range up.x {
				found = append(found, loop{up.name, load, up.y[j], downs[i].y[j]})
			}
		}
		r.json = found
		r.csv = linesCSV("load %", ups, downs, "up", "down")
		r.draw = func(t *theme) (*figure, error) { return hysteresisFigure(t, &s, overload, ups, downs) }
		return r, err
	}
}

// measured is how long goodput is measured, up to the last requests that can
// still be answered. settled is the minimum time between the overload and the
// measurement.
const (
	measured = 20 * time.Second
	settled  = 10 * time.Second
	unended  = 5 * time.Second
)

func lateGoodput(r *sim.Result) float64 {
	end := len(r.Series) - int(unended/r.Bin)
	sum := 0.0
	n := int((measured - unended) / r.Bin)
	for _, p := range r.Series[end-n : end] {
		sum += float64(p.Good)
	}
	return sum / (float64(n) * r.Bin.Seconds())
}

func hysteresisAbout(s *sim.Scenario, overload float64) string {
	return fmt.Sprintf("%s clients, capacity %s requests/s. Load rising: no overload before. Load falling: %s after an overload of %s at %.0f %% of the capacity.",
		count(int64(s.Fleet.Clients)), tickText(s.LoadOf(1).Arrivals.Rate), seconds(s.Horizon-measured-s.Trigger.At-s.Trigger.For), seconds(s.Trigger.For), 100*overload)
}

// stuck returns the range of loads at which far less is answered on the way
// down.
func stuck(up, down line) (from, to float64) {
	for i, x := range up.x {
		if down.y[i] < 0.9*up.y[i] {
			if from == 0 {
				from = x
			}
			to = x
		}
	}
	return from, to
}

func hysteresisFigure(t *theme, s *sim.Scenario, overload float64, ups, downs []line) (*figure, error) {
	f := &figure{unit: "Requests answered per second, by load in %", about: hysteresisAbout(s, overload), theme: t, keys: []key{
		{"load rising", t.accent, nil, 5}, {"load falling", t.second, nil, 1.8}, {"lost capacity", t.shade, nil, 10},
	}}
	var lost, kept []string
	most := 0.0
	for i := range ups {
		most = max(most, highest(ups[i]), highest(downs[i]))
	}
	for i, up := range ups {
		note := "recovers at every load"
		if from, to := stuck(up, downs[i]); from > 0 {
			note = fmt.Sprintf("stays down from %v to %v %% load", from, to)
			lost = append(lost, up.name)
		} else {
			kept = append(kept, up.name)
		}
		p := t.newPlot()
		between := make(plotter.XYs, 0, 2*len(up.x))
		for j := range up.x {
			between = append(between, plotter.XY{X: up.x[j], Y: up.y[j]})
		}
		for j := range slices.Backward(up.x) {
			between = append(between, plotter.XY{X: up.x[j], Y: downs[i].y[j]})
		}
		area, err := plotter.NewPolygon(between)
		if err != nil {
			return nil, err
		}
		area.Color, area.LineStyle = t.shade, draw.LineStyle{}
		p.Add(area)
		m := &multiples{to: up.x[len(up.x)-1]}
		// The wide line below stays visible where the other line covers it.
		if err := errors.Join(f.add(p, m, up, t.accent, 5, false), f.add(p, m, downs[i], t.second, 1.8, true)); err != nil {
			return nil, err
		}
		p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, m.to, 0, most*1.04
		f.panels = append(f.panels, panel{up.name, note, p})
	}
	f.title = "After an overload the backend recovers at every load"
	if len(lost) > 0 {
		f.title = "After an overload the backend stays down with " + and(lost)
		if len(kept) > 0 {
			f.title += ", and recovers with " + and(kept)
		}
	}
	f.cell = []vg.Length{0, 230, 160, 130, 105}[f.columns()]
	for _, p := range f.panels {
		p.plot.X.Tick.Marker, p.plot.Y.Tick.Marker = ticks(12/f.columns()), ticks(4)
	}
	return f, nil
}
