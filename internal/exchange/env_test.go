// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/tell"
)

// setBy returns the reading t of the clocks as if the wall clock had been set forward by d, a
// number of seconds, before. A machine that has slept for d reads the same.
func setBy(t *testing.T, at time.Time, d time.Duration) time.Time {
	t.Helper()
	was := at
	// The seconds of the wall clock, above 30 bits of nanoseconds.
	*(*uint64)(unsafe.Pointer(&at)) += uint64(d/time.Second) << 30
	require.Zero(t, at.Sub(was), "the monotonic clock")
	require.Equal(t, d, at.Round(0).Sub(was.Round(0)), "the wall clock")
	return at
}

// A deadline is as far away as the clock says that it belongs to, whatever has happened to the
// wall clock since the epoch.
//
//retrip:promise P10
func TestEnv_Due(t *testing.T) {
	env := &Env{Desk: tell.Desk{Epoch: time.Now()}}
	for _, set := range []time.Duration{0, time.Hour, -time.Hour, 10 * 365 * 24 * time.Hour} {
		now := setBy(t, env.Epoch.Add(time.Minute), set)
		require.Equal(t, time.Minute, env.instant(now))
		for _, left := range []time.Duration{time.Second, 24 * time.Hour} {
			at := now.Add(left)
			assert.Equal(t, time.Minute+left, env.due(at, now), "by the monotonic clock")
			assert.Equal(t, time.Minute+left, env.due(time.Unix(0, at.UnixNano()), now), "from a message")
			assert.Equal(t, time.Minute+left, env.due(at, setBy(t, now, time.Hour)), "slept: the context's timer hasn't run")
			assert.Equal(t, max(1, time.Minute+left-time.Hour), env.due(at.Round(0), setBy(t, now, time.Hour)), "slept, from a message")
		}
		assert.EqualValues(t, 1, env.due(time.Time{}, now), "long ago")
		assert.EqualValues(t, 1<<63-1, env.due(time.Unix(1<<60, 0), now), "never")
	}
}
