// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
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

// Each defect fits the code of today, has a name of its own, and the list has some for
// each promise that a world can see.
func TestList(t *testing.T) {
	names, promises := map[string]bool{}, map[string]int{}
	all := defects(t)
	for _, d := range all {
		assert.False(t, names[d.name], d.name)
		names[d.name] = true
		promises[d.promise]++
		source, err := d.apply(root)
		assert.NoError(t, err)
		assert.NotEqual(t, d.old, d.new, d.name)
		assert.NotEmpty(t, source)
	}
	assert.GreaterOrEqual(t, len(all), 60)
	for _, p := range []string{"P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10", "P11", "P12", "P13", "P14", "P15", "P17", "P18", "P19", "P20", "P21", "P22", "P23"} {
		assert.Positive(t, promises[p], p)
	}
}

func TestParse_Errors(t *testing.T) {
	for _, bad := range []string{"P1 name no colon\nf.go\n-a\n+b", "P1 name: text\nf.go", "P1 name: text\nf.go\n-a\n b"} {
		_, err := parse(bad)
		assert.Error(t, err, bad)
	}
	_, err := (&defect{name: "x", file: "go.mod", old: "no such line"}).apply(root)
	assert.ErrorContains(t, err, "0 times")
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
