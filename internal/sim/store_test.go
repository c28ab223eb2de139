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
	s := store{Store: Store{Size: 10, Delay: 4 * ms, DownAt: 200 * ms, DownFor: 100 * ms}, level: 10}
	for _, step := range []struct {
		at      time.Duration
		by      float64
		level   float64
		ok      bool
		comment string
	}{
		{100 * ms, -3, 7, true, ""},
		{101 * ms, -100, 0, true, "it never falls below 0"},
		{102 * ms, 100, 10, true, "it never exceeds its size"},
		{197 * ms, -1, 9, true, "it gets there before the outage"},
		{198 * ms, -1, 0, false, "it gets there in the outage"},
		{297 * ms, -1, 0, false, ""},
		{298 * ms, 0, 9, true, "a lost operation has no effect"},
	} {
		level, at, ok := s.add(step.at, step.by)
		assert.Equal(t, step.ok, ok, step)
		assert.Equal(t, step.level, level, step)
		if ok {
			assert.Equal(t, step.at+4*ms, at, step)
		}
	}
}
