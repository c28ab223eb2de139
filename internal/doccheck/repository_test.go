// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package doccheck compares what the repository says about itself with what it
// is: links, commands, snippets, the table of packages, the tests of promises.
// Its tests have a package of their own, so that a change of a page doesn't make
// the go command repeat other tests.
package doccheck

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
			if name != root && (base[0] == '.' || base[0] == '_' || base == "testdata") {
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

// sectionOf returns the text below a heading, up to the next heading of its
// level.
func sectionOf(page, heading string) string {
	_, text, _ := strings.Cut(page, "\n## "+heading+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}
