// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMeasured_NamesWhatIsWrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "measured.json")
	for data, want := range map[string]string{
		`nonsense`: "invalid character",
		`{}`:       "it has no runs",
		`{"From":1,"To":3,"Runs":[{"Rule":"short","Requests":[1,2],"Answered":[1,2],"Attempts":[1,2],"Retries":[1,2],"Operations":[1,2]}]}`:      `the run "short" isn't as long as it must be`,
		`{"From":1,"To":2,"Runs":[{"Rule":"uneven","Requests":[1,2,3],"Answered":[1,2],"Attempts":[1,2],"Retries":[1,2],"Operations":[1,2,3]}]}`: `the run "uneven" isn't`,
	} {
		require.NoError(t, os.WriteFile(file, []byte(data), 0o600))
		code, _, errs := call(t, "measured", "-in", file)
		assert.Equal(t, exitUsage, code)
		assert.Contains(t, errs, want)
	}
	_, _, errs := call(t, "measured")
	assert.Contains(t, errs, "-in is missing")
	_, _, errs = call(t, "measured", "-in", file+".none")
	assert.Contains(t, errs, "no such file")
}
