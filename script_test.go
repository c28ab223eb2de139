// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

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
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// step is the outcome of one attempt.
type step func(*http.Request) (*http.Response, error)

// script is a Base that plays its steps in order and repeats the last one. Like
// net/http, it reads the request body and closes it.
type script struct {
	steps []step

	mu      sync.Mutex
	began   time.Time
	at      []time.Duration // instants of the attempts, since the first one
	reqs    []*http.Request
	sent    []string      // request bodies
	bodies  []*replyBody  // response bodies
	readErr []error       // errors of reading the request bodies
	idle    int           // calls of CloseIdleConnections
	keep    bool          // doesn't read or close request bodies
	header  []http.Header // copies of the requests' headers
}

func plays(steps ...step) *script { return &script{steps: steps} }

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	if s.began.IsZero() {
		s.began = time.Now()
	}
	n := len(s.reqs)
	s.at = append(s.at, time.Since(s.began))
	s.reqs = append(s.reqs, req)
	s.header = append(s.header, req.Header.Clone())
	s.mu.Unlock()
	if req.Body != nil && !s.keep {
		body, err := io.ReadAll(req.Body)
		_ = req.Body.Close()
		s.mu.Lock()
		s.sent, s.readErr = append(s.sent, string(body)), append(s.readErr, err)
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
	resp, err := s.steps[min(n, len(s.steps)-1)](req)
	if resp != nil {
		if resp.Request == nil {
			resp.Request = req
		}
		if b, ok := resp.Body.(*replyBody); ok {
			s.mu.Lock()
			s.bodies = append(s.bodies, b)
			s.mu.Unlock()
		}
	}
	return resp, err
}

func (s *script) CloseIdleConnections() { s.idle++ }

// attempts returns the number of attempts.
func (s *script) attempts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.reqs)
}

// closedBodies returns the number of closed response bodies.
func (s *script) closedBodies() (n int) {
	for _, b := range s.bodies {
		if b.closed.Load() > 0 {
			n++
		}
	}
	return n
}

// replyBody is a response body that records how it is used.
type replyBody struct {
	r      io.Reader
	closed atomic.Int32
	ended  atomic.Bool
	done   chan struct{}
	once   sync.Once
}

func newReply(r io.Reader) *replyBody { return &replyBody{r: r, done: make(chan struct{})} }

func (b *replyBody) Read(p []byte) (int, error) {
	if b.closed.Load() > 0 {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.r.Read(p)
	if err == io.EOF {
		b.ended.Store(true)
	}
	return n, err
}

func (b *replyBody) Close() error {
	b.closed.Add(1)
	b.once.Do(func() { close(b.done) })
	return nil
}

// replies returns a step that responds with a small body and the given header
// lines.
func replies(status int, lines ...string) step {
	return func(*http.Request) (*http.Response, error) {
		h := http.Header{}
		for _, line := range lines {
			name, value, _ := strings.Cut(line, ": ")
			h.Add(name, value)
		}
		return &http.Response{StatusCode: status, Header: h, ContentLength: 2, Body: newReply(strings.NewReader("ok"))}, nil
	}
}

func fails(err error) step { return func(*http.Request) (*http.Response, error) { return nil, err } }

// hangs blocks until the request's context ends, like net/http.
func hangs(req *http.Request) (*http.Response, error) {
	select {
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	case <-req.Cancel: //lint:ignore SA1019 http.Client still uses it
		return nil, errors.New("net/http: request canceled")
	}
}

// sendBody is a request body that counts calls of Close.
type sendBody struct {
	io.Reader
	closed atomic.Int32
}

func newSend(s string) *sendBody { return &sendBody{Reader: strings.NewReader(s)} }

func (b *sendBody) Close() error { b.closed.Add(1); return nil }

// request returns a request to an example host.
func request(t testing.TB, method string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://example.com/path", body)
	require.NoError(t, err)
	return req
}

// steady waits one second before every retry, and never runs out of tokens.
var steady = retrip.Policy{
	Backoff: retrip.Backoff{Base: time.Second, Cap: time.Second, Jitter: retrip.NoJitter},
	Budget:  retrip.Unlimited,
}

// with returns steady after change.
func with(change func(*retrip.Policy)) retrip.Policy {
	p := steady
	change(&p)
	return p
}

// bubbled runs f in a bubble of its own, as a parallel subtest.
func bubbled(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, f)
	})
}

// flush sends what the handler of w has written.
func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }

// finish reads and closes the body of resp.
func finish(t testing.TB, resp *http.Response) string {
	t.Helper()
	require.NotNil(t, resp)
	if resp.Body == nil {
		return ""
	}
	body, err := io.ReadAll(resp.Body)
	assert.NoError(t, err)
	assert.NoError(t, resp.Body.Close())
	return string(body)
}

func asError(t testing.TB, err error) *retrip.Error {
	t.Helper()
	var e *retrip.Error
	require.ErrorAs(t, err, &e)
	return e
}

// pattern returns n bytes that don't repeat soon.
func pattern(n int) []byte {
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

// onlyReader hides everything but Read, so that http.NewRequest sets no GetBody.
type onlyReader struct{ io.Reader }

func stream(b []byte) io.Reader { return onlyReader{bytes.NewReader(b)} }

// letPass lets d pass in the time of a bubble.
func letPass(d time.Duration) { time.Sleep(d) }
