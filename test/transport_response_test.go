// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// halfClosed is the body of an upgraded connection, of which one direction can be closed.
type halfClosed struct {
	io.ReadWriteCloser
	closed bool
}

func (b *halfClosed) CloseWrite() error { b.closed = true; return nil }

// A proxy closes one direction of an upgraded connection. A CONNECT may be answered by a 200.
//
//retrip:promise P1 P4
func TestTransport_UpgradeCloseWrite(t *testing.T) {
	for _, status := range []int{101, 200} {
		for _, policy := range []retrip.Policy{{AttemptTimeout: time.Second}, {Resume: time.Minute, BodyIdleTimeout: time.Second, WholeBody: 1000}} {
			for _, able := range []bool{true, false} {
				full := &halfClosed{}
				base := testenv.RoundTripper(func(*http.Request) (*http.Response, error) {
					resp := &http.Response{StatusCode: status, Body: full}
					if !able {
						resp.Body = full.ReadWriteCloser
					}
					return resp, nil
				})
				full.ReadWriteCloser = struct {
					io.Reader
					io.Writer
					io.Closer
				}{}
				resp := do(t, &retrip.Transport{Base: base, Policy: policy}, play.Request(t, http.MethodGet, nil))
				require.Implements(t, (*io.ReadWriteCloser)(nil), resp.Body)
				err := resp.Body.(interface{ CloseWrite() error }).CloseWrite()
				assert.Equal(t, able, full.closed)
				assert.Equal(t, !able, errors.Is(err, http.ErrNotSupported))
			}
		}
	}
}

// Over HTTP/2, a server may end its response before it has read the request.
// The rest of the request is still sent.
//
//retrip:promise P4
func TestTransport_ResponseEndsBeforeTheRequest(t *testing.T) {
	for _, tt := range []struct {
		name           string
		major          int
		body           string // request body
		empty          bool   // the response has no body
		atEnd, onClose bool   // whether the attempt's context has ended by then
	}{
		{"HTTP/2 upload", 2, "upload", false, false, true},
		{"HTTP/2 upload, no response body", 2, "upload", true, false, true},
		{"HTTP/2 without a body", 2, "", false, true, true},
		{"HTTP/2 without any body", 2, "", true, true, true},
		{"HTTP/1.1 upload", 1, "upload", false, true, true},
	} {
		for _, wholeBody := range []int64{retrip.Off, 2, 1000} {
			for _, streamed := range []bool{false, true} {
				t.Run(fmt.Sprint(tt.name, " WholeBody ", wholeBody, " streamed ", streamed), func(t *testing.T) {
					t.Parallel()
					var attempt context.Context
					base := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
						attempt = r.Context()
						if r.Body != nil {
							// What has been read may still wait for room in the stream.
							_, _ = io.Copy(io.Discard, r.Body)
						}
						body := io.NopCloser(strings.NewReader("done"))
						if tt.empty {
							body = http.NoBody
						}
						return &http.Response{StatusCode: 200, ProtoMajor: tt.major, Body: body, Request: r}, nil
					})
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					req := play.Must(http.NewRequestWithContext(ctx, http.MethodPut, "http://example.com/", strings.NewReader(tt.body)))
					if streamed && tt.body != "" {
						req.GetBody = nil
					}
					resp, err := (&retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: time.Minute, WholeBody: wholeBody}}).RoundTrip(req)
					require.NoError(t, err)
					_, err = io.Copy(io.Discard, resp.Body)
					require.NoError(t, err)
					assert.Equal(t, tt.atEnd, attempt.Err() != nil, "at the end of the response")
					require.NoError(t, resp.Body.Close())
					assert.Equal(t, tt.onClose, attempt.Err() != nil, "when it is closed")
				})
			}
		}
	}
}

// held is a body whose Read and Close take their time.
type held struct{ read, close time.Duration }

func (b held) Read([]byte) (int, error) { time.Sleep(b.read); return 1, nil }
func (b held) Close() error             { time.Sleep(b.close); return nil }

