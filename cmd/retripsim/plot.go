// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"image/color"
	"io"
	"strings"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	ptext "gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// figure is a picture of panels side by side. Each line has its own panel, so
// no line hides another and none needs its own color.
type figure struct {
	title  string // the finding
	unit   string // what the axes show
	about  string // the conditions, and the meaning of words in the picture
	keys   []key
	panels []panel
	cell   vg.Length // height of a panel
	theme  *theme
}

type panel struct {
	name, note string
	plot       *plot.Plot
}

// key explains a line or an area that appears in all panels.
type key struct {
	name   string
	color  color.Color
	dashes []vg.Length
	width  vg.Length
}

// theme is the color scheme of a picture. Color-blind readers can tell accent
// and second apart (after Okabe and Ito), and both from the background.
type theme struct {
	paper, ink, muted, faint, context, accent, second, shade color.NRGBA
}

var (
	light = &theme{
		paper: rgb(0xffffff), ink: rgb(0x1f2933), muted: rgb(0x55606d), faint: rgb(0xe1e6eb), context: rgb(0xc3cad2),
		accent: rgb(0x0072b2), second: rgb(0xd55e00), shade: rgb(0xf5ead3),
	}
	dark = &theme{
		paper: rgb(0x0d1117), ink: rgb(0xe6edf3), muted: rgb(0xa3aeba), faint: rgb(0x252c35), context: rgb(0x47515d),
		accent: rgb(0x56b4e9), second: rgb(0xe69f00), shade: rgb(0x33291a),
	}
)

func rgb(hex uint32) color.NRGBA {
	return color.NRGBA{uint8(hex >> 16), uint8(hex >> 8), uint8(hex), 0xff}
}

const (
	pictureWidth = 9.6 * vg.Inch
	margin       = 16
	pictureDPI   = 160

	titleHeight, unitHeight, headHeight, noteHeight, aboutHeight = 19, 17, 19, 13, 13
)

func init() {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plot.DefaultTextHandler = aligner{ptext.Plain{Fonts: font.DefaultCache}}
}

// text returns a text style of one color, size and weight.
func text(c color.Color, size vg.Length, bold bool) draw.TextStyle {
	style := plot.New().Title.TextStyle
	style.Color, style.Font.Size = c, size
	style.XAlign, style.YAlign = draw.XLeft, draw.YTop
	if bold {
		style.Font.Weight = xfont.WeightBold
	}
	return style
}

// wrap breaks s at spaces into lines no wider than width, but not before a
// percent sign.
func wrap(s string, style draw.TextStyle, width vg.Length) []string {
	var lines []string
	row := ""
	for word := range strings.SplitSeq(s, " ") {
		longer := strings.TrimPrefix(row+" "+word, " ")
		if row != "" && roomy(style, longer) > width {
			if at := strings.LastIndexByte(row, ' '); at > 0 && word == "%" {
				row, word = row[:at], row[at+1:]+" %"
			}
			lines = append(lines, row)
			longer = word
		}
		row = longer
	}
	if row != "" {
		lines = append(lines, row)
	}
	return lines
}

// columns returns how many panels stand side by side.
func (f *figure) columns() int {
	switch n := len(f.panels); {
	case n <= 3:
		return n
	case n == 4:
		return 2
	case n <= 9:
		return 3
	}
	return 4
}

func (f *figure) rows() int { return (len(f.panels) + f.columns() - 1) / f.columns() }

// texts returns the title and the text below the panels, broken into lines.
func (f *figure) texts() (title, about []string) {
	const width = pictureWidth - 2*margin
	return wrap(f.title, text(f.theme.ink, 14, true), width), wrap(f.about, text(f.theme.muted, 10, false), width)
}

func (f *figure) height() vg.Length {
	title, about := f.texts()
	h := vg.Length(2*margin + titleHeight*len(title) + aboutHeight*len(about) + 4)
	return h + f.unitHeight() + vg.Length(f.rows())*(f.cell+f.headHeight())
}

// headHeight returns the height of the name and the note above a panel.
func (f *figure) headHeight() vg.Length {
	for _, p := range f.panels {
		if p.note != "" {
			return headHeight + noteHeight
		}
	}
	return headHeight
}

// keysBelow reports whether the keys need a line of their own, below the unit.
func (f *figure) keysBelow() bool {
	style := f.unitStyle()
	width := roomy(style, f.unit) + 18
	for _, k := range f.keys {
		width += keyWidth(style, k)
	}
	return width > pictureWidth-2*margin
}

