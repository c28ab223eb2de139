// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// The tests in this file run over real TCP, because only package net calls its
// hooks as package net does.

// realServer returns a TLS server on loopback and the configuration of a client
// that trusts it.
func realServer(t *testing.T, http2 bool, h http.HandlerFunc) (*httptest.Server, *tls.Config) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = http2
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	config := s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.ServerName = "example.com"
	return s, config
}

// splice copies between two connections until one ends.
func splice(a, b net.Conn, fromA io.Reader) {
	go func() { _, _ = io.Copy(a, b); a.Close() }()
	_, _ = io.Copy(b, fromA)
}

// connectProxy answers CONNECT by connecting the client with addr.
func connectProxy(addr string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		up, err := net.Dial("tcp", addr)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer up.Close()
		client, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer client.Close()
		_, _ = io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n")
		splice(client, up, buffered)
	}
}

// accept returns the address of a server that serves each connection, and closes it.
func accept(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go testenv.Accept(l, serve)
	return l.Addr().String()
}

// hangingUp returns the address of a server that closes its connections at once.
func hangingUp(t *testing.T) string { return accept(t, func(net.Conn) {}) }

// proxied makes base use the proxy at url.
func proxied(base *http.Transport, proxy string) {
	base.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse(proxy) }
}

// dialers are the ways in which a program may make connections with package net.
var dialers = map[string]func(base *http.Transport){
	"default": func(*http.Transport) {},
	"tls.Dialer": func(base *http.Transport) {
		base.DialTLSContext = (&tls.Dialer{Config: base.TLSClientConfig}).DialContext
	},
	"DialTLSContext": func(base *http.Transport) {
		without := withoutHandshake(base.TLSClientConfig)
		base.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := without(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			if err := c.(*tls.Conn).HandshakeContext(ctx); err != nil {
				c.Close()
				return nil, err
			}
			return c, nil
		}
	},
	"DialTLSContext without a handshake": func(base *http.Transport) {
		base.DialTLSContext = withoutHandshake(base.TLSClientConfig)
	},
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

func withoutHandshake(config *tls.Config) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		plain, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return tls.Client(plain, config), nil
	}
}

// ways are the ways to a server, each with how many handshakes it takes until the
// caller's own code refuses the server, and what the error then says besides.
var ways = []struct {
	name string
	want int32
	says string
}{
	{"the address", 1, ""}, {"a name", 1, ""}, {"an HTTP proxy", 1, ""}, {"an HTTPS proxy", 2, ""},
	{"a refused HTTPS proxy", 1, "proxyconnect tcp: "},
}

// take makes base reach s by a way, and returns the URL.
func take(t *testing.T, way string, s *httptest.Server, base *http.Transport) string {
	t.Helper()
	connect := connectProxy(s.Listener.Addr().String())
	switch way {
	case "a name":
		return strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
	case "an HTTP proxy":
		p := httptest.NewServer(connect)
		t.Cleanup(p.Close)
		proxied(base, p.URL)
	case "an HTTPS proxy", "a refused HTTPS proxy":
		p, _ := realServer(t, false, connect)
		proxied(base, p.URL)
	}
	return s.URL
}

// A server that the caller's own code refuses, with an error of any kind, is not asked
// again, whichever way leads to it, and neither the budget nor the breaker pays for it.
//
//retrip:promise P8
func TestRefused_OverTCP(t *testing.T) {
	n := 0
	for _, dialer := range slices.Sorted(maps.Keys(dialers)) {
		for _, way := range ways {
			for _, http2 := range []bool{false, true} {
				for _, check := range slices.Sorted(maps.Keys(checks)) {
					n++
					refusal := refusals[n%len(refusals)]
					timeout := time.Duration(n/len(refusals)%2) * time.Hour
					t.Run(fmt.Sprintf("%s/by %s/HTTP2 %v/%s/%T/timeout %v", dialer, way.name, http2, check, refusal, timeout), func(t *testing.T) {
						t.Parallel()
						s, config := realServer(t, http2, nothing)
						var asked atomic.Int32
						checks[check](config, func() error {
							if asked.Add(1) < way.want {
								return nil // the proxy's certificate
							}
							return refusal
						})
						base := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: http2}
						t.Cleanup(base.CloseIdleConnections)
						dialers[dialer](base)
						target, says := take(t, way.name, s, base), way.says
						if dialer == "DialTLSContext without a handshake" {
							says = "" // net/http makes the handshake later
						}
						tr := &retrip.Transport{Base: base, Policy: atOnce(timeout)}
						assert.EqualError(t, testenv.Try(tr, request(t, target)), says+refusal.Error())
						assert.Equal(t, way.want, asked.Load())
						assert.Empty(t, play.Held(tr))
					})
				}
			}
		}
	}
}

