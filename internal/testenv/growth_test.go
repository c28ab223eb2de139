// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// failures is a test that records whether it has failed.
type failures struct {
	testing.TB
	failed bool
}

func (f *failures) Errorf(string, ...any) { f.failed = true }

func TestGrowth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer func(real func() time.Duration) { clock = real }(clock)
		began := time.Now()
		clock = func() time.Duration { return time.Since(began) }
		parts := func(n int) time.Duration { return time.Duration(n) }
		linear := &failures{TB: t}
		Growth(linear, 1000, parts, func(n time.Duration) { time.Sleep(n * time.Millisecond) })
		assert.False(t, linear.failed)
		quadratic := &failures{TB: t}
		Growth(quadratic, 1000, parts, func(n time.Duration) { time.Sleep(n * n * time.Microsecond) })
		assert.True(t, quadratic.failed)
	})
}
