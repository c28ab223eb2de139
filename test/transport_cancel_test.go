// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// callerEnd is a way to end a request after a while.
type callerEnd struct {
	name   string
	is     []error // in the error of RoundTrip
	reason retrip.Reason
	end    func(*http.Request, time.Duration) *http.Request
}

var callerEnds = []callerEnd{
	{"WithCancel", []error{context.Canceled}, "canceled", func(r *http.Request, after time.Duration) *http.Request {
		ctx, cancel := context.WithCancel(r.Context())
		time.AfterFunc(after, cancel)
		return r.WithContext(ctx)
	}},
	{"WithCancelCause", []error{context.Canceled, errLeft}, "canceled", func(r *http.Request, after time.Duration) *http.Request {
		ctx, cancel := context.WithCancelCause(r.Context())
		time.AfterFunc(after, func() { cancel(errLeft) })
		return r.WithContext(ctx)
	}},
	{"WithTimeoutCause", []error{context.DeadlineExceeded, errLeft}, "deadline", func(r *http.Request, after time.Duration) *http.Request {
		ctx, cancel := context.WithTimeoutCause(r.Context(), after, errLeft)
		context.AfterFunc(ctx, cancel)
		return r.WithContext(ctx)
	}},
	{"Request.Cancel", []error{context.Canceled}, "canceled", func(r *http.Request, after time.Duration) *http.Request {
		gone := make(chan struct{})
		r.Cancel = gone //lint:ignore SA1019 it must be obeyed
		time.AfterFunc(after, func() { close(gone) })
		return r
	}},
}

var errLeft = errors.New("the user left")

// callerGoes is a request whose caller goes half a second after its begin.
type callerGoes struct {
	name     string
	steps    []play.Step
	before   bool  // the caller has gone before the request
	waits    bool  // no such wait begins before a deadline
	gate     bool  // another request has closed the gate
	attempts int   // made
	kept     error // in the error
}

// The caller goes before an attempt, in an attempt, in a wait, or in the queue of a gate, by
// every way to end a request. RoundTrip returns at once, and the request body is closed. The
// stories show what is told.
//
//retrip:promise P2 P3 P10 P17
func TestTransport_Cancel(t *testing.T) {
	for _, tt := range []callerGoes{
		{name: "before", steps: []play.Step{play.Reply(200)}, before: true},
		{name: "first attempt", steps: []play.Step{play.Hang}, attempts: 1},
		{name: "second attempt", steps: []play.Step{play.Err(io.ErrUnexpectedEOF), play.Hang}, attempts: 2, kept: io.ErrUnexpectedEOF},
		{name: "in the wait", steps: []play.Step{play.Reply(503, "Retry-After: 2")}, attempts: 1, waits: true},
		{name: "at a shut gate", steps: []play.Step{play.Reply(429, "Retry-After: 8"), play.Reply(200)}, waits: true, gate: true},
	} {
		for _, end := range callerEnds {
			for _, timeout := range []time.Duration{0, time.Minute} {
				if tt.waits && end.reason == "deadline" || timeout == 0 && tt.before && end.name == "Request.Cancel" {
					continue // the wait doesn't begin, or the base decides
				}
				play.Bubble(t, fmt.Sprint(end.name, "/", tt.name, "/", timeout), func(t *testing.T) { tt.run(t, end, timeout) })
			}
		}
	}
}

func (tt callerGoes) run(t *testing.T, end callerEnd, timeout time.Duration) {
	base, body, after := play.Base(tt.steps...), play.NewSend("x"), 500*time.Millisecond
	tr := &retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: timeout, Backoff: retrip.Backoff{Base: time.Millisecond}}}
	if tt.gate {
		tr.Policy.Gate.Enabled = retrip.On
		drop(t, tr, play.Request(t, "POST", nil))
	}
	var ended retrip.Event
	if timeout > 0 {
		tr.Trace = &retrip.Trace{Done: func(e retrip.Event) { ended = e }}
	}
	sent, host := base.Attempts(), play.Must(tr.HostState("example.com:80"))
	req := end.end(play.Request(t, "PUT", body), after)
	if tt.before {
		time.Sleep(after)
		synctest.Wait()
		after = 0
	}
	start := time.Now()
	resp, err := tr.RoundTrip(req)
	assert.Equal(t, after, time.Since(start), "at once")
	assert.Nil(t, resp)
	synctest.Wait()
	assert.EqualValues(t, 1, body.Closed.Load())
	assert.Equal(t, tt.attempts, base.Attempts()-sent)
	tt.check(t, req, err, end)
	if timeout > 0 && tt.attempts > 0 && end.name != "Request.Cancel" {
		assert.ErrorIs(t, ended.Err, end.is[len(end.is)-1])
		assert.Equal(t, tt.name == "in the wait", ended.StatusCode == 503)
	}
	if tt.name == "in the wait" {
		assert.Equal(t, 1, base.ClosedBodies())
	}
	if tt.gate { // the gate and the host's entry are as before
		assert.Equal(t, 8*time.Second, host.PausedFor)
		assert.Equal(t, host.Tokens, play.Must(tr.HostState("example.com:80")).Tokens)
		drop(t, tr, play.Request(t, "GET", nil))
		time.Sleep(5 * time.Minute)
		assert.Empty(t, tr.HostStates())
	}
}

