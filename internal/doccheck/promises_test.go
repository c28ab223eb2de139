// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package doccheck

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// promised holds the numbers of the promises in docs/promises.md. The numbers
// in between are reserved.
var promised = upTo(23)

func upTo(last int) (numbers []int) {
	for n := 1; n <= last; n++ {
		numbers = append(numbers, n)
	}
	return numbers
}

var update = flag.Bool("update", false, "write the list of the tests of the promises")

// pageOfTests is generated. It lists the tests of each promise.
const pageOfTests = "docs/promises-tests.md"

// TestPromises checks that each promise of docs/promises.md has tests, that
// docs/promises-tests.md lists them, and that the rest of the repository names
// existing promises. With -update, it writes the list.
func TestPromises(t *testing.T) {
	files := readRepository(t)
	rows := contractRows(t, files)
	promises, problems := parsePromises(files["docs/promises.md"], promised)
	guards, wrong := findGuards(files, rows)
	problems = append(problems, wrong...)
	problems = append(problems, checkGuards(promises, guards)...)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		problems = append(problems, checkMentions(promises, name, files[name])...)
	}
	for _, problem := range problems {
		t.Error(problem)
	}
	page := listGuards(promises, guards)
	if *update {
		require.NoError(t, os.WriteFile(filepath.Join(root, pageOfTests), []byte(page), 0o644))
		return
	}
	assert.Equal(t, page, files[pageOfTests], "make promises writes it")
}

// promise is a section of docs/promises.md.
type promise struct {
	id, anchor, headline string
}

var promiseHeading = regexp.MustCompile(`(?m)^## (P\d+)(: ([^\n]*))?$`)

// parsePromises returns the sections of a page by id. Each promise must have
// exactly one section, with a headline, in order.
func parsePromises(page string, numbers []int) (map[string]promise, []string) {
	promises := map[string]promise{}
	var problems []string
	var ids, want []string
	for _, m := range promiseHeading.FindAllStringSubmatch(page, -1) {
		p := promise{id: m[1], headline: strings.TrimSpace(m[3])}
		ids = append(ids, p.id)
		if !strings.Contains(p.headline, " ") {
			problems = append(problems, p.id+" has no headline")
		} else {
			p.anchor = anchorOf(p.id + ": " + p.headline)
		}
		promises[p.id] = p
	}
	for _, n := range numbers {
		want = append(want, fmt.Sprint("P", n))
	}
	if !slices.Equal(want, ids) {
		problems = append(problems, fmt.Sprintf("the sections are %v, want %v", ids, want))
	}
	return promises, problems
}

// anchorOf returns the anchor that GitHub generates for a heading.
func anchorOf(heading string) string {
	heading = strings.ReplaceAll(strings.ToLower(heading), " ", "-")
	return regexp.MustCompile(`[^a-z0-9_-]`).ReplaceAllString(heading, "")
}

// guard is a test that fails if a promise is broken: a function that is marked
// with guardMark, or a row of TestContract.
type guard struct {
	dir, file, name string
}

// guardMark is a line in the doc comment of a test. The numbers of promises
// follow.
const guardMark = "//retrip:promise "

var testName = regexp.MustCompile(`^(Test|Fuzz|Benchmark|Example)([A-Z_]|$)`)

// findGuards returns the guards of each promise, in order.
func findGuards(files map[string]string, rows []string) (guards map[string][]guard, problems []string) {
	guards = map[string][]guard{}
	for _, row := range rows {
		id, _, _ := strings.Cut(row, " ")
		guards[id] = append(guards[id], guard{".", "contract_test.go", "TestContract/" + row})
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, "_test.go") || !strings.Contains(files[name], "\n"+guardMark) {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, files[name], parser.ParseComments)
		if err != nil {
			return nil, append(problems, err.Error())
		}
		marks := strings.Count(files[name], "\n"+guardMark)
		for _, decl := range file.Decls {
			fun, ok := decl.(*ast.FuncDecl)
			if !ok || fun.Doc == nil || !testName.MatchString(fun.Name.Name) {
				continue
			}
			for _, line := range fun.Doc.List {
				ids, ok := strings.CutPrefix(line.Text, guardMark)
				if !ok {
					continue
				}
				marks--
				for id := range strings.FieldsSeq(ids) {
					guards[id] = append(guards[id], guard{path.Dir(name), name, fun.Name.Name})
				}
			}
		}
		if marks != 0 {
			problems = append(problems, name+" marks something that isn't a test")
		}
	}
	return guards, problems
}

// checkGuards reports promises without a guard, and guards of nothing.
func checkGuards(promises map[string]promise, guards map[string][]guard) (problems []string) {
	for _, id := range slices.Sorted(maps.Keys(promises)) {
		if len(guards[id]) == 0 {
			problems = append(problems, id+" has no test")
		}
	}
	for _, id := range slices.Sorted(maps.Keys(guards)) {
		if _, ok := promises[id]; !ok {
			problems = append(problems, fmt.Sprintf("%s belongs to %s, which is no promise", guards[id][0].name, id))
		}
	}
	return problems
}

