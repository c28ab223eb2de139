// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package doccheck

import (
	"flag"
	"fmt"
	"html"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var draw = flag.Bool("draw", false, "draw the picture of the packages, with graphviz")

// TestPicture checks that the picture of the packages shows them all, what the
// page says about them, and their imports. `make picture` draws it.
func TestPicture(t *testing.T) {
	rows, _ := parseRows(sectionOf(architecture(t), "The packages"))
	p := newPicture(rows, packages(t))
	for name, theme := range map[string]theme{"packages.svg": light, "packages-dark.svg": dark} {
		name = root + "/docs/img/" + name
		if *draw {
			dot := exec.Command("dot", "-Tsvg")
			dot.Stdin, dot.Stderr = strings.NewReader(p.source(theme)), os.Stderr
			svg, err := dot.Output()
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(name, svg, 0o644))
		}
		svg, err := os.ReadFile(name)
		require.NoError(t, err)
		assert.Empty(t, p.differences(string(svg)), "%s is out of date: run `make picture`", name)
	}
}

// picture shows the packages that the root package consists of as rooms, and
// their imports as arrows. The root package is the roof.
type picture struct {
	title  string
	roof   string
	rooms  []room
	arrows []string // "a->b"
}

type room struct {
	name  string
	knows []string // lines
	depth int      // length of the longest path of imports from here
	alone bool     // without imports among the rooms
}

func newPicture(rows []row, code map[string]pkg) picture {
	p := picture{title: "The packages of retrip and what they import"}
	inside := reachable(code, rootName)
	used := map[string]bool{}
	for name := range inside {
		for _, imported := range code[name].imports {
			used[imported] = true
		}
	}
	var rest []string
	for _, r := range rows {
		imports := code[r.name].imports
		if !inside[r.name] {
			continue
		}
		name := strings.TrimPrefix(r.name, internal)
		if !slices.Contains(code[rootName].imports, r.name) {
			rest = append(rest, name)
		}
		p.rooms = append(p.rooms, room{name, wrap(r.knows), depth(code, r.name), len(imports) == 0 && !used[r.name]})
		for _, imported := range imports {
			if !slices.ContainsFunc(imports, func(other string) bool { return reachable(code, other)[imported] }) {
				p.arrows = append(p.arrows, name+"->"+strings.TrimPrefix(imported, internal))
			}
		}
	}
	p.roof = "the API, the settings and the way of a request; imports every room"
	if len(rest) > 0 {
		p.roof += " but " + strings.Join(rest, ", ")
	}
	return p
}

// reachable returns the packages that name imports, directly or not.
func reachable(code map[string]pkg, name string) map[string]bool {
	all := map[string]bool{}
	for _, imported := range code[name].imports {
		all[imported] = true
		maps.Copy(all, reachable(code, imported))
	}
	return all
}

func depth(code map[string]pkg, name string) (longest int) {
	for _, imported := range code[name].imports {
		longest = max(longest, 1+depth(code, imported))
	}
	return longest
}

// wrap breaks a text into as few lines as fit into a room, of about the same
// length.
func wrap(text string) (lines []string) {
	for most := 25; ; most-- {
		narrow, line := []string{}, ""
		for word := range strings.FieldsSeq(text) {
			if line != "" && len(line)+1+len(word) > most {
				narrow, line = append(narrow, line), ""
			}
			line = strings.TrimSpace(line + " " + word)
		}
		narrow = append(narrow, line)
		if lines != nil && len(narrow) > len(lines) || most == 0 {
			return lines
		}
		lines = narrow
	}
}

// theme is the colors of a picture.
type theme struct{ paper, roof, room, border, ink, muted string }

var (
	light = theme{paper: "#ffffff", roof: "#e3eef9", room: "#f4f7fa", border: "#c3cad2", ink: "#1f2933", muted: "#55606d"}
	dark  = theme{paper: "#0d1117", roof: "#17324f", room: "#161d27", border: "#47515d", ink: "#e6edf3", muted: "#a3aeba"}
)

// source returns the picture in the language of graphviz. Each column has the
// packages of one depth, so arrows go to the right.
func (p picture) source(t theme) string {
	const width, gap = 1.6, 0.5 // inches
	columns := map[int][]string{}
	var rooms strings.Builder
	for _, r := range p.rooms {
		column := columns[r.depth] // exists also if all its rooms are alone
		if !r.alone {
			column = append(column, r.name)
		}
		columns[r.depth] = column
		fmt.Fprintf(&rooms, "%s [label=<%s>]\n", r.name, t.label(r.name, r.knows...))
	}
	for _, depth := range slices.Sorted(maps.Keys(columns)) {
		fmt.Fprintf(&rooms, "{rank=same; %s}\n", strings.Join(columns[depth], "; "))
	}
	for _, arrow := range p.arrows {
		fmt.Fprintln(&rooms, arrow)
	}
	roof := 72 * (float64(len(columns))*(width+gap) - gap)
	font := `fontname="Arial,Helvetica,sans-serif"`
	return fmt.Sprintf(`digraph "%s" {
graph [rankdir=LR, nodesep=0.1, ranksep=%g, pad=0.15, bgcolor="%s", labelloc=t, %s, fontsize=9, fontcolor="%s",
	label=<<TABLE BORDER="0" CELLSPACING="0" CELLPADDING="4"><TR>
	<TD BORDER="1" COLOR="%s" BGCOLOR="%s" WIDTH="%.0f">%s</TD></TR><TR><TD></TD></TR></TABLE>>]
node [shape=box, style=filled, width=%g, height=0.5, margin="0.05,0.05", color="%s", fillcolor="%s", %s, fontsize=9, fontcolor="%s"]
edge [arrowsize=0.5, penwidth=0.9, color="%s"]
%s}
`, p.title, gap, t.paper, font, t.muted, t.border, t.roof, roof, t.label(rootName, p.roof), width, t.border, t.room, font, t.muted, t.muted, rooms.String())
}

