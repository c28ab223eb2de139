// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
)

// failures is a test that records whether it has failed.
type failures struct {
	testing.TB
	failed bool
}

func (f *failures) Errorf(string, ...any) { f.failed = true }

func TestGrowth(t *testing.T) {
	input := func(n int) []byte { return make([]byte, n) }
	linear := &failures{TB: t}
	Growth(linear, 100_000, input, func(b []byte) { bytes.IndexByte(b, 1) })
	assert.False(t, linear.failed)
	quadratic := &failures{TB: t}
	Growth(quadratic, 10_000, input, func(b []byte) {
		for i := range b {
			bytes.IndexByte(b[i:], 1)
		}
	})
	assert.True(t, quadratic.failed)
}