// listGuards returns the page with the guards of each promise.
func listGuards(promises map[string]promise, guards map[string][]guard) string {
	var page strings.Builder
	page.WriteString(`# The tests of the promises

` + "`make promises`" + ` writes this page. It lists, for each of the [promises](promises.md), the tests that fail if it is broken: those whose
comment has a line ` + "`" + strings.TrimSpace(guardMark) + "`" + ` with its number, and rows of TestContract.
`)
	byNumber := func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }
	for _, id := range slices.SortedFunc(maps.Keys(promises), byNumber) {
		fmt.Fprintf(&page, "\n## [%s: %s](promises.md#%s)\n\n", id, promises[id].headline, promises[id].anchor)
		byDir := map[string][]string{}
		for _, g := range guards[id] {
			byDir[g.dir] = append(byDir[g.dir], fmt.Sprintf("[%s](../%s)", g.name, g.file))
		}
		for _, dir := range slices.Sorted(maps.Keys(byDir)) {
			name := "`" + dir + "`"
			if dir == "." {
				name = "the root"
			}
			fmt.Fprintf(&page, "- %s:\n  %s\n", name, strings.Join(byDir[dir], ",\n  "))
		}
	}
	return page.String()
}

var (
	mention = regexp.MustCompile(`P\d+`)

	// elsewhere matches references to notes that are not in the repository.
	elsewhere = regexp.MustCompile(`\b(DESIGN|CASES|SIMULATION|STANDARDS|COMPONENTS|ANCHORS)\b|\b(BUDGET|GATE|RULES|STYLE)\.md\b|\b[Cc]ases? \d+`)

	promiseLink = regexp.MustCompile(`promises\.md#([\w-]+)`)
)

// notPromises look like promises but are percentiles.
var notPromises = []string{"P50", "P99"}

// checkMentions reports mentions of promises that don't exist, and of notes
// that are not in the repository.
func checkMentions(promises map[string]promise, name, source string) []string {
	var problems []string
	for _, prose := range proseOf(name, source) {
		for _, at := range mention.FindAllStringIndex(prose.text, -1) {
			id := prose.text[at[0]:at[1]]
			if at[0] > 0 && isWord(prose.text[at[0]-1]) || at[1] < len(prose.text) && isWord(prose.text[at[1]]) || slices.Contains(notPromises, id) {
				continue
			}
			if _, ok := promises[id]; !ok {
				problems = append(problems, fmt.Sprintf("%s:%d: there is no promise %s", name, prose.lineOf(at[0]), id))
			}
		}
		for _, at := range elsewhere.FindAllStringIndex(prose.text, -1) {
			problems = append(problems, fmt.Sprintf("%s:%d: %q is not in the repository", name, prose.lineOf(at[0]), prose.text[at[0]:at[1]]))
		}
		for _, at := range promiseLink.FindAllStringSubmatchIndex(prose.text, -1) {
			anchor := prose.text[at[2]:at[3]]
			if !slices.ContainsFunc(slices.Collect(maps.Keys(promises)), func(id string) bool { return promises[id].anchor == anchor }) {
				problems = append(problems, fmt.Sprintf("%s:%d: docs/promises.md has no heading #%s", name, prose.lineOf(at[0]), anchor))
			}
		}
	}
	return problems
}

// isWord reports whether c may be part of a word. An underscore is not, because
// it separates words in the names of tests.
func isWord(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// prose is a piece of text in a file that people read.
type prose struct {
	line int // line on which it begins
	text string
}

func (p prose) lineOf(at int) int { return p.line + strings.Count(p.text[:at], "\n") }

// proseOf returns comments, strings and test names from a Go file, and the
// whole text of any other file.
func proseOf(name, source string) []prose {
	if !strings.HasSuffix(name, ".go") {
		return []prose{{1, source}}
	}
	var all []prose
	files := token.NewFileSet()
	file := files.AddFile(name, -1, len(source))
	var s scanner.Scanner
	s.Init(file, []byte(source), nil, scanner.ScanComments)
	for {
		pos, tok, text := s.Scan()
		switch {
		case tok == token.EOF:
			return all
		case tok == token.COMMENT, tok == token.STRING, tok == token.IDENT && strings.HasPrefix(text, "Test"):
			all = append(all, prose{file.Line(pos), text})
		}
	}
}

// contractRows returns the names of the rows of TestContract, which are in
// variables of type []contractRow.
func contractRows(t *testing.T, files map[string]string) (rows []string) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasPrefix(name, "contract_") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, files[name], 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			table, ok := n.(*ast.CompositeLit)
			if !ok || !isContract(table) {
				return true
			}
			for _, row := range table.Elts {
				name, err := strconv.Unquote(row.(*ast.CompositeLit).Elts[0].(*ast.BasicLit).Value)
				require.NoError(t, err)
				rows = append(rows, name)
			}
			return false
		})
	}
	require.NotEmpty(t, rows, "the tables of the contract")
	return rows
}

