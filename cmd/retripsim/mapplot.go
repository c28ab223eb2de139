// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/retrip/retrip/sim"
)

// unknownSeconds is a square that was not simulated.
const unknownSeconds = -1

// squares are the squares of a map, by row and column, in seconds.
type squares struct{ values [][]float64 }

func (s squares) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	c.FillPolygon(color.White, []vg.Point{c.Min, {X: c.Max.X, Y: c.Min.Y}, c.Max, {X: c.Min.X, Y: c.Max.Y}})
	text := p.X.Tick.Label
	text.XAlign, text.YAlign = draw.XCenter, draw.YCenter
	for row, values := range s.values {
		for column, seconds := range values {
			if seconds == unknownSeconds {
				continue
			}
			const gap = 1.5
			lo := vg.Point{X: x(float64(column)-0.5) + gap, Y: y(float64(row)-0.5) + gap}
			hi := vg.Point{X: x(float64(column)+0.5) - gap, Y: y(float64(row)+0.5) - gap}
			fill, label := squareColor(seconds), "never"
			if seconds < neverSeconds {
				label = fmt.Sprintf("%.0f s", seconds)
			}
			c.FillPolygon(fill, []vg.Point{lo, {X: hi.X, Y: lo.Y}, hi, {X: lo.X, Y: hi.Y}})
			text.Color = ink
			if seconds >= neverSeconds {
				text.Color = color.White
			}
			c.FillText(text, vg.Point{X: (lo.X + hi.X) / 2, Y: (lo.Y + hi.Y) / 2}, label)
		}
	}
}

// squareColor goes from green over yellow to orange by the logarithm of the
// time; never is red.
func squareColor(seconds float64) color.Color {
	if seconds >= neverSeconds {
		return color.NRGBA{0xb9, 0x2b, 0x27, 0xff}
	}
	stops := []color.NRGBA{{0x8f, 0xd1, 0x9e, 0xff}, {0xcd, 0xe3, 0x9b, 0xff}, {0xf5, 0xd9, 0x76, 0xff}, {0xe8, 0x8a, 0x3c, 0xff}}
	at := math.Log(max(seconds, 3)/3) / math.Log(60.0/3) * float64(len(stops)-1)
	i := min(int(at), len(stops)-2)
	part := min(at-float64(i), 1)
	mix := func(a, b uint8) uint8 { return uint8(float64(a)*(1-part) + float64(b)*part) }
	a, b := stops[i], stops[i+1]
	return color.NRGBA{mix(a.R, b.R), mix(a.G, b.G), mix(a.B, b.B), 0xff}
}

// mapFigure shows the maps of policies side by side.
func mapFigure(policies []sim.Policy, clients []int, loads []float64, maps [][][]float64) (*figure, error) {
	if len(maps) == 0 {
		return nil, errors.New("there is nothing to show")
	}
	f := &figure{title: "Seconds to recover, by number of clients and load", wide: vg.Length(max(6.4, 4.2*float64(len(maps)))) * vg.Inch}
	for i, values := range maps {
		p := newPlot("clients", "")
		if i == 0 {
			p.Y.Label.Text = "load"
		}
		var columns, rows plot.ConstantTicks
		for k, n := range clients {
			columns = append(columns, plot.Tick{Value: float64(k), Label: count(int64(n))})
		}
		for k, load := range loads {
			rows = append(rows, plot.Tick{Value: float64(k), Label: fmt.Sprintf("%.0f %%", 100*load)})
		}
		p.X.Tick.Marker, p.Y.Tick.Marker = columns, rows
		p.X.LineStyle.Width, p.X.Tick.LineStyle.Width = 0, 0
		p.X.Min, p.X.Max = -0.5, float64(len(clients))-0.5
		p.Y.Min, p.Y.Max = -0.5, float64(len(loads))-0.5
		p.Title.Text = policies[i].Name
		p.Title.TextStyle.Font.Size = 12
		p.Title.TextStyle.Color = ink
		p.Title.Padding = 3
		p.Add(squares{values})
		f.plots = append(f.plots, p)
	}
	f.tall = vg.Length(float64(len(loads))*0.36+1.7) * vg.Inch
	return f, nil
}
