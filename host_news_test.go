// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/host"
)

// Each result reports exactly the changes of the breaker's state that it
// causes.
func TestHost_TellsBreakerChange(t *testing.T) {
	r, err := Policy{MaxAttempts: 1, Breaker: Breaker{Ratio: 0.5, MinVolume: 2, OpenFor: time.Second, Probes: 2}}.Rules()
	require.NoError(t, err)
	var h Host
	first := func(now time.Duration) (*Call, host.Change) {
		var c Call
		d := h.First(r, &c, now, 0)
		require.True(t, d.Retry)
		return &c, d.change
	}
	end := func(c *Call, status int, now time.Duration) host.Change {
		return h.Next(r, c, Outcome{Status: status, Idempotent: true, Replay: true}, now, 0).change
	}
	a, change := first(0)
	assert.Zero(t, change)
	b, _ := first(0)
	stale, _ := first(0)
	outsider, _ := first(0)
	assert.Zero(t, end(a, http.StatusServiceUnavailable, 0))
	assert.Equal(t, host.Opened, end(b, http.StatusServiceUnavailable, 0))
	assert.Zero(t, end(stale, http.StatusServiceUnavailable, 0), "of an earlier state")

	now := time.Minute
	probe, change := first(now)
	assert.Equal(t, host.Probed, change)
	outsider.pass.Period = probe.pass.Period
	assert.Zero(t, end(outsider, http.StatusServiceUnavailable, now), "not a probe")
	assert.Equal(t, host.Opened, end(probe, http.StatusServiceUnavailable, now))

	now += time.Minute
	probe, change = first(now)
	assert.Equal(t, host.Probed, change)
	assert.Zero(t, end(probe, http.StatusOK, now), "one of two")
	probe, change = first(now)
	assert.Zero(t, change)
	assert.Equal(t, host.Closed, end(probe, http.StatusOK, now))
}
