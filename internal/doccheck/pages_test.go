// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package doccheck compares what the repository says about itself with what it
// is: links, commands, snippets, the table of packages, the tests of promises.
// Its tests have a package of their own, so that a change of a page doesn't make
// the go command repeat other tests.
package doccheck

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	// The go command repeats the tests when one of these packages changes.
	_ "github.com/retrip/retrip/shed"
	_ "github.com/retrip/retrip/statuspage"
)

// root is the directory of the repository.
const root = "../.."

// readRepository returns the Go and Markdown files and the Makefile of all
// modules, by path.
func readRepository(t *testing.T) map[string]string {
	if !exists("lab/go.mod") {
		t.Skip("the nested modules are not here")
	}
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() {
			if name != root && (base[0] == '.' && base != ".github" || base[0] == '_' || base == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if base != "Makefile" && !slices.Contains([]string{".go", ".md"}, filepath.Ext(base)) {
			return nil
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		name, err = filepath.Rel(root, name)
		files[filepath.ToSlash(name)] = string(source)
		return err
	}))
	return files
}

// pagesOf returns the Markdown files of files.
func pagesOf(files map[string]string) map[string]string {
	pages := maps.Clone(files)
	maps.DeleteFunc(pages, func(name, _ string) bool { return path.Ext(name) != ".md" })
	return pages
}

// exists reports whether the repository has a file or directory of this name.
func exists(name string) bool {
	_, err := os.Stat(filepath.Join(root, name))
	return !errors.Is(err, fs.ErrNotExist)
}

// sectionOf returns the text below a heading of the second level.
func sectionOf(page, heading string) string {
	_, text, _ := strings.Cut(page, "\n## "+heading+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

var (
	pageLink    = regexp.MustCompile(`(?:\]\(|\b(?:src|srcset|href)=")([^)"\s]+)`)
	pageHeading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	codeBlock   = regexp.MustCompile("(?ms)^```.*?^```|^(?:    |\t)[^\n]*$")
	fileSpan    = regexp.MustCompile("`([\\w./-]+/[\\w.-]+\\.(?:go|md|yml|json))`")
)

// checkLinks reports links in pages to files for which exists returns false, and
// to headings that the page doesn't have.
func checkLinks(pages map[string]string, exists func(name string) bool) []string {
	var problems []string
	prose := map[string]string{}
	for name, text := range pages {
		prose[name] = codeBlock.ReplaceAllString(text, "")
	}
	for name, text := range prose {
		for _, m := range fileSpan.FindAllStringSubmatch(text, -1) {
			if !exists(m[1]) && !exists(path.Join("internal", m[1])) {
				problems = append(problems, fmt.Sprintf("%s: %s doesn't exist", name, m[0]))
			}
		}
		for _, m := range pageLink.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], ":") {
				continue // a link to another site
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := name
			if file != "" {
				target = path.Join(path.Dir(name), file)
			}
			if !exists(target) {
				problems = append(problems, fmt.Sprintf("%s: %s doesn't exist", name, m[1]))
				continue
			}
			named := func(heading []string) bool { return anchorOf(heading[1]) == anchor }
			if page, ok := prose[target]; ok && anchor != "" && !slices.ContainsFunc(pageHeading.FindAllStringSubmatch(page, -1), named) {
				problems = append(problems, fmt.Sprintf("%s: %s has no heading #%s", name, target, anchor))
			}
		}
	}
	slices.Sort(problems)
	return problems
}

// anchorOf returns the anchor that GitHub generates for a heading.
func anchorOf(heading string) string {
	heading = strings.ReplaceAll(strings.ToLower(heading), " ", "-")
	return regexp.MustCompile(`[^a-z0-9_-]`).ReplaceAllString(heading, "")
}

// TestLinks checks every link between the pages of the repository, and the files
// that they name.
func TestLinks(t *testing.T) {
	assert.Empty(t, checkLinks(pagesOf(readRepository(t)), exists))
}

// What the zero Policy lacks is said in the same words wherever somebody begins to read.
func TestPages_SayWhatTheZeroPolicyLacks(t *testing.T) {
	const sentence = "The zero Policy is safe but has no time limit: set AttemptTimeout, and Deadline unless every context has a deadline."
	files := readRepository(t)
	for _, name := range []string{"README.md", "doc.go", "policy.go", "docs/policy.md", "docs/cookbook.md"} {
		words := strings.Join(strings.Fields(strings.NewReplacer("`", "", "//", "").Replace(files[name])), " ")
		assert.Contains(t, words, sentence, name)
	}
}
