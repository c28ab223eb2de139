// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package doccheck

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The root package must stay small enough to find one's way in: a new rule goes
// into a package of its own.
const (
	mostFiles     = 26 // at the root, without tests
	mostLines     = 400
	mostTestFiles = 60
	mostPageLines = 70 // of docs/architecture.md
	mostReadme    = 90 // lines of README.md
	mostComment   = 40 // lines of the package comment
	mostGoDoc     = 800
)

// TestSize checks the size of the root package and of the page about it.
func TestSize(t *testing.T) {
	lines := map[string]int{}
	names, err := filepath.Glob(root + "/*.go")
	require.NoError(t, err)
	for _, name := range names {
		source, err := os.ReadFile(name)
		require.NoError(t, err)
		lines[filepath.Base(name)] = strings.Count(string(source), "\n")
	}
	for _, problem := range checkSize(lines) {
		t.Error(problem)
	}
	assert.LessOrEqual(t, strings.Count(architecture(t), "\n"), mostPageLines, "lines of docs/architecture.md")
	readme, err := os.ReadFile(root + "/README.md")
	require.NoError(t, err)
	assert.LessOrEqual(t, strings.Count(string(readme), "\n"), mostReadme, "lines of README.md")
	comment, err := os.ReadFile(root + "/doc.go")
	require.NoError(t, err)
	assert.LessOrEqual(t, strings.Count(string(comment), "\n//")-1, mostComment, "lines of the package comment")
	command := exec.Command("go", "doc", "-all", ".")
	command.Dir = root
	doc, err := command.Output()
	require.NoError(t, err)
	assert.LessOrEqual(t, strings.Count(string(doc), "\n"), mostGoDoc, "lines of go doc -all")
}

// checkSize reports what is too much of the Go files of the root package, of
// which lines has the numbers of lines.
func checkSize(lines map[string]int) (problems []string) {
	files, tests := 0, 0
	for name, n := range lines {
		if strings.HasSuffix(name, "_test.go") {
			tests++
			continue
		}
		files++
		if n > mostLines {
			problems = append(problems, fmt.Sprintf("%s has %d lines, more than %d", name, n, mostLines))
		}
	}
	if files > mostFiles {
		problems = append(problems, fmt.Sprintf("the root has %d files, more than %d", files, mostFiles))
	}
	if tests > mostTestFiles {
		problems = append(problems, fmt.Sprintf("the root has %d test files, more than %d", tests, mostTestFiles))
	}
	return problems
}

func TestSize_SeesWhatIsWrong(t *testing.T) {
	lines := map[string]int{"long_test.go": mostLines + 1}
	for i := range mostFiles {
		lines[fmt.Sprintf("%d.go", i)] = mostLines
	}
	for i := 1; i < mostTestFiles; i++ {
		lines[fmt.Sprintf("%d_test.go", i)] = 1
	}
	assert.Empty(t, checkSize(lines))
	lines["long.go"], lines["more_test.go"] = mostLines+1, 1
	assert.Equal(t, []string{"long.go has 401 lines, more than 400", "the root has 27 files, more than 26", "the root has 61 test files, more than 60"}, checkSize(lines))
}
