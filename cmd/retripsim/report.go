// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
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
	json    any
	partial bool // the command was interrupted
	failed  bool // a policy did not pass
}

// encode writes the report as JSON.
func (r *report) encode(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(map[string]any{"title": r.title, "partial": r.partial, "results": r.json})
}

// print writes the report for people.
func (r *report) print(w io.Writer) error {
	var b strings.Builder
	b.WriteString(r.title + "\n\n")
	widths := make([]int, len(r.table[0]))
	for _, row := range r.table {
		for i, text := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	for _, row := range r.table {
		var line strings.Builder
		line.WriteString(row[0] + strings.Repeat(" ", widths[0]-utf8.RuneCountInString(row[0])))
		for i, text := range row[1:] {
			line.WriteString("  " + strings.Repeat(" ", widths[i+1]-utf8.RuneCountInString(text)) + text)
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	for _, note := range r.notes {
		b.WriteString("\n" + note + "\n")
	}
	if r.partial {
		b.WriteString("\ninterrupted: these results are partial\n")
	}
	_, err := fmt.Fprint(w, b.String())
	return err
}
