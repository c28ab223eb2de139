// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package doccheck compares what the repository says about itself with what it
// is. Its tests read every file. They have a package of their own, so that a
// change of a page doesn't make the go command repeat other tests.
package doccheck

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the directory of the repository.
const root = "../.."

// readRepository returns the Go, Markdown and YAML files of all modules, by
// path.
func readRepository(t *testing.T) map[string]string {
	if _, err := os.Stat(root + "/lab/go.mod"); err != nil {
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
		// This file contains the phrases that it searches for.
		if base == "promises_test.go" || !slices.Contains([]string{".go", ".md", ".yml"}, filepath.Ext(base)) {
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
