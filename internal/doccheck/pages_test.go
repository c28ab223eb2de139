// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package doccheck

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
)

// page is a page for users: what a reader wants from it, and how many words it
// may take to give it. A page that has more to say needs a better sentence, or
// a table that a command writes.
type page struct {
	purpose string
	words   int
	tables  bool // it consists of figures, for looking up: only the text around them counts
	copies  bool // its code is that of programs, with which tests compare it: only the text counts
}

// mostWords is how many words all pages may have together that are meant for
// reading: two hours. Pages of tables have a maximum of their own.
const mostWords = 25_000

// generated pages are lists that nobody reads from beginning to end.
var generated = []string{pageOfTests}

var pages = map[string]page{
	"README.md":                   {purpose: "decide whether to use it, and begin", words: 700},
	"docs/app-developers.md":      {purpose: "use it in a program", words: 1200},
	"docs/architecture.md":        {purpose: "find one's way in the code", words: 850},
	"docs/compared.md":            {purpose: "choose between it and other libraries", words: 400},
	"docs/compatibility.md":       {purpose: "know what may change", words: 450},
	"docs/cookbook.md":            {purpose: "copy a solution", words: 1050, copies: true},
	"docs/downloads.md":           {purpose: "get whole bodies", words: 1400},
	"docs/downloads-tables.md":    {purpose: "look up figures", words: 600, tables: true},
	"docs/fleet.md":               {purpose: "limit the retries of all processes together", words: 950},
	"docs/fleet-tables.md":        {purpose: "look up figures", words: 700, tables: true},
	"docs/hedging.md":             {purpose: "decide on hedges", words: 300},
	"docs/hedging-tables.md":      {purpose: "look up the rule and figures", words: 600, tables: true},
	"docs/metrics.md":             {purpose: "understand a metric", words: 1050},
	"docs/migrating.md":           {purpose: "replace another library", words: 1000},
	"docs/not-built.md":           {purpose: "avoid what was tried", words: 850},
	"docs/numbers.md":             {purpose: "choose numbers", words: 750},
	"docs/performance.md":         {purpose: "know what it costs", words: 1200},
	"docs/performance-tables.md":  {purpose: "look up figures", words: 350, tables: true},
	"docs/platform-engineers.md":  {purpose: "set it up for many services", words: 1300},
	"docs/policy.md":              {purpose: "look up a setting", words: 1700},
	"docs/promises.md":            {purpose: "know what holds, and its limits", words: 2500},
	"docs/rate-limits.md":         {purpose: "work at a rate limit", words: 1000},
	"docs/rate-limits-tables.md":  {purpose: "look up figures", words: 400, tables: true},
	"docs/retry-storms.md":        {purpose: "know why a budget matters, and where it loses", words: 1500},
	"docs/retry-storms-tables.md": {purpose: "look up figures", words: 1500, tables: true},
	"docs/runbook.md":             {purpose: "act on an alert", words: 2100},
	"docs/sdk-authors.md":         {purpose: "build it into a library", words: 650},
	"docs/shed.md":                {purpose: "protect a server", words: 900},
	"docs/world.md":               {purpose: "build a random world for one's own client", words: 950},
	"docs/when-not-to-use.md":     {purpose: "decide against it", words: 450},
}

// TestPages_Words checks that each page is short enough for its purpose.
func TestPages_Words(t *testing.T) {
	problems, counts := checkPages(readRepository(t), pages, mostWords)
	for _, problem := range problems {
		t.Error(problem)
	}
	if t.Failed() || testing.Verbose() {
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			t.Logf("%6d of %5d  %s: %s", counts[name], pages[name].words, name, pages[name].purpose)
		}
	}
}