// refusals are errors of the caller's code.
var refusals = []error{
	errors.New("plain"), fmt.Errorf("wrapped: %w", errors.New("plain")), errors.Join(errors.New("one"), errors.New("two")),
	x509.UnknownAuthorityError{}, &tls.CertificateVerificationError{Err: errors.New("untrusted")},
	incomparableError{"a", "b"}, dynamicError{[]int{1}},
}

// checks are the places where the caller's own code can refuse a server.
var checks = map[string]func(*tls.Config, func() error){
	"VerifyConnection": func(c *tls.Config, refuse func() error) {
		c.VerifyConnection = func(tls.ConnectionState) error { return refuse() }
	},
	"VerifyPeerCertificate": func(c *tls.Config, refuse func() error) {
		c.VerifyPeerCertificate = func([][]byte, [][]*x509.Certificate) error { return refuse() }
	},
}

// incomparableError can't be compared.
type incomparableError []string

func (e incomparableError) Error() string { return strings.Join(e, ", ") }

// dynamicError can be compared only if what it holds can.
type dynamicError struct{ held any }

func (e dynamicError) Error() string { return fmt.Sprint(e.held) }

// A failure on the way to a server is no refusal, even if the caller's code
// reports it with an error of its own.
//
//retrip:promise P8
func TestRefused_NoRefusal(t *testing.T) {
	dial := new(net.Dialer).DialContext
	// failing connects with addr, or with what is asked for, and fails.
	failing := func(addr string, failure error) dialFunc {
		return func(ctx context.Context, network, asked string) (net.Conn, error) {
			c, err := dial(ctx, network, cmp.Or(addr, asked))
			if err != nil {
				return nil, err
			}
			c.Close()
			return nil, failure
		}
	}
	badGateway := func(t *testing.T, base *http.Transport) {
		p, _ := realServer(t, false, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
		proxied(base, p.URL)
	}
	for name, set := range map[string]func(t *testing.T, base *http.Transport){
		"the server hangs up": func(t *testing.T, base *http.Transport) {
			base.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
				return dial(ctx, network, hangingUp(t))
			}
		},
		"the server hangs up, DialTLSContext": func(t *testing.T, base *http.Transport) {
			config := base.TLSClientConfig
			base.DialTLSContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
				return (&tls.Dialer{Config: config}).DialContext(ctx, network, hangingUp(t))
			}
		},
		"the dial function's own proxy": func(t *testing.T, base *http.Transport) {
			base.DialTLSContext = failing(hangingUp(t), errors.New("the proxy is busy"))
		},
		"the dial function's own timeout": func(_ *testing.T, base *http.Transport) {
			base.DialTLSContext = failing("", fmt.Errorf("handshake: %w", slowHandshake{}))
		},
		"a connection of another package breaks": func(_ *testing.T, base *http.Transport) {
			base.DialContext = hangsUp(new(atomic.Int32))
		},
		"a tunnel": func(_ *testing.T, base *http.Transport) {
			base.DialContext = func(_ context.Context, network, addr string) (net.Conn, error) {
				c, err := net.Dial(network, addr)
				return tunnel{c}, err
			}
		},
		"CONNECT fails, net/http's handshake": badGateway,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, config := realServer(t, false, nothing)
			config.VerifyConnection = func(tls.ConnectionState) error { return nil }
			base := &http.Transport{TLSClientConfig: config}
			set(t, base)
			tr := &retrip.Transport{Base: base, Policy: play.AtOnce}
			req, done := traced(t, request(t, s.URL))
			assert.Error(t, testenv.Try(tr, req))
			want := 4
			if name == "the dial function's own timeout" {
				want = 3 // the budget allows two retries after timeouts
			}
			assert.Equal(t, want, done.Attempt)
			assert.NotEmpty(t, tr.HostStates())
		})
	}
}

// tunnel is a connection whose errors are of its own types.
type tunnel struct{ net.Conn }

func (tunnel) Read([]byte) (int, error) { return 0, errors.New("tunnel: session shutdown") }

// slowHandshake is a timeout of another implementation of TLS.
type slowHandshake struct{}

func (slowHandshake) Error() string { return "the handshake takes too long" }
func (slowHandshake) Timeout() bool { return true }
