// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"strconv"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/retrip/retrip/sim"
)

// figure is a picture: one plot, or several one under the other, with the names
// of the lines beside them.
type figure struct {
	title string
	plots []*plot.Plot
	keys  []key
	tall  vg.Length
	wide  vg.Length
}

type key struct {
	name  string
	style draw.LineStyle
}

const (
	pictureWidth  = 9.6 * vg.Inch
	pictureHeight = 4.6 * vg.Inch
	margin        = 0.22 * vg.Inch
	pictureDPI    = 160
)

var (
	ink   = color.NRGBA{0x22, 0x2b, 0x36, 0xff}
	faint = color.NRGBA{0xdd, 0xe2, 0xe8, 0xff}
	muted = color.NRGBA{0x5b, 0x67, 0x75, 0xff}
	shade = color.NRGBA{0xf3, 0xea, 0xd9, 0xff}

	// Colors that those who see few of them can tell apart, too (after Okabe
	// and Ito); what is compared with comes before ours.
	palette = []color.NRGBA{
		{0x8a, 0x93, 0x9e, 0xff}, {0xd5, 0x3e, 0x2a, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x9b, 0x5f, 0xc0, 0xff},
		{0x56, 0xb4, 0xe9, 0xff}, {0x8c, 0x56, 0x4b, 0xff}, {0xcc, 0x79, 0xa7, 0xff}, {0x00, 0x9e, 0x73, 0xff},
	}
	// Names that look the same in every picture.
	named = map[string]color.NRGBA{
		"no-retries": palette[0], "no-backoff": palette[0], "no-budget": palette[1], "no-jitter": palette[1],
		"finagle": palette[2], "equal": palette[2], "aws-standard": palette[3], "decorrelated": palette[3],
		"envoy": palette[4], "gaussian": palette[4], "polly": palette[5], "grpc": palette[4], "sre": palette[2],
		"retrip": {0x00, 0x72, 0xb2, 0xff}, "full": {0x00, 0x72, 0xb2, 0xff},
	}
)

func init() {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
}

func styleOf(name string, i int) draw.LineStyle {
	c, ok := named[name]
	if !ok {
		c = palette[(i+3)%len(palette)]
	}
	width := vg.Points(1.8)
	if name == "retrip" || name == "full" {
		width = vg.Points(2.6)
	}
	return draw.LineStyle{Color: c, Width: width}
}

// newPlot returns an empty plot in the house's style.
func newPlot(x, y string) *plot.Plot {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = x, y
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font.Size = 11
		axis.Label.TextStyle.Color = muted
		axis.Label.Padding = 5
		axis.Tick.Label.Font.Size = 10.5
		axis.Tick.Label.Color = ink
		axis.LineStyle.Color = muted
		axis.LineStyle.Width = 0.7
		axis.Tick.LineStyle.Color = muted
		axis.Tick.LineStyle.Width = 0.7
		axis.Tick.Length = 4
		axis.Padding = 0
	}
	p.Y.LineStyle.Width, p.Y.Tick.LineStyle.Width, p.Y.Tick.Length = 0, 0, 2
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	grid.Horizontal.Color, grid.Horizontal.Width = faint, 0.7
	p.Add(grid)
	p.Y.Min = 0
	p.Y.Tick.Marker, p.X.Tick.Marker = ticks(6), ticks(8)
	return p
}

// ticks are at most so many round numbers, with their thousands apart.
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
type band struct{ from, to float64 }

func (b band) Plot(c draw.Canvas, p *plot.Plot) {
	x, _ := p.Transforms(&c)
	lo, hi := max(x(b.from), c.Min.X), min(x(b.to), c.Max.X)
	c.FillPolygon(shade, []vg.Point{{X: lo, Y: c.Min.Y}, {X: hi, Y: c.Min.Y}, {X: hi, Y: c.Max.Y}, {X: lo, Y: c.Max.Y}})
}

