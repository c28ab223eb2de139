// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	"image/color"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// figure is a picture of panels, as wide as a phone can show with legible letters.
type figure struct {
	name   string // of its files
	title  string // the finding
	unit   string // what the axes show
	keys   []string
	panels []panel
	height vg.Length // of a panel; 0 means 105
}

// panel is a plot with lines, one below or beside another.
type panel struct {
	name, note string
	lines      []line
	from, to   float64 // x, where a shade says that the backend is slow or down
	level      float64 // a dashed line at this y, if not 0
	minX, maxX float64
	maxY       float64  // 0 means that of all panels
	minY       float64  // if not 0, the y axis is logarithmic and begins here
	bars       []string // names of horizontal bars, in place of lines
}

// line is a line of a panel. The same place has the same color in each.
type line struct{ x, y []float64 }

func (l *line) add(x, y float64) { l.x, l.y = append(l.x, x), append(l.y, y) }

// theme is the colors of a picture whose page is light or dark. People who are
// blind to a color can tell the lines apart (after Okabe and Ito), and all of them
// from the page.
type theme struct {
	suffix            string
	ink, faint, shade color.NRGBA
	lines             []color.NRGBA
}

var themes = []theme{
	{"", rgb(0x1f2933), rgb(0xd5dbe2), color.NRGBA{0xe6, 0x9f, 0, 0x38}, []color.NRGBA{rgb(0x0072b2), rgb(0xd55e00), rgb(0x009e73), rgb(0x9b4f96), rgb(0x55606d)}},
	{"-dark", rgb(0xe6edf3), rgb(0x3a434e), color.NRGBA{0xe6, 0x9f, 0, 0x48}, []color.NRGBA{rgb(0x56b4e9), rgb(0xe69f00), rgb(0x2fc79a), rgb(0xe59ac8), rgb(0xa3aeba)}},
}

func rgb(hex uint32) color.NRGBA {
	return color.NRGBA{uint8(hex >> 16), uint8(hex >> 8), uint8(hex), 0xff}
}

var dashes = [][]vg.Length{nil, {6, 2}, {2, 2}, {8, 2, 2, 2}, {1, 2}}

const (
	width    = 480
	margin   = 8
	lineStep = 16
	gap      = 6 // below the title
)

// together are words that must not be torn apart: a number and its unit.
var together = regexp.MustCompile(`(\d) (ms|s|%|million|times|000)\b|(\d) (%)`)

// bound returns s with spaces at which no line ends, where needed.
func bound(s string) string { return together.ReplaceAllString(s, "$1$3\u00a0$2$4") }

func init() {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plot.DefaultTextHandler = text.Plain{Fonts: font.DefaultCache}
}

func style(c color.Color, size vg.Length, bold bool) draw.TextStyle {
	s := plot.New().Title.TextStyle
	s.Color, s.Font.Size, s.XAlign, s.YAlign = c, size, draw.XLeft, draw.YTop
	if bold {
		s.Font.Weight = xfont.WeightBold
	}
	return s
}

// room is how much wider than measured a text may be: a system without the fonts
// that it was measured with takes others, which are up to a fifth wider.
const room = 1.25

// wrap breaks s at spaces into lines that fit.
func wrap(s string, st draw.TextStyle, most vg.Length) []string {
	var lines []string
	row := ""
	for word := range strings.SplitSeq(s, " ") {
		longer := strings.TrimPrefix(row+" "+word, " ")
		if row != "" && room*st.Width(longer) > most {
			lines, longer = append(lines, row), word
		}
		row = longer
	}
	return append(lines, row)
}

// above returns the height of the name and the note above each panel.
func (f *figure) above() vg.Length {
	switch first := f.panels[0]; {
	case first.name == "":
		return 8
	case first.note == "":
		return 22
	}
	return 34
}

// columns returns how many panels stand side by side.
func (f *figure) columns() int { return min(2, len(f.panels)) }