// checkPages returns which pages are too long, and the words of each.
func checkPages(files map[string]string, pages map[string]page, most int) (problems []string, counts map[string]int) {
	counts = map[string]int{}
	total := 0
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if name != "README.md" && (path.Dir(name) != "docs" || path.Ext(name) != ".md") || slices.Contains(generated, name) {
			continue
		}
		p, ok := pages[name]
		if !ok || p.purpose == "" {
			problems = append(problems, name+" has no purpose and no maximum of words")
		}
		n := countWords(files[name], p)
		counts[name] = n
		if !p.tables {
			total += n
		}
		if ok && n > p.words {
			problems = append(problems, fmt.Sprintf("%s has %d words, more than %d, to %s", name, n, p.words, p.purpose))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		if _, ok := files[name]; !ok {
			problems = append(problems, name+" doesn't exist")
		}
	}
	if total > most {
		problems = append(problems, fmt.Sprintf("all pages have %d words, more than %d", total, most))
	}
	return problems, counts
}

var (
	markedBlock = regexp.MustCompile(`(?s)<!-- \w+:begin -->.*?<!-- \w+:end -->`)

	// figureCommand is a command whose output TestFigures of retripsim compares
	// with the table or the picture beside it, and that table.
	figureCommand = regexp.MustCompile(`(?m)^    go run \./cmd/retripsim [^\n]*(\\\n[^\n]*)*-o (table\.md|docs/img/)[^\n]*\n(\n*(\|[^\n]*\n)+)?`)

	tableLine = regexp.MustCompile(`(?m)^\|.*$`)
	htmlTag   = regexp.MustCompile(`(?s)<[a-z/!][^>]*>`)
)

// countWords returns the words that a reader of a page reads: with headings, code
// and tables by hand, but without pictures, sections that a program writes, and
// the output of the commands beside it.
func countWords(text string, p page) int {
	for _, skipped := range []*regexp.Regexp{markedBlock, figureCommand, htmlTag} {
		text = skipped.ReplaceAllString(text, " ")
	}
	if p.tables {
		text = tableLine.ReplaceAllString(text, " ")
	}
	if p.copies {
		text = codeBlock.ReplaceAllString(text, " ")
	}
	n := 0
	for word := range strings.FieldsSeq(text) {
		if strings.IndexFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) >= 0 {
			n++
		}
	}
	return n
}

func TestPages_SeesWhatIsWrong(t *testing.T) {
	const text = "# A title\n\n" +
		"Read [this page](b.md) – once.\n\n" + // 4
		"<picture>\n<img src=\"a.svg\" alt=\"many words\">\n</picture>\n\n" +
		"    go run ./cmd/retripsim map -runs 3 \\\n      -o table.md # 1 min\n\n| a | b |\n|---|---|\n| 1 s | 2 s |\n\n" +
		"    go run ./cmd/retripsim map\n\n" + // 4, of code
		"<!-- bench:begin -->\n| 7 ns |\n<!-- bench:end -->\n" +
		"| by hand | 5 |\n"
	assert.Equal(t, 2+4+4+3, countWords(text, page{}))
	assert.Equal(t, 2+4+4, countWords(text, page{tables: true}))
	assert.Equal(t, 2+4+3, countWords(text, page{copies: true}))

	files := map[string]string{"README.md": "one two three", "docs/a.md": "one two", pageOfTests: "one", "docs/a.go": "package a", "lab/README.md": "one"}
	limits := map[string]page{"README.md": {purpose: "begin", words: 3}, "docs/a.md": {purpose: "go on", words: 2}}
	problems, counts := checkPages(files, limits, 5)
	assert.Empty(t, problems)
	assert.Equal(t, map[string]int{"README.md": 3, "docs/a.md": 2}, counts)

	files["docs/t.md"], limits["docs/t.md"] = "one\n| 2 |\n", page{purpose: "look up", words: 1, tables: true}
	problems, _ = checkPages(files, limits, 5)
	assert.Empty(t, problems, "a page of tables isn't read from beginning to end")

	files["README.md"] += " four"
	files["docs/b.md"] = "one"
	limits["docs/c.md"] = page{purpose: "go away", words: 1}
	problems, _ = checkPages(files, limits, 6)
	assert.Equal(t, []string{
		"README.md has 4 words, more than 3, to begin",
		"docs/b.md has no purpose and no maximum of words",
		"docs/c.md doesn't exist",
		"all pages have 7 words, more than 6",
	}, problems)
}