// lines adds lines to a plot, and their names to the figure.
func (f *figure) lines(p *plot.Plot, lines []line, look look) error {
	var thick, thin []plot.Plotter
	for i, l := range lines {
		points := make(plotter.XYs, len(l.x))
		for j := range points {
			points[j].X, points[j].Y = l.x[j], l.y[j]
		}
		if len(points) == 0 {
			continue
		}
		curve, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		curve.LineStyle = styleOf(l.name, i)
		if look == stepped {
			curve.StepStyle = plotter.PostStep
		}
		layer := &thin
		if curve.Width > 2 {
			layer = &thick
		}
		*layer = append(*layer, curve)
		if look == dotted {
			marks.GlyphStyle = draw.GlyphStyle{Color: curve.Color, Radius: 1.4 * curve.Width, Shape: draw.CircleGlyph{}}
			*layer = append(*layer, marks)
		}
		f.keys = append(f.keys, key{l.name, curve.LineStyle})
	}
	// A thick line on top would hide a thin one.
	p.Add(thick...)
	p.Add(thin...)
	return nil
}

// look is how lines are drawn.
type look int

const (
	smooth  look = iota
	dotted       // few points, marked
	stepped      // counts in intervals
)

// mark draws a dashed line across, with its name among the keys.
func (f *figure) mark(p *plot.Plot, y float64, name string) error {
	curve, err := plotter.NewLine(plotter.XYs{{X: p.X.Min, Y: y}, {X: p.X.Max, Y: y}})
	if err != nil {
		return err
	}
	curve.LineStyle = draw.LineStyle{Color: ink, Width: 1, Dashes: []vg.Length{5, 4}}
	p.Add(curve)
	f.keys = append(f.keys, key{name, curve.LineStyle})
	return nil
}

// lineFigure shows lines with few points each, marked where they are few.
func lineFigure(title, x, y string, lines []line, capacity float64) (*figure, error) {
	f := &figure{title: title, wide: pictureWidth, tall: pictureHeight}
	p := newPlot(x, y)
	look := smooth
	if len(lines) > 0 && len(lines[0].x) <= 20 {
		look = dotted
	}
	if err := f.lines(p, lines, look); err != nil {
		return nil, err
	}
	if capacity > 0 {
		if err := f.mark(p, capacity, "capacity"); err != nil {
			return nil, err
		}
	}
	p.X.Min = 0
	p.Y.Max *= 1.04
	f.plots = []*plot.Plot{p}
	return f, nil
}

// seriesFigure shows rates over time, with the trouble shaded.
func seriesFigure(s sim.Scenario, groups [][]*sim.Result, y string, of func(sim.Point) int32) (*figure, error) {
	title := fmt.Sprintf("%s clients at %.0f %% load, trouble from %v to %v", count(int64(s.Fleet.Clients)), 100*s.Load(), s.Trigger.At, s.Trigger.At+s.Trigger.For)
	if s.Load() == 0 {
		title = fmt.Sprintf("%s clients, %s requests per second, an outage from %v to %v",
			count(int64(s.Fleet.Clients)), tickText(s.Arrivals.Rate), s.Trigger.At, s.Trigger.At+s.Trigger.For)
		if s.Arrivals.AtOnce {
			title = fmt.Sprintf("%s clients fail at once, the backend is back at %v", count(int64(s.Fleet.Clients)), s.Trigger.At+s.Trigger.For)
		}
	}
	f := &figure{title: title, wide: pictureWidth, tall: pictureHeight}
	p := newPlot("seconds", y)
	if s.Trigger.For > 0 {
		p.Add(band{s.Trigger.At.Seconds(), (s.Trigger.At + s.Trigger.For).Seconds()})
		f.keys = append(f.keys, key{"trouble", draw.LineStyle{Color: shade, Width: 9}})
	}
	look := smooth
	if groups[0][0].Bin < time.Second {
		look = stepped
	}
	if err := f.lines(p, quietEndCut(seriesLines(groups, of)), look); err != nil {
		return nil, err
	}
	if c := s.Backend; c.Workers > 0 {
		if err := f.mark(p, s.Arrivals.Rate/s.Load(), "capacity"); err != nil {
			return nil, err
		}
	}
	p.X.Min, p.Y.Min = 0, 0
	p.Y.Max *= 1.04
	f.plots = []*plot.Plot{p}
	return f, nil
}

