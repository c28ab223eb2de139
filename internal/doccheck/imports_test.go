// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package doccheck

import (
	"encoding/json"
	"fmt"
	"io"
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

const (
	module   = "github.com/retrip/retrip"
	rootName = "retrip" // what the table calls the root package
	internal = "internal/"
	forTests = "for tests: "
)

// pkg is a package of the root module. Its imports are the names of other
// packages of the root module.
type pkg struct {
	imports     []string // of its code
	testImports []string // of the tests that belong to the package itself
	onlyTests   bool
}

// row is a row of the table of packages in docs/architecture.md: what a package
// knows, and what it imports.
type row struct {
	name, knows string
	imports     []string
}

// TestImports compares the table of packages in docs/architecture.md with the
// imports in the code.
func TestImports(t *testing.T) {
	rows, problems := parseRows(sectionOf(readRepository(t)["docs/architecture.md"], "The packages"))
	for _, problem := range append(problems, checkImports(rows, packages(t))...) {
		t.Error(problem)
	}
}

// No code of the root module depends on how a Go release lays out memory.
func TestImports_NothingUnsafe(t *testing.T) {
	goList(t, func(p listed) {
		assert.NotContains(t, p.Imports, "unsafe", p.ImportPath)
	}, "./...")
}

// packages returns the packages of the root module by name: the path below the
// module, or rootName.
func packages(t *testing.T) map[string]pkg {
	code := map[string]pkg{}
	goList(t, func(p listed) {
		code[nameOf(p.ImportPath)] = pkg{ours(p.Imports), ours(p.TestImports), len(p.GoFiles) == 0}
	}, "./...")
	return code
}

// listed is a package in the output of go list.
type listed struct {
	ImportPath, Export            string
	GoFiles, Imports, TestImports []string
}

// goList calls found for each package that go list finds with args.
func goList(t *testing.T, found func(listed), args ...string) {
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Export,GoFiles,Imports,TestImports"}, args...)...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	for in := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := in.Decode(&p); err == io.EOF {
			return
		} else {
			require.NoError(t, err)
		}
		found(p)
	}
}

func nameOf(path string) string {
	if path == module {
		return rootName
	}
	return strings.TrimPrefix(path, module+"/")
}

func ours(paths []string) (names []string) {
	for _, path := range paths {
		if path == module || strings.HasPrefix(path, module+"/") {
			names = append(names, nameOf(path))
		}
	}
	return names
}

var (
	tableRow = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([^|]+) \\| ([^|]+) \\|$")
	tableAny = regexp.MustCompile("(?m)^\\| *`.*$")
	codeSpan = regexp.MustCompile("`([^`]+)`")
)

// parseRows reads the table of a section. Its cells name packages without
// "internal/", and a dash stands for no import.
func parseRows(section string) (rows []row, problems []string) {
	for _, line := range tableAny.FindAllString(section, -1) {
		m := tableRow.FindStringSubmatch(line)
		if m == nil {
			problems = append(problems, line+": want | `package` | what it knows | `import` `import` |")
			continue
		}
		r := row{name: internal + m[1], knows: m[2]}
		for _, span := range codeSpan.FindAllStringSubmatch(m[3], -1) {
			if span[1] != rootName {
				span[1] = internal + span[1]
			}
			r.imports = append(r.imports, span[1])
		}
		if len(r.imports) == 0 && m[3] != "–" {
			problems = append(problems, line+": want imports, or a dash")
		}
		rows = append(rows, r)
	}
	return rows, problems
}

