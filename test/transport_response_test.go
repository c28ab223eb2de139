// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
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

// A response counts as one, whatever fields the base left out.
//
//retrip:promise P1
func TestTransport_NoStatus(t *testing.T) {
	for name, policy := range map[string]retrip.Policy{"plain": {}, "derived": {AttemptTimeout: time.Second}} {
		play.Bubble(t, name, func(t *testing.T) {
			base := play.Base(play.Reply(0))
			resp := do(t, &retrip.Transport{Base: base, Policy: policy}, play.Request(t, http.MethodGet, nil))
			assert.Equal(t, 1, base.Attempts())
			play.Finish(t, resp)
		})
	}
}

// halfClosed is the body of an upgraded connection.
type halfClosed struct {
	io.ReadWriteCloser
	closed bool
}

func (b *halfClosed) CloseWrite() error { b.closed = true; return nil }

// A proxy closes one direction of an upgraded connection.
//
//retrip:promise P1 P4
func TestTransport_UpgradeCloseWrite(t *testing.T) {
	for name, able := range map[string]bool{"able": true, "unable": false} {
		for _, status := range []int{101, 200} { // a CONNECT may be answered by a 200
			for _, policy := range []retrip.Policy{{AttemptTimeout: time.Second}, {Resume: time.Minute, BodyIdleTimeout: time.Second, WholeBody: 1000}} {
				play.Bubble(t, fmt.Sprint(name, status, policy.Resume), func(t *testing.T) {
					var rwc struct {
						io.Reader
						io.Writer
						io.Closer
					}
					full := &halfClosed{ReadWriteCloser: rwc}
					transport := &retrip.Transport{Policy: policy}
					transport.Base = play.Base(func(*http.Request) (*http.Response, error) {
						resp := &http.Response{StatusCode: status, Body: full}
						if !able {
							resp.Body = rwc
						}
						return resp, nil
					})
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					resp, err := transport.RoundTrip(play.Request(t, http.MethodGet, nil).WithContext(ctx))
					require.NoError(t, err)
					require.Implements(t, (*io.ReadWriteCloser)(nil), resp.Body)
					body, ok := resp.Body.(interface{ CloseWrite() error })
					require.True(t, ok)
					err = body.CloseWrite()
					assert.Equal(t, able, full.closed)
					if !able {
						assert.ErrorIs(t, err, http.ErrNotSupported)
					}
				})
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

// If the body of a response breaks or comes too late, what its header says about
// retries holds nevertheless.
//
//retrip:promise P9
func TestLostResponse_RetryAfter(t *testing.T) {
	const after = "Retry-After: 20"
	peek := retrip.Policy{AttemptTimeout: time.Second, Classify: peeks}
	for name, tt := range map[string]struct {
		policy retrip.Policy
		step   play.Step
	}{
		"404":          {retrip.Policy{WholeBody: 100}, loses(404, after)},
		"202":          {retrip.Policy{WholeBody: 100}, loses(202, after)},
		"dialect":      {retrip.Policy{WholeBody: 100, Dialects: []string{"github"}}, loses(403, after)},
		"FailOn":       {retrip.Policy{WholeBody: 100, FailOn: []int{503}}, loses(503, after)},
		"milliseconds": {retrip.Policy{WholeBody: 100, Dialects: []string{"openai"}}, loses(404, "Retry-After-Ms: 20000")},
		"Peek":         {peek, stalls(503, after)},
		"Peek at 200":  {peek, stalls(200, after)},
		"late headers": {retrip.Policy{AttemptTimeout: time.Second}, func(req *http.Request) (*http.Response, error) {
			time.Sleep(2 * time.Second)
			return play.Reply(503, after)(req)
		}},
	} {
		for _, gate := range []retrip.Switch{retrip.Off, retrip.On} {
			play.Bubble(t, fmt.Sprint(name, " gate ", gate), func(t *testing.T) {
				policy := tt.policy
				policy.Gate.Enabled = gate
				base := play.Base(tt.step, play.Reply(200))
				var ended time.Duration
				began := time.Now()
				tr := &retrip.Transport{Base: base, Policy: policy, Trace: &retrip.Trace{Retry: func(retrip.Event) { ended = time.Since(began) }}}
				play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
				require.Equal(t, 2, base.Attempts())
				assert.GreaterOrEqual(t, base.At[1], ended+20*time.Second)
				assert.Equal(t, len(base.Bodies), base.ClosedBodies())
			})
		}
	}
}

// A 503 that was lost holds back the retries of other requests too.
//
//retrip:promise P9
func TestLostResponse_Pauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &retrip.Transport{
			Base:   play.Base(stalls(503, "Retry-After: 20"), play.Reply(503)),
			Policy: retrip.Policy{AttemptTimeout: time.Second, Classify: peeks, MaxAttempts: 1},
		}
		_, err := tr.RoundTrip(play.Request(t, "GET", nil))
		require.Error(t, err)
		states := tr.HostStates()
		require.Len(t, states, 1)
		assert.Equal(t, 20*time.Second, states[0].PausedFor)
	})
}

// A lost 429 is as cheap at a gate as any other.
func TestLostResponse_ThrottledAtTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &retrip.Transport{
			Base:   play.Base(stalls(429, "Retry-After: 2"), play.Reply(200)),
			Policy: retrip.Policy{AttemptTimeout: time.Second, Classify: peeks, Gate: retrip.Gate{Enabled: retrip.On}},
			Trace:  &retrip.Trace{},
		}
		var atRetry retrip.HostState
		tr.Trace.Retry = func(retrip.Event) { atRetry = tr.HostStates()[0] }
		play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
		assert.Positive(t, atRetry.Size)
		assert.Equal(t, atRetry.Size, atRetry.Tokens)
	})
}

