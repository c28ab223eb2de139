// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

// Three seconds in real time and over real sockets.
//
//retrip:promise P23
func TestRun(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	const lasts = 3 * time.Second
	gated := run(map[string]*bucket{"": {perSecond: 50, tokens: 50, size: 50}}, retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}}, 100, lasts)
	assert.LessOrEqual(t, gated.succeeded[""], 50*3+50)
	assert.Greater(t, gated.succeeded[""], 50, "more than the burst")
	assert.LessOrEqual(t, gated.refused, int32(200), "one for each in the first instant, and fewer than that while the pace is found")
	assert.Zero(t, gated.gaveUp)
}
