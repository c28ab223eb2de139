// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/retrip/retrip/sim"
)

// draws returns a function that draws the cells: one map per policy, or one per
// label of the first row axis if there are two row axes.
func (g *grid) draws(s sim.Scenario, cells []*cell, about string) func(*theme) (*figure, error) {
	return func(t *theme) (*figure, error) {
		f := &figure{theme: t, about: about + " " + neverAbout(s)}
		if g.compared {
			f.about += fmt.Sprintf(" As fast as without retries: at most %d\u00a0s slower.", slack)
		}
		// A row axis with one label is the same for all panels.
		var axes []axis
		for _, a := range g.rows {
			if len(a.labels) > 1 {
				axes = append(axes, a)
			} else if len(g.rows) > 1 {
				f.about = capital(a.name) + ": " + a.labels[0] + ". " + f.about
			}
		}
		if len(axes) == 0 {
			axes = g.rows[len(g.rows)-1:]
		}
		last := axes[len(axes)-1]
		f.unit = fmt.Sprintf("Seconds to recover, by %s (columns) and %s (rows)", g.columns.title, last.name)
		var columns, rows []string
		for _, label := range g.columns.labels {
			columns = append(columns, shortLabel(label))
		}
		for _, label := range last.labels {
			rows = append(rows, shortLabel(label))
		}
		size := len(rows) * len(columns)
		for i := 0; i < len(cells); i += size {
			p := panelMap{cells: cells[i : i+size], columns: len(columns), theme: t, edge: g.edge}
			name, note := g.policies[i*len(g.policies)/len(cells)].Name, p.note()
			if len(axes) > 1 {
				name += " at " + axes[0].labels[i/size%len(axes[0].labels)]
			}
			f.panels = append(f.panels, panel{name, note, p.plot(columns, rows)})
		}
		f.title = g.finding(cells)
		if g.edge > 0 {
			f.keys = append(f.keys, key{g.edgeName, t.ink, []vg.Length{3, 2}, 2})
		}
		f.cell = vg.Length(22*len(rows) + 26)
		return f, nil
	}
}

// capital returns s with a capital letter.
func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// finding says under which policies the backend recovers.
func (g *grid) finding(cells []*cell) string {
	var parts, fast []string
	share := len(cells) / len(g.policies)
	for i, p := range g.policies {
		m := panelMap{cells: cells[i*share : (i+1)*share]}
		_, same, _, _ := m.counts()
		parts = append(parts, p.Name+" "+m.finding())
		fast = append(fast, fmt.Sprintf("%d with %s", same, p.Name))
	}
	if g.compared && len(parts) > 1 {
		return fmt.Sprintf("Of %d cases the backend recovers as fast as without retries in %s", share, and(fast))
	}
	return "The backend recovers with " + and(parts)
}

// shortLabel shortens the label of a column or row, since many stand side by
// side: thousands become k, durations become seconds.
func shortLabel(label string) string {
	if _, after, two := strings.Cut(label, ": "); two {
		label = after
	}
	if d, err := time.ParseDuration(label); err == nil {
		return number(d.Seconds())
	}
	if n, err := strconv.Atoi(label); err == nil && n >= 1000 && n%100 == 0 {
		return number(float64(n)/1000) + "k"
	}
	return label
}

// panelMap is one map of cells by row and column. Cells may be nil.
type panelMap struct {
	cells   []*cell
	columns int
	edge    int // column before which a line is drawn; 0 means no line
	theme   *theme
}

// slack is the difference, in seconds, up to which a recovery counts as fast as
// without retries.
const slack = 2

// counts returns in how many cells the backend recovers, in how many it
// recovers as fast as without retries (-1 if that wasn't simulated), the number
// of cells, and the longest recovery.
func (m *panelMap) counts() (recovers, same, all int, longest float64) {
	for _, c := range m.cells {
		if c == nil {
			continue
		}
		all++
		if c.Seconds >= 0 {
			recovers++
			longest = max(longest, c.Seconds)
		}
		if math.IsNaN(c.Without) {
			same = -1
		} else if c.Seconds >= 0 && (c.Without < 0 || c.Seconds <= c.Without+slack) {
			same++
		}
	}
	return recovers, same, all, longest
}

