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
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

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
