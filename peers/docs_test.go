// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMigrating_ClaimsAreTested checks that docs/migrating.md names every
// behaviour test and no other test.
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

// TestCompared_RowsAreTested checks that each row of docs/compared.md links to
// an existing test.
func TestCompared_RowsAreTested(t *testing.T) {
	page, err := os.ReadFile("../docs/compared.md")
	require.NoError(t, err)
	row := regexp.MustCompile(`(?m)^\| [^\n]* \|$`)
	link := regexp.MustCompile("\\[`((?:Test|Example)\\w+)`\\]\\(([\\w./]+)\\) \\|$")
	rows := 0
	for _, r := range row.FindAllString(string(page), -1) {
		if strings.HasSuffix(r, "| test |") {
			continue
		}
		rows++
		found := link.FindStringSubmatch(r)
		if !assert.NotNil(t, found, "no test: %s", r) {
			continue
		}
		file, err := os.ReadFile(filepath.Join("../docs", found[2]))
		require.NoError(t, err)
		assert.Contains(t, string(file), "\nfunc "+found[1]+"(")
	}
	assert.NotZero(t, rows)
}