func (f *figure) unitStyle() draw.TextStyle { return text(f.theme.muted, 10.5, false) }

func keyWidth(style draw.TextStyle, k key) vg.Length { return 25 + roomy(style, k.name) + 10 }

func (f *figure) unitHeight() vg.Length {
	if f.keysBelow() {
		return 2 * unitHeight
	}
	return unitHeight
}

// write draws the figure in the format of the extension ext.
func (f *figure) write(w io.Writer, ext string) error {
	if ext == ".svg" {
		c := &svgCanvas{Canvas: vgsvg.New(pictureWidth, f.height())}
		f.paint(draw.New(c))
		return writeSVG(w, c, f.title, f.description())
	}
	c := vgimg.NewWith(vgimg.UseWH(pictureWidth, f.height()), vgimg.UseDPI(pictureDPI), vgimg.UseBackgroundColor(f.theme.paper))
	f.paint(draw.New(c))
	_, err := vgimg.PngCanvas{Canvas: c}.WriteTo(w)
	return err
}

// description describes the picture in words.
func (f *figure) description() string {
	var b strings.Builder
	b.WriteString(f.unit + ".")
	for _, p := range f.panels {
		b.WriteString(" " + strings.TrimSuffix(p.name+": "+p.note, ": ") + ".")
	}
	return strings.TrimSpace(b.String() + " " + f.about)
}

func (f *figure) paint(dc draw.Canvas) {
	dc.FillPolygon(f.theme.paper, []vg.Point{dc.Min, {X: dc.Max.X, Y: dc.Min.Y}, dc.Max, {X: dc.Min.X, Y: dc.Max.Y}})
	dc = draw.Crop(dc, margin, -margin, margin, -margin)
	title, about := f.texts()
	y := dc.Max.Y
	for _, row := range title {
		dc.FillText(text(f.theme.ink, 14, true), vg.Point{X: dc.Min.X, Y: y}, row)
		y -= titleHeight
	}
	f.paintKeys(dc, y)
	y -= f.unitHeight()
	for i, row := range about {
		dc.FillText(text(f.theme.muted, 10, false), vg.Point{X: dc.Min.X, Y: dc.Min.Y + aboutHeight*vg.Length(len(about)-i) - 2}, row)
	}
	body := draw.Crop(dc, 0, 0, aboutHeight*vg.Length(len(about))+4, y-dc.Max.Y)
	f.paintPanels(body)
}

// paintKeys writes the unit and the keys, in one line if there is room.
func (f *figure) paintKeys(dc draw.Canvas, y vg.Length) {
	style := f.unitStyle()
	dc.FillText(style, vg.Point{X: dc.Min.X, Y: y}, f.unit)
	x := dc.Min.X + roomy(style, f.unit) + 18
	if f.keysBelow() {
		x, y = dc.Min.X, y-unitHeight
	}
	for _, k := range f.keys {
		middle := y - 6
		dc.StrokeLine2(draw.LineStyle{Color: k.color, Width: k.width, Dashes: k.dashes}, x, middle, x+20, middle)
		dc.FillText(style, vg.Point{X: x + 25, Y: y}, k.name)
		x += keyWidth(style, k)
	}
}

// paintPanels draws the panels with aligned axes and their names above them.
func (f *figure) paintPanels(body draw.Canvas) {
	head := f.headHeight()
	tiles := draw.Tiles{Rows: f.rows(), Cols: f.columns(), PadX: 12, PadY: head, PadTop: head}
	grid := make([][]*plot.Plot, tiles.Rows)
	for i := range grid {
		grid[i] = make([]*plot.Plot, tiles.Cols)
		for j := range grid[i] {
			if k := i*tiles.Cols + j; k < len(f.panels) {
				grid[i][j] = f.panels[k].plot
			}
		}
	}
	canvases := plot.Align(grid, tiles, body)
	for k, p := range f.panels {
		c := canvases[k/tiles.Cols][k%tiles.Cols]
		p.plot.Draw(c)
		name, note := text(f.theme.ink, 11, true), text(f.theme.muted, 10.5, false)
		at := vg.Point{X: c.Min.X + 2, Y: c.Max.Y + head - 4}
		c.FillText(name, at, p.name)
		if p.note != "" {
			at.Y -= noteHeight
			c.FillText(note, at, p.note)
		}
	}
}
