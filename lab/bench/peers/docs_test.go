// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

// TestMigrating_ClaimsAreTested checks that docs/migrating.md names every
// behaviour test and no other test.
func TestMigrating_ClaimsAreTested(t *testing.T) {
	names := func(file, pattern string) []string {
		var names []string
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(read(t, file), -1) {
			names = append(names, match[1])
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	tests := names("behaviour_test.go", `(?m)^func (Test\w+)\(`)
	require.NotEmpty(t, tests)
	assert.Equal(t, tests, names("../../../docs/migrating.md", "\\| `(Test\\w+)` \\|"))
}

// TestMigrating_Versions checks that docs/migrating.md names the versions that
// the tests run.
func TestMigrating_Versions(t *testing.T) {
	page := read(t, "../../../docs/migrating.md")
	text := strings.Join(strings.Fields(page), " ")
	for _, name := range libraries[:len(libraries)-1] {
		version := regexp.MustCompile(`(?m)/` + name + `(?:/v\d+)? v(\S+)$`).FindStringSubmatch(read(t, "../go.mod"))
		require.NotNil(t, version, name)
		assert.Contains(t, text, name+" "+version[1])
	}
}

// TestCompared_RowsAreTested checks that each row of what the others don't have
// links to an existing test.
func TestCompared_RowsAreTested(t *testing.T) {
	page := read(t, "../../../docs/migrating.md")
	_, section, _ := strings.Cut(page, "\n## What the others don't have\n")
	section, _, _ = strings.Cut(section, "\n## ")
	row := regexp.MustCompile(`(?m)^\| [^\n]* \|$`)
	link := regexp.MustCompile("\\[`((?:Test|Example)\\w+)`\\]\\(([\\w./]+)\\) \\|$")
	rows := 0
	for _, r := range row.FindAllString(section, -1) {
		if strings.HasSuffix(r, "| test |") {
			continue
		}
		rows++
		found := link.FindStringSubmatch(r)
		if !assert.NotNil(t, found, "no test: %s", r) {
			continue
		}
		assert.Contains(t, read(t, filepath.Join("../../../docs", found[2])), "\nfunc "+found[1]+"(")
	}
	assert.NotZero(t, rows)
}

// TestREADME_RowsAreTested checks that the rows that compare libraries in README.md are
// rows of docs/migrating.md, without their tests.
func TestREADME_RowsAreTested(t *testing.T) {
	page := read(t, "../../../docs/migrating.md")
	_, table, found := strings.Cut(read(t, "../../../README.md"), "\n| | "+strings.Join(libraries, " | ")+" |\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")[1:]
	assert.Greater(t, len(rows), 3)
	for _, row := range rows {
		assert.Contains(t, page, "\n"+row+" `Test")
	}
}

// meanings are the results that a cell of docs/migrating.md stands for, where it
// isn't a number.
var meanings = map[string][]string{
	"an error": {"0"}, "the 503": {"503"},
	"yes": {"true"}, "yes, at once": {"true"}, "no": {"false"}, "nearly: 0.2 s of jitter on 1 s": {"false"},
	"as configured": {"true", "false"},
	"honoured":      {"true"}, "ignored": {"false"},
	"waits a day": {"true"}, "returns the 503 at once": {"false", "0s"},
	"waits until the deadline": {"500ms"}, "waits until it": {"500ms"}, "waits beyond it": {"10s"},
	"reads it whole before sending the first byte": {"true"}, "reads it whole": {"true"}, "streams it": {"false"},
	"replaces it": {"true"}, "leaves it alone": {"false"},
	"nothing": {"0"}, "4 KiB": {"4096"}, "16 KiB": {"16384"}, "256 KiB": {"262145"}, "all of it": {"67108864"},
}

// documented compares claims with the cells of the row of docs/migrating.md that
// names the test.
func documented[T any](t *testing.T, claims map[string]T) {
	t.Helper()
	cells := migrating(t)
	for _, name := range libraries {
		claim, tested := claims[name]
		cell := cells[name]
		if !tested {
			assert.Empty(t, cell, "%s: a result that is not tested", name)
			continue
		}
		says, known := meanings[cell]
		if !known {
			says = []string{cell}
		}
		assert.Contains(t, says, fmt.Sprint(claim), "docs/migrating.md says of %s: %s", name, cell)
	}
}

// libraries are in the order of the columns.
var libraries = []string{goRetryable, reHTTP, failsafeGo, heimdallLib, httpRetry, ours}

// migrating returns the cells of the row that names the test, by library.
func migrating(t *testing.T) map[string]string {
	t.Helper()
	page := read(t, "../../../docs/migrating.md")
	require.Contains(t, page, "\n| | "+strings.Join(libraries, " | ")+" | test |\n")
	row := regexp.MustCompile(`(?m)^\| ([^\n]*) \| ` + "`" + t.Name() + "`" + ` \|$`).FindStringSubmatch(page)
	require.NotNil(t, row, "docs/migrating.md has no row for the test")
	columns := strings.Split(row[1], "|")[1:]
	require.Len(t, columns, len(libraries))
	cells := map[string]string{}
	for i, name := range libraries {
		cells[name] = strings.TrimSpace(columns[i])
	}
	return cells
}
