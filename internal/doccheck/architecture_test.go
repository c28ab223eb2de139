// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package doccheck

import (
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	// These files make the go command repeat the test when the package changes;
	// until then, it uses the cached result.
	_ "github.com/retrip/retrip"
)

// TestArchitecture_Way checks that the files of the root package that the page
// names on the way of a request exist, and that no other file calls them.
func TestArchitecture_Way(t *testing.T) {
	fset, files, info := load(t)
	way, problems := filesOf(sectionOf(architecture(t), "The way of a request"), files)
	for _, problem := range append(problems, checkCalls(way, fset, files, info)...) {
		t.Error(problem)
	}
}

// TestArchitecture_Names checks that the files and directories on the page
// exist.
func TestArchitecture_Names(t *testing.T) {
	page := architecture(t)
	for _, m := range fileSpan.FindAllStringSubmatch(page, -1) {
		assert.True(t, exists(filepath.Join(root, m[1])), m[0])
	}
	links := regexp.MustCompile(`\]\(([^)#:]+)[^)]*\)`).FindAllStringSubmatch(page, -1)
	assert.NotEmpty(t, links)
	for _, m := range links {
		assert.True(t, exists(filepath.Join(root, "docs", m[1])), m[1])
	}
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return !errors.Is(err, os.ErrNotExist)
}

// fileSpan is a Go file in a code span.
var fileSpan = regexp.MustCompile("`([\\w/]+\\.go)`")

// filesOf returns the files that text names. It must name some, and each must
// be one of files.
func filesOf(text string, files map[string]*ast.File) (named map[string]bool, problems []string) {
	named = map[string]bool{}
	for _, span := range fileSpan.FindAllStringSubmatch(text, -1) {
		if named[span[1]] = true; files[span[1]] == nil {
			problems = append(problems, "the root package has no "+span[1])
		}
	}
	if len(named) == 0 {
		problems = append(problems, "no file is on the way of a request")
	}
	return named, problems
}

// checkCalls reports uses of functions that the files in way declare, in other
// files.
func checkCalls(way map[string]bool, fset *token.FileSet, files map[string]*ast.File, info *types.Info) (problems []string) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if way[name] {
			continue
		}
		ast.Inspect(files[name], func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			f, ok := info.Uses[id].(*types.Func)
			if !ok {
				return true
			}
			if at := filepath.Base(fset.Position(f.Origin().Pos()).Filename); files[at] != nil && way[at] {
				problems = append(problems, fmt.Sprintf("%s:%d uses %s, which is on the way of a request (%s)",
					name, fset.Position(id.Pos()).Line, id.Name, at))
			}
			return true
		})
	}
	return problems
}

// load parses and type-checks the root package. Its imports come from the
// export data that the go command has built.
func load(t *testing.T) (*token.FileSet, map[string]*ast.File, *types.Info) {
	exports, sources := map[string]string{}, map[string]any{}
	goList(t, func(p listed) {
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			for _, name := range p.GoFiles {
				sources[name] = nil
			}
		}
	}, "-export", "-deps", ".")
	fset := token.NewFileSet()
	files, info := typeCheck(t, fset, sources, importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	}))
	return fset, files, info
}

// typeCheck type-checks a package of the named files in the root directory. A
// source that isn't nil takes the place of the file.
func typeCheck(t *testing.T, fset *token.FileSet, sources map[string]any, imports types.Importer) (map[string]*ast.File, *types.Info) {
	files, info := map[string]*ast.File{}, &types.Info{Uses: map[*ast.Ident]types.Object{}}
	for name, source := range sources {
		file, err := parser.ParseFile(fset, filepath.Join(root, name), source, parser.SkipObjectResolution)
		require.NoError(t, err)
		files[name] = file
	}
	config := types.Config{Importer: imports}
	_, err := config.Check(module, fset, slices.Collect(maps.Values(files)), info)
	require.NoError(t, err)
	return files, info
}

// TestArchitecture_WaySeesWhatIsWrong breaks each rule once.
func TestArchitecture_WaySeesWhatIsWrong(t *testing.T) {
	fset := token.NewFileSet()
	files, info := typeCheck(t, fset, map[string]any{
		"loop.go":  "package p\n\ntype loop[T any] struct{}\n\nfunc (loop[T]) run() { decide() }\n\nfunc begin() {}\n",
		"rules.go": "package p\n\nfunc decide() { help() }\n\nfunc help() {}\n",
		"bad.go":   "package p\n\nvar start = begin\n\nfunc bad() {\n\tloop[int]{}.run()\n}\n",
	}, nil)
	way, problems := filesOf("`loop.go` runs; see `f` and loop.", files)
	assert.Empty(t, problems)
	assert.Equal(t, []string{
		"bad.go:3 uses begin, which is on the way of a request (loop.go)",
		"bad.go:6 uses run, which is on the way of a request (loop.go)",
	}, checkCalls(way, fset, files, info))
	_, problems = filesOf("`loop.go` and `gone.go`", files)
	assert.Equal(t, []string{"the root package has no gone.go"}, problems)
	_, problems = filesOf(strings.ToUpper("`loop.go`"), files)
	assert.Equal(t, []string{"no file is on the way of a request"}, problems)
}
