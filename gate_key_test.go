// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

func unique(all []any) (each []any) {
	seen := map[any]bool{}
	for _, x := range all {
		if !seen[x] {
			seen[x] = true
			each = append(each, x)
		}
	}
	return each
}

// Each key has a gate of its own. A pause of the host applies to all of them.
func TestGate_OnePerKey(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	call := func(key string) *retrip.Call { return &retrip.Call{Gate: key, Waiter: key} }
	a := call("a")
	refuse(&h, r, a, 8*time.Second, 0)
	assert.Positive(t, h.Wake(r, a, 0, 0).Wait)
	assert.Positive(t, h.First(r, call("a"), 0, 0).Wait)
	assert.Equal(t, retrip.Decision{Retry: true}, h.First(r, call("b"), 0, 0))
	assert.Equal(t, retrip.Decision{Retry: true}, h.First(r, call(""), 0, 0))
	s := h.State(r, 0)
	assert.Equal(t, 2, s.Waiting)
	assert.Equal(t, 8*time.Second, s.PausedFor)
	refuse(&h, r, call("b"), time.Second, 0)
	assert.LessOrEqual(t, alone(t, &h, r, call("b"), 0), 2*time.Second)

	pause(t, &h, 5*time.Second, 10*time.Second)
	assert.GreaterOrEqual(t, alone(t, &h, r, call("c"), 10*time.Second), 15*time.Second)
	assert.False(t, h.Healed(time.Minute))
	h.Return(r, a)
	assert.False(t, h.Healed(time.Hour), "a request of a waits")
}

// Keys beyond the bound share the gate of the host. Forgotten gates make room
// for new keys.
func TestGate_KeysAreBounded(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	call := func(i int) *retrip.Call { return &retrip.Call{Gate: fmt.Sprint("key ", i), Attempts: 1} }
	const bound = 4096
	for i := range bound {
		refuse(&h, r, call(i), time.Second, 0)
	}
	first := func(i int, now time.Duration) time.Duration {
		d := h.First(r, &retrip.Call{Gate: fmt.Sprint("key ", i)}, now, 0)
		require.True(t, d.Retry)
		return d.Wait
	}
	assert.Positive(t, first(17, 0))
	assert.Zero(t, first(bound+1, 0), "nothing has refused it")
	refuse(&h, r, call(bound+1), 8*time.Second, 0)
	assert.Positive(t, first(bound+1, 0))
	assert.Positive(t, first(bound+2, 0), "they share one")
	assert.Positive(t, h.First(r, &retrip.Call{}, 0, 0).Wait, "the host's gate")

	const later = time.Hour
	refuse(&h, r, call(bound+3), time.Second, later)
	assert.Positive(t, first(bound+3, later))
	assert.Zero(t, first(bound+4, later))
}
