// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// Schemes that the base knows through RegisterProtocol are retried like http.
//
//retrip:promise P8
func TestHopeless_RegisteredScheme(t *testing.T) {
	for _, failure := range []error{io.EOF, syscall.ECONNRESET, &net.OpError{Op: "read", Err: syscall.ECONNRESET}, errors.New("a reason of its own"), timeout{}} {
		for _, change := range []func(*http.Request){func(*http.Request) {}, func(r *http.Request) { r.URL.Host = "" }} {
			play.Bubble(t, fmt.Sprint(failure), func(t *testing.T) {
				alternate := play.Base(play.Err(failure), play.Reply(503), play.Reply(200))
				base := &http.Transport{}
				base.RegisterProtocol("http+unix", alternate)
				req := play.MustRequest(t, "GET", "http+unix://socket/path", nil)
				change(req)
				play.Do(t, &retrip.Transport{Base: base, Policy: play.Steady}, req)
				assert.Equal(t, 3, alternate.Attempts())
			})
		}
	}
	play.Bubble(t, "unknown", func(t *testing.T) {
		attempts := 0
		base := &http.Transport{}
		tr := &retrip.Transport{Policy: play.Steady, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			attempts++
			return base.RoundTrip(r)
		})}
		_, err := tr.RoundTrip(play.MustRequest(t, "GET", "http+unix://socket/path", nil))
		assert.ErrorContains(t, err, "unsupported protocol scheme")
		assert.Equal(t, 1, attempts)
	})
}

type timeout struct{}

func (timeout) Error() string { return "slow" }
func (timeout) Timeout() bool { return true }

// A Transport may itself be registered for a protocol. ErrSkipAltProtocol from
// its base returns to net/http unchanged.
//
//retrip:promise P4 P8
func TestHopeless_SkipAltProtocol(t *testing.T) {
	for _, body := range []func() io.Reader{func() io.Reader { return nil }, func() io.Reader { return strings.NewReader("payload") }, func() io.Reader { return play.Stream([]byte("payload")) }} {
		for _, attemptTimeout := range []time.Duration{0, time.Hour} {
			play.Bubble(t, fmt.Sprintf("%T timeout %v", body(), attemptTimeout), func(t *testing.T) {
				s := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(play.Echo))
				skip := play.Base(play.Err(http.ErrSkipAltProtocol))
				skip.Keep = true
				base := s.Transport()
				base.RegisterProtocol("http", &retrip.Transport{Base: skip, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout = attemptTimeout })})
				_, text := play.Do(t, base, play.MustRequest(t, "PUT", s.URL, body()))
				if body() != nil {
					assert.Equal(t, "payload", text)
				}
				assert.Equal(t, 1, skip.Attempts())
			})
		}
	}
}

// A request that net/http refuses to write fails at once, over every protocol.
//
//retrip:promise P8
func TestHopeless_Unwritable(t *testing.T) {
	for name, change := range map[string]func(*http.Request){
		"control character in Opaque":   func(r *http.Request) { r.URL.Opaque = "//example.com/a\nb" },
		"control character in RawQuery": func(r *http.Request) { r.URL.RawQuery = "a\x01b" },
		"unknown length without body":   func(r *http.Request) { r.Body, r.ContentLength = nil, -1 },
		"trailer that isn't one":        func(r *http.Request) { r.Trailer = http.Header{"Content-Length": nil} },
	} {
		play.Bubble(t, name, func(t *testing.T) {
			s := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			attempts, inner := 0, s.Transport()
			tr := &retrip.Transport{Policy: play.Steady, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				attempts++
				return inner.RoundTrip(r)
			})}
			req := play.MustRequest(t, "PUT", s.URL, play.Stream([]byte("x")))
			change(req)
			_, err := tr.RoundTrip(req)
			require.Error(t, err)
			assert.NotErrorAs(t, err, new(*retrip.Error))
			assert.Equal(t, 1, attempts)
			assert.Empty(t, play.Held(tr))
		})
	}
	for name, change := range map[string]func(*http.Request){
		"path over HTTP/2":   func(r *http.Request) { r.URL.Opaque = "no/slash" },
		"header over HTTP/2": func(r *http.Request) { r.Header.Set("Upgrade", "x") },
	} {
		for _, proto := range []memhttp.Proto{memhttp.HTTP2, memhttp.H2C} {
			play.Bubble(t, name+"/"+proto.String(), func(t *testing.T) {
				s := memhttp.NewServer(t, proto, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
				attempts, inner := 0, s.Transport()
				tr := &retrip.Transport{Policy: play.Steady, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
					attempts++
					return inner.RoundTrip(r)
				})}
				req := play.MustRequest(t, "GET", s.URL, nil)
				change(req)
				_, err := tr.RoundTrip(req)
				require.Error(t, err)
				assert.Equal(t, 1, attempts)
				synctest.Wait()
			})
		}
	}
}

