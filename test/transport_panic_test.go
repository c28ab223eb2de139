// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// P5: whatever panics, nothing is left behind.
//
//retrip:promise P2 P5
func TestTransport_Panics(t *testing.T) {
	boom := func() { panic("boom") }
	panics := func(*http.Request) (*http.Response, error) { boom(); return nil, nil }
	classify := func(*http.Request, *http.Response, error) retrip.Verdict { boom(); return 0 }
	idempotent := func(*http.Request) bool { boom(); return false }
	hook := func(retrip.Event) { boom() }
	unclosable := func(made func() io.Reader) []play.Step {
		return []play.Step{func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 503, Header: http.Header{}, ContentLength: -1, Body: closer{made(), boom}}, nil
		}}
	}
	for _, tt := range []struct {
		name   string
		policy retrip.Policy
		trace  *retrip.Trace
		steps  []play.Step
	}{
		{name: "base, first attempt", steps: []play.Step{panics}},
		{name: "base, second attempt", steps: []play.Step{play.Reply(503), panics}},
		{name: "base, second attempt after an error", steps: []play.Step{play.Err(io.EOF), panics}},
		{name: "base with a timeout", policy: retrip.Policy{AttemptTimeout: time.Hour}, steps: []play.Step{panics}},
		{name: "Classify", policy: retrip.Policy{Classify: classify}},
		{name: "Classify with a timeout", policy: retrip.Policy{Classify: classify, AttemptTimeout: time.Hour}, steps: []play.Step{play.Reply(200)}},
		{name: "Idempotent", policy: retrip.Policy{Idempotent: idempotent}},
		{name: "Idempotent with keys", policy: retrip.Policy{Idempotent: idempotent, IdempotencyKey: retrip.On}},
		{name: "Gate.Key", policy: retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On, Key: func(*http.Request) string { boom(); return "" }}}},
		{name: "Trace.Attempt", trace: &retrip.Trace{Attempt: hook}},
		{name: "Trace.Attempt, second", trace: &retrip.Trace{Attempt: func(e retrip.Event) {
			if e.Attempt == 2 {
				boom()
			}
		}}},
		{name: "Trace.Retry", trace: &retrip.Trace{Retry: hook}},
		{name: "Trace.GiveUp", trace: &retrip.Trace{GiveUp: hook}},
		{name: "Trace.Done", trace: &retrip.Trace{Done: hook}, steps: []play.Step{play.Reply(200)}},
		{name: "Trace.Host", trace: &retrip.Trace{Host: func(retrip.HostState) { boom() }}, steps: []play.Step{play.Reply(503, "Retry-After: 1")}},
		{name: "a response body", steps: []play.Step{answers(503, nil, func(context.Context) io.Reader {
			return testenv.Reader(func([]byte) (int, error) { boom(); return 0, nil })
		})}},
		{name: "Close of a response body", steps: unclosable(func() io.Reader { return strings.NewReader("text") })},
		{name: "Close of a stalled response body", steps: unclosable(func() io.Reader {
			return testenv.Reader(func([]byte) (int, error) { time.Sleep(time.Second); return 0, io.EOF })
		})},
	} {
		for _, kind := range []string{"none", "stream", "GetBody"} {
			play.Bubble(t, tt.name+" body "+kind, func(t *testing.T) {
				steps, policy := tt.steps, tt.policy
				if steps == nil {
					steps = []play.Step{play.Reply(503)}
				}
				base := play.Base(steps...)
				base.Keep = strings.HasPrefix(tt.name, "base") // panics before it closes the body
				policy.Backoff, policy.Budget = play.Steady.Backoff, 1
				tr := &retrip.Transport{Base: base, Policy: policy, Trace: tt.trace, Metrics: &retrip.Metrics{}}
				body := play.NewSend("x")
				var made []*play.SendBody
				req := play.Request(t, "PUT", body)
				switch kind {
				case "none":
					req = play.Request(t, "PUT", nil)
				case "GetBody":
					req.GetBody = func() (io.ReadCloser, error) { made = append(made, play.NewSend("x")); return made[len(made)-1], nil }
				}
				assert.PanicsWithValue(t, "boom", func() { _, _ = tr.RoundTrip(req) })
				assert.Equal(t, kind != "none", body.Closed.Load() > 0, "request body closed")
				for _, b := range made {
					assert.Positive(t, b.Closed.Load(), "body from GetBody closed")
				}
				assert.Equal(t, len(base.Bodies), base.ClosedBodies(), "response bodies closed")
				counted := counts(t, tr.Metrics)
				assert.Equal(t, 1.0, counted["requests_total"])
				assert.Equal(t, base.Attempts() == 0, counted["unattempted_requests_total"] > 0)
				time.Sleep(10 * time.Second)   // longer than any pause
				if tt.name != "Trace.GiveUp" { // a failed retry has cost its token
					assert.Empty(t, play.Held(tr))
				}
			})
		}
	}
}

// closer is a body whose Close calls a function.
type closer struct {
	io.Reader
	close func()
}

func (c closer) Close() error { c.close(); return nil }
