// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestStore(t *testing.T) {
	const ms = time.Millisecond
	s := newStore(10)
	s.delay = 4 * ms
	level, at, ok := s.add(100*ms, -3)
	assert.Equal(t, 7.0, level)
	assert.Equal(t, 104*ms, at)
	assert.True(t, ok)
	level, _, _ = s.add(101*ms, -100)
	assert.Zero(t, level, "it never falls below 0")
	level, _, _ = s.add(102*ms, 100)
	assert.Equal(t, 10.0, level, "it never exceeds its size")
}

func TestStore_Outage(t *testing.T) {
	const ms = time.Millisecond
	s := newStore(10)
	s.delay = 4 * ms
	s.down = [2]time.Duration{100 * ms, 200 * ms}
	_, _, ok := s.add(97*ms, -1)
	assert.True(t, ok)
	_, _, ok = s.add(98*ms, -1)
	assert.False(t, ok, "it gets there in the outage")
	_, _, ok = s.add(197*ms, -1)
	assert.False(t, ok)
	level, _, ok := s.add(198*ms, 0)
	assert.True(t, ok)
	assert.Equal(t, 9.0, level, "a lost operation has no effect")
}

func TestStore_Lag(t *testing.T) {
	const s1 = time.Second
	s := newStore(10)
	s.lag = 3 * s1
	for _, step := range []struct {
		at   time.Duration
		want float64
	}{{s1, 10}, {2 * s1, 10}, {3 * s1, 10}, {4 * s1, 9}, {5 * s1, 8}, {60 * s1, 5}, {70 * s1, 4}} {
		level, _, _ := s.add(step.at, -1)
		assert.Equal(t, step.want, level, "at %v", step.at)
	}
	assert.Less(t, len(s.history), 4, "old levels are dropped")
}
