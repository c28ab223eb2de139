// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// Return may be called twice, and after an outcome: it gives back only what the
// call holds.
func TestReturn_GivesBackOnce(t *testing.T) {
	r := rulesOf(t, retrip.Policy{})
	tokens := func(h *retrip.Host) float64 { return h.State(r, 0).Tokens }
	var h retrip.Host
	drain(t, &h, 0)
	call := &retrip.Call{Attempts: 1}
	h.Return(r, call)
	require.Zero(t, tokens(&h))

	var two retrip.Host
	first, second := &retrip.Call{Attempts: 1}, &retrip.Call{Attempts: 1}
	for _, c := range []*retrip.Call{first, second} {
		require.True(t, two.Next(r, c, repeatable(http.StatusServiceUnavailable), 0, drawLowest).Retry)
	}
	require.InDelta(t, 4, tokens(&two), 1e-9)
	two.Return(r, first)
	two.Return(r, first)
	assert.InDelta(t, 4.5, tokens(&two), 1e-9)
	second.Attempts++
	two.Next(r, second, repeatable(http.StatusOK), 0, drawLowest)
	assert.InDelta(t, 5, tokens(&two), 1e-9)
	require.True(t, two.Next(r, first, repeatable(http.StatusServiceUnavailable), 0, drawLowest).Retry)
	two.Return(r, second)
	assert.InDelta(t, 4.5, tokens(&two), 1e-9)
}

// Returning a probe whose outcome is known has no effect: no further probe
// takes its place.
func TestReturn_GivesAProbeBackOnce(t *testing.T) {
	const window, openFor = time.Minute, 10 * time.Second
	r := rulesOf(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 0.5, MinVolume: 2, Window: window, OpenFor: openFor, Probes: 2}})
	var h retrip.Host
	for range 2 {
		call := &retrip.Call{}
		require.True(t, h.First(r, call, 0, drawLowest).Retry)
		h.Next(r, call, repeatable(http.StatusServiceUnavailable), 0, drawLowest)
	}
	now := 2 * openFor
	probe := &retrip.Call{}
	require.True(t, h.First(r, probe, now, drawLowest).Retry)
	h.Next(r, probe, repeatable(http.StatusOK), now, drawLowest)
	h.Return(r, probe)
	now += openFor / 2
	require.True(t, h.First(r, &retrip.Call{}, now, drawLowest).Retry, "the second probe")
	assert.Equal(t, retrip.ReasonBreakerOpen, h.First(r, &retrip.Call{}, now+openFor/2, drawLowest).Reason, "a third one")
}

func TestReturn(t *testing.T) {
	var h retrip.Host
	r := rulesOf(t, retrip.Policy{})
	var call retrip.Call
	h.Return(r, &call)
	require.True(t, h.Next(r, &call, repeatable(503), 0, 0).Retry)
	assert.Equal(t, 4.5, h.State(r, 0).Tokens)
	h.Return(r, &call)
	h.Return(r, &call)
	assert.Equal(t, 5.0, h.State(r, 0).Tokens)
}