// whenFigure shows each line in a plot of its own: they would hide each other.
func whenFigure(title string, bin time.Duration, lines []line) (*figure, error) {
	f := &figure{title: title, wide: pictureWidth}
	end := 0.0
	for _, l := range lines {
		// Those without jitter go on for a minute: what matters is the start.
		if n := len(l.x); n > 0 && (end == 0 || l.x[n-1] < end) {
			end = l.x[n-1]
		}
	}
	end = max(2*end, 3)
	for i, l := range lines {
		p := newRow(i == len(lines)-1, fmt.Sprintf("calls in %v", bin))
		for len(l.x) > 0 && l.x[len(l.x)-1] > end {
			l.x, l.y = l.x[:len(l.x)-1], l.y[:len(l.y)-1]
		}
		style := styleOf(l.name, i)
		for j := range l.x {
			p.Add(histogramBar{l.x[j], l.x[j] + bin.Seconds(), l.y[j], style.Color})
			p.Y.Max = max(p.Y.Max, l.y[j])
		}
		p.X.Min, p.X.Max = 0, end
		style.Width = 8
		f.keys = append(f.keys, key{l.name, style})
		f.plots = append(f.plots, p)
	}
	f.tall = vg.Length(len(lines)) * 1.35 * vg.Inch
	return f, nil
}

// quietEndCut returns lines without the time after the last in which anything
// happens.
func quietEndCut(lines []line) []line {
	last := 0
	for _, l := range lines {
		for i, y := range l.y {
			if y > 0 {
				last = max(last, i)
			}
		}
	}
	for i, l := range lines {
		n := min(len(l.x), last+2)
		lines[i].x, lines[i].y = l.x[:n], l.y[:n]
	}
	return lines
}

// newRow returns a plot that lies above others with the same time axis, which
// the last one names.
func newRow(last bool, y string) *plot.Plot {
	p := newPlot("", y)
	p.Y.Tick.Marker = ticks(3)
	if last {
		p.X.Label.Text = "seconds"
	} else {
		p.X.Tick.Label.Font.Size = 0
		p.X.Tick.Label.Color = color.Transparent
	}
	return p
}

// histogramBar is one bar of a histogram.
type histogramBar struct {
	from, to, value float64
	color           color.Color
}

func (b histogramBar) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	c.FillPolygon(b.color, []vg.Point{{X: x(b.from), Y: y(0)}, {X: x(b.to), Y: y(0)}, {X: x(b.to), Y: y(b.value)}, {X: x(b.from), Y: y(b.value)}})
}

// waitsFigure shows how long the waits were, as shares of each policy's own.
func waitsFigure(groups [][]*sim.Result) (*figure, error) {
	var lines []line
	longest := 0.0
	for _, group := range groups {
		r := group[0]
		var total int64
		for _, n := range r.Waits {
			total += n
		}
		if total == 0 {
			continue
		}
		l := line{name: r.Policy}
		for i, n := range r.Waits {
			l.add((time.Duration(i) * r.WaitBin).Seconds(), 100*float64(n)/float64(total))
		}
		// The last half per cent would take most of the space.
		for i, share := 0, 0.0; i < len(l.y) && share < 99.5; i++ {
			share += l.y[i]
			longest = max(longest, l.x[i])
		}
		lines = append(lines, l)
	}
	if len(lines) == 0 {
		return nil, errors.New("there were no waits: nothing was retried")
	}
	f := &figure{title: "How long the waits before retries were", wide: pictureWidth}
	for i, l := range lines {
		p := newRow(i == len(lines)-1, "% of waits")
		style := styleOf(l.name, i)
		for j := range l.x {
			if l.x[j] > longest {
				break
			}
			p.Add(histogramBar{l.x[j], l.x[j] + groups[0][0].WaitBin.Seconds(), l.y[j], style.Color})
			p.Y.Max = max(p.Y.Max, l.y[j])
		}
		p.X.Min, p.X.Max = 0, longest+groups[0][0].WaitBin.Seconds()
		style.Width = 8
		f.keys = append(f.keys, key{l.name, style})
		f.plots = append(f.plots, p)
	}
	f.tall = vg.Length(max(len(lines), 2)) * 1.35 * vg.Inch
	return f, nil
}

