// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// What net/http itself refuses fails at once, whatever the base (P8).
//
//retrip:promise P8
func TestHopeless(t *testing.T) {
	http1, http2 := []memhttp.Proto{memhttp.HTTP1}, []memhttp.Proto{memhttp.HTTP2, memhttp.H2C}
	for _, tt := range []struct {
		name   string
		method string // a PUT has a body
		protos []memhttp.Proto
		change func(*http.Request)
	}{
		{"scheme", "GET", http1, func(r *http.Request) { r.URL.Scheme = "rstp" }},
		{"no scheme", "GET", http1, func(r *http.Request) { r.URL.Scheme = "" }},
		{"no host", "GET", http1, func(r *http.Request) { r.URL.Host = "" }},
		{"no URL", "GET", http1, func(r *http.Request) { r.URL = nil }},
		{"header value", "GET", http1, func(r *http.Request) { r.Header["X"] = []string{"a\nb"} }},
		{"header name", "GET", http1, func(r *http.Request) { r.Header["X y"] = []string{"v"} }},
		{"DEL in a header value", "GET", http1, func(r *http.Request) { r.Header["X"] = []string{"a\x7f"} }},
		{"header name beside the letters", "GET", http1, func(r *http.Request) { r.Header["X["] = []string{"v"} }},
		{"header name beside the digits", "GET", http1, func(r *http.Request) { r.Header["X:"] = []string{"v"} }},
		{"empty header name", "GET", http1, func(r *http.Request) { r.Header[""] = []string{"v"} }},
		{"no header map", "GET", http1, func(r *http.Request) { r.Header = nil }},
		{"method", "GET", http1, func(r *http.Request) { r.Method = "BAD METHOD" }},
		{"length without body", "GET", http1, func(r *http.Request) { r.ContentLength = 1 }},
		{"trailer", "GET", http1, func(r *http.Request) { r.Trailer = http.Header{"X": {"a\x00b"}} }},
		{"control character in Opaque", "PUT", http1, func(r *http.Request) { r.URL.Opaque = "//example.com/a\nb" }},
		{"control character in RawQuery", "PUT", http1, func(r *http.Request) { r.URL.RawQuery = "a\x01b" }},
		{"unknown length without body", "PUT", http1, func(r *http.Request) { r.Body, r.ContentLength = nil, -1 }},
		{"trailer that isn't one", "PUT", http1, func(r *http.Request) { r.Trailer = http.Header{"Content-Length": nil} }},
		{"path over HTTP/2", "GET", http2, func(r *http.Request) { r.URL.Opaque = "no/slash" }},
		{"Upgrade over HTTP/2", "GET", http2, func(r *http.Request) { r.Header.Set("Upgrade", "x") }},
		{"Connection over HTTP/2", "GET", http2, func(r *http.Request) { r.Header.Set("Connection", "x") }},
		{"Transfer-Encoding over HTTP/2", "GET", http2, func(r *http.Request) { r.Header.Set("Transfer-Encoding", "x") }},
		{"Host over HTTP/2", "GET", http2, func(r *http.Request) { r.Host = "a b" }},
		{"another protocol over HTTP/2", "GET", http2, func(r *http.Request) { r.Header[":protocol"] = []string{"x"} }},
		{"header above the server's limit", "GET", http2, func(r *http.Request) { r.Header.Set("X", strings.Repeat("x", 2<<20)) }},
	} {
		for _, proto := range tt.protos {
			play.Bubble(t, tt.name+"/"+proto.String(), func(t *testing.T) {
				s := memhttp.NewServer(t, proto, http.HandlerFunc(nothing))
				real := s.Transport()
				testenv.Drop(t, real, play.MustRequest(t, "GET", s.URL, nil)) // HTTP/2 learns the server's limits
				base := play.Keep(real.RoundTrip)
				tr := &retrip.Transport{Policy: play.Steady, Base: base}
				req := play.MustRequest(t, tt.method, s.URL, nil)
				if tt.method == "PUT" {
					req = play.MustRequest(t, tt.method, s.URL, play.Stream([]byte("x")))
				}
				req.Header.Set("Idempotency-Key", "k")
				tt.change(req)
				_, err := tr.RoundTrip(req)
				assert.Error(t, err)
				assert.NotErrorAs(t, err, new(*retrip.Error))
				assert.Equal(t, 1, base.Attempts())
				assert.Empty(t, play.Held(tr))
			})
		}
	}
	// Everything that a header may contain.
	play.Bubble(t, "well-formed", func(t *testing.T) {
		base := play.Base(play.Err(errors.New("broken")), play.Reply(200))
		req := play.Request(t, "GET", strings.NewReader("x"))
		req.Header["AZaz09!#$%&'*+-.^_`|~"] = []string{"", "\t !~\x80\xff"}
		req.Trailer = http.Header{"X": {"a b"}}
		play.Do(t, &retrip.Transport{Base: base, Policy: play.Steady}, req)
		assert.Equal(t, 2, base.Attempts())
	})
}

// Schemes that the base knows through RegisterProtocol are retried like http.
//
//retrip:promise P8
func TestHopeless_RegisteredScheme(t *testing.T) {
	for _, failure := range []error{
		io.EOF, syscall.ECONNRESET, &net.OpError{Op: "read", Err: syscall.ECONNRESET}, &net.OpError{Op: "dial", Net: "unix", Err: syscall.ECONNREFUSED},
		errors.New("a reason of its own"), timeout{},
	} {
		for _, host := range []string{"socket", ""} {
			play.Bubble(t, fmt.Sprint(failure), func(t *testing.T) {
				alternate := play.Base(play.Err(failure), play.Reply(503), play.Reply(200))
				base := &http.Transport{}
				base.RegisterProtocol("http+unix", alternate)
				req := play.MustRequest(t, "GET", "http+unix://socket/path", nil)
				req.URL.Host = host
				play.Do(t, &retrip.Transport{Base: base, Policy: play.Steady}, req)
				assert.Equal(t, 3, alternate.Attempts())
			})
		}
	}
	play.Bubble(t, "unknown", func(t *testing.T) {
		base := play.Keep(new(http.Transport).RoundTrip)
		_, err := (&retrip.Transport{Policy: play.Steady, Base: base}).RoundTrip(play.MustRequest(t, "GET", "http+unix://socket/path", nil))
		assert.ErrorContains(t, err, "unsupported protocol scheme")
		assert.Equal(t, 1, base.Attempts())
	})
}

// A Transport may itself be registered for a protocol. ErrSkipAltProtocol from
// its base returns to net/http unchanged.
//
//retrip:promise P4 P8
func TestHopeless_SkipAltProtocol(t *testing.T) {
	for kind, body := range kinds {
		for _, attemptTimeout := range []time.Duration{0, time.Hour} {
			play.Bubble(t, fmt.Sprintf("%s timeout %v", kind, attemptTimeout), func(t *testing.T) {
				s := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(play.Echo))
				skip, base := play.Keep(play.Err(http.ErrSkipAltProtocol)), s.Transport()
				base.RegisterProtocol("http", &retrip.Transport{Base: skip, Policy: timely(attemptTimeout)})
				_, text := play.Do(t, base, play.MustRequest(t, "PUT", s.URL, body()))
				if kind != "none" {
					assert.Equal(t, "payload", text)
				}
				assert.Equal(t, 1, skip.Attempts())
			})
		}
	}
}
