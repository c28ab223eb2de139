// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package turns_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/turns"
)

// fleet is what happens to a host with one queue, of which other requests use a share,
// when bodies of many clients break because it goes away for a while. Only turns are
// simulated: requests that the budget allows, and what a timeout does to it, are not.
func fleet(clients, bodies int, capacity, share float64, away time.Duration, silent bool) (recovered, done time.Duration) {
	const patience = time.Second // AttemptTimeout
	rule := turns.Rule{Cap: 10 * time.Second, Slow: time.Duration(turns.SlowShare * float64(patience))}
	w := play.NewWorld(1)
	var backlog float64 // requests
	last := away
	// turn returns the result of a turn, and how long it takes.
	turn := func() (turns.Result, time.Duration) {
		switch {
		case w.Now < away && silent:
			return turns.TimedOut, patience
		case w.Now < away:
			return turns.Failed, 0
		}
		backlog = max(0, backlog-(w.Now-last).Seconds()*capacity*(1-share)) + 1
		last = w.Now
		if took := time.Duration(backlog / capacity * float64(time.Second)); took <= patience {
			return turns.Continued, took
		}
		recovered = w.Now - away
		return turns.TimedOut, patience
	}
	for range clients {
		var pace turns.Pace
		left := bodies
		var next func(now time.Duration)
		next = func(now time.Duration) {
			wait := pace.Wait(rule)
			w.At(now+wait/2+time.Duration(w.Random.Int64N(int64(wait/2)+1)), func() {
				result, took := turn()
				pace.Record(rule, result, took)
				if result == turns.Continued {
					left--
				}
				if left > 0 {
					next(w.Now + took)
				} else {
					done = w.Now + took - away
				}
			})
		}
		next(0)
	}
	w.Run(time.Hour)
	return recovered, done
}

// Turns of 1000 clients with 50 bodies each leave the host to its other requests: soon
// after its return none times out any more, and in the end all bodies are continued. The
// bodies of one client don't wait long for that.
func TestPace_Fleet(t *testing.T) {
	const bodies, capacity = 50, 1000.0
	for _, c := range []struct {
		away   time.Duration
		silent bool
		alone  time.Duration
	}{
		{time.Second, false, 15 * time.Second}, {10 * time.Second, false, 15 * time.Second}, {time.Minute, false, 15 * time.Second},
		{time.Second, true, 15 * time.Second}, {10 * time.Second, true, 40 * time.Second}, {time.Minute, true, 4 * time.Minute},
	} {
		recovered, done := fleet(1000, bodies, capacity, 0.7, c.away, c.silent)
		_, alone := fleet(1, bodies, capacity, 0.7, c.away, c.silent)
		t.Logf("away %v, silent %t: last timeout %v after the return, the last body is continued %v after it, of one client %v; the capacity allows %v",
			c.away, c.silent, recovered.Round(100*time.Millisecond), done.Round(time.Second), alone.Round(time.Second), time.Duration(1000*bodies*10/3)*time.Millisecond)
		assert.LessOrEqual(t, recovered, 3*time.Second)
		assert.Positive(t, done)
		assert.Less(t, done, 12*time.Minute)
		assert.Less(t, alone, c.alone)
	}
}
