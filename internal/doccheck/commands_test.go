// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package doccheck

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestREADME_Commands checks that the quick start of the README names the two
// commands that try retrip on a machine that has nothing but Go, and that
// .ci/run runs them.
func TestREADME_Commands(t *testing.T) {
	files := map[string]string{}
	for _, name := range []string{"README.md", ".ci/run", "Makefile"} {
		source, err := os.ReadFile(filepath.Join(root, name))
		require.NoError(t, err)
		files[name] = string(source)
	}
	for _, problem := range checkCommands(files) {
		t.Error(problem)
	}
	assert.True(t, exists(filepath.Join(root, "examples/quickstart/main.go")))
}

// TestREADME_Output compares the output of the quick start, without its times,
// with the block that quotes the beginning of it.
func TestREADME_Output(t *testing.T) {
	if testing.Short() {
		t.Skip("waits as the quick start does")
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	command := exec.Command("go", "run", "./examples/quickstart")
	command.Dir = root
	out, err := command.Output()
	require.NoError(t, err)
	_, quoted, _ := strings.Cut(sectionOf(string(readme), "Quick start"), "```text\n")
	quoted, _, _ = strings.Cut(quoted, "```")
	assert.Greater(t, strings.Count(quoted, "\n"), 5)
	timeless := func(text string) string { return durations.ReplaceAllString(text, "…") }
	assert.Contains(t, timeless(string(out)), timeless(quoted))
}

var durations = regexp.MustCompile(` *[0-9.]+m?s\b`)

// checkCommands reports which command is missing where.
func checkCommands(files map[string]string) (problems []string) {
	start := sectionOf(files["README.md"], "Quick start")
	for _, command := range []string{"go run ./examples/quickstart", "go test ./..."} {
		if !strings.Contains(start, "`"+command+"`") && !strings.Contains(start, "\n    "+command+"\n") {
			problems = append(problems, "the quick start of README.md lacks "+command)
		}
	}
	for _, step := range []struct{ target, command string }{
		{"examples", `for main in examples/*/main.go; do \`},
		{"test", "$(GO) test ./..."},
	} {
		if !strings.Contains(files[".ci/run"], "\nmake "+step.target+"\n") {
			problems = append(problems, ".ci/run lacks make "+step.target)
		}
		_, recipe, _ := strings.Cut(files["Makefile"], "\n"+step.target+": ")
		if recipe, _, _ = strings.Cut(recipe, "\n\n"); !strings.Contains(recipe+"\n", "\t"+step.command+"\n") {
			problems = append(problems, "make "+step.target+" in Makefile lacks "+step.command)
		}
	}
	return problems
}

// TestREADME_CommandsSeesWhatIsWrong removes each command once.
func TestREADME_CommandsSeesWhatIsWrong(t *testing.T) {
	good := map[string]string{
		"README.md": "# R\n\n## Quick start\n\nUse `go test ./...`:\n\n    go run ./examples/quickstart\n\n## More\n\nNothing.\n",
		".ci/run":   "step 1\nmake test\n\nstep 2\nmake examples\n",
		"Makefile":  "all: test\n\ntest: ## test\n\t$(GO) test ./...\n\nexamples: ## run\n\tfor main in examples/*/main.go; do \\\n\t\tgo run\n",
	}
	assert.Empty(t, checkCommands(good))
	for _, tt := range []struct{ file, old, new, want string }{
		{"README.md", "`go test ./...`", "`go vet ./...`", "the quick start of README.md lacks go test ./..."},
		{"README.md", "`go test ./...`", "go test ./...", "the quick start of README.md lacks go test ./..."},
		{"README.md", "go run ./examples/quickstart", "go run ./examples/quick", "the quick start of README.md lacks go run ./examples/quickstart"},
		{"README.md", "`go test ./...`:\n\n    go run ./examples/quickstart\n\n## More\n", "`go test ./...`:\n\n## More\n\n    go run ./examples/quickstart\n",
			"the quick start of README.md lacks go run ./examples/quickstart"},
		{".ci/run", "make test", "make race", ".ci/run lacks make test"},
		{".ci/run", "make examples", "true", ".ci/run lacks make examples"},
		{"Makefile", "test ./...", "test -short ./...", "make test in Makefile lacks $(GO) test ./..."},
		{"Makefile", "examples/*/main.go", "examples/[a-p]*/main.go", `make examples in Makefile lacks for main in examples/*/main.go; do \`},
	} {
		files := map[string]string{}
		for name, source := range good {
			if name == tt.file {
				require.Equal(t, 1, strings.Count(source, tt.old), tt.old)
				source = strings.Replace(source, tt.old, tt.new, 1)
			}
			files[name] = source
		}
		assert.Equal(t, []string{tt.want}, checkCommands(files))
	}
}

// TestPages_Benchmarks checks that each benchmark in a command of a page is in the
// package that the command names.
func TestPages_Benchmarks(t *testing.T) {
	for _, problem := range missingBenchmarks(readRepository(t)) {
		t.Error(problem)
	}
}

var (
	benchCommand = regexp.MustCompile("go test [^\n`]*-bench '?([^' /\n`]+)[^\n`]*")
	benchFunc    = regexp.MustCompile(`(?m)^func (Benchmark\w+)\(`)
)

// missingBenchmarks returns the commands that would run no benchmark.
func missingBenchmarks(files map[string]string) (problems []string) {
	for page, text := range files {
		if path.Ext(page) != ".md" {
			continue
		}
		for _, command := range benchCommand.FindAllStringSubmatch(text, -1) {
			dir, found := ".", false
			for word := range strings.FieldsSeq(command[0]) {
				if strings.HasPrefix(word, ".") {
					dir = path.Clean(word)
				}
			}
			named := regexp.MustCompile(command[1])
			for file, source := range files {
				if path.Dir(file) == dir && strings.HasSuffix(file, "_test.go") {
					for _, f := range benchFunc.FindAllStringSubmatch(source, -1) {
						found = found || named.MatchString(f[1])
					}
				}
			}
			if !found {
				problems = append(problems, page+": no benchmark for "+command[0])
			}
		}
	}
	return problems
}

func TestPages_BenchmarksSeesWhatIsWrong(t *testing.T) {
	files := map[string]string{
		"docs/a.md":      "Run (`go test -run '^$' -bench Bodies .`):\n\n    go test ./b -bench 'Send$' -benchtime 1x\n",
		"a_test.go":      "func BenchmarkBodies(b *testing.B) {",
		"b/b_test.go":    "func BenchmarkSend(b *testing.B) {",
		"lab/c_test.go":  "func BenchmarkSend(b *testing.B) {",
		"b/helper_go.go": "func BenchmarkBodies(b *testing.B) {",
	}
	assert.Empty(t, missingBenchmarks(files))
	files["b/b_test.go"] = "func BenchmarkSender(b *testing.B) {"
	assert.Equal(t, []string{"docs/a.md: no benchmark for go test ./b -bench 'Send$' -benchtime 1x"}, missingBenchmarks(files))
	delete(files, "a_test.go")
	assert.Len(t, missingBenchmarks(files), 2)
}
