// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package doccheck

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// promised is how many promises docs/promises.md has.
const promised = 23

var (
	promiseHeading = regexp.MustCompile(`(?m)^## (P\d+): \S+ .*$`)

	// A test that guards promises has their numbers in its comment. What follows
	// the comment must be a test.
	guardMark = regexp.MustCompile(`(?m)^//retrip:promise ([P\d ]+)\n(?://.*\n)*(.*)$`)
	guardTest = regexp.MustCompile(`^func (Test|Fuzz|Benchmark|Example)(\w*)\(`)

	contractRow = regexp.MustCompile(`(?m)^\t\{"(\S+) .*func\(t \*testing\.T, e contractEnv\) \{$`)

	commentLine = regexp.MustCompile(`(?m)^\s*//.*$`)
	mention     = regexp.MustCompile(`\bP\d+\b`)
	percentile  = []string{"P50", "P95", "P99"}
)

func TestPromises(t *testing.T) { assert.Empty(t, checkPromises(readRepository(t), promised)) }

// checkPromises reports promises without a test that is marked as their guard or
// a row of TestContract, and pages and comments that name no promise.
func checkPromises(files map[string]string, promised int) (problems []string) {
	var ids, want []string
	for _, m := range promiseHeading.FindAllStringSubmatch(files["docs/promises.md"], -1) {
		ids = append(ids, m[1])
	}
	for n := range promised {
		want = append(want, fmt.Sprint("P", n+1))
	}
	if !slices.Equal(want, ids) {
		problems = append(problems, fmt.Sprintf("the sections are %v, want %v", ids, want))
	}
	guarded := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := files[name]
		if strings.HasSuffix(name, "_test.go") {
			marks := guardMark.FindAllStringSubmatch(text, -1)
			for _, m := range marks {
				if !guardTest.MatchString(m[2]) {
					problems = append(problems, name+" marks something that isn't a test: "+m[2])
					continue
				}
				for id := range strings.FieldsSeq(m[1]) {
					guarded[id] = true
				}
			}
			for _, m := range contractRow.FindAllStringSubmatch(text, -1) {
				guarded[m[1]] = true
			}
		}
		if strings.HasSuffix(name, ".go") {
			text = strings.Join(commentLine.FindAllString(text, -1), "")
		}
		for _, id := range mention.FindAllString(text, -1) {
			if !slices.Contains(want, id) && !slices.Contains(percentile, id) && !strings.HasPrefix(name, "internal/doccheck/") {
				problems = append(problems, name+": there is no promise "+id)
			}
		}
	}
	for _, id := range want {
		if !guarded[id] {
			problems = append(problems, id+" has no test")
		}
	}
	return problems
}

func TestPromises_SeesWhatIsWrong(t *testing.T) {
	good := map[string]string{
		"docs/promises.md": "# Title\n\n## P1: The first one\n\nText.\n\n## P2: The second one\n\n## P3: The third one\n",
		"a_test.go":        "package a\n\n//retrip:promise P1 P2\nfunc TestA(t *testing.T) {}\n\n// TestB is.\n//\n//retrip:promise P2\n// Really.\nfunc TestB(t *testing.T) {}\n",
		"contract_test.go": "package a\n\nvar rows = []contractRow{\n\t{\"P3 a row\", func(t *testing.T, e contractEnv) {\n",
	}
	for _, tt := range []struct {
		name, file, old, new string
		want                 []string
	}{
		{"nothing", "a_test.go", "P1", "P1", nil},
		{"a promise is missing", "docs/promises.md", "## P2: The second one\n", "", []string{"the sections are [P1 P3], want [P1 P2 P3]"}},
		{"no headline", "docs/promises.md", "## P2: The second one", "## P2", []string{"the sections are [P1 P3], want [P1 P2 P3]"}},
		{"one too many", "docs/promises.md", "Text.", "## P4: The fourth one", []string{"the sections are [P1 P4 P2 P3], want [P1 P2 P3]", "docs/promises.md: there is no promise P4"}},
		{"no test", "a_test.go", "P1 P2", "P2", []string{"P1 has no test"}},
		{"no row", "contract_test.go", "P3", "case", []string{"P3 has no test"}},
		{"a test of nothing", "a_test.go", "P1 P2", "P1 P2 P7", []string{"a_test.go: there is no promise P7"}},
		{"a mark at something else", "a_test.go", "TestA", "helper", []string{"a_test.go marks something that isn't a test: func helper(t *testing.T) {}", "P1 has no test"}},
		{"a percentile", "docs/promises.md", "Text.", "P99 is no promise.", nil},
	} {
		files := maps.Clone(good)
		require.Equal(t, 1, strings.Count(files[tt.file], tt.old), tt.name)
		files[tt.file] = strings.Replace(files[tt.file], tt.old, tt.new, 1)
		assert.Equal(t, tt.want, checkPromises(files, 3), tt.name)
	}
}
