// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package alarm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The race detector's pools drop some of what they are given.
func TestAlarm_Allocations(t *testing.T) {
	var r ringer
	assert.Zero(t, testing.AllocsPerRun(1000, func() { Set(time.Hour, &r).Stop() }))
}
