// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package gate_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
)

// Each key has a gate of its own. A pause of the host applies to all of them.
//
//retrip:promise P23
func TestGate_OnePerKey(t *testing.T) {
	var h host.Record
	r := gated(t)
	call := func(key string) *decide.Call { return &decide.Call{Gate: key, Waiter: key} }
	a := call("a")
	refuse(&h, r, a, 8*time.Second, 0)
	assert.Positive(t, r.Wake(&h, a, 0, 0).Wait)
	assert.Positive(t, r.First(&h, call("a"), 0, 0).Wait)
	assert.Equal(t, play.Decision{Retry: true}, r.First(&h, call("b"), 0, 0))
	assert.Equal(t, play.Decision{Retry: true}, r.First(&h, call(""), 0, 0))
	s := r.State(&h, 0)
	assert.Equal(t, 2, s.Waiting)
	assert.Equal(t, 8*time.Second, s.PausedFor)
	refuse(&h, r, call("b"), time.Second, 0)
	assert.LessOrEqual(t, alone(t, &h, r, call("b"), 0), 2*time.Second)

	play.Pause(t, &h, 5*time.Second, 10*time.Second)
	assert.GreaterOrEqual(t, alone(t, &h, r, call("c"), 10*time.Second), 15*time.Second)
	assert.False(t, h.Healed(time.Minute))
	r.Return(&h, a)
	assert.False(t, h.Healed(time.Hour), "a request of a waits")
}

// Keys beyond the bound share the gate of the host. Forgotten gates make room
// for new keys.
//
//retrip:promise P23
func TestGate_KeysAreBounded(t *testing.T) {
	var h host.Record
	r := gated(t)
	call := func(i int) *decide.Call { return &decide.Call{Gate: fmt.Sprint("key ", i), Attempts: 1} }
	const bound = 4096
	for i := range bound {
		refuse(&h, r, call(i), time.Second, 0)
	}
	first := func(i int, now time.Duration) time.Duration {
		d := r.First(&h, &decide.Call{Gate: fmt.Sprint("key ", i)}, now, 0)
		require.True(t, d.Retry)
		return d.Wait
	}
	assert.Positive(t, first(17, 0))
	assert.Zero(t, first(bound+1, 0), "nothing has refused it")
	refuse(&h, r, call(bound+1), 8*time.Second, 0)
	assert.Positive(t, first(bound+1, 0))
	assert.Positive(t, first(bound+2, 0), "they share one")
	assert.Positive(t, r.First(&h, &decide.Call{}, 0, 0).Wait, "the host's gate")

	const later = time.Hour
	refuse(&h, r, call(bound+3), time.Second, later)
	assert.Positive(t, first(bound+3, later))
	assert.Zero(t, first(bound+4, later))
}
