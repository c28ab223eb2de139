// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package doccheck

import (
	"encoding/json"
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
	"os/exec"
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

// layers lists the layers of docs/architecture.md, from the one that may call
// all others to the one that may call none of them.
var layers = []string{"Driver", "Core", "Ground"}

// TestArchitecture compares the map of docs/architecture.md with the root
// package: the map names every file once, and no function calls a function of a
// layer above its own.
func TestArchitecture(t *testing.T) {
	page, err := os.ReadFile(root + "/docs/architecture.md")
	require.NoError(t, err)
	layerOf, problems := parseMap(string(page))
	fset, files, info := load(t)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if _, ok := layerOf[name]; !ok {
			problems = append(problems, name+" is not on the map")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(layerOf)) {
		if files[name] == nil {
			problems = append(problems, name+" is on the map, but not in the package")
		}
	}
	problems = append(problems, checkCalls(layerOf, fset, files, info)...)
	for _, problem := range problems {
		t.Error(problem)
	}
}

// TestArchitecture_Names checks that the tests, files and directories on the
// page exist.
func TestArchitecture_Names(t *testing.T) {
	page, err := os.ReadFile(root + "/docs/architecture.md")
	require.NoError(t, err)
	tests := testNames(readRepository(t))
	for _, m := range namedTest.FindAllStringSubmatch(string(page), -1) {
		assert.True(t, tests[filepath.ToSlash(filepath.Join(m[1], m[2]))], m[0])
	}
	links := regexp.MustCompile(`\]\(([^)#:]+)[^)]*\)`).FindAllStringSubmatch(string(page), -1)
	assert.NotEmpty(t, links)
	for _, m := range links {
		assert.True(t, exists(filepath.Join(root, "docs", m[1])), m[1])
	}
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return !errors.Is(err, os.ErrNotExist)
}

// mapRow is a row of the map: the layer, and its files in code spans.
var (
	mapRow  = regexp.MustCompile(`(?m)^\| \*\*(\w+)\*\* \|(.*)$`)
	mapFile = regexp.MustCompile("`(\\w+\\.go)`")
)

// parseMap returns the index of the layer of each file on the map.
func parseMap(page string) (layerOf map[string]int, problems []string) {
	layerOf = map[string]int{}
	for _, row := range mapRow.FindAllStringSubmatch(page, -1) {
		layer := slices.Index(layers, row[1])
		if layer < 0 {
			problems = append(problems, fmt.Sprintf("%q is not a layer", row[1]))
			continue
		}
		for _, file := range mapFile.FindAllStringSubmatch(row[2], -1) {
			if _, twice := layerOf[file[1]]; twice {
				problems = append(problems, file[1]+" is on the map twice")
			}
			layerOf[file[1]] = layer
		}
	}
	return layerOf, problems
}

// checkCalls reports uses of functions that are declared in a layer above.
func checkCalls(layerOf map[string]int, fset *token.FileSet, files map[string]*ast.File, info *types.Info) (problems []string) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		ast.Inspect(files[name], func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			f, ok := info.Uses[id].(*types.Func)
			if !ok {
				return true
			}
			at := filepath.Base(fset.Position(f.Origin().Pos()).Filename)
			if files[at] == nil || layerOf[at] >= layerOf[name] {
				return true
			}
			problems = append(problems, fmt.Sprintf("%s:%d: %s uses %s of %s: %s", name, fset.Position(id.Pos()).Line,
				strings.ToLower(layers[layerOf[name]]), id.Name, strings.ToLower(layers[layerOf[at]]), at))
			return true
		})
	}
	return problems
}

// load parses and type-checks the root package. Its imports come from the
// export data that the go command has built.
func load(t *testing.T) (*token.FileSet, map[string]*ast.File, *types.Info) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Export,GoFiles,DepOnly", ".")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	exports := map[string]string{}
	var names []string
	for in := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath, Export string
			GoFiles            []string
			DepOnly            bool
		}
		if err := in.Decode(&p); err == io.EOF {
			break
		} else {
			require.NoError(t, err)
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			names = p.GoFiles
		}
	}
	fset, files, list := token.NewFileSet(), map[string]*ast.File{}, []*ast.File{}
	for _, name := range names {
		file, err := parser.ParseFile(fset, filepath.Join(root, name), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files[name] = file
		list = append(list, file)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})}
	_, err = config.Check("github.com/retrip/retrip", fset, list, info)
	require.NoError(t, err)
	return fset, files, info
}
