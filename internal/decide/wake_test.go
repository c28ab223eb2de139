// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
)

//retrip:promise P9
func TestStep_Due(t *testing.T) {
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
		{name: "wait on within the deadline", paused: 3 * s, now: s, deadline: 3600 * time.Millisecond, want: play.Decision{Retry: true, Wait: 2 * s}, hi: 2200 * time.Millisecond},
		{name: "wait on to the deadline", paused: 3 * s, now: s, deadline: 3 * s, want: play.Decision{Retry: true, Wait: 2 * s}, hi: 2 * s},
		{name: "doesn't fit the deadline", paused: 3 * s, now: s, deadline: 2 * s, want: play.Decision{Reason: decide.HostPaused, Wait: 2 * s}, hi: 2 * s},
		{name: "MaxWait in all", paused: 30 * s, now: 20 * s, want: play.Decision{Retry: true, Wait: 10 * s}, hi: 15 * s},
		{name: "renewed for ever", paused: 30*s + 1, now: 20 * s, want: play.Decision{Reason: decide.HostPaused, Wait: 10*s + 1}, hi: 10*s + 1},
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
