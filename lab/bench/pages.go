// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Markers around the generated section of a page.
const (
	sectionBegin = "<!-- bench:begin -->"
	sectionEnd   = "<!-- bench:end -->"
)

var titles = map[string]string{
	"bare-timeout":    "bare net/http, WithTimeout",
	"loop":            "20 lines by hand",
	"retrip-metrics":  "retrip, metrics",
	"retrip-timeouts": "retrip, metrics, timeouts",
	"retrip-hedge":    "retrip, metrics, hedges",
}

// updatePages rewrites the generated sections of the pages.
func (r *results) updatePages() error {
	for page, section := range r.pages() {
		path := filepath.Join("../..", filepath.FromSlash(page))
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if text, err = replaceSection(text, section); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// pages returns the generated sections by file.
func (r *results) pages() map[string]string {
	return map[string]string{"README.md": r.cost(), "docs/performance.md": r.table()}
}

func replaceSection(text []byte, section string) ([]byte, error) {
	before, rest, ok := bytes.Cut(text, []byte(sectionBegin))
	_, after, closed := bytes.Cut(rest, []byte(sectionEnd))
	if !ok || !closed {
		return nil, errors.New("no section for the results")
	}
	return slices.Concat(before, []byte(sectionBegin+"\n"+section+sectionEnd), after), nil
}

func (r *results) made() string {
	return fmt.Sprintf("Medians of %d rounds on %s, %d cores, %s, %s", r.Rounds, r.Machine, r.Procs, r.Go, r.Date)
}

// cost is the section of the README: the cost of a success.
func (r *results) cost() string {
	stripped, plain, _ := r.grown("retrip")
	least, most := math.Inf(1), 0.0
	for _, p := range peers {
		if mb, _, ok := r.grown(p.name); ok && p.name != "bare" && p.name != "retrip" {
			least, most = min(least, mb), max(most, mb)
		}
	}
	return fmt.Sprintf(`Beyond bare net/http, a GET that succeeds at once costs %s allocations; with metrics and timeouts, %s.
The binary grows by %.1f MB stripped and by %.1f MB as it is built; other libraries add %.1f to %.1f MB, stripped.
[Performance](docs/performance.md#beside-other-libraries) shows in bold which libraries cost less. %s.
`, r.added("retrip", "Transport/GET/serial").text, r.added("retrip-timeouts", "Transport/GET/serial").text, stripped, plain, least, most, r.made())
}

// cell is a cell of the table. Lower values are better; those of peers without a
// value are infinite.
type cell struct {
	value float64
	text  string
}

var none = cell{math.Inf(1), "–"}

// added returns what the peer adds to the first of the cases that it has.
func (r *results) added(peer string, names ...string) cell {
	for _, name := range names {
		if s, ok := r.summary(name, peer); ok {
			return cell{s.over, fmt.Sprintf("%s, %+d", duration("%+.*f", s.over), s.more)}
		}
	}
	return none
}

// table is the section of docs/performance.md.
func (r *results) table() string {
	var out strings.Builder
	fmt.Fprintf(&out, `%s. **Bold**: ahead of retrip with metrics, by however little.

*GET* and *POST* succeed at once over a stub: the time and the allocations that each peer adds to bare net/http in the same
round, at RoundTrip if the peer has one, and otherwise at `+"`Client.Do`"+`. *503, 503, 200* is a whole GET with two retries and
no waits. *HTTP/1.1* and *HTTP/2* are what a GET over a loopback socket takes longer. *Binary* is what the library adds to
a small program with net/http, stripped and as it is built.

| | GET | POST 1 KiB | 503, 503, 200 | HTTP/1.1 | HTTP/2 | Binary, MB |
|---|---:|---:|---:|---:|---:|---:|
`, r.made())
	own := r.row("retrip-metrics")
	for _, p := range peers[1:] {
		var cells []string
		row := r.row(p.name)
		if row[0] == none && row[2] == none {
			continue // not measured yet
		}
		for i, c := range row {
			if c.value < own[i].value && !strings.HasPrefix(p.name, "retrip") {
				c.text = "**" + c.text + "**"
			}
			cells = append(cells, c.text)
		}
		fmt.Fprintf(&out, "| %s | %s |\n", cmp.Or(titles[p.name], p.name), strings.Join(cells, " | "))
	}
	return out.String()
}

func (r *results) row(peer string) []cell {
	row := []cell{
		r.added(peer, "Transport/GET/serial", "Client/GET/serial"),
		r.added(peer, "Transport/POST/serial", "Client/POST/serial"),
		none, none, none, none,
	}
	if s, ok := r.summary("Client/retry-GET", peer); ok {
		row[2] = cell{s.ns, fmt.Sprintf("%s, %d", duration("%.*f", s.ns), s.allocs)}
	}
	for i, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		if longer, margin, ok := r.loopback(protocol, peer); ok {
			row[3+i] = cell{longer, fmt.Sprintf("%+.1f ± %.1f %%", 100*longer, 100*margin)}
		}
	}
	if strings.HasPrefix(peer, "retrip-") {
		peer = "retrip"
	}
	if stripped, plain, ok := r.grown(peer); ok {
		row[5] = cell{stripped, fmt.Sprintf("%+.1f, %+.1f", stripped, plain)}
	}
	return row
}

// duration formats nanoseconds with the given number format, in the unit that
// keeps the number short.
func duration(format string, ns float64) string {
	unit := "ns"
	if math.Abs(ns) >= 1000 {
		ns, unit = ns/1000, "µs"
	}
	digits := 0
	if math.Abs(ns) < 100 {
		digits = 1
	}
	if math.Abs(ns) < 10 && unit != "ns" {
		digits = 2
	}
	return fmt.Sprintf(format, digits, ns) + " " + unit
}