//retrip:promise P8
func TestLostResponse_RetryForbidden(t *testing.T) {
	const never = "X-Should-Retry: false"
	retries := func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.Retryable }
	for name, tt := range map[string]struct {
		policy retrip.Policy
		step   play.Step
		want   int // attempts
	}{
		"200":            {retrip.Policy{WholeBody: 100}, loses(200, never), 1},
		"404":            {retrip.Policy{WholeBody: 100}, loses(404, never), 1},
		"Peek":           {retrip.Policy{AttemptTimeout: time.Second, Classify: peeks}, stalls(503, never), 1},
		"Classify first": {retrip.Policy{AttemptTimeout: time.Second, WholeBody: 100, Classify: retries}, loses(404, never), 4},
	} {
		play.Bubble(t, name, func(t *testing.T) {
			base := play.Base(tt.step, play.Reply(200))
			var reason retrip.Reason
			tr := &retrip.Transport{Base: base, Policy: tt.policy, Trace: &retrip.Trace{GiveUp: func(e retrip.Event) { reason = e.Reason }}}
			resp, err := tr.RoundTrip(play.Request(t, "GET", nil))
			if err == nil {
				resp.Body.Close()
			}
			assert.Equal(t, tt.want, base.Attempts())
			assert.Equal(t, tt.want == 1, reason == retrip.ReasonRetryForbidden, "%q", reason)
		})
	}
}

// An error describes the last response even if that response was lost.
//
//retrip:promise P17
func TestLostResponse_InTheError(t *testing.T) {
	for name, tt := range map[string]struct {
		policy retrip.Policy
		step   play.Step
	}{
		"body": {retrip.Policy{MaxAttempts: 2, WholeBody: 100}, loses(404, "X-A: 1")},
		"Peek": {retrip.Policy{MaxAttempts: 2, AttemptTimeout: time.Second, Classify: peeks}, stalls(404, "X-A: 1")},
	} {
		play.Bubble(t, name, func(t *testing.T) {
			var retry retrip.Event
			tr := &retrip.Transport{Base: play.Base(tt.step, play.Err(io.EOF)), Policy: tt.policy, Trace: &retrip.Trace{Retry: func(e retrip.Event) { retry = e }}}
			_, err := tr.RoundTrip(play.Request(t, "GET", nil))
			e := play.AsError(t, err)
			assert.Equal(t, 404, e.StatusCode)
			assert.Equal(t, "1", e.Header.Get("X-A"))
			assert.Equal(t, 404, retry.StatusCode)
			assert.Error(t, retry.Err)
		})
	}
}