// save draws f for light and for dark pages.
func (f *figure) save(dir string) error {
	for _, t := range themes {
		title, unit := style(t.ink, 13, true), style(t.ink, 11, false)
		head := wrap(bound(f.title), title, width-2*margin)
		about := wrap(bound(f.unit), unit, width-2*margin)
		rows := (len(f.panels) + f.columns() - 1) / f.columns()
		cell := cmp.Or(f.height, 105)
		above := f.above()
		top := vg.Length((lineStep+1)*len(head) + gap + lineStep*len(about) + 4)
		keys := f.keyRows(unit)
		top += vg.Length(lineStep * len(keys))
		height := 2*margin + top + vg.Length(rows)*(cell+above)
		canvas := vgsvg.New(width, height)
		dc := draw.Crop(draw.New(canvas), margin, -margin, margin, -margin)
		y := dc.Max.Y
		for _, row := range head {
			dc.FillText(title, vg.Point{X: dc.Min.X, Y: y}, row)
			y -= lineStep + 1
		}
		y -= gap
		for _, row := range about {
			dc.FillText(unit, vg.Point{X: dc.Min.X, Y: y}, row)
			y -= lineStep
		}
		k := 0
		for _, row := range keys {
			x := dc.Min.X
			for _, name := range row {
				dc.StrokeLine2(t.line(k), x, y-7, x+22, y-7)
				dc.FillText(unit, vg.Point{X: x + 27, Y: y}, name)
				x += 27 + room*unit.Width(name) + 14
				k++
			}
			y -= lineStep
		}
		f.paint(draw.Crop(dc, 0, 0, 0, y-dc.Max.Y-2), &t, rows)
		if err := f.write(canvas, filepath.Join(dir, f.name+t.suffix+".svg")); err != nil {
			return err
		}
	}
	return nil
}

// line is the style of the kth line of a panel.
func (t *theme) line(k int) draw.LineStyle {
	return draw.LineStyle{Color: t.lines[k%len(t.lines)], Width: 1.8, Dashes: dashes[k%len(dashes)]}
}

// keyRows puts the keys into rows that fit.
func (f *figure) keyRows(st draw.TextStyle) (rows [][]string) {
	x := vg.Length(width)
	for _, name := range f.keys {
		wide := 27 + room*st.Width(name) + 14
		if x+wide > width-2*margin {
			rows, x = append(rows, nil), 0
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], name)
		x += wide
	}
	return rows
}

// paint draws the panels, with aligned axes.
func (f *figure) paint(body draw.Canvas, t *theme, rows int) {
	head := f.above()
	tiles := draw.Tiles{Rows: rows, Cols: f.columns(), PadX: 14, PadY: head, PadTop: head - 4}
	grid := make([][]*plot.Plot, rows)
	top := 0.0
	for _, p := range f.panels {
		for _, l := range p.lines {
			for _, y := range l.y {
				top = max(top, y)
			}
		}
		top = max(top, p.level)
	}
	for i := range grid {
		grid[i] = make([]*plot.Plot, tiles.Cols)
		for j := range grid[i] {
			if k := i*tiles.Cols + j; k < len(f.panels) {
				grid[i][j] = f.panels[k].plot(t, cmp.Or(f.panels[k].maxY, 1.04*top))
			}
		}
	}
	canvases := plot.Align(grid, tiles, body)
	for k, p := range f.panels {
		c := canvases[k/tiles.Cols][k%tiles.Cols]
		grid[k/tiles.Cols][k%tiles.Cols].Draw(c)
		c.FillText(style(t.ink, 11, true), vg.Point{X: c.Min.X, Y: c.Max.Y + head - 6}, p.name)
		c.FillText(style(t.ink, 11, false), vg.Point{X: c.Min.X, Y: c.Max.Y + head - 19}, p.note)
	}
}

func (p *panel) plot(t *theme, top float64) *plot.Plot {
	if p.bars != nil {
		return p.barPlot(t, p.lines[0].y)
	}
	g := plot.New()
	g.BackgroundColor = color.Transparent
	for _, a := range []*plot.Axis{&g.X, &g.Y} {
		a.Color, a.Tick.Color, a.Tick.Label.Color = t.ink, t.ink, t.ink
		a.Tick.Label.Font.Size, a.Tick.Length, a.Padding = 10, 3, 2
	}
	g.Y.Min, g.Y.Max = 0, top
	if p.minY > 0 {
		g.Y.Min, g.Y.Scale = p.minY, plot.LogScale{}
		g.Y.Tick.Marker = plot.TickerFunc(powers)
	} else {
		g.Y.Tick.Marker = ticks(4)
	}
	g.Y.Tick.Marker, g.X.Tick.Marker = spaced(g.Y.Tick.Marker), ticks(5)
	lines := plotter.NewGrid()
	lines.Vertical.Width = 0
	lines.Horizontal.Color, lines.Horizontal.Width = t.faint, 0.5
	g.Add(lines)
	if p.to > p.from {
		area, _ := plotter.NewPolygon(plotter.XYs{{X: p.from, Y: g.Y.Min}, {X: p.to, Y: g.Y.Min}, {X: p.to, Y: top}, {X: p.from, Y: top}})
		area.Color, area.Width = t.shade, 0
		g.Add(area)
	}
	for k, l := range p.lines {
		points := make(plotter.XYs, len(l.x))
		for i := range points {
			points[i] = plotter.XY{X: l.x[i], Y: max(l.y[i], g.Y.Min)}
		}
		drawn, _ := plotter.NewLine(points)
		drawn.LineStyle = t.line(k)
		g.Add(drawn)
	}
	if p.level > 0 {
		level, _ := plotter.NewLine(plotter.XYs{{X: p.minX, Y: p.level}, {X: p.maxX, Y: p.level}})
		level.Color, level.Width, level.Dashes = t.ink, 1, dashes[2]
		g.Add(level)
	}
	g.X.Min, g.X.Max = p.minX, p.maxX
	return g
}