func isContract(table *ast.CompositeLit) bool {
	list, ok := table.Type.(*ast.ArrayType)
	if !ok {
		return false
	}
	row, ok := list.Elt.(*ast.Ident)
	return ok && row.Name == "contractRow"
}

// TestPromises_SeesWhatIsWrong breaks each rule once.
func TestPromises_SeesWhatIsWrong(t *testing.T) {
	const (
		page  = "# Title\n\n## P1: The first one\n\nText.\n\n## P2: The second one\n\nText.\n"
		tests = "package lab\n\n//retrip:promise P1 P2\nfunc TestA(t *testing.T) {}\n\n// TestB is a test.\n//\n//retrip:promise P2\nfunc TestB(t *testing.T) {}\n"
	)
	for _, tt := range []struct {
		name     string
		old, new string // in page or tests
		row      string
		want     []string
	}{
		{"nothing", "", "", "P1 a row", nil},
		{"a promise is missing", "## P2: The second one", "", "P1 a row", []string{"the sections are [P1], want [P1 P2]", "TestA belongs to P2, which is no promise"}},
		{"one too many", "## P2: The second one", "## P2: The second one\n\n## P3: The third one", "P3 a row", []string{"the sections are [P1 P2 P3], want [P1 P2]"}},
		{"one twice", "## P2:", "## P1: Again and again\n\n## P2:", "P1 a row", []string{"the sections are [P1 P1 P2], want [P1 P2]"}},
		{"no headline", "## P2: The second one", "## P2", "P1 a row", []string{"P2 has no headline"}},
		{"no test", "P1 P2", "P2", "P2 a row", []string{"P1 has no test"}},
		{"a row is a test", "P1 P2", "P2", "P1 a row", nil},
		{"a row of nothing", "", "", "case 4", []string{"TestContract/case 4 belongs to case, which is no promise"}},
		{"a test of nothing", "P1 P2", "P1 P7", "P1 a row", []string{"TestA belongs to P7, which is no promise"}},
		{"a mark at something else", "TestA", "helper", "P1 a row", []string{"lab/a_test.go marks something that isn't a test"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			page, tests := page, tests
			if tt.old != "" {
				require.Equal(t, 1, strings.Count(page, tt.old)+strings.Count(tests, tt.old))
				page, tests = strings.Replace(page, tt.old, tt.new, 1), strings.Replace(tests, tt.old, tt.new, 1)
			}
			promises, got := parsePromises(page, upTo(2))
			guards, wrong := findGuards(map[string]string{"lab/a_test.go": tests, "lab/a.go": "package lab\n\n//retrip:promise P9\n"}, []string{tt.row})
			got = append(got, wrong...)
			assert.Equal(t, tt.want, append(got, checkGuards(promises, guards)...))
		})
	}

	promises, _ := parsePromises(page, upTo(2))
	guards, _ := findGuards(map[string]string{"lab/a_test.go": tests}, []string{"P1 a row"})
	list := listGuards(promises, guards)
	assert.Contains(t, list, "\n## [P1: The first one](promises.md#p1-the-first-one)\n\n- the root:\n  [TestContract/P1 a row](../contract_test.go)\n- `lab`:\n  [TestA](../lab/a_test.go)\n")
	assert.Contains(t, list, "\n- `lab`:\n  [TestA](../lab/a_test.go),\n  [TestB](../lab/a_test.go)\n")
	for _, tt := range []struct {
		name, source string
		want         []string
	}{
		{"a.md", "P1, P2/P1 and docs/promises.md#p1-the-first-one", nil},
		{"a.md", "one\nP2 … P3", []string{"a.md:2: there is no promise P3"}},
		{"a.md", "see promises.md#p1", []string{"a.md:1: docs/promises.md has no heading #p1"}},
		{"a.go", "package a\n\n// P3: x\nvar P4 = \"P5\"", []string{"a.go:3: there is no promise P3", "a.go:4: there is no promise P5"}},
		{"a_test.go", "package a\n\nfunc TestX_P7_Y() {}", []string{"a_test.go:3: there is no promise P7"}},
		{"a.go", "package a\n\n/* HTTP2P4, P2P,\n\nCase 7 */", []string{`a.go:5: "Case 7" is not in the repository`}},
		{"a.go", "package a\n\n// See DESIGN.\nfunc f() { switch { case 4 > 3: } }", []string{`a.go:3: "DESIGN" is not in the repository`}},
		{"a.go", "package a\n\n// P50 and P99 are percentiles.", nil},
	} {
		assert.Equal(t, tt.want, checkMentions(promises, tt.name, tt.source), tt.source)
	}
}
