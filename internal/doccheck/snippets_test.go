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
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
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
				assert.Empty(t, (&retrip.Transport{Policy: policy, Hosts: hosts}).Advice(), name)
			}
		}
	}
	assert.NotZero(t, policies)
}

// TestSnippets_Compile type-checks the Go blocks of the pages. It runs the blocks
// that validate a Transport, and their err must be nil.
func TestSnippets_Compile(t *testing.T) {
	if testing.Short() {
		t.Skip("lists and loads packages")
	}
	exports := map[string]string{}
	goList(t, func(p listed) { exports[p.ImportPath] = p.Export }, append([]string{"-export", "-deps"}, snippetImports...)...)
	files := token.NewFileSet()
	compiled := importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	dir, err := os.MkdirTemp(".", "_snippets-") //nolint:usetesting // the snippets must be in this module
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	running := 0
	for name, text := range pagesOf(readRepository(t)) {
		for i, m := range regexp.MustCompile("(?s)(<!-- \\S+\\.go: .*? -->\n)?```go\n(.*?)```").FindAllStringSubmatch(text, -1) {
			if m[1] != "" {
				continue // the code of another module, whose tests compare it
			}
			source := snippetFile(m[2], running)
			file, err := parser.ParseFile(files, "", source, parser.SkipObjectResolution)
			require.NoError(t, err, "%s, block %d", name, i)
			_, err = (&types.Config{Importer: compiled}).Check("snippet", files, []*ast.File{file}, nil)
			assert.NoError(t, err, "%s, block %d:\n%s", name, i, source)
			if strings.Contains(source, runnable) {
				require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d_test.go", running)), []byte(source), 0o600))
				running++
			}
		}
	}
	require.NotZero(t, running)
	out, err := exec.Command("go", "test", "-vet=off", "./"+dir).CombinedOutput()
	assert.NoError(t, err, "%s", out)
}

// runnable begins a function from a snippet that can be run.
const runnable = "func TestSnippet"

// snippetImports are the packages that snippets may use.
var snippetImports = strings.Fields("context encoding/json errors fmt io log log/slog net net/http net/http/httptest net/http/httputil net/url os strconv " +
	"strings syscall testing testing/synctest time github.com/prometheus/client_golang/prometheus github.com/prometheus/client_golang/prometheus/promhttp " +
	module + " " + module + "/shed " + module + "/statuspage")

// snippetFile turns the snippet of a number into a file. A snippet holds
// declarations, or statements in which variables may be unused.
func snippetFile(snippet string, number int) string {
	var imports strings.Builder
	code := regexp.MustCompile(`(?m)(^|\s)//.*$`).ReplaceAllString(snippet, "")
	for _, name := range snippetImports {
		if regexp.MustCompile(`(^|[^\w.])` + path.Base(name) + `\.[A-Z]`).MatchString(code) {
			fmt.Fprintf(&imports, "import %q\n", name)
		}
	}
	header := "package snippet\n\n" + imports.String() + "\n"
	if _, err := parser.ParseFile(token.NewFileSet(), "", header+snippet, 0); err == nil {
		return header + snippet
	}
	open, end := header+"func _() {\n"+snippet, "}\n"
	if strings.Contains(snippet, ".Validate()") {
		open, end = fmt.Sprintf("%simport \"testing\"\n%s%d(*testing.T) {\n%s", header, runnable, number, snippet), "if err != nil {\npanic(err)\n}\n}\n"
	}
	var used strings.Builder
	for _, m := range regexp.MustCompile(`(?m)^([\w, ]+) := `).FindAllStringSubmatch(snippet, -1) {
		fmt.Fprintf(&used, "%s = %s\n", regexp.MustCompile(`\w+`).ReplaceAllString(m[1], "_"), m[1])
	}
	return open + used.String() + end
}
