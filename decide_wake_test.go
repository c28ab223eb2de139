// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// The duration of a wait counts from its beginning, not from the epoch. A pause
// that is extended to exactly the deadline is still waited for.
func TestWake_CountsFromTheBeginOfTheWait(t *testing.T) {
	const now = time.Hour
	var h retrip.Host
	r := rulesOf(t, retrip.Policy{MaxWait: 30 * time.Second})
	call := &retrip.Call{Attempts: 1, Deadline: now + 15*time.Second}
	require.True(t, h.Next(r, call, repeatable(http.StatusServiceUnavailable), now, drawLowest).Retry)
	pause(t, &h, 10*time.Second, now+5*time.Second)
	d := h.Wake(r, call, now+5*time.Second, drawLowest)
	assert.True(t, d.Retry)
	assert.Equal(t, 10*time.Second, d.Wait)
}

// The breaker may refuse what the gate allows, also at the end of a wait.
func TestWake_AsksGateAndBreaker(t *testing.T) {
	r := rulesOf(t, retrip.Policy{Gate: retrip.On, Breaker: retrip.Breaker{Ratio: 0.5, MinVolume: 2, OpenFor: time.Minute}})
	var h retrip.Host
	waiting := &retrip.Call{}
	require.True(t, h.First(r, waiting, 0, drawLowest).Retry)
	require.True(t, h.Next(r, waiting, repeatable(http.StatusInternalServerError), 0, drawLowest).Retry)
	for range 3 {
		call := &retrip.Call{}
		h.First(r, call, 0, drawLowest)
		h.Next(r, call, repeatable(http.StatusInternalServerError), 0, drawLowest)
	}
	require.Equal(t, "open", h.State(r, 0).Breaker)
	assert.Equal(t, retrip.ReasonBreakerOpen, h.Wake(r, waiting, time.Second, drawLowest).Reason)
}

func TestWake(t *testing.T) {
	const s = time.Second
	tests := []struct {
		name     string
		paused   time.Duration // pause by other requests during the wait
		now      time.Duration // instant of waking; the wait began at 0
		deadline time.Duration
		want     retrip.Decision // with the lowest draw
		hi       time.Duration
	}{
		{name: "go", now: s, want: retrip.Decision{Retry: true}},
		{name: "the pause is over", paused: s, now: s, want: retrip.Decision{Retry: true}},
		{name: "wait on", paused: 3 * s, now: s, want: retrip.Decision{Retry: true, Wait: 2 * s}, hi: 3 * s},
		{name: "wait on within the deadline", paused: 3 * s, now: s, deadline: 3500 * time.Millisecond, want: retrip.Decision{Retry: true, Wait: 2 * s}, hi: 2500 * time.Millisecond},
		{name: "doesn't fit the deadline", paused: 3 * s, now: s, deadline: 2 * s, want: retrip.Decision{Reason: retrip.ReasonHostPaused}},
		{name: "MaxWait in all", paused: 30 * s, now: 20 * s, want: retrip.Decision{Retry: true, Wait: 10 * s}, hi: 15 * s},
		{name: "renewed for ever", paused: 30*s + 1, now: 20 * s, want: retrip.Decision{Reason: retrip.ReasonHostPaused}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := rulesOf(t, retrip.Policy{})
			wake := func(draw uint64) (retrip.Decision, float64) {
				var h retrip.Host
				call := retrip.Call{Attempts: 1, Deadline: tt.deadline}
				require.True(t, h.Next(r, &call, repeatable(503), 0, drawLowest).Retry)
				if tt.paused > 0 {
					pause(t, &h, tt.paused, 0)
				}
				d := h.Wake(r, &call, tt.now, draw)
				return d, h.State(r, tt.now).Tokens
			}
			lowest, tokens := wake(drawLowest)
			assert.Equal(t, tt.want, lowest)
			highest, _ := wake(drawHighest)
			assert.Equal(t, tt.hi, highest.Wait)
			if tt.want.Retry {
				assert.Equal(t, 4.5, tokens, "tokens stay taken")
			} else {
				assert.Equal(t, 5.0, tokens, "it is back")
			}
		})
	}
}

// A Call without attempts may ask at a paused host.
func TestWake_Fresh(t *testing.T) {
	var h retrip.Host
	pause(t, &h, time.Second, 0)
	assert.Equal(t, retrip.Decision{Retry: true, Wait: time.Second}, h.Wake(rulesOf(t, retrip.Policy{}), &retrip.Call{}, 0, 0))
}

// Each waiter draws its own time after the end of a pause, whoever began the
// pause.
func TestPause_SpreadsWaiters(t *testing.T) {
	var h retrip.Host
	r := rulesOf(t, retrip.Policy{Budget: retrip.Unlimited})
	pause(t, &h, 10*time.Second, 0)
	random := rand.New(rand.NewPCG(1, 2))
	waits := map[time.Duration]bool{}
	for range 1000 {
		d := h.Next(r, &retrip.Call{Attempts: 1}, repeatable(502), 0, random.Uint64())
		require.True(t, d.Retry)
		require.GreaterOrEqual(t, d.Wait, 10*time.Second)
		waits[d.Wait] = true
	}
	assert.Len(t, waits, 1000)
}

// Only a breaker or a gate holds back a first attempt.
func TestFirst(t *testing.T) {
	var h retrip.Host
	drain(t, &h, 0)
	pause(t, &h, time.Minute, 0)
	d := h.First(rulesOf(t, retrip.Policy{}), &retrip.Call{Deadline: time.Second}, 0, 0)
	assert.Equal(t, retrip.Decision{Retry: true}, d)
}
