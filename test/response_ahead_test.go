// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

const document = `{"id": 17, "items": ["a", "b"], "total": {"amount": "12.50", "currency": "EUR"}}`

// wholeDocument answers with the document.
var wholeDocument = sends(200, document, io.EOF)

// sized changes the announced length of a step's response.
func sized(length int64, step play.Step) play.Step {
	return func(req *http.Request) (*http.Response, error) {
		resp, err := step(req)
		resp.ContentLength = length
		return resp, err
	}
}

// The body is read within the attempt up to the limit, and streams after it. The timeouts
// run until then. If the caller's time runs out, or that of all attempts, or no attempt is
// left, the caller gets the part that arrived, and the reason why the body ended; its
// request has been given up, so nothing continues it. Nobody waits for the body of a
// response that is retried.
//
//retrip:promise P20
func TestWholeBody(t *testing.T) {
	broken, second := sends(200, document[:10], io.ErrUnexpectedEOF), 1500*time.Millisecond+1
	limit := func(n int64) retrip.Policy { return retrip.Policy{WholeBody: n} }
	late := answers(200, nil, func(context.Context) io.Reader {
		return testenv.Reader(func(p []byte) (int, error) {
			time.Sleep(2 * time.Second)
			return copy(p, document), io.EOF
		})
	})
	for _, tt := range []struct {
		name     string
		policy   retrip.Policy // WholeBody is 1000 if it is 0
		steps    []play.Step   // broken and then the whole document if it is empty
		attempts int
		got      string        // the document if it is empty
		err      error         // of the body
		caller   time.Duration // its deadline
		most     time.Duration
	}{
		{name: "off", policy: limit(retrip.Off), attempts: 1, got: document[:10], err: io.ErrUnexpectedEOF},
		{name: "limit of 1", policy: limit(1), attempts: 1, got: document[:10], err: io.ErrUnexpectedEOF},
		{name: "limit of 9", policy: limit(9), attempts: 1, got: document[:10], err: io.ErrUnexpectedEOF},
		{name: "limit of 10", policy: limit(10), attempts: 1, got: document[:10], err: io.ErrUnexpectedEOF},
		{name: "limit of 11", policy: limit(11), attempts: 2},
		{name: "limit of 1 << 62", policy: limit(1 << 62), attempts: 2},
		{name: "limit of the largest", policy: limit(1<<63 - 1), attempts: 2},
		{name: "a huge length takes no memory", policy: retrip.Policy{WholeBody: 1 << 62, MaxAttempts: 1}, steps: []play.Step{sized(1<<60, broken)}, attempts: 1, got: document[:10], err: io.ErrUnexpectedEOF},
		{name: "AttemptTimeout", policy: retrip.Policy{AttemptTimeout: time.Second}, steps: []play.Step{sends(200, document[:10], nil), wholeDocument}, attempts: 2, most: second},
		{name: "BodyIdleTimeout", policy: retrip.Policy{BodyIdleTimeout: time.Second}, steps: []play.Step{sends(200, document[:10], nil), wholeDocument}, attempts: 2, most: second},
		{name: "Deadline", policy: retrip.Policy{Deadline: time.Second}, steps: []play.Step{sends(200, document[:10], nil)}, attempts: 1, got: document[:10], err: context.DeadlineExceeded, most: second},
		{name: "the caller's deadline", caller: time.Second, steps: []play.Step{sends(200, document[:10], nil)}, attempts: 1, got: document[:10], err: context.DeadlineExceeded, most: second},
		{name: "whole as the time runs out", policy: retrip.Policy{AttemptTimeout: time.Second}, steps: []play.Step{late}, attempts: 1},
		{name: "out of attempts", policy: retrip.Policy{MaxAttempts: 3}, steps: []play.Step{broken}, attempts: 3, got: document[:10], err: io.ErrUnexpectedEOF},
		{name: "out of attempts, with Resume", policy: retrip.Policy{MaxAttempts: 3, Resume: time.Minute}, steps: []play.Step{sized(80, sends(200, document[:10], io.ErrUnexpectedEOF, `ETag: "a"`))},
			attempts: 3, got: document[:10], err: io.ErrUnexpectedEOF},
		{name: "failures", policy: retrip.Policy{MaxAttempts: 2}, steps: []play.Step{sends(503, "down", nil), sends(503, "down", io.ErrUnexpectedEOF)}, attempts: 2, got: "down", err: io.ErrUnexpectedEOF, most: time.Second},
		{name: "may not be repeated", policy: retrip.Policy{Idempotent: func(*http.Request) bool { return false }}, attempts: 1, got: document[:10], err: io.ErrUnexpectedEOF},
		{name: "of a 404", steps: []play.Step{sends(404, document[:5], io.ErrUnexpectedEOF), sends(404, document, io.EOF)}, attempts: 2},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(tt.caller, time.Hour))
			defer cancel()
			if tt.steps == nil {
				tt.steps = []play.Step{broken, wholeDocument}
			}
			tt.policy.WholeBody, tt.policy.Backoff = cmp.Or(tt.policy.WholeBody, 1000), retrip.Backoff{Base: 1, Cap: 1}
			base, metrics, began := play.Base(tt.steps...), &retrip.Metrics{}, time.Now()
			got, err := fetchIn(t, ctx, &retrip.Transport{Base: base, Policy: tt.policy, Metrics: metrics})
			assert.ErrorIs(t, err, tt.err)
			assert.Equal(t, cmp.Or(tt.got, document), string(got))
			assert.Equal(t, tt.attempts, base.Attempts())
			assert.LessOrEqual(t, time.Since(began), cmp.Or(tt.most, 3*time.Second))
			assert.Zero(t, gather(t, metrics)["default"]["body_resumes_total"])
		})
	}
}

