// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{accounts: map[string]memoryAccount{}}
		add := func(tokens, want float64) {
			t.Helper()
			level, err := m.Add(t.Context(), "a.example:443", tokens, 10)
			require.NoError(t, err)
			assert.Equal(t, want, level)
		}
		add(0, 10)
		assert.Empty(t, m.accounts, "a full account takes no place")
		add(-3, 7)
		add(-100, 0)
		time.Sleep(time.Minute)
		add(0, 0)
		add(2, 2)
		add(100, 10)
		assert.Empty(t, m.accounts)
		add(-3, 7)
		time.Sleep(time.Minute + 1)
		add(0, 10)
	})
}
