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
