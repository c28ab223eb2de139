// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package doccheck

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPages_Commands checks the commands that back the figures.
func TestPages_Commands(t *testing.T) {
	files := readRepository(t)
	delete(files, "CHANGELOG.md") // it names what is gone
	assert.Empty(t, checkCommands(files, exists))
}

var (
	commandText = regexp.MustCompile("(?m)`((?:go (?:-C [\\w/]+ )?(?:run|test)|make) [^`]+)`|^    ((?:go (?:-C [\\w/]+ )?(?:run|test)|make) +[^ #\n][^#\n]*)")
	testFlag    = regexp.MustCompile(`-(?:run|bench) (?:'([^']+)'|(\S+))`)
	testFunc    = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w*)\(`)
)

// checkCommands reports commands whose directory, test or target doesn't exist.
func checkCommands(files map[string]string, exists func(string) bool) (problems []string) {
	for page, text := range pagesOf(files) {
		for _, m := range commandText.FindAllStringSubmatch(text, -1) {
			command := strings.Join(strings.Fields(m[1]+m[2]), " ")
			words := strings.Fields(command)
			if words[0] == "make" && !strings.Contains("\n"+files["Makefile"], "\n"+words[1]+":") {
				problems = append(problems, page+": no target for "+command)
			}
			module := "."
			if words[1] == "-C" {
				module, words = words[2], slices.Delete(slices.Clone(words), 1, 3)
			}
			dir := module
			for _, word := range words[2:] {
				if word == "." || strings.HasPrefix(word, "./") {
					dir = path.Join(module, strings.TrimSuffix(word, "..."))
					if !exists(dir) {
						problems = append(problems, page+": no directory for "+command)
					}
				}
			}
			if words[1] != "test" {
				continue
			}
			for _, flag := range testFlag.FindAllStringSubmatch(command, -1) {
				pattern := regexp.MustCompile(strings.Split(flag[1]+flag[2], "/")[0])
				found := pattern.String() == "^$"
				for file, source := range files {
					if strings.HasSuffix(file, "_test.go") && (path.Dir(file) == dir || strings.Contains(command, "/...")) {
						for _, f := range testFunc.FindAllStringSubmatch(source, -1) {
							found = found || pattern.MatchString(f[1])
						}
					}
				}
				if !found {
					problems = append(problems, page+": no test for "+command)
				}
			}
		}
	}
	slices.Sort(problems)
	return problems
}

// TestWorkflows_Pinned wants each action of a workflow pinned by its commit, which
// nobody can move as one moves a tag.
func TestWorkflows_Pinned(t *testing.T) {
	var files []string
	for _, dir := range []string{"", "examples/*/"} {
		list, err := filepath.Glob(filepath.Join(root, dir, ".github/workflows/*.yml"))
		require.NoError(t, err)
		files = append(files, list...)
	}
	pinned := regexp.MustCompile(`^[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	actions := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, use := range regexp.MustCompile(`(?m)\buses: *(.*)$`).FindAllStringSubmatch(string(data), -1) {
			actions++
			assert.Regexp(t, pinned, use[1], file)
		}
	}
	assert.Greater(t, actions, 4)
}
