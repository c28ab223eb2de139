// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/guptarohit/asciigraph"
)

// report is what a command has found out.
type report struct {
	title   string
	table   [][]string // the first row is its head
	notes   []string
	lines   []line // of a chart for the terminal; may be nil
	unit    string // of the lines
	over    string // what they run over; if empty, time
	partial bool

	json any
	csv  func(io.Writer) error
	draw func() (*figure, error) // nil if there is no picture
}

// print writes the report for a terminal.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "%s\n\n", r.title)
	widths := make([]int, len(r.table[0]))
	for _, row := range r.table {
		for i, text := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	for _, row := range r.table {
		var b strings.Builder
		for i, text := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
			if i == 0 {
				b.WriteString(text + pad)
			} else {
				b.WriteString("  " + pad + text)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
	if chart := r.chart(); chart != "" {
		fmt.Fprintf(w, "\n%s\n", chart)
	}
	for _, note := range r.notes {
		fmt.Fprintf(w, "\n%s\n", note)
	}
	if r.partial {
		fmt.Fprint(w, "\ninterrupted: these results are partial\n")
	}
}

const chartWidth = 72

// chart draws the lines with letters.
func (r *report) chart() string {
	var series [][]float64
	var names []string
	longest := 0
	for _, l := range r.lines {
		longest = max(longest, len(l.y))
	}
	for _, l := range r.lines {
		if len(l.y) == 0 {
			continue
		}
		// A peak must not fall between two columns: each shows its highest.
		columns := make([]float64, min(chartWidth, longest))
		for i := range columns {
			for j := i * longest / len(columns); j < (i+1)*longest/len(columns) && j < len(l.y); j++ {
				columns[i] = max(columns[i], l.y[j])
			}
		}
		series = append(series, columns)
		names = append(names, l.name)
	}
	if len(series) == 0 || longest < 2 {
		return ""
	}
	options := []asciigraph.Option{asciigraph.Height(10), asciigraph.Precision(0), asciigraph.LowerBound(0),
		asciigraph.Caption(r.unit + " over " + cmp.Or(r.over, "time") + ": " + strings.Join(names, ", "))}
	if len(series[0]) < chartWidth {
		options = append(options, asciigraph.Width(chartWidth))
	}
	return asciigraph.PlotMany(series, options...)
}
