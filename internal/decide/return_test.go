// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
)

// Return may be called twice, and after an outcome: it gives back only what the
// call holds.
func TestReturn_GivesBackOnce(t *testing.T) {
	r := play.Rules(t, retrip.Policy{})
	tokens := func(h *host.Record) float64 { return r.State(h, 0).Tokens }
	var h host.Record
	play.Drain(t, &h, 0)
	call := &decide.Call{Attempts: 1}
	r.Return(&h, call)
	require.Zero(t, tokens(&h))

	var two host.Record
	first, second := &decide.Call{Attempts: 1}, &decide.Call{Attempts: 1}
	for _, c := range []*decide.Call{first, second} {
		require.True(t, r.Next(&two, c, play.Repeatable(http.StatusServiceUnavailable), 0, play.Lowest).Retry)
	}
	require.InDelta(t, 4, tokens(&two), 1e-9)
	r.Return(&two, first)
	r.Return(&two, first)
	assert.InDelta(t, 4.5, tokens(&two), 1e-9)
	second.Attempts++
	r.Next(&two, second, play.Repeatable(http.StatusOK), 0, play.Lowest)
	assert.InDelta(t, 5, tokens(&two), 1e-9)
	require.True(t, r.Next(&two, first, play.Repeatable(http.StatusServiceUnavailable), 0, play.Lowest).Retry)
	r.Return(&two, second)
	assert.InDelta(t, 4.5, tokens(&two), 1e-9)
}

// Returning a probe whose outcome is known has no effect: no further probe
// takes its place.
func TestReturn_GivesAProbeBackOnce(t *testing.T) {
	const window, openFor = time.Minute, 10 * time.Second
	r := play.Rules(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 0.5, MinVolume: 2, Window: window, OpenFor: openFor}})
	r.Breaker.Probes = 2
	var h host.Record
	for range 2 {
		call := &decide.Call{}
		require.True(t, r.First(&h, call, 0, play.Lowest).Retry)
		r.Next(&h, call, play.Repeatable(http.StatusServiceUnavailable), 0, play.Lowest)
	}
	now := 2 * openFor
	probe := &decide.Call{}
	require.True(t, r.First(&h, probe, now, play.Lowest).Retry)
	r.Next(&h, probe, play.Repeatable(http.StatusOK), now, play.Lowest)
	r.Return(&h, probe)
	now += openFor / 2
	require.True(t, r.First(&h, &decide.Call{}, now, play.Lowest).Retry, "the second probe")
	assert.Equal(t, decide.BreakerOpen, r.First(&h, &decide.Call{}, now+openFor/2, play.Lowest).Reason, "a third one")
}

func TestReturn(t *testing.T) {
	var h host.Record
	r := play.Rules(t, retrip.Policy{})
	var call decide.Call
	r.Return(&h, &call)
	require.True(t, r.Next(&h, &call, play.Repeatable(503), 0, 0).Retry)
	assert.Equal(t, 4.5, r.State(&h, 0).Tokens)
	r.Return(&h, &call)
	r.Return(&h, &call)
	assert.Equal(t, 5.0, r.State(&h, 0).Tokens)
}
