// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
)

var (
	dialError  = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	resetError = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
)

// faultyBody is a request body that is at fault.
type faultyBody struct {
	name   string
	length int64 // announced
	again  bool  // there is a GetBody
	open   func(t testing.TB) io.Reader
}

var faultyBodies = []faultyBody{
	{"stream fails", 0, false, func(testing.TB) io.Reader { return play.BrokenAt("payload", 3) }},
	{"stream fails at once", 0, false, func(testing.TB) io.Reader { return play.BrokenAt("payload", 0) }},
	{"stream fails like a dial", 0, false, func(testing.TB) io.Reader { return iotest.ErrReader(dialError) }},
	{"stream fails like a reset", 0, false, func(testing.TB) io.Reader { return iotest.ErrReader(resetError) }},
	{"stream, shorter", 8, false, func(testing.TB) io.Reader { return play.Stream([]byte("payload")) }},
	{"stream, longer", 6, false, func(testing.TB) io.Reader { return play.Stream([]byte("payload")) }},
	{"section fails", 7, false, func(testing.TB) io.Reader { return io.NewSectionReader(play.Unreadable{N: 3}, 0, 7) }},
	{"section, shorter", 8, false, func(testing.TB) io.Reader { return io.NewSectionReader(strings.NewReader("payload"), 0, 7) }},
	{"section, longer", 6, false, func(testing.TB) io.Reader { return io.NewSectionReader(strings.NewReader("payload"), 0, 7) }},
	{"file that isn't one to read", 7, false, func(t testing.TB) io.Reader { return payloadFile(t, os.O_WRONLY) }},
	{"file, shorter", 8, false, func(t testing.TB) io.Reader { return payloadFile(t, os.O_RDONLY) }},
	{"GetBody whose bodies fail", 7, true, func(testing.TB) io.Reader { return play.BrokenAt("payload", 3) }},
	{"GetBody whose bodies are shorter", 8, true, func(testing.TB) io.Reader { return play.Stream([]byte("payload")) }},
	{"buffer, shorter", 8, true, func(testing.TB) io.Reader { return strings.NewReader("payload") }},
	{"buffer, longer", 6, true, func(testing.TB) io.Reader { return strings.NewReader("payload") }},
}

func payloadFile(t testing.TB, flag int) *os.File {
	name := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(name, []byte("payload"), 0o600))
	return play.Must(os.OpenFile(name, flag, 0))
}

// request returns a PUT of b. Files must be created outside a bubble.
func (b faultyBody) request(t testing.TB) *http.Request {
	get := func() (io.ReadCloser, error) {
		r := b.open(t)
		if f, ok := r.(*os.File); ok {
			return f, nil
		}
		return io.NopCloser(r), nil
	}
	req := play.MustRequest(t, "PUT", "http://example.com/", nil)
	req.Body, _ = get()
	req.ContentLength = b.length
	if b.again {
		req.GetBody = get
	}
	return req
}

// A failure of the caller's own body is the caller's: retrip doesn't retry it, takes no
// token, holds nothing against the host, and has not given up, whatever the kind of body.
//
//retrip:promise P7
func TestBody_AtFault(t *testing.T) {
	breaker := retrip.Breaker{Ratio: 1, MinVolume: 1}
	for name, tr := range map[string]*retrip.Transport{
		"alone":                  {Policy: retrip.Policy{MaxAttempts: 1}},
		"a Trace":                {Policy: retrip.Policy{MaxAttempts: 1}, Trace: &retrip.Trace{}},
		"one attempt":            {Policy: retrip.Policy{MaxAttempts: 1, Breaker: breaker}},
		"one attempt, timeout":   {Policy: retrip.Policy{MaxAttempts: 1, Breaker: breaker, AttemptTimeout: time.Hour}},
		"four attempts":          {Policy: retrip.Policy{Breaker: breaker}},
		"four attempts, timeout": {Policy: retrip.Policy{Breaker: breaker, AttemptTimeout: time.Hour}},
	} {
		for _, body := range faultyBodies {
			for _, proto := range play.Protos {
				t.Run(fmt.Sprintf("%s/%s/%s", body.name, proto, name), func(t *testing.T) {
					req := body.request(t)
					synctest.Test(t, func(t *testing.T) {
						bodyAtFault(t, req, proto, &retrip.Transport{Policy: tr.Policy, Trace: tr.Trace})
					})
				})
			}
		}
	}
}

