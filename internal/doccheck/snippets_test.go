// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package doccheck

import (
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
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

func TestSnippets_Policies(t *testing.T) {
	policies := 0
	for name, text := range pagesOf(readRepository(t)) {
		for _, m := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(text, -1) {
			policies++
			policy, hosts, err := retrip.LoadPolicies(strings.NewReader(m[1]))
			if assert.NoError(t, err, name) {
				assert.NoError(t, (&retrip.Transport{Policy: policy, Hosts: hosts}).Validate(), name)
			}
		}
	}
	assert.NotZero(t, policies)
}

// TestSnippets_Compile type-checks the Go blocks of the pages. It runs the blocks
// that validate a Transport, which proves that their policies are valid.
func TestSnippets_Compile(t *testing.T) {
	if testing.Short() {
		t.Skip("lists and loads packages")
	}
	exports := map[string]string{}
	goList(t, func(p listed) { exports[p.ImportPath] = p.Export }, append([]string{"-export", "-deps"}, slices.Collect(maps.Values(snippetImports))...)...)
	files := token.NewFileSet()
	compiled := importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	var validating []string
	for name, text := range pagesOf(readRepository(t)) {
		for i, m := range regexp.MustCompile("(?s)(<!-- \\S+\\.go: .*? -->\n)?```go\n(.*?)```").FindAllStringSubmatch(text, -1) {
			if m[1] != "" {
				continue // the code of another module, whose tests compare it
			}
			source, err := snippetFile(m[2], len(validating))
			require.NoError(t, err, "%s, block %d", name, i)
			file, err := parser.ParseFile(files, "", source, parser.SkipObjectResolution)
			require.NoError(t, err)
			config := types.Config{Importer: compiled}
			_, err = config.Check("snippet", files, []*ast.File{file}, nil)
			assert.NoError(t, err, "%s, block %d:\n%s", name, i, source)
			if strings.Contains(source, runnable) {
				validating = append(validating, source)
			}
		}
	}
	require.NotEmpty(t, validating)
	dir, err := os.MkdirTemp(".", "_snippets-") //nolint:usetesting // the snippets must be in this module
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	for i, source := range validating {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d_test.go", i)), []byte(source), 0o600))
	}
	out, err := exec.Command("go", "test", "-vet=off", "./"+dir).CombinedOutput()
	assert.NoError(t, err, "%s", out)
}

// runnable begins a function from a snippet that can be run.
const runnable = "func TestSnippet"

var snippetImports = map[string]string{
	"prometheus": "github.com/prometheus/client_golang/prometheus", "promhttp": "github.com/prometheus/client_golang/prometheus/promhttp",
	"retrip": module, "shed": module + "/shed", "sim": module + "/sim", "statuspage": module + "/statuspage",
}

func init() {
	for _, name := range []string{
		"context", "encoding/json", "errors", "fmt", "io", "log", "log/slog", "net", "net/http", "net/http/httptest", "net/http/httputil", "net/url", "os",
		"strconv", "strings", "syscall", "testing", "testing/synctest", "time",
	} {
		snippetImports[path.Base(name)] = name
	}
}

// snippetFile turns the snippet of a number into a file. A snippet holds
// declarations, or statements in which variables may be unused.
func snippetFile(snippet string, number int) (string, error) {
	if strings.HasPrefix(snippet, "package ") {
		return snippet, nil
	}
	var imports strings.Builder
	code := regexp.MustCompile(`(?m)(^|\s)//.*$`).ReplaceAllString(snippet, "")
	for name, path := range snippetImports {
		if regexp.MustCompile(`(^|[^\w.])` + name + `\.[A-Z]`).MatchString(code) {
			fmt.Fprintf(&imports, "import %q\n", path)
		}
	}
	header := "package snippet\n\n" + imports.String() + "\n"
	if _, err := parser.ParseFile(token.NewFileSet(), "", header+snippet, 0); err == nil {
		return header + snippet, nil
	}
	open, end := header+"func _() {\n"+snippet, "}\n"
	switch {
	case strings.Contains(snippet, ".Validate()"):
		open = fmt.Sprintf("%simport \"testing\"\n%s%d(*testing.T) {\n%s", header, runnable, number, snippet)
	case strings.Contains(code, "return err"):
		open, end = header+"func _() error {\n"+snippet, "return nil\n}\n"
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), "", open+end, 0)
	if err != nil {
		return "", err
	}
	var used strings.Builder
	body := parsed.Decls[len(parsed.Decls)-1].(*ast.FuncDecl).Body
	for _, statement := range body.List {
		if assign, ok := statement.(*ast.AssignStmt); ok && assign.Tok == token.DEFINE {
			for _, left := range assign.Lhs {
				if name := left.(*ast.Ident).Name; name != "_" {
					fmt.Fprintf(&used, "_ = %s\n", name)
				}
			}
		}
	}
	return open + used.String() + end, nil
}
