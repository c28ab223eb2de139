// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// newPlot returns an empty plot in the house style.
func (t *theme) newPlot() *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.Transparent
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Tick.Label.Font.Size = 9.5
		axis.Tick.Label.Color = t.muted
		axis.LineStyle.Color, axis.Tick.LineStyle.Color = t.muted, t.muted
		axis.LineStyle.Width, axis.Tick.LineStyle.Width = 0.7, 0.7
		axis.Tick.Length = 3
		axis.Padding = 0
	}
	p.Y.LineStyle.Width, p.Y.Tick.LineStyle.Width = 0, 0
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	grid.Horizontal.Color, grid.Horizontal.Width = t.faint, 0.7
	p.Add(grid)
	return p
}

// ticks is the maximum number of tick marks at round numbers, formatted in
// groups of three digits.
type ticks int

func (most ticks) Ticks(low, high float64) []plot.Tick {
	span := high - low
	if !(span > 0) {
		return nil
	}
	step := math.Pow(10, math.Floor(math.Log10(span/float64(most))))
	for _, m := range []float64{1, 2, 2.5, 5, 10} {
		if span/(step*m) <= float64(most) {
			step *= m
			break
		}
	}
	var list []plot.Tick
	for i := math.Ceil(low/step - 1e-9); i*step <= high*(1+1e-9); i++ {
		list = append(list, plot.Tick{Value: i * step, Label: tickText(i * step)})
	}
	return list
}

func tickText(x float64) string {
	if x == math.Trunc(x) && math.Abs(x) < 1e15 {
		return count(int64(x))
	}
	return strconv.FormatFloat(math.Round(x*1e6)/1e6, 'f', -1, 64)
}

// band shades an interval of time.
type band struct {
	from, to float64
	color    color.Color
}

func (b band) Plot(c draw.Canvas, p *plot.Plot) {
	x, _ := p.Transforms(&c)
	lo, hi := max(x(b.from), c.Min.X), min(x(b.to), c.Max.X)
	c.FillPolygon(b.color, []vg.Point{{X: lo, Y: c.Min.Y}, {X: hi, Y: c.Min.Y}, {X: hi, Y: c.Max.Y}, {X: lo, Y: c.Max.Y}})
}

// multiples is a set of small multiples: one panel per line, all with the same
// axes.
type multiples struct {
	lines    []line
	parts    []line     // one per line, drawn in the same panel; may be nil
	names    [2]string  // of lines and parts, for the keys
	notes    []string   // one per line; may be nil
	dots     bool       // few points, marked
	steps    bool       // lines are counts per interval
	from, to float64    // range of x; if to is 0, the last point
	most     float64    // maximum of y; if 0, the highest point
	during   [2]float64 // the time of the trigger, shaded
	cause    string     // what the trigger is
	limit    float64    // a dashed horizontal line, if not 0
	limitKey string
}

// contextLines is how many other lines a panel shows in a pale color. More
// would be unreadable.
const contextLines = 6

// clipped is the ratio to all other lines at which one high line is cut off.
const clipped = 4

func (f *figure) multiples(m multiples) error {
	var highest []float64
	end := 0.0
	for _, l := range m.lines {
		top := 0.0
		for i, x := range l.x {
			if x >= m.from && (m.to == 0 || x <= m.to) {
				top = max(top, l.y[i])
			}
			end = max(end, x)
		}
		highest = append(highest, top)
	}
	if m.to == 0 {
		m.to = end
	}
	notes := make([]string, len(m.lines))
	copy(notes, m.notes)
	order := slices.Sorted(slices.Values(highest))
	most := max(order[len(order)-1], m.limit)
	// One line far above the others would flatten them. It is cut off, and its
	// panel states its highest point.
	if n := len(order); n > 2 && m.limit == 0 && order[n-1] > clipped*order[n-2] {
		most = order[n-2]
		i := slices.Index(highest, order[n-1])
		notes[i] = fmt.Sprintf("goes up to %s", tickText(math.Round(highest[i])))
	}
	if m.most == 0 {
		m.most = most * 1.04
	}
	if m.during[1] > 0 {
		f.keys = append(f.keys, key{m.cause, f.theme.shade, nil, 10})
	}
	if m.parts != nil {
		f.keys = append(f.keys, key{m.names[0], f.theme.accent, nil, 1.8}, key{m.names[1], f.theme.second, nil, 1.8})
	}
	if m.limit > 0 {
		f.keys = append(f.keys, key{m.limitKey, f.theme.ink, []vg.Length{4, 3}, 1})
	}
	if others := len(m.lines) - 1; others > 0 && others < contextLines {
		f.keys = append(f.keys, key{"the others", f.theme.context, nil, 1.4})
	}
	for i := range m.lines {
		p, err := f.panelPlot(&m, i)
		if err != nil {
			return err
		}
		f.panels = append(f.panels, panel{m.lines[i].name, notes[i], p})
	}
	f.cell = []vg.Length{0, 230, 160, 130, 105}[f.columns()]
	for i := range f.panels {
		p := f.panels[i].plot
		p.X.Tick.Marker, p.Y.Tick.Marker = ticks(12/f.columns()), ticks(4)
	}
	return nil
}

// panelPlot draws line number own, and the others in pale below it.
func (f *figure) panelPlot(m *multiples, own int) (*plot.Plot, error) {
	p := f.theme.newPlot()
	if m.during[1] > 0 {
		p.Add(band{m.during[0], m.during[1], f.theme.shade})
	}
	if len(m.lines) <= contextLines {
		for i := range m.lines {
			if i != own {
				if err := f.add(p, m, m.lines[i], f.theme.context, 1.1, false); err != nil {
					return nil, err
				}
			}
		}
	}
	if m.limit > 0 {
		curve, err := plotter.NewLine(plotter.XYs{{X: m.from, Y: m.limit}, {X: m.to, Y: m.limit}})
		if err != nil {
			return nil, err
		}
		curve.LineStyle = draw.LineStyle{Color: f.theme.ink, Width: 1, Dashes: []vg.Length{4, 3}}
		p.Add(curve)
	}
	if err := f.add(p, m, m.lines[own], f.theme.accent, 1.8, m.dots); err != nil {
		return nil, err
	}
	if m.parts != nil {
		if err := f.add(p, m, m.parts[own], f.theme.second, 1.8, m.dots); err != nil {
			return nil, err
		}
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = m.from, m.to, 0, m.most
	return p, nil
}

func (f *figure) add(p *plot.Plot, m *multiples, l line, c color.Color, width vg.Length, dots bool) error {
	var points plotter.XYs
	for j := range l.x {
		if l.x[j] >= m.from && l.x[j] <= m.to {
			points = append(points, plotter.XY{X: l.x[j], Y: l.y[j]})
		}
	}
	if len(points) == 0 {
		return nil
	}
	curve, marks, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	curve.LineStyle = draw.LineStyle{Color: c, Width: width}
	if m.steps {
		curve.StepStyle = plotter.PostStep
	}
	p.Add(curve)
	if dots {
		marks.GlyphStyle = draw.GlyphStyle{Color: c, Radius: 2.4, Shape: draw.CircleGlyph{}}
		p.Add(marks)
	}
	return nil
}
