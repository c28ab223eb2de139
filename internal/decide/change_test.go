// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/host"
)

// Each result reports exactly the changes of the breaker's state that it
// causes.
func TestHost_TellsBreakerChange(t *testing.T) {
	r := &Rules{MaxAttempts: 1, Breaker: &breaker.Rule{Ratio: 0.5, Window: 10 * time.Second, MinVolume: 2, OpenFor: time.Second, Probes: 2}}
	r.Retry.Add(http.StatusServiceUnavailable)
	var h host.Record
	var a Action
	first := func(now time.Duration) (*Call, host.Change) {
		var c Call
		c.Step(r, &h, &Event{Kind: Began}, &a, now, 0)
		require.Equal(t, Send, a.Do)
		return &c, a.Change
	}
	end := func(c *Call, status int, now time.Duration) host.Change {
		c.Step(r, &h, &Event{Kind: Ended, Outcome: Outcome{Status: status, Idempotent: true, Replay: true}}, &a, now, 0)
		return a.Change
	}
	one, change := first(0)
	assert.Zero(t, change)
	b, _ := first(0)
	stale, _ := first(0)
	outsider, _ := first(0)
	assert.Zero(t, end(one, http.StatusServiceUnavailable, 0))
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
