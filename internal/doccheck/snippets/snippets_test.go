// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package snippets compiles the Go code in the documentation. It is a package
// of its own, because that takes long and the code seldom changes.
package snippets

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	// These files are what the snippets use: the go command repeats the test
	// only when one of them changes.
	_ "github.com/retrip/retrip"
	_ "github.com/retrip/retrip/shed"
	_ "github.com/retrip/retrip/sim"
)

// root is the directory of the repository.
const root = "../../.."

// TestDocs_SnippetsCompile vets every Go block of the README and of docs. It
// runs the blocks that validate a Transport, which proves that the policies in
// the docs are valid.
func TestDocs_SnippetsCompile(t *testing.T) {
	if testing.Short() {
		t.Skip("builds every snippet")
	}
	files := []string{root + "/README.md"}
	more, err := filepath.Glob(root + "/docs/*.md")
	require.NoError(t, err)
	dir, err := os.MkdirTemp(".", "_snippets-") //nolint:usetesting // the snippets must be in this module
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	block := regexp.MustCompile("(?s)```go\n(.*?)```")
	var packages, validating []string
	for _, file := range append(files, more...) {
		if filepath.Base(file) == "cookbook.md" {
			continue // its blocks are code of other modules, whose tests compare them
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for i, match := range block.FindAllStringSubmatch(string(text), -1) {
			name := fmt.Sprintf("%s_%d", strings.TrimSuffix(filepath.Base(file), ".md"), i)
			require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o755))
			source, err := snippetFile(match[1])
			require.NoError(t, err, "%s, block %d", file, i)
			path := filepath.Join(dir, name, "snippet_test.go")
			require.NoError(t, os.WriteFile(path, []byte(source), 0o644))
			packages = append(packages, "./"+filepath.Join(dir, name))
			if strings.Contains(source, runnable) {
				validating = append(validating, packages[len(packages)-1])
			}
		}
	}
	require.NotEmpty(t, validating)
	out, err := exec.Command("go", append([]string{"vet"}, packages...)...).CombinedOutput()
	assert.NoError(t, err, "%s", out)
	out, err = exec.Command("go", append([]string{"test"}, validating...)...).CombinedOutput()
	assert.NoError(t, err, "%s", out)
}

// runnable matches the beginning of a function from a snippet that can be run.
const runnable = "func TestSnippet(*testing.T) {\n"

var snippetImports = map[string]string{
	"context": "context", "errors": "errors", "fmt": "fmt", "io": "io", "json": "encoding/json", "log": "log", "net": "net",
	"http": "net/http", "httptest": "net/http/httptest", "httputil": "net/http/httputil", "os": "os", "rand": "math/rand/v2", "slog": "log/slog",
	"strconv": "strconv", "strings": "strings", "syscall": "syscall", "testing": "testing", "synctest": "testing/synctest", "time": "time", "url": "net/url",
	"prometheus": "github.com/prometheus/client_golang/prometheus",
	"promhttp":   "github.com/prometheus/client_golang/prometheus/promhttp",
	"retrip":     "github.com/retrip/retrip", "shed": "github.com/retrip/retrip/shed", "sim": "github.com/retrip/retrip/sim", "statuspage": "github.com/retrip/retrip/statuspage",
}

// snippetFile turns a snippet into a file. A snippet holds declarations, or
// statements in which variables may be unused.
func snippetFile(snippet string) (string, error) {
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
	file := token.NewFileSet()
	if _, err := parser.ParseFile(file, "", header+snippet, 0); err == nil {
		return header + snippet, nil
	}
	open, end := header+"func _() {\n"+snippet, "}\n"
	switch {
	case strings.Contains(snippet, ".Validate()"):
		open = header + "import \"testing\"\n" + runnable + snippet
	case strings.Contains(code, "return err"):
		open, end = header+"func _() error {\n"+snippet, "return nil\n}\n"
	}
	parsed, err := parser.ParseFile(file, "", open+end, 0)
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
