// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
)

// Of many requests that fail at once, those without tokens bide, for as long as all their
// retries would wait, and are sent as soon as there are tokens.
func TestStep_Bides(t *testing.T) {
	const many = 200
	lost, refused := play.Repeatable(0), play.Repeatable(http.StatusServiceUnavailable)
	for name, c := range map[string]struct {
		o          decide.Outcome
		attempts   int
		takes      time.Duration // a retry
		fails      bool          // each retry does
		saved, max int           // requests, and retries
	}{
		"a connection is lost":                   {lost, 4, 2 * time.Millisecond, false, many, many},
		"refusals":                               {refused, 4, 2 * time.Millisecond, false, 10, 10},
		"a slow host":                            {lost, 4, 10 * time.Second, false, many, many},
		"a connection is lost, and retries fail": {lost, 4, 2 * time.Millisecond, true, 0, 20},
		"ten attempts":                           {lost, 10, 2 * time.Millisecond, false, many, many},
		"ten attempts, and retries fail":         {lost, 10, 2 * time.Millisecond, true, 0, 20},
	} {
		t.Run(name, func(t *testing.T) {
			r := play.Rules(t, retrip.Policy{MaxAttempts: c.attempts})
			var h host.Record
			type request struct {
				call decide.Call
				e    decide.Event
				at   time.Duration
				over bool
			}
			list := make([]request, many)
			for i := range list {
				list[i].call.Attempts, list[i].e = 1, decide.Event{Kind: decide.Ended, Outcome: c.o}
			}
			saved, sent := 0, 0
			for seed := uint64(1); ; {
				next := -1
				for i := range list {
					if !list[i].over && (next < 0 || list[i].at < list[next].at) {
						next = i
					}
				}
				if next < 0 {
					break
				}
				q := &list[next]
				var a decide.Action
				seed = seed*6364136223846793005 + 1442695040888963407
				q.call.Step(r.Rules, &h, &q.e, &a, q.at, seed)
				switch a.Do {
				case decide.Send:
					sent++
					q.at += c.takes
					q.e = decide.Event{Kind: decide.Ended, Outcome: play.Repeatable(http.StatusOK)}
					if c.fails {
						q.e.Outcome = c.o
					}
				case decide.Sleep:
					q.at, q.e = q.at+a.Wait, decide.Event{Kind: decide.Due}
					assert.LessOrEqual(t, q.at, time.Second+3*c.takes)
				default:
					q.over = true
					if a.Reason == decide.None {
						saved++
					}
				}
			}
			assert.GreaterOrEqual(t, saved, c.saved)
			assert.LessOrEqual(t, sent, c.max)
			if c.saved == many {
				assert.Zero(t, h.Debt.Missing, "a retry that succeeds costs nothing")
			}
		})
	}
}

// A retry that was skipped is no attempt: the first attempt doesn't count for the time that
// an attempt needs once a retry was made.
func TestStep_BidesNearADeadline(t *testing.T) {
	r := play.Rules(t, retrip.Policy{Budget: 1})
	var h host.Record
	lost := play.Repeatable(0)
	lost.Took = 90 * time.Millisecond
	var others [2]decide.Call // take all tokens
	for i := range others {
		assert.True(t, r.Next(&h, &others[i], lost, 0, play.Highest).Retry)
	}
	c := decide.Call{Deadline: time.Second}
	assert.True(t, r.Next(&h, &c, lost, 0, play.Highest).Retry)
	assert.Positive(t, r.Wake(&h, &c, 100*time.Millisecond, play.Highest).Wait, "it bides")
	for i := range others {
		others[i].Attempts = 2
		r.Next(&h, &others[i], play.Repeatable(http.StatusOK), 200*time.Millisecond, play.Highest)
	}
	assert.Zero(t, r.Wake(&h, &c, 300*time.Millisecond, play.Highest).Wait, "it is sent")
	c.Attempts, lost.Took = 2, time.Millisecond
	assert.True(t, r.Next(&h, &c, lost, 950*time.Millisecond, play.Highest).Retry)
}