// write draws the figure in the format that ext says.
func (f *figure) write(w io.Writer, ext string) error {
	if ext == ".svg" {
		c := vgsvg.New(f.wide, f.tall)
		f.paint(draw.New(c))
		_, err := c.WriteTo(w)
		return err
	}
	c := vgimg.NewWith(vgimg.UseWH(f.wide, f.tall), vgimg.UseDPI(pictureDPI), vgimg.UseBackgroundColor(color.White))
	f.paint(draw.New(c))
	_, err := vgimg.PngCanvas{Canvas: c}.WriteTo(w)
	return err
}

func (f *figure) paint(dc draw.Canvas) {
	dc.FillPolygon(color.White, []vg.Point{dc.Min, {X: dc.Max.X, Y: dc.Min.Y}, dc.Max, {X: dc.Min.X, Y: dc.Max.Y}})
	dc = draw.Crop(dc, margin, -margin, margin*0.8, -margin*0.8)
	text := plot.New().Title.TextStyle
	text.Color = ink
	text.Font.Size = 14
	text.XAlign, text.YAlign = draw.XLeft, draw.YTop
	dc.FillText(text, vg.Point{X: dc.Min.X, Y: dc.Max.Y}, f.title)
	body := draw.Crop(dc, 0, 0, 0, -26)
	text.Font.Size = 11
	text.YAlign = draw.YCenter
	if len(f.plots) == 1 && len(f.keys) > 0 {
		widest := vg.Length(0)
		for _, k := range f.keys {
			widest = max(widest, text.Width(k.name))
		}
		right := widest + 34
		y := body.Max.Y - 14
		for _, k := range f.keys {
			x := body.Max.X - right + 6
			dc.StrokeLine2(k.style, x, y, x+20, y)
			dc.FillText(text, vg.Point{X: x + 26, Y: y}, k.name)
			y -= 19
		}
		f.plots[0].Draw(draw.Crop(body, 0, -right-6, 0, 0))
		return
	}
	f.stack(body, text)
}

// stack draws plots one under the other with their names in them, or side by
// side if they have none.
func (f *figure) stack(body draw.Canvas, text draw.TextStyle) {
	if len(f.keys) == 0 {
		tiles := draw.Tiles{Rows: 1, Cols: len(f.plots), PadX: 14}
		for i, c := range plot.Align([][]*plot.Plot{f.plots}, tiles, body)[0] {
			f.plots[i].Draw(c)
		}
		return
	}
	tiles := draw.Tiles{Rows: len(f.plots), Cols: 1, PadY: 4}
	rows := make([][]*plot.Plot, len(f.plots))
	for i, p := range f.plots {
		rows[i] = []*plot.Plot{p}
	}
	canvases := plot.Align(rows, tiles, body)
	text.XAlign, text.YAlign = draw.XRight, draw.YTop
	for i, p := range f.plots {
		c := canvases[i][0]
		p.Draw(c)
		text.Color = f.keys[i].style.Color
		c.FillText(text, vg.Point{X: c.Max.X - 8, Y: c.Max.Y - 4}, f.keys[i].name)
	}
}