// The body that a retry discards leaves the retry time before the deadline. If it
// doesn't, there is no retry.
//
//retrip:promise P10
func TestTransport_DiscardsBeforeTheDeadline(t *testing.T) {
	const deadline = 40 * time.Millisecond
	for name, tt := range map[string]struct {
		body     held
		attempts int
	}{
		"a body that never ends": {held{read: time.Millisecond}, 2},
		"a slow body":            {held{read: 15 * time.Millisecond}, 2},
		"a Close that hangs":     {held{read: time.Millisecond, close: time.Minute}, 1},
	} {
		for _, ofPolicy := range []bool{true, false} {
			bubble(t, fmt.Sprint(name, ofPolicy), func(t *testing.T) {
				policy, left := retrip.Policy{Deadline: deadline, Backoff: retrip.Backoff{Base: time.Millisecond}}, time.Hour
				if !ofPolicy {
					policy.Deadline, left = 0, deadline
				}
				ctx, cancel := context.WithTimeout(t.Context(), left)
				defer cancel()
				base := play.Base(func(*http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: 503, Body: tt.body, ContentLength: -1}, nil
				}, play.Reply(200))
				tr := &retrip.Transport{Base: base, Policy: policy}
				defer time.Sleep(time.Hour) // until the bodies are done
				resp, err := tr.RoundTrip(play.Request(t, http.MethodGet, nil).WithContext(ctx))
				require.Len(t, base.At, tt.attempts)
				for _, at := range base.At {
					assert.Less(t, at, deadline)
				}
				if tt.attempts == 2 {
					require.NoError(t, err)
					play.Finish(t, resp)
					return
				}
				e := play.AsError(t, err)
				assert.Equal(t, retrip.ReasonDeadline, e.Reason)
				assert.Equal(t, 503, e.StatusCode)
				assert.ErrorIs(t, err, context.DeadlineExceeded)
				assert.Equal(t, 5., tr.HostStates()[0].Tokens)
			})
		}
	}
}

// loses answers with a response whose body breaks.
func loses(status int, lines ...string) play.Step {
	return sends(status, "half", io.ErrUnexpectedEOF, lines...)
}

// stalls answers with a response whose body stalls.
func stalls(status int, lines ...string) play.Step { return sends(status, "", nil, lines...) }

// peeks is a Classify that waits for the body.
func peeks(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
	if resp != nil {
		_, _ = retrip.Peek(resp, 512)
	}
	return retrip.ByRule
}

// If the body of a response breaks or comes too late, what its header says about retries
// holds nevertheless, for other requests, too, and the error describes it.
//
//retrip:promise P8 P9 P17
func TestLostResponse(t *testing.T) {
	const after, never = "Retry-After: 20", "X-Should-Retry: false"
	whole, peek := retrip.Policy{WholeBody: 100}, retrip.Policy{AttemptTimeout: time.Second, Classify: peeks}
	with := func(p retrip.Policy, change func(*retrip.Policy)) retrip.Policy { change(&p); return p }
	late := func(req *http.Request) (*http.Response, error) {
		time.Sleep(2 * time.Second)
		return play.Reply(503, after)(req)
	}
	final := func(p *retrip.Policy) { p.MaxAttempts = 1 }
	for name, tt := range map[string]struct {
		policy retrip.Policy
		step   play.Step
		status int
		wait   time.Duration // before the retry, at least; 0: there is none
		reason retrip.Reason // of the retry, or why there is none
		pauses bool          // for others
		atGate bool          // it does so at a gate
	}{
		"404":               {policy: whole, step: loses(404, after), status: 404, wait: 20 * time.Second, reason: retrip.ReasonError},
		"202":               {policy: whole, step: loses(202, after), status: 202, wait: 20 * time.Second, reason: retrip.ReasonError},
		"dialect":           {policy: with(whole, func(p *retrip.Policy) { p.Dialects = []string{"github"} }), step: loses(403, after), status: 403, wait: 20 * time.Second, reason: retrip.ReasonError, atGate: true},
		"FailOn":            {policy: with(whole, func(p *retrip.Policy) { p.FailOn = []int{503} }), step: loses(503, after), status: 503, wait: 20 * time.Second, reason: retrip.ReasonError, pauses: true},
		"milliseconds":      {policy: with(whole, func(p *retrip.Policy) { p.Dialects = []string{"openai"} }), step: loses(404, "Retry-After-Ms: 20000"), status: 404, wait: 20 * time.Second, reason: retrip.ReasonError},
		"Peek":              {policy: peek, step: stalls(503, after), status: 503, wait: 20 * time.Second, reason: retrip.ReasonTimeout, pauses: true},
		"Peek at 200":       {policy: peek, step: stalls(200, after), status: 200, wait: 20 * time.Second, reason: retrip.ReasonTimeout},
		"late headers":      {policy: retrip.Policy{AttemptTimeout: time.Second}, step: late, status: 503, wait: 20 * time.Second, reason: retrip.ReasonTimeout, pauses: true},
		"last attempt":      {policy: with(peek, final), step: stalls(503, after), reason: retrip.ReasonMaxAttempts, pauses: true},
		"a 429 in vain":     {policy: peek, step: stalls(429), status: 429, wait: time.Second, reason: retrip.ReasonTimeout},
		"200 forbids":       {policy: whole, step: loses(200, never), reason: retrip.ReasonRetryForbidden},
		"404 forbids":       {policy: whole, step: loses(404, never), reason: retrip.ReasonRetryForbidden},
		"Peek, 503 forbids": {policy: peek, step: stalls(503, never), reason: retrip.ReasonRetryForbidden},
		"Classify comes first": {policy: with(whole, func(p *retrip.Policy) {
			p.Classify = func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.Retryable }
		}), step: loses(404, never), status: 404, wait: time.Nanosecond, reason: retrip.ReasonError},
	} {
		for _, gate := range []retrip.Switch{retrip.Off, retrip.On} {
			play.Bubble(t, fmt.Sprint(name, " gate ", gate), func(t *testing.T) {
				policy := tt.policy
				policy.Gate.Enabled, policy.Backoff.Jitter = gate, retrip.NoJitter
				base := play.Base(tt.step, play.Err(io.EOF))
				if policy.MaxAttempts == 0 {
					policy.MaxAttempts = 2
				}
				tr := &retrip.Transport{Base: base, Policy: policy}
				var told retrip.Event
				var ended time.Duration
				began := time.Now()
				tell := func(e retrip.Event) {
					if told.Reason == "" {
						told, ended = e, time.Since(began)
						state := play.Must(tr.HostState("example.com:80"))
						assert.Equal(t, tt.pauses || tt.atGate && gate == retrip.On, state.PausedFor > 19*time.Second, "%+v", state)
					}
				}
				tr.Trace = &retrip.Trace{Retry: tell, GiveUp: tell}
				resp, err := tr.RoundTrip(play.Request(t, "GET", nil))
				if err == nil {
					assert.NoError(t, resp.Body.Close())
				}
				assert.Equal(t, tt.reason, told.Reason)
				assert.Equal(t, len(base.Bodies), base.ClosedBodies())
				if tt.wait == 0 {
					assert.Equal(t, 1, base.Attempts())
					return
				}
				require.Equal(t, 2, base.Attempts())
				assert.GreaterOrEqual(t, base.At[1], ended+tt.wait)
				assert.Equal(t, tt.status, told.StatusCode)
				assert.Error(t, told.Err)
				assert.NotNil(t, told.Header)
				assert.Equal(t, tt.status, play.AsError(t, err).StatusCode)
			})
		}
	}
}

