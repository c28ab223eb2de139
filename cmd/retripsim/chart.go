// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	chartColumns = 72 // of a wide terminal
	chartRows    = 2  // of a line
)

var blocks = []rune(" ▁▂▃▄▅▆▇█")

// chart draws each line in its own rows, below its name and highest value. All
// lines have the same scale, so that none hides another and letters need no
// color.
func (r *report) chart(columns int) []string {
	longest, top := 0, 0.0
	for _, l := range r.lines {
		longest = max(longest, len(l.y))
		top = max(top, highest(l))
	}
	if longest < 2 || top <= 0 {
		return nil
	}
	wide := min(columns, chartColumns)
	over := cmp.Or(r.over, fmt.Sprintf("%s to %s s", number(first(r.lines)), number(last(r.lines))))
	rows := fold(fmt.Sprintf("%s over %s; all from 0 to %s:", r.unit, over, tickText(roundTo3(top))), columns)
	for _, l := range r.lines {
		if len(l.y) == 0 {
			continue
		}
		head := "at most " + cmp.Or(l.peak, tickText(roundTo3(highest(l))))
		pad := max(1, wide-utf8.RuneCountInString(l.name)-len(head))
		rows = append(rows, l.name+strings.Repeat(" ", pad)+head)
		rows = append(rows, l.blocks(wide, longest, top)...)
	}
	return rows
}

// blocks draws l in the given number of columns. Each column shows its highest
// point, so that no peak falls between two columns.
func (l *line) blocks(columns, longest int, top float64) []string {
	rows := make([]strings.Builder, chartRows)
	for i := range columns {
		from := i * longest / columns
		to := max((i+1)*longest/columns, from+1)
		y := 0.0
		for j := from; j < to && j < len(l.y); j++ {
			y = max(y, l.y[j])
		}
		eighths := int(y/top*8*chartRows + 0.5)
		if y > 0 {
			eighths = max(eighths, 1)
		}
		for k := range rows {
			rows[k].WriteRune(blocks[min(max(eighths-8*(chartRows-1-k), 0), 8)])
		}
	}
	var texts []string
	for k := range rows {
		texts = append(texts, strings.TrimRight(rows[k].String(), " "))
	}
	return texts
}

func first(lines []line) float64 {
	for _, l := range lines {
		if len(l.x) > 0 {
			return l.x[0]
		}
	}
	return 0
}

func last(lines []line) float64 {
	end := 0.0
	for _, l := range lines {
		if n := len(l.x); n > 0 {
			end = max(end, l.x[n-1])
		}
	}
	return end
}

// roundTo3 rounds x to three significant digits or more.
func roundTo3(x float64) float64 {
	for _, unit := range []float64{100, 10, 1} {
		if x >= unit {
			return float64(int(x*100/unit+0.5)) * unit / 100
		}
	}
	return x
}

// fold wraps s at spaces into lines of at most the given number of columns.
func fold(s string, columns int) []string {
	var lines []string
	row := ""
	for word := range strings.SplitSeq(s, " ") {
		longer := strings.TrimPrefix(row+" "+word, " ")
		if row != "" && utf8.RuneCountInString(longer) > columns {
			lines = append(lines, row)
			longer = word
		}
		row = longer
	}
	return append(lines, row)
}