// A handshake that fails over another connection than one of package net may have
// any cause.
//
//retrip:promise P8
func TestHopeless_OwnVerification(t *testing.T) {
	play.Bubble(t, "another failure of the handshake", func(t *testing.T) {
		var dials atomic.Int32
		base := &http.Transport{
			DialContext:     hangsUp(&dials),
			TLSClientConfig: &tls.Config{VerifyConnection: func(tls.ConnectionState) error { return nil }},
		}
		_, err := (&retrip.Transport{Base: base, Policy: play.Steady}).RoundTrip(play.MustRequest(t, "GET", "https://example.com/", nil))
		assert.ErrorIs(t, err, io.ErrClosedPipe)
		assert.EqualValues(t, 4, dials.Load())
	})
}

// A tunnel returns errors of its own types. The caller's verification is not to
// blame for them, whether or not it was called.
//
//retrip:promise P8
func TestHopeless_ErrorOfATunnel(t *testing.T) {
	for _, verify := range []bool{false, true} {
		play.Bubble(t, fmt.Sprint(verify), func(t *testing.T) {
			s := memhttp.NewServer(t, memhttp.HTTPS, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			base := s.Transport()
			var dials atomic.Int32
			base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := s.Listener.Dial(ctx, network, addr)
				if dials.Add(1) == 1 {
					return tunnel{c}, err
				}
				return c, err
			}
			if verify {
				base.TLSClientConfig.VerifyConnection = func(tls.ConnectionState) error { return nil }
			}
			play.Do(t, &retrip.Transport{Base: base, Policy: play.Steady}, play.MustRequest(t, "GET", s.URL, nil))
		})
	}
}

// tunnel is a connection whose errors are of its own types.
type tunnel struct{ net.Conn }

func (tunnel) Read([]byte) (int, error) { return 0, errors.New("tunnel: session shutdown") }

// A proxy that requires a password isn't asked again without one.
//
//retrip:promise P8
func TestHopeless_ProxyWantsAPassword(t *testing.T) {
	for _, tt := range []struct{ status, want int }{{http.StatusProxyAuthRequired, 1}, {http.StatusBadGateway, 4}} {
		play.Bubble(t, fmt.Sprint(tt.status), func(t *testing.T) {
			var asked atomic.Int32
			s := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				w.WriteHeader(tt.status)
			}))
			base := s.Transport()
			base.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse(s.URL) }
			_, err := (&retrip.Transport{Base: base, Policy: play.Steady}).RoundTrip(play.MustRequest(t, "GET", "https://example.com/", nil))
			assert.Error(t, err)
			assert.EqualValues(t, tt.want, asked.Load())
		})
	}
}

// An error that a retry can't fix is recognized wherever it is wrapped, except
// among the earlier errors of an inner Transport, which ended for another
// reason.
//
//retrip:promise P8
func TestHopeless_Wrapped(t *testing.T) {
	untrusted := &tls.CertificateVerificationError{Err: errors.New("unknown authority")}
	for _, tt := range []struct {
		err  error
		want int
	}{
		{fmt.Errorf("wrapped: %w", untrusted), 1},
		{fmt.Errorf("%w: %w", net.ErrClosed, untrusted), 1}, // like the errors of quic-go
		{&retrip.Error{Attempts: 2, Err: errors.Join(untrusted, io.EOF)}, 1},
		{&retrip.Error{Attempts: 2, Reason: retrip.ReasonBudgetExhausted, Err: errors.Join(io.EOF, untrusted)}, 4},
	} {
		base := play.Base(play.Err(tt.err))
		_, err := (&retrip.Transport{Base: base, Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}}).RoundTrip(play.Request(t, "GET", nil))
		assert.ErrorIs(t, err, tt.err)
		assert.Equal(t, tt.want, base.Attempts(), "%v", tt.err)
	}
}

