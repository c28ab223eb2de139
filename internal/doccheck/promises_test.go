// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package doccheck

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"maps"
	"path"
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
var promised = append(upTo(20), 22, 23)

func upTo(last int) (numbers []int) {
	for n := 1; n <= last; n++ {
		numbers = append(numbers, n)
	}
	return numbers
}

// TestPromises checks that docs/promises.md names existing tests, and that the
// rest of the repository names existing promises.
func TestPromises(t *testing.T) {
	files := readRepository(t)
	rows := contractRows(t, files)
	promises, problems := parsePromises(files["docs/promises.md"], promised)
	problems = append(problems, checkPromises(promises, testNames(files), rows)...)
	problems = append(problems, checkRows(promises, rows)...)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		problems = append(problems, checkMentions(promises, name, files[name])...)
	}
	for _, problem := range problems {
		t.Error(problem)
	}
}

// promise is a section of docs/promises.md.
type promise struct {
	id, anchor, text string
}

var promiseHeading = regexp.MustCompile(`(?m)^## (P\d+)(: ([^\n]*))?$`)

// parsePromises returns the sections of a page by id. Each promise must have
// exactly one section, with a headline, in order.
func parsePromises(page string, numbers []int) (map[string]promise, []string) {
	promises := map[string]promise{}
	var problems []string
	var ids, want []string
	headings := promiseHeading.FindAllStringSubmatchIndex(page, -1)
	for i, at := range headings {
		end := len(page)
		if i+1 < len(headings) {
			end = headings[i+1][0]
		}
		p := promise{id: page[at[2]:at[3]], text: page[at[1]:end]}
		ids = append(ids, p.id)
		if at[6] < 0 || !strings.Contains(strings.TrimSpace(page[at[6]:at[7]]), " ") {
			problems = append(problems, p.id+" has no headline")
		} else {
			p.anchor = anchorOf(page[at[2]:at[7]])
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

// namedTest is a test in a code span: an optional directory, a function, and an
// optional row of a table.
var namedTest = regexp.MustCompile("`(?:([a-z][\\w/]*)\\.)?((?:Test|Fuzz|Benchmark|Example)[A-Z_]\\w*)(/[^`]+)?`")

// checkPromises reports promises that name no test, and tests that don't exist.
func checkPromises(promises map[string]promise, tests map[string]bool, rows []string) []string {
	var problems []string
	for _, id := range slices.Sorted(maps.Keys(promises)) {
		found := 0
		for _, m := range namedTest.FindAllStringSubmatch(promises[id].text, -1) {
			name, row := path.Join(m[1], m[2]), strings.TrimPrefix(m[3], "/")
			switch {
			case !tests[name]:
				problems = append(problems, fmt.Sprintf("%s names the test %s, which doesn't exist", id, name))
			case row != "" && (name != "TestContract" || !slices.Contains(rows, row)):
				problems = append(problems, fmt.Sprintf("%s names the row %q of %s, which doesn't exist", id, row, name))
			case row != "" && !strings.HasPrefix(row, id+" "):
				problems = append(problems, fmt.Sprintf("%s names the row %q, which is of another promise", id, row))
			default:
				found++
			}
		}
		if found == 0 {
			problems = append(problems, id+" names no test")
		}
	}
	return problems
}

// checkRows reports rows of the contract that belong to no promise.
func checkRows(promises map[string]promise, rows []string) []string {
	var problems []string
	for _, row := range rows {
		id, _, _ := strings.Cut(row, " ")
		if _, ok := promises[id]; !ok {
			problems = append(problems, fmt.Sprintf("the row %q of the contract begins with no promise", row))
		}
	}
	return problems
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

var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w*)\(`)

// testNames returns the tests of all modules, prefixed with their directory.
func testNames(files map[string]string) map[string]bool {
	tests := map[string]bool{}
	for name, source := range files {
		if !strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, m := range testFunction.FindAllStringSubmatch(source, -1) {
			tests[path.Join(path.Dir(name), m[1])] = true
		}
	}
	return tests
}

// TestPromises_SeesWhatIsWrong breaks each rule once.
func TestPromises_SeesWhatIsWrong(t *testing.T) {
	rows := []string{"P1 a row", "P2 a row"}
	tests := testNames(map[string]string{
		"contract_test.go":            "package p\n\nfunc TestContract(t *testing.T) {}\n",
		"lab/faults_test.go":          "package lab_test\n\nfunc TestFaults(t *testing.T) {}\n",
		"internal/gate/queue_test.go": "package gate_test\n\nfunc TestQueue(t *testing.T) {}\n",
		"internal/gate/queue.go":      "package gate\n\nfunc TestQueues() {}\n",
	})
	const page = "# Title\n\n## P1: The first one\n\n`TestContract/P1 a row`, `lab.TestFaults`\n\n## P2: The second one\n\n`lab.TestFaults`\n"
	for _, tt := range []struct {
		name, old, new string
		want           []string
	}{
		{"nothing", "", "", nil},
		{"a promise is missing", "## P2: The second one", "", []string{"the sections are [P1], want [P1 P2]", `the row "P2 a row" of the contract begins with no promise`}},
		{"one too many", "## P2: The second one", "## P2: The second one\n`lab.TestFaults`\n## P3: The third one", []string{"the sections are [P1 P2 P3], want [P1 P2]"}},
		{"one twice", "## P2:", "## P1: Again and again\n`lab.TestFaults`\n## P2:", []string{"the sections are [P1 P1 P2], want [P1 P2]"}},
		{"no headline", "## P2: The second one", "## P2", []string{"P2 has no headline"}},
		{"no test", "\n\n`lab.TestFaults`\n", "\n\nNone.\n", []string{"P2 names no test"}},
		{"no such test", "one\n\n`lab.TestFaults`", "one\n\n`lab.TestFault`, `lab.TestFaults`", []string{"P2 names the test lab/TestFault, which doesn't exist"}},
		{"no such directory", "one\n\n`lab.TestFaults`", "one\n\n`TestFaults`, `lab.TestFaults`", []string{"P2 names the test TestFaults, which doesn't exist"}},
		{"no such test in a package", "one\n\n`lab.TestFaults`", "one\n\n`internal/gate.TestQueues`, `lab.TestFaults`", []string{"P2 names the test internal/gate/TestQueues, which doesn't exist"}},
		{"a test of a package without its path", "one\n\n`lab.TestFaults`", "one\n\n`TestQueue`, `internal/gate.TestQueue`", []string{"P2 names the test TestQueue, which doesn't exist"}},
		{"a test that has left its package", "one\n\n`lab.TestFaults`", "one\n\n`internal/gate.TestContract`, `lab.TestFaults`", []string{"P2 names the test internal/gate/TestContract, which doesn't exist"}},
		{"no such row", "P1 a row", "P1 another row", []string{`P1 names the row "P1 another row" of TestContract, which doesn't exist`}},
		{"a row of another promise", "P1 a row", "P2 a row", []string{`P1 names the row "P2 a row", which is of another promise`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			broken := page
			if tt.old != "" {
				require.Equal(t, 1, strings.Count(page, tt.old))
				broken = strings.Replace(page, tt.old, tt.new, 1)
			}
			promises, got := parsePromises(broken, upTo(2))
			got = append(got, checkPromises(promises, tests, rows)...)
			got = append(got, checkRows(promises, rows)...)
			assert.Equal(t, tt.want, got)
		})
	}

	promises, _ := parsePromises(page, upTo(2))
	assert.Equal(t, []string{`the row "case 4" of the contract begins with no promise`}, checkRows(promises, []string{"P1 x", "case 4"}))
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