func (m *panelMap) note() string {
	recovers, same, all, longest := m.counts()
	switch {
	case same >= 0:
		low, high := m.without()
		return fmt.Sprintf("without retries %s", span(low, high))
	case recovers == all && all > 0:
		return fmt.Sprintf("within %.0f s", longest)
	}
	return fmt.Sprintf("in %d of %d cases", recovers, all)
}

// without returns the shortest and the longest recovery without retries.
func (m *panelMap) without() (low, high float64) {
	low = math.Inf(1)
	for _, c := range m.cells {
		if c != nil && c.Without >= 0 {
			low, high = min(low, c.Without), max(high, c.Without)
		}
	}
	return min(low, high), high
}

func span(low, high float64) string {
	if low == high {
		return fmt.Sprintf("%.0f s", low)
	}
	return fmt.Sprintf("%.0f–%.0f s", low, high)
}

func (m *panelMap) finding() string {
	recovers, same, all, longest := m.counts()
	switch {
	case recovers == 0:
		return "in no case"
	case same >= 0 && same == all:
		return "everywhere as fast as without retries"
	case same >= 0 && recovers == all:
		return fmt.Sprintf("as fast as without retries in %d of %d cases, and within %.0f s in all", same, all, longest)
	case same >= 0:
		return fmt.Sprintf("as fast as without retries in %d of %d cases, and never in %d", same, all, all-recovers)
	case recovers == all:
		return fmt.Sprintf("in all cases, within %.0f s", longest)
	}
	return fmt.Sprintf("in %d of %d cases", recovers, all)
}

// plot returns the map with the labels of its columns and rows.
func (m *panelMap) plot(columns, rows []string) *plot.Plot {
	p := m.theme.newPlot()
	p.X.Tick.Marker, p.Y.Tick.Marker = nameTicks(columns), nameTicks(rows)
	p.X.LineStyle.Width, p.X.Tick.LineStyle.Width = 0, 0
	p.X.Min, p.X.Max = -0.5, float64(len(columns))-0.5
	p.Y.Min, p.Y.Max = -0.5, float64(len(rows))-0.5
	p.Add(m)
	return p
}

func nameTicks(names []string) plot.ConstantTicks {
	var list plot.ConstantTicks
	for i, name := range names {
		list = append(list, plot.Tick{Value: float64(i), Label: name})
	}
	return list
}

// Plot draws the squares.
func (m *panelMap) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	c.FillPolygon(m.theme.paper, []vg.Point{c.Min, {X: c.Max.X, Y: c.Min.Y}, c.Max, {X: c.Min.X, Y: c.Max.Y}})
	for i, one := range m.cells {
		if one == nil {
			continue
		}
		row, column := float64(i/m.columns), float64(i%m.columns)
		const gap = 1
		lo := vg.Point{X: x(column-0.5) + gap, Y: y(row-0.5) + gap}
		hi := vg.Point{X: x(column+0.5) - gap, Y: y(row+0.5) - gap}
		fill := squareColor(one.Seconds)
		c.FillPolygon(fill, []vg.Point{lo, {X: hi.X, Y: lo.Y}, hi, {X: lo.X, Y: hi.Y}})
		label := "never"
		if one.Seconds >= 0 {
			label = fmt.Sprintf("%.0f", one.Seconds)
		}
		style := text(inkOn(fill), 9.5, one.Seconds < 0)
		style.XAlign, style.YAlign = draw.XCenter, draw.YCenter
		for roomy(style, label) > hi.X-lo.X && style.Font.Size > 6 {
			style.Font.Size -= 0.5
		}
		c.FillText(style, vg.Point{X: (lo.X + hi.X) / 2, Y: (lo.Y + hi.Y) / 2}, label)
	}
	if m.edge > 0 {
		at := x(float64(m.edge) - 0.5)
		c.StrokeLine2(draw.LineStyle{Color: m.theme.ink, Width: 2, Dashes: []vg.Length{3, 2}}, at, c.Min.Y, at, c.Max.Y)
	}
}
