// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

const root = "../../.."

func defects(t *testing.T) []defect {
	all, err := parse(list)
	require.NoError(t, err)
	return all
}

// Each defect has a name of its own, and the list has some for each promise that a
// world can see.
func TestList(t *testing.T) {
	blind := 0
	names, promises := map[string]bool{}, map[string]int{}
	all := defects(t)
	for _, d := range all {
		assert.False(t, names[d.name], d.name)
		names[d.name] = true
		promises[d.promise]++
		if d.hidden != "" {
			blind++
		}
		assert.NotEqual(t, d.old, d.new, d.name)
	}
	assert.GreaterOrEqual(t, len(all), 60)
	assert.LessOrEqual(t, blind*20, len(all), "defects that the worlds can't find")
	for _, p := range []string{"P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10", "P11", "P12", "P13", "P14", "P15", "P17", "P18", "P19", "P20", "P21", "P22", "P23"} {
		assert.Positive(t, promises[p], p)
	}
}

// Each defect fits the code of today, and can be built. Defects of different lines are
// built together.
func TestList_Builds(t *testing.T) {
	abs, err := filepath.Abs(root)
	require.NoError(t, err)
	all := defects(t)
	for len(all) > 0 {
		files, left := sources{}, []defect(nil)
		for i := range all {
			if err := files.add(abs, &all[i]); err != nil {
				left = append(left, all[i])
			}
		}
		// A defect that fits beside none doesn't fit at all.
		require.Less(t, len(left), len(all), "%s: %s", all[0].name, all[0].file)
		t.Logf("%d defects in %d files", len(all)-len(left), len(files))
		overlay, err := files.overlay(abs, t.TempDir())
		require.NoError(t, err)
		build := exec.Command("go", "build", "-overlay", overlay, ".", "./internal/...")
		build.Dir = abs
		out, err := build.CombinedOutput()
		require.NoError(t, err, "%s", out)
		all = left
	}
}

func TestParse_Errors(t *testing.T) {
	for _, bad := range []string{"P1 name no colon\nf.go\n-a\n+b", "P1 name: text\nf.go", "P1 name: text\nf.go\n-a\n b"} {
		_, err := parse(bad)
		assert.Error(t, err, bad)
	}
	assert.ErrorContains(t, sources{}.add(root, &defect{name: "x", file: "go.mod", old: "no such line"}), "0 times")
}

// The worlds find a sample of the defects soon, and say which promise broke.
func TestTry(t *testing.T) {
	testenv.Slow(t)
	testenv.OneGoroutine(t) // the worlds that are built have no race detector
	abs, err := filepath.Abs(root)
	require.NoError(t, err)
	sample := map[string]string{"free-retries": "P14", "deaf-wait": "P10", "half-the-word": "P9"}
	for _, d := range defects(t) {
		want, ok := sample[d.name]
		if !ok {
			continue
		}
		f, err := d.try(abs, 300)
		require.NoError(t, err)
		assert.Positive(t, f.after, d.name)
		assert.Equal(t, want, f.promise, "%s: %s", d.name, f.how)
		delete(sample, d.name)
	}
	assert.Empty(t, sample)
}