func bodyAtFault(t *testing.T, req *http.Request, proto memhttp.Proto, tr *retrip.Transport) {
	var seen atomic.Int32
	s := memhttp.NewServer(t, proto, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			seen.Add(1)
		}
		panic(http.ErrAbortHandler)
	}))
	inner := s.Transport()
	defer inner.CloseIdleConnections()
	base := play.Keep(inner.RoundTrip)
	tr.Base, tr.Metrics = base, &retrip.Metrics{}
	req.URL = play.MustRequest(t, "GET", s.URL, nil).URL
	start := time.Now()
	_, err := tr.RoundTrip(req.WithContext(t.Context()))
	require.Error(t, err)
	assert.NotErrorAs(t, err, new(*retrip.Error), "the base's own error")
	assert.Equal(t, 1, base.Attempts())
	assert.LessOrEqual(t, seen.Load(), int32(1), "a longer body arrives up to its declared length")
	assert.Zero(t, time.Since(start))
	assert.Empty(t, play.Held(tr), "there is no failure of the host")
	metrics := play.Gather(t, tr.Metrics)["default"]
	assert.EqualValues(t, 1, metrics["requests_total failed"], "%v", metrics)
	assert.Zero(t, metrics["give_ups_total max_attempts"])
	synctest.Wait()
}

// net/http's HTTP/1 reads a body to its end, even if the body is longer than
// announced, and waits for that end, which may never come. The request ends on
// time nevertheless, if each Read returns.
//
//retrip:promise P11
func TestBody_EndsWithTheAttempt(t *testing.T) {
	const limit = 300 * time.Millisecond
	for name, set := range map[string]func(p *retrip.Policy){
		"AttemptTimeout": func(p *retrip.Policy) { p.AttemptTimeout, p.MaxAttempts = limit, 1 },
		"Deadline":       func(p *retrip.Policy) { p.Deadline = limit },
		"one attempt":    func(p *retrip.Policy) { p.Deadline, p.MaxAttempts = limit, 1 },
		"context":        func(*retrip.Policy) {},
	} {
		for kind, length := range map[string]int64{"longer": 6, "slow": 1 << 20, "chunked": -1, "section": 6, "GetBody": 6} {
			for _, proto := range play.Protos {
				play.Bubble(t, fmt.Sprintf("%s/%s/%s", name, kind, proto), func(t *testing.T) {
					s := memhttp.NewServer(t, proto, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
						_, _ = io.Copy(io.Discard, r.Body)
						select {
						case <-r.Context().Done():
						case <-time.After(time.Hour):
						}
					}))
					base := s.Transport()
					defer base.CloseIdleConnections()
					began := time.Now()
					get := func() (io.ReadCloser, error) { return io.NopCloser(drip{began}), nil }
					req := play.MustRequest(t, "PUT", s.URL, nil)
					req.Body, _ = get()
					req.ContentLength = length
					switch kind {
					case "section":
						req.Body = io.NopCloser(io.NewSectionReader(drip{began}, 0, 1<<40))
					case "GetBody":
						req.GetBody = get
					}
					ctx := t.Context()
					if name == "context" {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, limit)
						defer cancel()
					}
					_, err := (&retrip.Transport{Base: base, Policy: play.With(set)}).RoundTrip(req.WithContext(ctx))
					require.Error(t, err)
					assert.LessOrEqual(t, time.Since(began), limit+10*time.Millisecond, "%v", err)
					time.Sleep(2 * time.Minute)
				})
			}
		}
	}
}

// drip yields a byte every 10 ms for a minute.
type drip struct{ began time.Time }

func (d drip) Read(p []byte) (int, error) {
	time.Sleep(10 * time.Millisecond)
	if time.Since(d.began) > time.Minute {
		return 0, io.EOF
	}
	return copy(p[:1], "x"), nil
}

func (d drip) ReadAt(p []byte, _ int64) (int, error) { return d.Read(p) }

// The hook learns both that the response has broken and why there is no other attempt.
func TestBody_BreaksAndGetBodyFails(t *testing.T) {
	broken := errors.New("broken")
	var done retrip.Event
	base := play.Base(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, ContentLength: -1, Body: io.NopCloser(iotest.ErrReader(broken))}, nil
	})
	req := play.Request(t, "PUT", play.Stream([]byte("x")))
	req.GetBody = func() (io.ReadCloser, error) { return nil, play.ErrDisk }
	_, _ = (&retrip.Transport{Base: base, Policy: retrip.Policy{WholeBody: 9}, Trace: &retrip.Trace{Done: func(e retrip.Event) { done = e }}}).RoundTrip(req)
	assert.True(t, errors.Is(done.Err, broken) && errors.Is(done.Err, play.ErrDisk), done.Err)
}
