// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// The section of the README is what stands between these, and they.
const (
	sectionBegin = "<!-- bench:begin -->"
	sectionEnd   = "<!-- bench:end -->"
)

var titles = map[string]string{
	"bare":            "bare net/http",
	"loop":            "20 lines by hand",
	"retrip-metrics":  "retrip, metrics",
	"retrip-timeouts": "retrip, metrics, timeouts",
}

func title(peer string) string {
	if t := titles[peer]; t != "" {
		return t
	}
	return peer
}

// column is one of the README's table.
type column struct {
	head  string
	value func(peer string) (float64, bool)
	text  func(v float64, peer string) string
}

// UpdateREADME rewrites the section of the file at path.
func (r *Results) UpdateREADME(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := bytes.Cut(text, []byte(sectionBegin))
	_, after, closed := bytes.Cut(rest, []byte(sectionEnd))
	if !ok || !closed {
		return errors.New(path + " has no section for the results")
	}
	var out bytes.Buffer
	out.Write(before)
	out.WriteString(sectionBegin + "\n")
	r.section(&out)
	out.WriteString(sectionEnd)
	out.Write(after)
	return os.WriteFile(path, out.Bytes(), 0o644)
}

func (r *Results) section(out *bytes.Buffer) {
	columns := r.columns()
	fmt.Fprintf(out, "Medians of %d rounds on %s, %d cores, %s, %s.\n\n", r.Rounds, r.Machine, r.Procs, r.Go, r.Date)
	out.WriteString("| ")
	for _, c := range columns {
		out.WriteString("| " + c.head + " ")
	}
	out.WriteString("|\n|---" + strings.Repeat("|---:", len(columns)) + "|\n")
	for _, p := range Peers {
		out.WriteString("| " + title(p.Name) + " ")
		for _, c := range columns {
			if v, ok := c.value(p.Name); ok {
				out.WriteString("| " + c.text(v, p.Name) + " ")
			} else {
				out.WriteString("| – ")
			}
		}
		out.WriteString("|\n")
	}
	fmt.Fprintf(out, `
- **GET**, **GET, deep** (a context that can be cancelled, ten layers deep), **POST**: time and allocations that a
  success adds to the same request in bare net/http over a stub, in the same round.
- **503, 503, 200**: through an http.Client over a stub, without waits; time, and all allocations.
- **PUT 64 MiB**: a stream of 128 MiB/s that can be had only once; how far the heap grows, and when the server has the
  first byte.
- **connections**: opened by %d requests that meet one 503 each, with a body of that size.
- **waiting**: what each of %d requests holds, beyond one that waits in bare net/http for its answer.
`, Fetches, Waiters)
	out.WriteString("\n![added time of a request, and heap growth of an upload](docs/performance.png)\n\n")
	r.ahead(out, columns)
}

// ahead says where somebody beats retrip.
func (r *Results) ahead(out *bytes.Buffer, columns []column) {
	out.WriteString("Ahead of retrip with metrics, by however little:\n\n")
	for _, c := range columns {
		own, ok := c.value("retrip-metrics")
		if !ok {
			continue
		}
		var names []string
		for _, p := range Peers[1:] {
			if v, ok := c.value(p.Name); ok && v < own && !strings.HasPrefix(p.Name, "retrip") {
				names = append(names, title(p.Name))
			}
		}
		if names != nil {
			fmt.Fprintf(out, "- %s: %s\n", c.head, strings.Join(names, ", "))
		}
	}
}

func (r *Results) columns() []column {
	over := func(name, head string) column {
		return column{
			head: head,
			value: func(peer string) (float64, bool) {
				s, ok := r.success(name, peer)
				return s.Over, ok
			},
			text: func(v float64, peer string) string {
				s, _ := r.success(name, peer)
				return fmt.Sprintf("%+.0f ns, %+d", v, s.More)
			},
		}
	}
	retry := caseNamed("Client/retry-GET")
	connections := func(i int, head string) column {
		return column{
			head: head,
			value: func(peer string) (float64, bool) {
				list, ok := r.Connections[peer]
				if !ok {
					return 0, false
				}
				return float64(list[i]), true
			},
			text: func(v float64, _ string) string { return fmt.Sprintf("%.0f", v) },
		}
	}
	return []column{
		over("GET/serial", "GET"),
		over("GET-deep/serial", "GET, deep"),
		over("POST/serial", "POST 1 KiB"),
		{
			head: "503, 503, 200",
			value: func(peer string) (float64, bool) {
				s, ok := r.Summary(retry, peer)
				return s.Ns, ok
			},
			text: func(v float64, peer string) string {
				s, _ := r.Summary(retry, peer)
				return fmt.Sprintf("%.1f µs, %d", v/1000, s.Allocs)
			},
		},
		{
			head: "PUT 64 MiB: heap",
			value: func(peer string) (float64, bool) {
				u, ok := r.upload(peer)
				return float64(u.Heap), ok
			},
			text: func(v float64, _ string) string { return fmt.Sprintf("%.2f MiB", v/(1<<20)) },
		},
		{
			head: "first byte",
			value: func(peer string) (float64, bool) {
				u, ok := r.upload(peer)
				return float64(u.FirstByte.Microseconds()), ok
			},
			text: func(v float64, _ string) string { return fmt.Sprintf("%.2f ms", v/1000) },
		},
		connections(0, "connections, 2 KiB"),
		connections(1, "64 KiB"),
		connections(2, "1 MiB"),
		{
			head: "waiting",
			value: func(peer string) (float64, bool) {
				_, ok := r.Waiting[peer]
				return float64(r.waiting(peer)), ok && peer != Peers[0].Name
			},
			text: func(v float64, _ string) string { return fmt.Sprintf("%+.0f B", v) },
		},
	}
}

