// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package alarm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Under the race detector, sync.Pool randomly drops values.
func TestAlarm_Allocations(t *testing.T) {
	var r ringer
	assert.Zero(t, testing.AllocsPerRun(1000, func() { Set(time.Now(), time.Hour, &r).Stop() }))
}