// checkImports reports where rows and code differ. A package of internal/ must
// import only packages with a row below its own, so that there are layers. Only
// a package for tests may import the root package, and only tests a package for
// tests.
func checkImports(rows []row, code map[string]pkg) (problems []string) {
	report := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	at, helps := map[string]int{}, map[string]bool{}
	for i, r := range rows {
		if _, twice := at[r.name]; twice {
			report("%s has two rows", r.name)
		}
		at[r.name], helps[r.name] = i, strings.HasPrefix(r.knows, forTests)
	}
	for i, r := range rows {
		p, ok := code[r.name]
		if !ok {
			report("%s has a row, but there is no such package", r.name)
			continue
		}
		for _, name := range p.imports {
			if !slices.Contains(r.imports, name) {
				report("%s imports %s, which isn't in its row", r.name, name)
			}
		}
		for _, name := range r.imports {
			if !slices.Contains(p.imports, name) {
				report("%s doesn't import %s, which is in its row", r.name, name)
			}
			if below, ok := at[name]; name != rootName && (!ok || below <= i) {
				report("%s imports %s, which has no row below", r.name, name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(code)) {
		p := code[name]
		if strings.HasPrefix(name, internal) && !p.onlyTests {
			if _, ok := at[name]; !ok {
				report("%s has no row", name)
			}
			if slices.Contains(p.imports, rootName) && !helps[name] {
				report("%s imports %s, which only tests and packages for tests may", name, rootName)
			}
			for _, test := range p.testImports {
				if test == rootName || slices.Contains(code[test].imports, rootName) {
					report("tests in %s import %s, which only tests in a package of their own (_test) may", name, test)
				}
			}
		}
		for _, used := range p.imports {
			if helps[used] && !helps[name] {
				report("%s imports %s, which is for tests", name, used)
			}
		}
	}
	return problems
}

// TestImports_SeesWhatIsWrong breaks each rule once.
func TestImports_SeesWhatIsWrong(t *testing.T) {
	const table = "| Package | What it knows | Imports |\n|---|---|---|\n" +
		"| `play` | for tests: scripts | `retrip` `clock` |\n| `host` | hosts | `gate` `span` |\n| `gate` | queues | `span` |\n" +
		"| `span` | durations | – |\n| `clock` | for tests: time | – |\n"
	good := func() map[string]pkg {
		return map[string]pkg{
			"retrip":            {imports: []string{"internal/host", "internal/span"}, testImports: []string{"internal/clock"}},
			"shed":              {imports: []string{"retrip"}, testImports: []string{"internal/play"}},
			"internal/play":     {imports: []string{"retrip", "internal/clock"}},
			"internal/host":     {imports: []string{"internal/gate", "internal/span"}},
			"internal/gate":     {imports: []string{"internal/span"}, testImports: []string{"internal/clock"}},
			"internal/span":     {},
			"internal/clock":    {},
			"internal/doccheck": {testImports: []string{"retrip"}, onlyTests: true},
		}
	}
	for _, tt := range []struct {
		name, old, new string
		add            map[string]pkg
		want           []string
	}{
		{name: "nothing"},
		{name: "a new import", old: "| `gate` `span` |", new: "| `gate` |",
			want: []string{"internal/host imports internal/span, which isn't in its row"}},
		{name: "an import that is gone", add: map[string]pkg{"internal/gate": {}},
			want: []string{"internal/gate doesn't import internal/span, which is in its row"}},
		{name: "a package without a row", add: map[string]pkg{"internal/body": {}},
			want: []string{"internal/body has no row"}},
		{name: "a row without a package", old: "| `gate` | queues", new: "| `body` | bodies | – |\n| `gate` | queues",
			want: []string{"internal/body has a row, but there is no such package"}},
		{name: "two rows", old: "| `clock` | for", new: "| `span` | more | – |\n| `clock` | for",
			want: []string{"internal/span has two rows"}},
		{name: "an import of the root", old: "queues | `span` |", new: "queues | `span` `retrip` |",
			add:  map[string]pkg{"internal/gate": {imports: []string{"internal/span", "retrip"}}},
			want: []string{"internal/gate imports retrip, which only tests and packages for tests may"}},
		{name: "a test in the package imports the root", add: map[string]pkg{"internal/span": {testImports: []string{"retrip"}}},
			want: []string{"tests in internal/span import retrip, which only tests in a package of their own (_test) may"}},
		{name: "code that imports a package for tests", add: map[string]pkg{"shed": {imports: []string{"internal/play"}}},
			want: []string{"shed imports internal/play, which is for tests"}},
		{name: "an import upward", old: "| `span` | durations | – |", new: "| `span` | durations | `gate` |",
			add:  map[string]pkg{"internal/span": {imports: []string{"internal/gate"}}, "internal/gate": {imports: []string{"internal/span"}}},
			want: []string{"internal/span imports internal/gate, which has no row below"}},
		{name: "a row that can't be read", old: "| `span` | durations | – |", new: "| `span` | durations |",
			want: []string{"| `span` | durations |: want | `package` | what it knows | `import` `import` |",
				"internal/host imports internal/span, which has no row below", "internal/gate imports internal/span, which has no row below", "internal/span has no row"}},
		{name: "imports that can't be read", old: "queues | `span` |", new: "queues | span |",
			want: []string{"| `gate` | queues | span |: want imports, or a dash", "internal/gate imports internal/span, which isn't in its row"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			broken := table
			if tt.old != "" {
				require.Equal(t, 1, strings.Count(table, tt.old))
				broken = strings.Replace(table, tt.old, tt.new, 1)
			}
			code := good()
			maps.Copy(code, tt.add)
			rows, got := parseRows(sectionOf("# Page\n\n## The packages\n\n"+broken+"\n## More\n\n| `x` |\n", "The packages"))
			assert.Equal(t, tt.want, append(got, checkImports(rows, code)...))
		})
	}
}