// check checks the error of RoundTrip.
func (tt callerGoes) check(t *testing.T, req *http.Request, err error, end callerEnd) {
	switch {
	case end.name == "Request.Cancel" && (tt.before || tt.name == "first attempt"):
		assert.EqualError(t, err, "net/http: request canceled", "the base's own error")
		return
	case tt.before:
		assert.True(t, err == context.Cause(req.Context()), "%v", err)
		return
	}
	for _, want := range append(end.is, cmp.Or(tt.kept, err)) {
		assert.ErrorIs(t, err, want)
	}
	assert.LessOrEqual(t, strings.Count(err.Error(), errLeft.Error()), 1)
	if tt.name == "first attempt" {
		return
	}
	e := play.AsError(t, err)
	assert.Equal(t, []any{end.reason, end.reason == "deadline", tt.attempts}, []any{e.Reason, e.Timeout(), e.Attempts})
	assert.Equal(t, tt.name == "in the wait", e.StatusCode == 503)
}

// http.Client.Timeout ends an attempt with the client's own error, and no wait begins that
// doesn't fit it.
//
//retrip:promise P3 P10
func TestTransport_ClientTimeout(t *testing.T) {
	for _, tt := range []struct {
		timeout, took time.Duration
		attempts      int
	}{{10 * time.Second, 10 * time.Second, 2}, {900 * time.Millisecond, 0, 1}} {
		bubble(t, tt.timeout.String(), func(t *testing.T) {
			base, began := play.Base(play.Reply(503), play.Hang), time.Now()
			resp, err := (&http.Client{Transport: &retrip.Transport{Base: base, Policy: play.Steady}, Timeout: tt.timeout}).Do(play.Request(t, "GET", nil))
			assert.Equal(t, tt.took, time.Since(began))
			assert.Equal(t, tt.attempts, base.Attempts())
			if tt.attempts == 1 {
				require.NoError(t, err)
				play.Finish(t, resp)
				return
			}
			var u *url.Error
			require.ErrorAs(t, err, &u)
			assert.True(t, u.Timeout())
		})
	}
}

// The errors of retrip's own timeouts say so, once, unlike the caller's. What a Base was
// about as time ran out stays in the error, which says that nobody has canceled anything.
//
//retrip:promise P3 P5 P6 P10 P11 P17
func TestTransport_OwnTimeouts(t *testing.T) {
	inner := errors.New("token server")
	about := func(ctx context.Context) error {
		return fmt.Errorf("%w: waiting for a token: %w", inner, &url.Error{Op: "Post", URL: "http://tokens/?s3cret", Err: ctx.Err()})
	}
	for how, end := range map[string]func(context.Context) error{
		"the cause": context.Cause, "a cancellation": context.Context.Err, "what it was about": about,
		"an error of its own": func(context.Context) error { return inner },
	} {
		for limit, p := range map[string]retrip.Policy{
			"AttemptTimeout":          {AttemptTimeout: time.Second, MaxAttempts: 1},
			"AttemptTimeout, retries": {AttemptTimeout: time.Second, MaxAttempts: 4},
			"AttemptTimeout, body":    {AttemptTimeout: time.Second, MaxAttempts: 1, WholeBody: 100},
			"Deadline":                {Deadline: time.Second},
		} {
			play.Bubble(t, limit+"/"+how, func(t *testing.T) {
				hang := func(ctx context.Context) error { <-ctx.Done(); return end(ctx) }
				base := play.Base(func(r *http.Request) (*http.Response, error) { return nil, hang(r.Context()) })
				if p.WholeBody > 0 {
					base = play.Base(answers(200, nil, func(ctx context.Context) io.Reader {
						return testenv.Reader(func([]byte) (int, error) { return 0, hang(ctx) })
					}))
				}
				p.Backoff, p.Budget = play.Steady.Backoff, retrip.Off
				resp, err := (&retrip.Transport{Base: base, Policy: p}).RoundTrip(play.Request(t, "GET", nil))
				if resp != nil {
					_, err = readAll(t, resp)
				}
				name, _, _ := strings.Cut(limit, ",")
				assert.Equal(t, 1, strings.Count(err.Error(), "retrip: no response within Policy."+name), "said once: %v", err)
				assert.ErrorIs(t, err, context.DeadlineExceeded)
				assert.NotErrorIs(t, err, context.Canceled)
				assert.Equal(t, how != "an error of its own" || p.MaxAttempts == 4, (&url.Error{Err: err}).Timeout())
				var timeout net.Error
				require.ErrorAs(t, err, &timeout)
				assert.True(t, timeout.Timeout())
				assert.True(t, timeout.Temporary()) //lint:ignore SA1019 net/http's errors have it
				if cause := end(t.Context()); cause != nil {
					assert.ErrorIs(t, err, inner)
					assert.ErrorContains(t, err, cause.Error()[:12])
				}
				if p.MaxAttempts == 4 {
					assert.Equal(t, "[0s 2s 4s 6s]", fmt.Sprint(base.At))
					assert.NotContains(t, err.Error(), "s3cret")
				} else if p.Deadline == 0 {
					assert.NotErrorAs(t, err, new(*retrip.Error), "one attempt")
				}
			})
		}
	}
	play.Bubble(t, "of a body", func(t *testing.T) {
		base := play.Base(answers(200, nil, func(ctx context.Context) io.Reader {
			return testenv.Reader(func([]byte) (int, error) { <-ctx.Done(); return 0, fmt.Errorf("the cipher: %w", ctx.Err()) })
		}))
		_, err := fetch(t, &retrip.Transport{Base: base, Policy: retrip.Policy{BodyIdleTimeout: time.Second}})
		assert.ErrorContains(t, err, "BodyIdleTimeout: the cipher")
		assert.NotErrorIs(t, err, context.Canceled)
	})
	play.Bubble(t, "the caller's deadline", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := (&retrip.Transport{Base: play.Base(func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, about(r.Context()) })}).RoundTrip(play.Request(t, "GET", nil).WithContext(ctx))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorIs(t, err, inner)
	})
}