// A base may know schemes that net/http doesn't know. A failure on the network
// doesn't mean that the request is malformed.
//
//retrip:promise P8
func TestHopeless_ForeignScheme(t *testing.T) {
	play.Bubble(t, "unix", func(t *testing.T) {
		attempts := 0
		tr := &retrip.Transport{Policy: play.Steady, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			attempts++
			return nil, &net.OpError{Op: "dial", Net: "unix", Err: syscall.ECONNREFUSED}
		})}
		req := play.MustRequest(t, "GET", "http://host/", nil)
		req.URL.Scheme = "http+unix"
		_, err := tr.RoundTrip(req)
		assert.ErrorIs(t, err, syscall.ECONNREFUSED)
		assert.Equal(t, 4, attempts)
	})
}

// What net/http itself refuses fails at once, whatever the base (P8).
//
//retrip:promise P8
func TestHopeless(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*http.Request)
	}{
		{"scheme", func(r *http.Request) { r.URL.Scheme = "rstp" }},
		{"no scheme", func(r *http.Request) { r.URL.Scheme = "" }},
		{"no host", func(r *http.Request) { r.URL.Host = "" }},
		{"no URL", func(r *http.Request) { r.URL = nil }},
		{"header value", func(r *http.Request) { r.Header["X"] = []string{"a\nb"} }},
		{"header name", func(r *http.Request) { r.Header["X y"] = nil; r.Header["X y"] = []string{"v"} }},
		{"DEL in a header value", func(r *http.Request) { r.Header["X"] = []string{"a\x7f"} }},
		{"header name beside the letters", func(r *http.Request) { r.Header["X["] = []string{"v"} }},
		{"header name beside the digits", func(r *http.Request) { r.Header["X:"] = []string{"v"} }},
		{"empty header name", func(r *http.Request) { r.Header[""] = []string{"v"} }},
		{"no header map", func(r *http.Request) { r.Header = nil }},
		{"method", func(r *http.Request) { r.Method = "BAD METHOD" }},
		{"length without body", func(r *http.Request) { r.ContentLength = 1 }},
		{"trailer", func(r *http.Request) { r.Trailer = http.Header{"X": {"a\x00b"}} }},
	} {
		play.Bubble(t, tt.name, func(t *testing.T) {
			s := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			attempts, inner := 0, s.Transport()
			tr := &retrip.Transport{Policy: play.Steady, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				attempts++
				return inner.RoundTrip(r)
			})}
			req := play.MustRequest(t, "GET", s.URL, nil)
			req.Header.Set("Idempotency-Key", "k")
			tt.change(req)
			_, err := tr.RoundTrip(req)
			assert.Error(t, err)
			assert.NotErrorAs(t, err, new(*retrip.Error))
			assert.Equal(t, 1, attempts)
			assert.Empty(t, play.Held(tr))
		})
	}
	for _, err := range []error{
		&net.DNSError{Err: "no such host", IsNotFound: true},
		&tls.CertificateVerificationError{Err: errors.New("unknown authority")},
		&net.OpError{Op: "dial", Err: &net.AddrError{Err: "missing port in address"}},
		http.ErrSchemeMismatch, http.ErrNotSupported,
	} {
		play.Bubble(t, fmt.Sprintf("%T %[1]v", err), func(t *testing.T) {
			base := play.Base(play.Err(err))
			_, got := (&retrip.Transport{Base: base, Policy: play.Steady}).RoundTrip(play.Request(t, "GET", nil))
			assert.Equal(t, err, got)
			assert.Equal(t, 1, base.Attempts())
		})
	}
	for _, err := range []*net.DNSError{
		{Err: "timeout", IsTimeout: true, IsNotFound: true},
		{Err: "try again", IsTemporary: true, IsNotFound: true},
		{Err: "lame referral"},
	} {
		play.Bubble(t, "DNS heals: "+err.Err, func(t *testing.T) {
			base := play.Base(play.Err(err), play.Reply(200))
			play.Do(t, &retrip.Transport{Base: base, Policy: play.Steady}, play.Request(t, "POST", bytes.NewReader(nil)))
			assert.Equal(t, 2, base.Attempts())
		})
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
