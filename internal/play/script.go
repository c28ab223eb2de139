// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package play

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// Step is the outcome of one attempt.
type Step func(*http.Request) (*http.Response, error)

// Script is a Base that plays its steps in order and repeats the last one. Like
// net/http, it reads the request body and closes it.
type Script struct {
	Steps []Step

	mu     sync.Mutex
	began  time.Time
	At     []time.Duration // instants of the attempts, since the first one
	Reqs   []*http.Request
	Sent   []string      // request bodies
	Bodies []*ReplyBody  // response bodies
	Idle   int           // calls of CloseIdleConnections
	Keep   bool          // doesn't read or close request bodies
	Header []http.Header // copies of the requests' headers
}

func Base(steps ...Step) *Script { return &Script{Steps: steps} }

// Keep returns a Base that leaves reading and closing the request body to its steps. The
// RoundTrip of another Base may be such a step.
func Keep(steps ...Step) *Script { return &Script{Steps: steps, Keep: true} }

func (s *Script) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	if s.began.IsZero() {
		s.began = time.Now()
	}
	n := len(s.Reqs)
	s.At = append(s.At, time.Since(s.began))
	s.Reqs = append(s.Reqs, req)
	s.Header = append(s.Header, req.Header.Clone())
	s.mu.Unlock()
	if req.Body != nil && !s.Keep {
		body, err := io.ReadAll(req.Body)
		_ = req.Body.Close()
		s.mu.Lock()
		s.Sent = append(s.Sent, string(body))
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
	resp, err := s.Steps[min(n, len(s.Steps)-1)](req)
	if resp != nil {
		if resp.Request == nil {
			resp.Request = req
		}
		if b, ok := resp.Body.(*ReplyBody); ok {
			s.mu.Lock()
			s.Bodies = append(s.Bodies, b)
			s.mu.Unlock()
		}
	}
	return resp, err
}

func (s *Script) CloseIdleConnections() { s.Idle++ }

// Attempts returns the number of attempts.
func (s *Script) Attempts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.Reqs)
}

// ClosedBodies returns the number of closed response bodies.
func (s *Script) ClosedBodies() (n int) {
	for _, b := range s.Bodies {
		if b.Closed.Load() > 0 {
			n++
		}
	}
	return n
}

// ReplyBody is a response body that records how it is used.
type ReplyBody struct {
	R      io.Reader
	Closed atomic.Int32
	Ended  atomic.Bool
	Done   chan struct{}
	once   sync.Once
}

func NewReply(r io.Reader) *ReplyBody { return &ReplyBody{R: r, Done: make(chan struct{})} }

func (b *ReplyBody) Read(p []byte) (int, error) {
	if b.Closed.Load() > 0 {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.R.Read(p)
	if err == io.EOF {
		b.Ended.Store(true)
	}
	return n, err
}

func (b *ReplyBody) Close() error {
	b.Closed.Add(1)
	b.once.Do(func() { close(b.Done) })
	return nil
}

// Reply returns a step that responds with a small body and the given header
// lines.
func Reply(status int, lines ...string) Step {
	return func(*http.Request) (*http.Response, error) {
		h := http.Header{}
		for _, line := range lines {
			name, value, _ := strings.Cut(line, ": ")
			h.Add(name, value)
		}
		return &http.Response{StatusCode: status, Header: h, ContentLength: 2, Body: NewReply(strings.NewReader("ok"))}, nil
	}
}

func Err(err error) Step { return func(*http.Request) (*http.Response, error) { return nil, err } }

// Hang blocks until the request's context ends, like net/http.
func Hang(req *http.Request) (*http.Response, error) {
	select {
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	case <-req.Cancel: //lint:ignore SA1019 http.Client still uses it
		return nil, errors.New("net/http: request canceled")
	}
}

// SendBody is a request body that counts calls of Close.
type SendBody struct {
	io.Reader
	Closed atomic.Int32
}

func NewSend(s string) *SendBody { return &SendBody{Reader: strings.NewReader(s)} }

func (b *SendBody) Close() error { b.Closed.Add(1); return nil }

// ErrDisk is the error of bodies that can't be read.
var ErrDisk = errors.New("the disk is gone")

// BrokenAt returns a reader of s that fails at byte n.
func BrokenAt(s string, n int) io.Reader {
	return io.MultiReader(strings.NewReader(s[:n]), iotest.ErrReader(ErrDisk))
}

// Unreadable fails at every offset but the first N.
type Unreadable struct{ N int }

func (u Unreadable) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(u.N) {
		return 0, ErrDisk
	}
	n := min(len(p), u.N-int(off))
	for i := range n {
		p[i] = '.'
	}
	return n, nil
}

// Request returns a request to an example host.
func Request(t testing.TB, method string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://example.com/path", body)
	require.NoError(t, err)
	return req
}

// Steady waits one second before every retry, and never runs out of tokens.
var Steady = retrip.Policy{
	Backoff: retrip.Backoff{Base: time.Second, Cap: time.Second, Jitter: retrip.NoJitter},
	Budget:  retrip.Off,
}

// AtOnce is a policy whose retries don't wait.
var AtOnce = retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}

// With returns steady after change.
func With(change func(*retrip.Policy)) retrip.Policy {
	p := Steady
	change(&p)
	return p
}

// Bubble runs f in a bubble of its own, as a parallel subtest.
func Bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, f)
	})
}

// Flush sends what the handler of w has written.
func Flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }

// Finish reads and closes the body of resp.
func Finish(t testing.TB, resp *http.Response) string {
	t.Helper()
	require.NotNil(t, resp)
	if resp.Body == nil {
		return ""
	}
	body := ReadAll(t, resp.Body)
	assert.NoError(t, resp.Body.Close())
	return body
}

// ReadAll returns what r yields up to its end.
func ReadAll(t testing.TB, r io.Reader) string {
	t.Helper()
	all, err := io.ReadAll(r)
	assert.NoError(t, err)
	return string(all)
}

// Do makes a request that must succeed, and reads the body of its response.
func Do(t testing.TB, rt http.RoundTripper, req *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := rt.RoundTrip(req)
	require.NoError(t, err)
	return resp, Finish(t, resp)
}

func AsError(t testing.TB, err error) *retrip.Error {
	t.Helper()
	var e *retrip.Error
	require.ErrorAs(t, err, &e)
	return e
}

// Pattern returns n bytes that don't repeat soon.
func Pattern(n int) []byte {
	b := make([]byte, n)
	x := uint32(2463534242)
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return b
}

// OnlyReader hides everything but Read, so that http.NewRequest sets no GetBody.
type OnlyReader struct{ io.Reader }

func Stream(b []byte) io.Reader { return OnlyReader{bytes.NewReader(b)} }

// LetPass lets d pass in the time of a bubble.
func LetPass(d time.Duration) { time.Sleep(d) }
