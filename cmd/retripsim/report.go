// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// report is the result of a command.
type report struct {
	title   string
	table   [][]string // the first row is the header
	notes   []string
	lines   []line // chart for the terminal; may be nil
	unit    string // of the lines
	over    string // the x axis of the lines; if empty, seconds
	partial bool
	failed  bool // a policy did not pass

	json any
	csv  func(io.Writer) error
	draw func(*theme) (*figure, error) // nil if there is no picture
}

// print writes the report for a terminal of the given width.
func (r *report) print(w io.Writer, columns int) {
	say := func(s string) {
		for _, row := range fold(s, columns) {
			fmt.Fprintln(w, row)
		}
	}
	say(r.title)
	fmt.Fprintln(w)
	r.printTable(w, columns)
	for i, row := range r.chart(columns) {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w, row)
	}
	for _, note := range r.notes {
		fmt.Fprintln(w)
		say(note)
	}
	if r.partial {
		fmt.Fprint(w, "\ninterrupted: these results are partial\n")
	}
}

// printTable writes the table. If the terminal is too narrow, it writes each
// row as a block.
func (r *report) printTable(w io.Writer, columns int) {
	widths := make([]int, len(r.table[0]))
	all := -2
	for i := range widths {
		for _, row := range r.table {
			if i < len(row) {
				widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
			}
		}
		all += widths[i] + 2
	}
	if all > columns && columns < 80 {
		for _, row := range r.table[1:] {
			fmt.Fprintln(w, row[0])
			for i, text := range row[1:] {
				if text != "" {
					fmt.Fprintf(w, "  %s  %s\n", r.table[0][i+1], text)
				}
			}
		}
		return
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
}

// writeMarkdown writes the table as Markdown.
func (r *report) writeMarkdown(w io.Writer) error {
	var b strings.Builder
	for i, row := range r.table {
		for len(row) < len(r.table[0]) {
			row = append(row, "")
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", len(row)) + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