// A lost 429 is followed by as long a wait as any other 429.
func TestLostResponse_Throttled(t *testing.T) {
	waits := func(t *testing.T, first play.Step) (wait time.Duration) {
		policy := retrip.Policy{AttemptTimeout: time.Second, Classify: peeks, Backoff: retrip.Backoff{Jitter: retrip.NoJitter}}
		tr := &retrip.Transport{Base: play.Base(first, play.Reply(200)), Policy: policy, Trace: &retrip.Trace{Retry: func(e retrip.Event) { wait = e.Wait }}}
		play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
		return wait
	}
	synctest.Test(t, func(t *testing.T) {
		assert.Equal(t, waits(t, play.Reply(429)), waits(t, stalls(429)))
		assert.NotEqual(t, waits(t, play.Reply(503)), waits(t, stalls(429)))
	})
}

// A body may break with an error that is a nil pointer.
func TestLostResponse_NilPointer(t *testing.T) {
	for name, read := range map[string]func(context.Context){"at once": func(context.Context) {}, "at the timeout": func(ctx context.Context) { <-ctx.Done() }} {
		play.Bubble(t, name, func(t *testing.T) {
			base := play.Base(answers(200, nil, func(ctx context.Context) io.Reader {
				return testenv.Reader(func([]byte) (int, error) { read(ctx); return 0, (*net.OpError)(nil) })
			}), play.Reply(200))
			play.Finish(t, do(t, &retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: time.Second, WholeBody: 100}}, play.Request(t, "GET", nil)))
			assert.Equal(t, 2, base.Attempts())
		})
	}
}

// In the wait after a discarded response, and in what tells of it later, at most 64 KiB of
// its header are left.
//
//retrip:promise P17
func TestDiscardedHeader_Bounded(t *testing.T) {
	small := http.Header{"Retry-After": {"5"}, "X-Two": {"a", "b"}}
	for name, tt := range map[string]struct{ header, want http.Header }{
		"small":               {small, small},
		"up to 64 KiB":        {http.Header{"X": {strings.Repeat("x", 65536-2*32-1)}}, http.Header{"X": {strings.Repeat("x", 65536-2*32-1)}}},
		"one byte more":       {http.Header{"X": {strings.Repeat("x", 65536-2*32)}}, http.Header{}},
		"one large field":     {http.Header{"Retry-After": {"5"}, "X-Two": {"a", "b"}, "X": {strings.Repeat("x", 1<<22)}}, small},
		"many large values":   {http.Header{"Retry-After": {"5"}, "X-Two": {"a", "b"}, "X": slices.Repeat([]string{strings.Repeat("x", 4096)}, 1024)}, small},
		"many empty values":   {http.Header{"Retry-After": {"5"}, "X-Two": {"a", "b"}, "X": make([]string, 1<<17)}, small},
		"none":                {nil, nil},
		"the same size twice": {http.Header{"B": {strings.Repeat("x", 40000)}, "A": {strings.Repeat("x", 40000)}}, http.Header{"A": {strings.Repeat("x", 40000)}}},
	} {
		play.Bubble(t, name, func(t *testing.T) {
			// net/http makes one array for the values of all fields.
			header, array := http.Header{}, new([1 << 18]string)
			all, freed := array[:0], weak.Make(array)
			for name, values := range tt.header {
				from := len(all)
				all = append(all, values...)
				header[name] = all[from:len(all):len(all)]
			}
			if tt.header == nil {
				header = nil
			}
			var told []retrip.Event
			tell := func(e retrip.Event) { told = append(told, e) }
			ctx, cancel := context.WithCancel(t.Context())
			tr := &retrip.Transport{Base: testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				resp, err := play.Reply(503)(req)
				resp.Header = header
				header, array, all = nil, nil, nil
				return resp, err
			}), Policy: play.Steady, Trace: &retrip.Trace{GiveUp: tell, Done: tell}}
			over := make(chan error)
			go func() {
				_, err := tr.RoundTrip(play.Request(t, "GET", nil).WithContext(ctx))
				over <- err
			}()
			synctest.Wait()
			if len(tt.want) < len(tt.header) {
				runtime.GC()
				assert.Nil(t, freed.Value())
			}
			cancel()
			assert.Equal(t, tt.want, play.AsError(t, <-over).Header)
			require.Len(t, told, 2)
			for _, e := range told {
				assert.Equal(t, tt.want, e.Header)
			}
		})
	}
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