// barPlot draws horizontal bars with their names at the left, the first at the top.
func (p *panel) barPlot(t *theme, values []float64) *plot.Plot {
	g := plot.New()
	g.BackgroundColor = color.Transparent
	for _, a := range []*plot.Axis{&g.X, &g.Y} {
		a.Color, a.Tick.Color, a.Tick.Label.Color = t.ink, t.ink, t.ink
		a.Tick.Label.Font.Size, a.Tick.Length, a.Padding = 10, 0, 2
	}
	n := len(values)
	var names []plot.Tick
	for i := range n {
		at := float64(n - 1 - i)
		names = append(names, plot.Tick{Value: at, Label: p.bars[i]})
		color := t.lines[4]
		if strings.HasPrefix(p.bars[i], "retrip") {
			color = t.lines[0]
		}
		bar, _ := plotter.NewPolygon(plotter.XYs{{X: 0, Y: at - 0.35}, {X: values[i], Y: at - 0.35}, {X: values[i], Y: at + 0.35}, {X: 0, Y: at + 0.35}})
		bar.Color, bar.Width = color, 0
		label, _ := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: values[i], Y: at}}, Labels: []string{fmt.Sprintf(" %.1f", values[i])}})
		label.TextStyle[0].Color, label.TextStyle[0].Font.Size, label.TextStyle[0].YAlign = t.ink, 10, draw.YCenter
		g.Add(bar, label)
	}
	g.Y.Tick.Marker = spaced(plot.ConstantTicks(names))
	g.Y.Min, g.Y.Max, g.X.Min, g.X.Max = -0.6, float64(n)-0.4, 0, p.maxX
	g.X.Tick.Marker = ticks(4)
	g.Y.Width = 0
	return g
}

// ticks returns at most n or so round ticks with labels.
func ticks(n int) plot.Ticker {
	return plot.TickerFunc(func(least, most float64) (list []plot.Tick) {
		step := 1.0
		for _, s := range []float64{0.05, 0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 2500, 5000} {
			if step = s; (most-least)/s <= float64(n) {
				break
			}
		}
		for k := int(least/step + 0.999); float64(k)*step <= most; k++ {
			list = append(list, plot.Tick{Value: float64(k) * step, Label: fmt.Sprint(float64(int(float64(k)*step*100+0.5)) / 100)})
		}
		return list
	})
}

// spaced adds spaces to labels at the left of an axis, so that they don't reach it in
// a wider font.
func spaced(of plot.Ticker) plot.Ticker {
	return plot.TickerFunc(func(least, most float64) []plot.Tick {
		list := slices.Clone(of.Ticks(least, most))
		for i := range list {
			list[i].Label += strings.Repeat(" ", 1+len(list[i].Label)/3)
		}
		return list
	})
}

// powers are the ticks of a logarithmic axis.
func powers(least, most float64) (list []plot.Tick) {
	for x := 0.1; x <= most; x = float64(int(10*x + 0.5)) {
		if x >= least {
			list = append(list, plot.Tick{Value: x, Label: fmt.Sprint(x)})
		}
	}
	return list
}

var family = regexp.MustCompile(`font-family:[^;"]*`)

// write writes the canvas, with a title for those who don't see it, and fonts that
// every system has; Arial and Helvetica are as wide as the one that was measured.
func (f *figure) write(canvas *vgsvg.Canvas, file string) error {
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return err
	}
	svg := family.ReplaceAllString(b.String(), "font-family:'Liberation Sans',Arial,Helvetica,sans-serif")
	head := strings.Index(svg, "<svg ")
	end := head + strings.IndexByte(svg[head:], '>')
	var notes strings.Builder
	for _, p := range f.panels {
		fmt.Fprintf(&notes, " %s: %s.", p.name, p.note)
	}
	svg = fmt.Sprintf("%s role=\"img\" aria-labelledby=\"title desc\">\n<title id=\"title\">%s</title>\n<desc id=\"desc\">%s.%s</desc>%s",
		svg[head:end], html.EscapeString(f.title), html.EscapeString(f.unit), html.EscapeString(notes.String()), svg[end+1:])
	return os.WriteFile(file, []byte(svg), 0o644)
}
