// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package budget_test

import (
	"fmt"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// after answers like reply, but d later, if the attempt lasts that long.
func after(d time.Duration, reply play.Step) play.Step {
	return func(r *http.Request) (*http.Response, error) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return reply(r)
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

// A Transport measures the duration of its attempts, and knows which of them
// timed out.
//
//retrip:promise P14
func TestBudget_Durations(t *testing.T) {
	const limit = time.Second
	var (
		fine = after(700*time.Millisecond, play.Reply(200))
		slow = after(701*time.Millisecond, play.Reply(200))
		fail = after(900*time.Millisecond, play.Reply(503))
		hang = after(time.Hour, play.Reply(200))
		poll = after(time.Minute, play.Reply(200))

		own = play.Err(os.ErrDeadlineExceeded) // a timeout of the base itself
	)
	type turn struct {
		attempts []play.Step
		tokens   float64
		failed   int
	}
	for _, tt := range []struct {
		name     string
		limit    time.Duration
		requests []turn
	}{
		{"two retries that time out are the last", limit, []turn{
			{[]play.Step{hang, hang, hang}, 3.6, 2},
			{[]play.Step{hang}, 3.6, 2},
			{[]play.Step{fail, fail}, 2.9, 3},
			{[]play.Step{fail}, 2.9, 3},
			{[]play.Step{fine}, 3.1, 0},
			{[]play.Step{fail, fine}, 3.1, 0},
		}},
		{"so are those of three requests that fail otherwise", limit, []turn{
			{[]play.Step{fail, fail, fail, fail}, 4.5, 1},
			{[]play.Step{fail, fail, fail, fail}, 4, 2},
			{[]play.Step{fail, fail}, 3.5, 3},
			{[]play.Step{fail}, 3.5, 3},
			{[]play.Step{slow}, 3.7, 0},
		}},
		{"while attempts time out slow successes take tokens", limit, []turn{
			{[]play.Step{hang, hang, fine}, 4.3, 0},
			{[]play.Step{slow}, 2.3, 0},
			{[]play.Step{fine}, 2.5, 0},
			{[]play.Step{hang, slow}, 1.8, 0},
			{[]play.Step{slow}, 0, 0},
			{[]play.Step{hang}, 0, 0},
			{[]play.Step{fine}, .2, 0},
		}},
		{"while they fail otherwise they pay", limit, []turn{
			{[]play.Step{fail, fail, slow}, 4.5, 0},
			{[]play.Step{slow}, 4.7, 0},
		}},
		{"what takes half a minute waits for an event", 70 * time.Second, []turn{
			{[]play.Step{hang, poll}, 5, 0},
			{[]play.Step{hang, hang, hang, hang}, 4.5, 1},
			{[]play.Step{poll}, 4.7, 0},
			{[]play.Step{fail, fail, poll}, 4.2, 0},
		}},
		{"without a timeout nothing is slow", retrip.Off, []turn{
			{[]play.Step{own, own, after(10*time.Minute, play.Reply(200))}, 4.3, 0},
			{[]play.Step{after(10*time.Minute, play.Reply(200))}, 4.5, 0},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var all []play.Step
				for _, r := range tt.requests {
					all = append(all, r.attempts...)
				}
				base := play.Base(append(all, play.Reply(418))...)
				tr := &retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: tt.limit}}
				made := 0
				for i, r := range tt.requests {
					resp, err := tr.RoundTrip(play.Request(t, http.MethodGet, nil))
					if err == nil {
						play.Finish(t, resp)
					}
					made += len(r.attempts)
					what := fmt.Sprintf("request %d", i)
					assert.Equal(t, made, base.Attempts(), what)
					state := play.Must(tr.HostState("example.com:80"))
					assert.InDelta(t, r.tokens, state.Tokens, 1e-9, what)
					assert.Equal(t, r.failed, state.FailedRetries, what)
				}
			})
		})
	}
}
