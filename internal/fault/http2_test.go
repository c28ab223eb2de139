// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// What the frames with which a server answers the first request mean. A server that demands
// HTTP/1.1, or better TLS, isn't asked again over HTTP/2, and ENHANCE_YOUR_CALM says what a
// 429 says.
//
//retrip:promise P6 P8 P9
func TestHTTP2(t *testing.T) {
	type frames = func(w *play.H2Writer, stream uint32)
	reset := func(code uint32) frames { return func(w *play.H2Writer, s uint32) { w.Reset(s, code) } }
	goAway := func(code uint32) frames { return func(w *play.H2Writer, s uint32) { w.GoAway(s, code); w.Close() } }
	atFirst := func(code uint32) frames { return func(w *play.H2Writer, _ uint32) { w.GoAway(0, code); w.Close() } }
	const no, refused, cancel, calm, security, http11 = 0, 7, 8, 0xb, 0xc, 0xd
	for _, tt := range []struct {
		name      string
		answer    frames
		get, post bool          // it is sent again
		wait      time.Duration // before the GET is; 0 if net/http does it
	}{
		{"REFUSED_STREAM", reset(refused), true, true, 0},
		{"GOAWAY below the stream", func(w *play.H2Writer, _ uint32) { w.GoAway(0, no) }, true, true, 0},
		{"GOAWAY that takes the stream in", goAway(no), true, false, time.Second},
		{"CANCEL", reset(cancel), true, false, time.Second},
		{"INTERNAL_ERROR", reset(2), true, false, time.Second},
		{"ENHANCE_YOUR_CALM", reset(calm), true, false, 7 * time.Second},
		{"GOAWAY ENHANCE_YOUR_CALM", goAway(calm), true, false, 7 * time.Second},
		{"GOAWAY at first PROTOCOL_ERROR", atFirst(1), true, true, time.Second},
		{"GOAWAY at first ENHANCE_YOUR_CALM", atFirst(calm), true, true, 7 * time.Second}, // net/http's error has only a text
		{"INADEQUATE_SECURITY", reset(security), false, false, 0},
		{"GOAWAY INADEQUATE_SECURITY", goAway(security), false, false, 0},
		{"GOAWAY at first INADEQUATE_SECURITY", atFirst(security), false, false, 0},
		{"HTTP_1_1_REQUIRED", reset(http11), false, false, 0},
		{"GOAWAY HTTP_1_1_REQUIRED", goAway(http11), false, false, 0},
		{"GOAWAY at first HTTP_1_1_REQUIRED", atFirst(http11), false, false, 0},
	} {
		for method, again := range map[string]bool{"GET": tt.get, "POST": tt.post} {
			for kind, body := range kinds {
				play.Bubble(t, tt.name+"/"+method+" "+kind, func(t *testing.T) {
					var seen atomic.Int32
					base, _ := play.H2Server(t, func(w *play.H2Writer, _ int, stream uint32) {
						if seen.Add(1) == 1 {
							tt.answer(w, stream)
							return
						}
						w.OK(stream)
					})
					start := time.Now()
					policy := retrip.Policy{Backoff: retrip.Backoff{Base: time.Second, ThrottleBase: 7 * time.Second, Jitter: retrip.NoJitter}}
					req, done := traced(t, play.MustRequest(t, method, "http://example.com/", body()))
					err := testenv.Try(&retrip.Transport{Base: base, Policy: policy}, req)
					if !again {
						assert.EqualValues(t, 1, seen.Load())
						assert.Equal(t, tt.get, done.Reason == retrip.ReasonNotIdempotent)
						assert.Error(t, err)
						return
					}
					assert.NoError(t, err)
					assert.EqualValues(t, 2, seen.Load())
					if method == "GET" && (kind == "none" || tt.wait > 0) {
						assert.Equal(t, tt.wait, time.Since(start))
					}
				})
			}
		}
	}
}

// net/http's errors that only their text, or the name of their type, tells from others. A
// row that fails names what a new release of Go has changed. The rows of TestHTTP2,
// TestHopeless and TestHopeless_*, and TestCloses and TestRegistered of other packages, do
// the same for the rest.
func TestWordsOfNetHTTP(t *testing.T) {
	// hangs returns the error of a request that a server never answers.
	hangs := func(proto memhttp.Proto, set func(*http.Request, *http.Transport)) func(*testing.T) error {
		return func(t *testing.T) error {
			s := memhttp.NewServer(t, proto, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
			base, req := s.Transport(), play.MustRequest(t, "GET", s.URL, nil)
			defer base.CloseIdleConnections()
			set(req, base)
			return testenv.Try(base, req)
		}
	}
	cancels := func(req *http.Request, _ *http.Transport) {
		cancel := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(cancel) })
		req.Cancel = cancel //lint:ignore SA1019 it must be obeyed
	}
	awaits := func(_ *http.Request, base *http.Transport) { base.ResponseHeaderTimeout = time.Second }
	// ended returns the error of a POST whose pooled connection ends just before its use.
	ended := func(proto memhttp.Proto, body func() io.Reader) func(*testing.T) error {
		return func(t *testing.T) error {
			var conn *memhttp.Conn
			s := memhttp.NewServer(t, proto, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { conn = memhttp.RequestConn(r) }))
			base, req := s.Transport(), play.MustRequest(t, "POST", s.URL, body())
			require.NoError(t, testenv.Try(base, play.MustRequest(t, "GET", s.URL, nil)))
			synctest.Wait()
			return testenv.Try(base, req.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
				conn.Close()
				synctest.Wait()
			}})))
		}
	}
	for _, tt := range []struct {
		name  string
		err   func(*testing.T) error
		knows func(error) bool
	}{
		{"canceled over HTTP/1", hangs(memhttp.HTTP1, cancels), fault.Canceled},
		{"canceled over HTTP/2", hangs(memhttp.HTTP2, cancels), fault.Canceled},
		{"canceled without a connection", hangs(memhttp.HTTP1, func(req *http.Request, base *http.Transport) {
			cancels(req, base)
			base.DialContext = func(context.Context, string, string) (net.Conn, error) {
				time.Sleep(time.Minute)
				return nil, io.EOF
			}
		}), fault.Canceled},
		{"headers awaited over HTTP/1", hangs(memhttp.HTTP1, awaits), func(err error) bool {
			return fault.AwaitedHeaders(err) && fault.Timeout(err) && !fault.OverHTTP2(err)
		}},
		{"headers awaited over HTTP/2", hangs(memhttp.HTTP2, awaits), func(err error) bool {
			return fault.AwaitedHeaders(err) && fault.Timeout(err) && fault.OverHTTP2(err)
		}},
		{"closed while idle", ended(memhttp.HTTP1, kinds["none"]), fault.Lost},
		{"a stream that can't be rewound", ended(memhttp.HTTP2, kinds["stream"]), fault.GoneAway},
	} {
		play.Bubble(t, tt.name, func(t *testing.T) {
			err := tt.err(t)
			require.Error(t, err)
			assert.True(t, tt.knows(err), "unknown: %T %[1]v", err)
			assert.False(t, tt.knows(errors.New("net/http: other words")))
			time.Sleep(time.Hour) // dials end
		})
	}
}