// label returns a name in bold above smaller lines.
func (t theme) label(name string, lines ...string) string {
	text := strings.ReplaceAll(html.EscapeString(strings.Join(lines, "\n")), "\n", "<BR/>")
	return fmt.Sprintf(`<B><FONT POINT-SIZE="10.5" COLOR="%s">%s</FONT></B><BR/>%s`, t.ink, name, text)
}

// shown matches what graphviz writes into a picture: the names of the graph,
// its nodes and its edges as titles, and lines of text.
var shown = regexp.MustCompile(`<(title|text)[^>]*>([^<]*)<`)

// differences returns what is in only one of p and an SVG that graphviz drew.
func (p picture) differences(svg string) (problems []string) {
	count := map[string]int{"title " + p.title: 1, "text " + rootName: 1, "text " + p.roof: 1}
	for _, r := range p.rooms {
		count["title "+r.name]++
		count["text "+r.name]++
		for _, line := range r.knows {
			count["text "+line]++
		}
	}
	for _, arrow := range p.arrows {
		count["title "+arrow]++
	}
	for _, m := range shown.FindAllStringSubmatch(svg, -1) {
		count[m[1]+" "+strings.ReplaceAll(html.UnescapeString(m[2]), "\u00a0", " ")]--
	}
	for _, what := range slices.Sorted(maps.Keys(count)) {
		switch n := count[what]; {
		case n > 0:
			problems = append(problems, what+" is missing")
		case n < 0:
			problems = append(problems, what+" is too many")
		}
	}
	return problems
}

func TestPicture_SeesWhatIsWrong(t *testing.T) {
	rows := []row{{name: "internal/host", knows: "all about a host & what it has"}, {name: "internal/gate", knows: "queues"},
		{name: "internal/span", knows: "durations"}, {name: "internal/text", knows: "words"}, {name: "internal/clock", knows: "for tests: time"}}
	code := map[string]pkg{
		"retrip":         {imports: []string{"internal/host", "internal/text"}},
		"internal/host":  {imports: []string{"internal/gate", "internal/span"}},
		"internal/gate":  {imports: []string{"internal/span"}},
		"internal/clock": {imports: []string{"internal/span"}},
	}
	p := newPicture(rows, code)
	assert.Equal(t, []room{{"host", []string{"all about a host", "& what it has"}, 2, false}, {"gate", []string{"queues"}, 1, false},
		{"span", []string{"durations"}, 0, false}, {"text", []string{"words"}, 0, true}}, p.rooms)
	assert.Equal(t, []string{"host->gate", "gate->span"}, p.arrows, "without the one that these imply")
	assert.True(t, strings.HasSuffix(p.roof, "imports every room but gate, span"), p.roof)
	for _, want := range []string{"{rank=same; host}\n", "{rank=same; gate}\n", "{rank=same; span}\n", "&amp; what"} {
		assert.Contains(t, p.source(light), want)
	}

	svg := "<title>" + p.title + "</title><text x=\"1\">retrip</text><text>" + p.roof + "</text>" +
		"<title>host</title><text>host</text><text>all about a host</text><text>&amp;\u00a0what it has</text><title>gate</title><text>gate</text><text>queues</text>" +
		"<title>span</title><text>span</text><text>durations</text><title>text</title><text>text</text><text>words</text>" +
		"<title>host&#45;&gt;gate</title><title>gate&#45;&gt;span</title>"
	assert.Empty(t, p.differences(svg))
	for _, tt := range []struct {
		old, new string
		want     []string
	}{
		{"<title>gate&#45;&gt;span</title>", "", []string{"title gate->span is missing"}},
		{"<title>text</title>", "<title>text</title><title>host&#45;&gt;text</title>", []string{"title host->text is too many"}},
		{"<title>text</title><text>text</text>", "<title>body</title><text>body</text>", []string{
			"text body is too many", "text text is missing", "title body is too many", "title text is missing"}},
		{"<text>queues</text>", "<text>a queue</text>", []string{"text a queue is too many", "text queues is missing"}},
		{"but gate, span", "but span", []string{"text " + p.roof + " is missing", "text " + strings.Replace(p.roof, "gate, ", "", 1) + " is too many"}},
	} {
		require.Equal(t, 1, strings.Count(svg, tt.old), tt.old)
		assert.Equal(t, tt.want, p.differences(strings.Replace(svg, tt.old, tt.new, 1)))
	}
}