// A response that comes with an error is closed.
//
//retrip:promise P5
func TestTransport_ResponseWithError(t *testing.T) {
	play.Bubble(t, "", func(t *testing.T) {
		lost := play.NewReply(strings.NewReader("lost"))
		base := play.Base(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: lost}, io.ErrUnexpectedEOF
		}, play.Reply(200))
		assert.Equal(t, "ok", play.Finish(t, do(t, &retrip.Transport{Base: base}, play.Request(t, "GET", nil))))
		assert.EqualValues(t, 1, lost.Closed.Load())
	})
}

// setClock is a context whose deadline comes from a message, on a machine whose wall clock has been
// set forward by a time since. The context's own timer doesn't follow that.
type setClock struct {
	context.Context
	by *atomic.Int64
}

func (c setClock) Deadline() (time.Time, bool) {
	at, ok := c.Context.Deadline()
	return at.Add(-time.Duration(c.by.Load())), ok
}

// If the clock is set forward, or the machine sleeps, no wait begins that can't end in time. If it
// is set back, requests are retried as usual.
//
//retrip:promise P10
func TestDeadline_ClockIsSet(t *testing.T) {
	for _, tt := range []struct {
		name     string
		by       time.Duration
		during   int // the attempt
		attempts int
		took     time.Duration
	}{
		{"not", 0, 1, 4, 3 * time.Second},
		{"back before", -time.Hour, 0, 4, 3 * time.Second},
		{"back", -time.Hour, 2, 4, 3 * time.Second},
		{"forward before", time.Hour, 0, 1, 0},
		{"forward", time.Hour, 2, 2, time.Second},
		{"forward by less than is left", 3 * time.Second, 2, 4, 3 * time.Second},
		{"forward by more than leaves time for a wait", 8500 * time.Millisecond, 2, 2, time.Second},
	} {
		for _, how := range []string{"", "Retry-After: 1", "gate"} {
			bubble(t, tt.name+" "+how, func(t *testing.T) {
				var by atomic.Int64
				set := func(after int) {
					if after == tt.during {
						by.Store(int64(tt.by))
					}
				}
				n := 0
				base := play.Keep(func(req *http.Request) (*http.Response, error) {
					n++
					set(n)
					if how == "Retry-After: 1" {
						return play.Reply(503, how)(req)
					}
					return play.Reply(503)(req)
				})
				policy := play.With(func(p *retrip.Policy) { p.Gate.Enabled = play.Toggle(how == "gate") })
				tr := &retrip.Transport{Base: base, Policy: policy}
				began := time.Now()
				set(0)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				resp := do(t, tr, play.Request(t, http.MethodGet, nil).WithContext(setClock{ctx, &by}))
				assert.Equal(t, 503, resp.StatusCode)
				assert.Equal(t, tt.attempts, n)
				took := time.Since(began)
				assert.True(t, tt.took <= took && took <= 2*tt.took, "a random time is added to Retry-After: %v", took)
			})
		}
	}
}
