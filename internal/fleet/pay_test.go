// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip/internal/account"
)

func TestView_Pay(t *testing.T) {
	v, now := &view{size: 10}, time.Duration(0)
	add := func(tokens, want float64) {
		t.Helper()
		v.owed = tokens
		assert.Equal(t, want, v.apply(now))
		assert.Zero(t, v.owed)
	}
	add(0, 10)
	assert.True(t, v.idle(now+account.Age+1), "a full account takes no place")
	add(-3, 7)
	assert.False(t, v.idle(now+account.Age+1))
	add(-100, 0)
	now += memoryLife
	assert.False(t, v.idle(now))
	add(0, 0)
	add(2, 2)
	add(100, 10)
	add(-3, 7)
	now += memoryLife + 1
	assert.True(t, v.idle(now))
	add(0, 10)
}