// Streams are not read ahead. Package syntax has all kinds of them.
//
//retrip:promise P20
func TestWholeBody_Streams(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		tr := &retrip.Transport{Base: play.Base(sends(200, "data", nil, "Content-Type: Text/Event-Stream; charset=utf-8")), Policy: retrip.Policy{WholeBody: 1000}}
		resp := do(t, tr, play.Request(t, http.MethodGet, nil).WithContext(ctx))
		got := make([]byte, 4)
		_, err := io.ReadFull(resp.Body, got)
		require.NoError(t, err)
		cancel()
		_, err = resp.Body.Read(got)
		assert.ErrorIs(t, err, context.Canceled)
	})
}

// A CONNECT yields a tunnel, not a body with an end, and may be silent for any time.
func TestWholeBody_Tunnel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := answers(200, nil, func(context.Context) io.Reader {
			return io.MultiReader(strings.NewReader("hello"), testenv.Reader(func([]byte) (int, error) { time.Sleep(time.Hour); return 0, io.EOF }))
		})
		tr := &retrip.Transport{Base: play.Base(silent), Policy: retrip.Policy{WholeBody: 1000, BodyIdleTimeout: time.Minute, Resume: time.Hour, AttemptTimeout: time.Second,
			Classify: mayPeek}}
		began := time.Now()
		resp := do(t, tr, play.Request(t, http.MethodConnect, nil))
		assert.Zero(t, time.Since(began))
		got, err := readAll(t, resp)
		require.NoError(t, err)
		assert.Equal(t, "hello", string(got))
	})
}

// mayPeek retries a response of which Peek returns anything.
func mayPeek(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
	if start, err := retrip.Peek(resp, 10); len(start) > 0 || err != nil {
		return retrip.Retryable
	}
	return retrip.ByRule
}

// A response that can't have a body is never read, whatever length it announces. Over
// HTTP/2, net/http gives it a body that breaks.
//
//retrip:promise P1 P20
func TestResponse_WithoutBody(t *testing.T) {
	for _, tt := range []struct {
		method string
		status int
	}{
		{http.MethodGet, 304}, {http.MethodGet, 204}, {http.MethodHead, 200}, {http.MethodHead, 404}, {http.MethodHead, 206}, {http.MethodGet, 103}, {http.MethodPut, 204}, {http.MethodConnect, 204},
	} {
		bubble(t, fmt.Sprint(tt.method, tt.status), func(t *testing.T) {
			metrics := &retrip.Metrics{}
			policy := retrip.Policy{WholeBody: 1000, BodyIdleTimeout: time.Second, Resume: time.Minute, AttemptTimeout: time.Minute, Classify: mayPeek}
			base := play.Base(sized(5, sends(tt.status, "", io.ErrUnexpectedEOF, "ETag: \"a\"")))
			resp := do(t, &retrip.Transport{Base: base, Policy: policy, Metrics: metrics}, play.Request(t, tt.method, nil))
			assert.Equal(t, tt.status, resp.StatusCode)
			_, err := readAll(t, resp)
			assert.Equal(t, io.ErrUnexpectedEOF, err)
			assert.Equal(t, 1, base.Attempts())
			assert.Len(t, play.Counted(t, metrics), 2, "an attempt, and an answer")
		})
	}
}

