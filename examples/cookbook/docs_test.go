// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the blocks of docs/cookbook.md")

const (
	root = "../../"
	page = root + "docs/cookbook.md"
)

var (
	block   = regexp.MustCompile("(?s)(<!-- ([\\w./-]+\\.go): ([\\w., ]+) -->\n)?```go\n(.*?)```")
	mention = regexp.MustCompile("`(Test\\w+)`")
)

// TestCookbook_BlocksAreCode compares each Go block of the cookbook with the
// declarations that the comment above it names. With -update it writes the
// blocks.
func TestCookbook_BlocksAreCode(t *testing.T) {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	written := block.ReplaceAllStringFunc(string(text), func(found string) string {
		parts := block.FindStringSubmatch(found)
		if !assert.NotEmpty(t, parts[1], "a block without a source:\n%s", found) {
			return found
		}
		source := declarations(t, parts[2], strings.Split(parts[3], ", "))
		if !*update {
			assert.Equal(t, source, parts[4], "%s has changed: go test ./examples/cookbook -run TestCookbook -update", parts[2])
		}
		return parts[1] + "```go\n" + source + "```"
	})
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(written), 0o644))
	}
}

// declarations returns the source text of the named declarations in a file.
func declarations(t *testing.T, file string, names []string) string {
	t.Helper()
	text, err := os.ReadFile(root + file)
	require.NoError(t, err)
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, text, parser.ParseComments)
	require.NoError(t, err)
	found := map[string]string{}
	for _, d := range parsed.Decls {
		from := d.Pos()
		name := ""
		var doc *ast.CommentGroup
		switch d := d.(type) {
		case *ast.FuncDecl:
			name, doc = d.Name.Name, d.Doc
			if d.Recv != nil {
				name = d.Recv.List[0].Type.(*ast.Ident).Name + "." + name
			}
		case *ast.GenDecl:
			doc = d.Doc
			if spec, ok := d.Specs[0].(*ast.TypeSpec); ok {
				name = spec.Name.Name
			}
		}
		if doc != nil {
			from = doc.Pos()
		}
		found[name] = string(text[files.Position(from).Offset:files.Position(d.End()).Offset]) + "\n"
	}
	var blocks []string
	for _, name := range names {
		require.Contains(t, found, name, file)
		blocks = append(blocks, found[name])
	}
	return strings.Join(blocks, "\n")
}

// TestCookbook_TestsExist checks that each test on the page exists, and that
// the page has each recipe of this package.
func TestCookbook_TestsExist(t *testing.T) {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	tests, recipes := map[string]bool{}, []string{}
	for _, dir := range []string{".", "heavy"} {
		names, err := filepath.Glob(dir + "/*.go")
		require.NoError(t, err)
		for _, name := range names {
			parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			require.NoError(t, err)
			for _, d := range parsed.Decls {
				f, ok := d.(*ast.FuncDecl)
				switch {
				case !ok || f.Recv != nil:
				case strings.HasSuffix(name, "_test.go"):
					tests[f.Name.Name] = true
				case dir == "." && f.Name.IsExported():
					recipes = append(recipes, f.Name.Name)
				}
			}
		}
	}
	for _, m := range mention.FindAllStringSubmatch(string(text), -1) {
		assert.True(t, tests[m[1]], m[1])
	}
	require.NotEmpty(t, recipes)
	for _, name := range recipes {
		assert.Regexp(t, "(?m)^func "+name+`\(|\[`+"`"+name+"`"+`\]\(`, string(text))
	}
}
