// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package doccheck

import (
	"cmp"
	"encoding/json"
	"fmt"
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
)

// pkg is a package of the root module. Its imports are the names of other
// packages of the root module: the path below the module, or rootName.
type pkg struct {
	imports     []string // of its code
	testImports []string // of the tests that belong to the package itself
	onlyTests   bool
}

// TestImports compares the table of packages in docs/architecture.md with the
// imports in the code. No code depends on how a Go release lays out memory.
func TestImports(t *testing.T) {
	code := map[string]pkg{}
	goList(t, func(p listed) {
		code[ours([]string{p.ImportPath})[0]] = pkg{ours(p.Imports), ours(p.TestImports), len(p.GoFiles) == 0}
		assert.NotContains(t, p.Imports, "unsafe", p.ImportPath)
	}, "./...")
	assert.Empty(t, checkImports(sectionOf(readRepository(t)["docs/architecture.md"], "The packages"), code))
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
	for in := json.NewDecoder(strings.NewReader(string(out))); in.More(); {
		var p listed
		require.NoError(t, in.Decode(&p))
		found(p)
	}
}

// ours returns the names of the paths that are packages of the root module.
func ours(paths []string) (names []string) {
	for _, path := range paths {
		if path == module || strings.HasPrefix(path, module+"/") {
			names = append(names, cmp.Or(strings.TrimPrefix(strings.TrimPrefix(path, module), "/"), rootName))
		}
	}
	return names
}

var (
	tableRow = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([^|]+) \\| (–|`[^|]+`) \\|$")
	codeSpan = regexp.MustCompile("`([^`]+)`")
)

// checkImports reports where the table of a section and the code differ. A
// package of internal/ must import only packages with a row below its own, so
// that there are layers. Only a package for tests or for commands may import the
// root package, only tests a package for tests, and only commands one for commands.
func checkImports(section string, code map[string]pkg) (problems []string) {
	report := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	rows := tableRow.FindAllStringSubmatch(section, -1)
	at, helps, commands := map[string]int{}, map[string]bool{}, map[string]bool{}
	for i, row := range rows {
		row[1] = internal + row[1]
		at[row[1]], helps[row[1]] = i, strings.HasPrefix(row[2], "for tests: ")
		commands[row[1]] = strings.HasPrefix(row[2], "for commands: ")
	}
	for i, row := range rows {
		name, imports := row[1], []string(nil)
		for _, span := range codeSpan.FindAllStringSubmatch(row[3], -1) {
			if span[1] != rootName {
				span[1] = internal + span[1]
				if below, ok := at[span[1]]; !ok || below <= i {
					report("%s imports %s, which has no row below", name, span[1])
				}
			}
			imports = append(imports, span[1])
		}
		slices.Sort(imports)
		if p, ok := code[name]; !ok || at[name] != i {
			report("%s has a row, but there is no such package, or it has two rows", name)
		} else if want := slices.Sorted(slices.Values(p.imports)); !slices.Equal(want, imports) {
			report("%s imports %v, and %v in its row", name, want, imports)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(code)) {
		p := code[name]
		if _, ok := at[name]; strings.HasPrefix(name, internal) && !p.onlyTests {
			if !ok {
				report("%s has no row", name)
			}
			if slices.Contains(p.imports, rootName) && !helps[name] && !commands[name] {
				report("%s imports %s, which only tests and packages for tests or commands may", name, rootName)
			}
			for _, test := range p.testImports {
				if !commands[name] && (test == rootName || slices.Contains(code[test].imports, rootName)) {
					report("tests in %s import %s, which only tests in a package of their own (_test) may", name, test)
				}
			}
		}
		for _, used := range p.imports {
			if helps[used] && !helps[name] {
				report("%s imports %s, which is for tests", name, used)
			}
			if commands[used] && !strings.HasPrefix(name, "cmd/") {
				report("%s imports %s, which is for commands", name, used)
			}
		}
	}
	return problems
}