// In the wait after a discarded response, nothing of its header is left in memory.
//
//retrip:promise P17
func TestDiscardedHeader_Freed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		value := new([1 << 18]string)
		freed := weak.Make(value)
		ctx, cancel := context.WithCancel(t.Context())
		tr := &retrip.Transport{Base: testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
			resp, err := play.Reply(503)(req)
			resp.Header, value = http.Header{"X": value[:]}, nil
			return resp, err
		}), Policy: play.Steady, Trace: &retrip.Trace{
			Retry: func(e retrip.Event) { assert.Len(t, e.Header["X"], 1<<18) },
			Done:  func(e retrip.Event) { assert.Equal(t, []any{503, http.Header(nil)}, []any{e.StatusCode, e.Header}) },
		}}
		over := make(chan error)
		go func() { over <- try(tr, play.Request(t, "GET", nil).WithContext(ctx)) }()
		synctest.Wait()
		runtime.GC()
		assert.Nil(t, freed.Value())
		cancel()
		assert.Equal(t, 503, play.AsError(t, <-over).StatusCode)
	})
}

// What a server says to a caller that has gone holds for others.
//
//retrip:promise P9
func TestResponse_HeardByOthers(t *testing.T) {
	for _, gate := range []retrip.Switch{retrip.Off, retrip.On} {
		for status, pauses := range map[int]bool{503: true, 429: gate == retrip.On, 500: false} {
			play.Bubble(t, fmt.Sprint("gate ", gate, " ", status), func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				tr := &retrip.Transport{Policy: retrip.Policy{Gate: retrip.Gate{Enabled: gate}}, Base: play.Base(func(r *http.Request) (*http.Response, error) {
					cancel()
					return play.Reply(status, "Retry-After: 7")(r)
				})}
				play.Finish(t, do(t, tr, play.Request(t, http.MethodGet, nil).WithContext(ctx)))
				state := play.Must(tr.HostState("example.com:80"))
				assert.Equal(t, pauses, state.PausedFor > 6*time.Second, "%+v", state)
				assert.Zero(t, state.Waiting)
			})
		}
	}
}
