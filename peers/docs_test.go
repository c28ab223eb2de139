// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMigrating_ClaimsAreTested checks that docs/migrating.md names every test
// of behaviour, and no other.
func TestMigrating_ClaimsAreTested(t *testing.T) {
	names := func(file, pattern string) []string {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var names []string
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			names = append(names, match[1])
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	tests := names("behaviour_test.go", `(?m)^func (Test\w+)\(`)
	require.NotEmpty(t, tests)
	assert.Equal(t, tests, names("../docs/migrating.md", "`(Test\\w+)`"))
}
