// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
)

// The duration of a wait counts from its beginning, not from the epoch. A pause
// that is extended to exactly the deadline is still waited for.
func TestWake_CountsFromTheBeginOfTheWait(t *testing.T) {
	const now = time.Hour
	var h host.Record
	r := play.Rules(t, retrip.Policy{MaxWait: 30 * time.Second})
	call := &decide.Call{Attempts: 1, Deadline: now + 15*time.Second}
	require.True(t, r.Next(&h, call, play.Repeatable(http.StatusServiceUnavailable), now, play.Lowest).Retry)
	play.Pause(t, &h, 10*time.Second, now+5*time.Second)
	d := r.Wake(&h, call, now+5*time.Second, play.Lowest)
	assert.True(t, d.Retry)
	assert.Equal(t, 10*time.Second, d.Wait)
}

// The breaker may refuse what the gate allows, also at the end of a wait.
func TestWake_AsksGateAndBreaker(t *testing.T) {
	r := play.Rules(t, retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, Breaker: retrip.Breaker{Ratio: 0.5, MinVolume: 2, OpenFor: time.Minute}})
	var h host.Record
	waiting := &decide.Call{}
	require.True(t, r.First(&h, waiting, 0, play.Lowest).Retry)
	require.True(t, r.Next(&h, waiting, play.Repeatable(http.StatusInternalServerError), 0, play.Lowest).Retry)
	for range 3 {
		call := &decide.Call{}
		r.First(&h, call, 0, play.Lowest)
		r.Next(&h, call, play.Repeatable(http.StatusInternalServerError), 0, play.Lowest)
	}
	require.Equal(t, breaker.Open, r.State(&h, 0).Breaker)
	assert.Equal(t, decide.BreakerOpen, r.Wake(&h, waiting, time.Second, play.Lowest).Reason)
}

//retrip:promise P9
func TestWake(t *testing.T) {
	const s = time.Second
	tests := []struct {
		name     string
		paused   time.Duration // pause by other requests during the wait
		now      time.Duration // instant of waking; the wait began at 0
		deadline time.Duration
		want     play.Decision // with the lowest draw
		hi       time.Duration
	}{
		{name: "go", now: s, want: play.Decision{Retry: true}},
		{name: "the pause is over", paused: s, now: s, want: play.Decision{Retry: true}},
		{name: "wait on", paused: 3 * s, now: s, want: play.Decision{Retry: true, Wait: 2 * s}, hi: 3 * s},
		{name: "wait on within the deadline", paused: 3 * s, now: s, deadline: 3500 * time.Millisecond, want: play.Decision{Retry: true, Wait: 2 * s}, hi: 2500 * time.Millisecond},
		{name: "doesn't fit the deadline", paused: 3 * s, now: s, deadline: 2 * s, want: play.Decision{Reason: decide.HostPaused}},
		{name: "MaxWait in all", paused: 30 * s, now: 20 * s, want: play.Decision{Retry: true, Wait: 10 * s}, hi: 15 * s},
		{name: "renewed for ever", paused: 30*s + 1, now: 20 * s, want: play.Decision{Reason: decide.HostPaused}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := play.Rules(t, retrip.Policy{})
			wake := func(draw uint64) (play.Decision, float64) {
				var h host.Record
				call := decide.Call{Attempts: 1, Deadline: tt.deadline}
				require.True(t, r.Next(&h, &call, play.Repeatable(503), 0, play.Lowest).Retry)
				if tt.paused > 0 {
					play.Pause(t, &h, tt.paused, 0)
				}
				d := r.Wake(&h, &call, tt.now, draw)
				return d, r.State(&h, tt.now).Tokens
			}
			lowest, tokens := wake(play.Lowest)
			assert.Equal(t, tt.want, lowest)
			highest, _ := wake(play.Highest)
			assert.Equal(t, tt.hi, highest.Wait)
			if tt.want.Retry {
				assert.Equal(t, 4.5, tokens, "tokens stay taken")
			} else {
				assert.Equal(t, 5.0, tokens, "it is back")
			}
		})
	}
}

// Each waiter draws its own time after the end of a pause, whoever began the
// pause.
//
//retrip:promise P9
func TestPause_SpreadsWaiters(t *testing.T) {
	var h host.Record
	r := play.Rules(t, retrip.Policy{Budget: retrip.Off})
	play.Pause(t, &h, 10*time.Second, 0)
	random := rand.New(rand.NewPCG(1, 2))
	waits := map[time.Duration]bool{}
	for range 1000 {
		d := r.Next(&h, &decide.Call{Attempts: 1}, play.Repeatable(502), 0, random.Uint64())
		require.True(t, d.Retry)
		require.GreaterOrEqual(t, d.Wait, 10*time.Second)
		waits[d.Wait] = true
	}
	assert.Len(t, waits, 1000)
}

// Only a breaker or a gate holds back a first attempt.
func TestFirst(t *testing.T) {
	var h host.Record
	play.Drain(t, &h, 0)
	play.Pause(t, &h, time.Minute, 0)
	d := play.Rules(t, retrip.Policy{}).First(&h, &decide.Call{Deadline: time.Second}, 0, 0)
	assert.Equal(t, play.Decision{Retry: true}, d)
}