// success sums up what a request that succeeds costs over bare: at the
// RoundTripper where peer is one, else at Client.Do.
func (r *Results) success(name, peer string) (Summary, bool) {
	if peer == Peers[0].Name {
		return Summary{}, false
	}
	if s, ok := r.Summary(caseNamed("Transport/"+name), peer); ok {
		return s, true
	}
	return r.Summary(caseNamed("Client/"+name), peer)
}

func caseNamed(name string) Case {
	for _, c := range Cases {
		if c.Name == name {
			return c
		}
	}
	panic("no case " + name)
}

// WriteChart draws what successful requests and an upload cost.
func (r *Results) WriteChart(path string) error {
	left, err := r.bars("Added to a successful request, ns", []string{"GET", "POST 1 KiB"}, func(peer string) ([]float64, bool) {
		get, ok := r.success("GET/serial", peer)
		post, _ := r.success("POST/serial", peer)
		return []float64{get.Over, post.Over}, ok
	})
	if err != nil {
		return err
	}
	right, err := r.bars("Heap growth of a streamed PUT of 64 MiB, MiB", []string{""}, func(peer string) ([]float64, bool) {
		u, ok := r.upload(peer)
		return []float64{float64(u.Heap) / (1 << 20)}, ok && peer != Peers[0].Name
	})
	if err != nil {
		return err
	}
	right.Title.Padding = left.Title.Padding
	img := vgimg.NewWith(vgimg.UseWH(27*vg.Centimeter, 10*vg.Centimeter), vgimg.UseDPI(144), vgimg.UseBackgroundColor(color.White))
	tiles := draw.Tiles{Rows: 1, Cols: 2, PadX: 8 * vg.Millimeter, PadTop: 3 * vg.Millimeter, PadBottom: 3 * vg.Millimeter, PadLeft: 3 * vg.Millimeter, PadRight: 6 * vg.Millimeter}
	canvases := plot.Align([][]*plot.Plot{{left, right}}, tiles, draw.New(img))
	left.Draw(canvases[0][0])
	right.Draw(canvases[0][1])
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

// bars draws horizontal bars, the first peer on top, with a number on each.
func (r *Results) bars(heading string, series []string, values func(peer string) ([]float64, bool)) (*plot.Plot, error) {
	colors := []color.Color{color.RGBA{R: 0x1f, G: 0x5f, B: 0x8b, A: 0xff}, color.RGBA{R: 0xe0, G: 0x8e, B: 0x3c, A: 0xff}}
	p := plot.New()
	p.Title.Text = heading
	p.Title.TextStyle.Font.Size = 11
	p.Title.Padding = 3 * vg.Millimeter
	var names []string
	rows := make([]plotter.Values, len(series))
	for i := len(Peers) - 1; i >= 0; i-- {
		v, ok := values(Peers[i].Name)
		if !ok {
			continue
		}
		names = append(names, title(Peers[i].Name))
		for k := range series {
			rows[k] = append(rows[k], v[k])
		}
	}
	const width = 0.32 * vg.Centimeter
	most := 0.0
	for k, name := range series {
		chart, err := plotter.NewBarChart(rows[k], width)
		if err != nil {
			return nil, err
		}
		chart.Horizontal = true
		chart.Color = colors[k]
		chart.LineStyle.Width = 0
		chart.Offset = width * (vg.Length(len(series)-1)/2 - vg.Length(k))
		p.Add(chart)
		if name != "" {
			p.Legend.Add(name, chart)
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
			labels.TextStyle[i].YAlign = -0.35 // the middle of digits
		}
		labels.Offset = vg.Point{X: 1.5, Y: chart.Offset}
		p.Add(labels)
	}
	p.NominalY(names...)
	p.X.Min, p.X.Max = 0, most*1.15
	p.Legend.Top = true
	p.Legend.XOffs = -2 * vg.Millimeter
	p.HideX() // each bar has its number
	p.Y.Tick.Label.Font.Size = 9
	p.Legend.TextStyle.Font.Size = 9
	return p, nil
}

func number(v float64) string {
	if math.Abs(v) < 10 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
