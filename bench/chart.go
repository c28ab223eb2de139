// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"image/color"
	"math"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

func init() {
	// The same font as in the pictures of retripsim.
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
}

// WriteChart draws the cost of successful requests and of an upload.
func (r *Results) WriteChart(path string) error {
	get, post := r.over("GET", "Transport/GET/serial", "Client/GET/serial"), r.over("POST 1 KiB", "Transport/POST/serial", "Client/POST/serial")
	left, err := r.bars(func(v float64) float64 { return v }, get, post)
	if err != nil {
		return err
	}
	right, err := r.bars(func(v float64) float64 { return v / (1 << 20) }, withoutBare(r.heap()))
	if err != nil {
		return err
	}
	img := vgimg.NewWith(vgimg.UseWH(27*vg.Centimeter, 10*vg.Centimeter), vgimg.UseDPI(144), vgimg.UseBackgroundColor(color.White))
	tiles := draw.Tiles{Rows: 1, Cols: 2, PadX: 8 * vg.Millimeter, PadTop: 11 * vg.Millimeter, PadBottom: 3 * vg.Millimeter, PadLeft: 3 * vg.Millimeter, PadRight: 6 * vg.Millimeter}
	all := draw.New(img)
	canvases := plot.Align([][]*plot.Plot{{left, right}}, tiles, all)
	left.Draw(canvases[0][0])
	right.Draw(canvases[0][1])
	heading := left.Title.TextStyle
	heading.Font.Size = 11
	heading.XAlign, heading.YAlign = draw.XLeft, draw.YTop
	top := all.Max.Y - 3*vg.Millimeter
	all.FillText(heading, vg.Point{X: all.Min.X + 3*vg.Millimeter, Y: top}, "Added to a successful request, ns")
	all.FillText(heading, vg.Point{X: all.Center().X + 3*vg.Millimeter, Y: top}, "Heap growth of a streamed PUT of 64 MiB, MiB")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := (vgimg.PngCanvas{Canvas: img}).WriteTo(f); err != nil {
		return err
	}
	return f.Close()
}

// bars draws horizontal bars, the first peer at the top, each labelled with its
// number.
func (r *Results) bars(scale func(float64) float64, series ...column) (*plot.Plot, error) {
	colors := []color.Color{color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff}, color.RGBA{R: 0xe6, G: 0x9f, B: 0x00, A: 0xff}}
	p := plot.New()
	var names []string
	rows := make([]plotter.Values, len(series))
	for i := len(Peers) - 1; i >= 0; i-- {
		if _, ok := series[0].value(Peers[i].Name); !ok {
			continue
		}
		names = append(names, title(Peers[i].Name))
		for k, c := range series {
			v, _ := c.value(Peers[i].Name)
			rows[k] = append(rows[k], scale(v))
		}
	}
	const width = 0.32 * vg.Centimeter
	most := 0.0
	for k, c := range series {
		chart, err := plotter.NewBarChart(rows[k], width)
		if err != nil {
			return nil, err
		}
		chart.Horizontal = true
		chart.Color = colors[k]
		chart.LineStyle.Width = 0
		chart.Offset = width * (vg.Length(len(series)-1)/2 - vg.Length(k))
		p.Add(chart)
		if len(series) > 1 {
			p.Legend.Add(c.head, chart)
		}
		var at plotter.XYLabels
		for i, v := range rows[k] {
			at.XYs = append(at.XYs, plotter.XY{X: max(v, 0), Y: float64(i)})
			at.Labels = append(at.Labels, number(v))
			most = max(most, v)
		}
		labels, err := plotter.NewLabels(at)
		if err != nil {
			return nil, err
		}
		for i := range labels.TextStyle {
			labels.TextStyle[i].Font.Size = font.Length(7.5)
			labels.TextStyle[i].YAlign = -0.35 // the middle of the digits
		}
		labels.Offset = vg.Point{X: 1.5, Y: chart.Offset}
		p.Add(labels)
	}
	p.NominalY(names...)
	p.X.Min, p.X.Max = 0, most*1.15
	p.Legend.Top = true
	p.Legend.Padding = 1 * vg.Millimeter
	p.Legend.XOffs = -2 * vg.Millimeter
	p.HideX() // each bar has its number
	p.Y.Tick.Label.Font.Size = 9
	p.Legend.TextStyle.Font.Size = 9
	return p, nil
}

func number(v float64) string {
	switch size := math.Abs(v); {
	case size < 1:
		return fmt.Sprintf("%.2f", v)
	case size < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