// A response that arrives while the request body is still being sent isn't read
// ahead, because the caller may be waiting for it before it sends more.
//
//retrip:promise P20
func TestWholeBody_WhileSending(t *testing.T) {
	// The server echoes the body that it gets.
	for name, body := range map[string]func(*http.Request) (io.ReadCloser, error){
		"Body": func(req *http.Request) (io.ReadCloser, error) { return req.Body, nil },
		"GetBody": func(req *http.Request) (io.ReadCloser, error) {
			req.Body.Close()
			return req.GetBody()
		},
		"GetBody, then Body": func(req *http.Request) (io.ReadCloser, error) {
			b, err := req.GetBody()
			b.Close()
			return req.Body, err
		},
	} {
		bubble(t, name, func(t *testing.T) {
			r, w := io.Pipe()
			base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				b, err := body(req)
				return &http.Response{StatusCode: 200, Body: b, ContentLength: -1}, err
			})
			req := play.MustRequest(t, http.MethodPut, "http://example.com/", io.NopCloser(r))
			req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(r), nil }
			resp := do(t, &retrip.Transport{Base: base, Policy: retrip.Policy{WholeBody: 1000}}, req)
			go func() {
				_, _ = w.Write([]byte("ping"))
				w.Close()
			}()
			assert.Equal(t, "ping", play.Finish(t, resp))
		})
	}
}

// A response without a body stays as it is, whatever bodies have to be. A base that fails
// has no body to read.
func TestWholeBody_NoBody(t *testing.T) {
	policy := retrip.Policy{Resume: time.Minute, BodyIdleTimeout: time.Second, WholeBody: 1000, Backoff: retrip.Backoff{Base: retrip.Off}}
	for _, none := range []io.ReadCloser{nil, http.NoBody} {
		base := testenv.RoundTripper(func(*http.Request) (*http.Response, error) { return &http.Response{StatusCode: 204, Body: none}, nil })
		resp := do(t, &retrip.Transport{Base: base, Policy: policy}, play.Request(t, http.MethodGet, nil))
		assert.Equal(t, none, resp.Body)
	}
	base := play.Base(play.Err(syscall.ECONNRESET))
	_, err := (&retrip.Transport{Base: base, Policy: policy}).RoundTrip(play.Request(t, http.MethodGet, nil))
	assert.ErrorIs(t, err, syscall.ECONNRESET)
	assert.NotContains(t, err.Error(), "response body")
	assert.Equal(t, 4, base.Attempts())
}

func TestPeek(t *testing.T) {
	for _, n := range []int{-1, 0, 1, 5, len(document), len(document) + 1, 1 << 30} {
		for _, body := range []io.Reader{strings.NewReader(document), iotest.OneByteReader(strings.NewReader(document)), iotest.DataErrReader(strings.NewReader(document))} {
			resp := &http.Response{StatusCode: 200, Body: io.NopCloser(body), ContentLength: -1}
			for range 3 {
				got, err := retrip.Peek(resp, n)
				require.NoError(t, err)
				require.Equal(t, document[:max(0, min(n, len(document)))], string(got))
			}
			got, err := retrip.Peek(resp, 2)
			require.NoError(t, err)
			require.Equal(t, document[:2], string(got))
			require.Equal(t, document, play.Finish(t, resp))
		}
	}
	empty := &http.Response{Body: http.NoBody}
	for _, resp := range []*http.Response{nil, {}, empty, {StatusCode: 101, Body: io.NopCloser(nil)}} {
		got, err := retrip.Peek(resp, 5)
		assert.NoError(t, err)
		assert.Empty(t, got)
	}
	assert.Equal(t, http.NoBody, empty.Body)
}

// Classify finds an error inside a 200, which is retried.
//
//retrip:promise P20
func TestPeek_InClassify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, p := range []retrip.Policy{{}, {AttemptTimeout: time.Second}, {WholeBody: 10}, {WholeBody: 1000}, {BodyIdleTimeout: time.Second}, {Resume: time.Minute, BodyIdleTimeout: time.Second}} {
			const overloaded = "event: error\ndata: {\"type\":\"overloaded_error\"}\n\n"
			base := play.Base(sends(200, overloaded, io.EOF), wholeDocument)
			p.Classify = func(_ *http.Request, resp *http.Response, err error) retrip.Verdict {
				if err != nil {
					return retrip.ByRule
				}
				if start, _ := retrip.Peek(resp, 100); bytes.Contains(start, []byte("overloaded_error")) {
					return retrip.Retryable
				}
				return retrip.ByRule
			}
			got, err := fetch(t, &retrip.Transport{Base: base, Policy: p})
			require.NoError(t, err)
			assert.Equal(t, document, string(got))
			assert.Equal(t, []int32{1, 1}, closes(base))
		}
	})
}
