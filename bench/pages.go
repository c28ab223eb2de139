// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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
	"bare":            "bare net/http",
	"bare-timeout":    "bare net/http, WithTimeout",
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

// Load returns the results that were saved at path.
func Load(path string) (*Results, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &Results{}
	return r, json.Unmarshal(data, r)
}

// UpdatePages rewrites the generated sections of the pages in the repository at
// root.
func (r *Results) UpdatePages(root string) error {
	for page, section := range r.pages() {
		path := filepath.Join(root, filepath.FromSlash(page))
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text, err = replaceSection(text, section)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// pages returns the generated sections by file.
func (r *Results) pages() map[string]string {
	return map[string]string{"README.md": r.summary(), "docs/performance-tables.md": r.figures()}
}

func replaceSection(text []byte, section string) ([]byte, error) {
	before, rest, ok := bytes.Cut(text, []byte(sectionBegin))
	_, after, closed := bytes.Cut(rest, []byte(sectionEnd))
	if !ok || !closed {
		return nil, errors.New("no section for the results")
	}
	return slices.Concat(before, []byte(sectionBegin+"\n"+section+sectionEnd), after), nil
}

func (r *Results) made() string {
	return fmt.Sprintf("Medians of %d rounds on %s, %d cores, %s, %s", r.Rounds, r.Machine, r.Procs, r.Go, r.Date)
}

// summary is the section of the README: the cost of a success.
func (r *Results) summary() string {
	value := func(head, peer string) string {
		for _, g := range r.groups() {
			for _, c := range g.columns {
				if v, ok := c.value(peer); ok && c.head == head {
					return c.text(v, peer)
				}
			}
		}
		return "–"
	}
	return fmt.Sprintf(`Beyond bare net/http, a GET that succeeds at once costs %s allocations; with metrics and timeouts, %s.
[Performance](docs/performance-tables.md) shows in bold which libraries cost less. %s.
`, value("GET", "retrip"), value("GET", "retrip-timeouts"), r.made())
}

// figures is the section of docs/performance-tables.md: everything.
func (r *Results) figures() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s. **Bold**: ahead of retrip with metrics, by however little.\n\n![added time of a request, and heap growth of an upload](performance.png)\n", r.made())
	for _, g := range r.groups() {
		fmt.Fprintf(&out, "\n%s\n\n", g.about)
		writeTable(&out, g.columns)
	}
	return out.String()
}

func writeTable(out *strings.Builder, columns []column) {
	out.WriteString("| ")
	for _, c := range columns {
		out.WriteString("| " + c.head + " ")
	}
	out.WriteString("|\n|---" + strings.Repeat("|---:", len(columns)) + "|\n")
	for _, p := range Peers {
		cells := make([]string, len(columns))
		measured := false
		for i, c := range columns {
			v, ok := c.value(p.Name)
			switch {
			case !ok:
				cells[i] = "–"
				continue
			case slices.Contains(c.ahead(), title(p.Name)):
				cells[i] = "**" + c.text(v, p.Name) + "**"
			default:
				cells[i] = c.text(v, p.Name)
			}
			measured = true
		}
		if measured {
			fmt.Fprintf(out, "| %s | %s |\n", title(p.Name), strings.Join(cells, " | "))
		}
	}
}
