// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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

// A server that refuses the client in a handshake would do so again. Other alerts may come
// from a server in trouble.
//
//retrip:promise P8
func TestHopeless_Alerts(t *testing.T) {
	for name, set := range map[string]func(server, client *tls.Config){
		"version": func(server, client *tls.Config) {
			server.MinVersion, client.MaxVersion = tls.VersionTLS13, tls.VersionTLS12
		},
		"no certificate": func(server, _ *tls.Config) { server.ClientAuth = tls.RequireAnyClientCert },
		"no certificate, TLS 1.2": func(server, _ *tls.Config) {
			server.ClientAuth, server.MaxVersion = tls.RequireAnyClientCert, tls.VersionTLS12
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewUnstartedServer(http.HandlerFunc(nothing))
			s.Config.ErrorLog = log.New(io.Discard, "", 0)
			client := new(tls.Config)
			s.TLS = new(tls.Config)
			set(s.TLS, client)
			s.StartTLS()
			t.Cleanup(s.Close)
			client.RootCAs = s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
			req, done := traced(t, request(t, s.URL))
			assert.ErrorContains(t, testenv.Try(&retrip.Transport{Base: &http.Transport{TLSClientConfig: client}, Policy: play.AtOnce}, req), "remote error")
			assert.Equal(t, 1, done.Attempt)
		})
	}
}

// says makes c say text to the first byte, and nothing more.
func says(c net.Conn, text string) {
	_, _ = bufio.NewReader(c).ReadByte()
	_, _ = io.WriteString(c, text)
	_ = c.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, c)
}

// A port that speaks another protocol speaks it again. A plain attempt tells the protocols
// that are met most often; a derived one also knows that nothing else came over the connection.
//
//retrip:promise P8
func TestHopeless_AnotherProtocol(t *testing.T) {
	const settings = "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00@\x00" // of a gRPC server
	hello := "\x16\x03\x01\x00\x2a\x02\x00\x00\x26\x03\x01" + strings.Repeat("\x00", 33) + "\xc0\x13\x00"
	for _, tt := range []struct {
		to, says       string
		plain, derived int32
	}{
		{"https", "SSH-2.0-OpenSSH_9.6\r\n", 1, 1},
		{"https", "220 mail.example.com ESMTP\r\n", 1, 1},
		{"https", hello, 1, 1}, // of TLS 1.0, which the client refuses
		{"http", "\x15\x03\x01\x00\x02\x02\x16", 1, 1},
		{"http", settings, 1, 1},
		{"http", "SSH-2.0-OpenSSH_9.6\r\n", 1, 1},
		{"http", "220 mail.example.com ESMTP\r\n", 4, 1},
		{"http", "HTTP/1.1 OK\r\n\r\n", 4, 1},
		{"http", "SSH-2.0-OpenSSH_9.6p1 Ubuntu-3ubuntu13.5\r\n", 1, 1},
		{"http", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", 1, 1},
		{"http", "ICY 200 OK\r\n\r\n", 4, 1},
		{"http", "", 4, 4},
		{"http", "\r\n", 4, 4},
		// A response that breaks in its first line.
		{"http", "H", 4, 4},
		{"http", "HTTP/1.1", 4, 4},
		{"http", "HTTP/1.1 50", 4, 4},
		{"a proxy", "<html>\r\n", 4, 1},
	} {
		t.Run(fmt.Sprintf("%s %.9q", tt.to, tt.says), func(t *testing.T) {
			var asked atomic.Int32
			addr := accept(t, func(c net.Conn) {
				asked.Add(1)
				says(c, tt.says)
			})
			base, url := new(http.Transport), tt.to+"://"+addr
			if tt.to == "a proxy" {
				proxied(base, "http://"+addr)
				url = "https://example.com/"
			}
			for timeout, want := range map[time.Duration]int32{0: tt.plain, time.Hour: tt.derived} {
				asked.Store(0)
				tr := &retrip.Transport{Base: base, Policy: atOnce(timeout)}
				assert.Error(t, testenv.Try(tr, request(t, url)))
				assert.Equal(t, want, asked.Load(), "timeout %v", timeout)
				assert.True(t, want > 1 || len(play.Held(tr)) == 0)
			}
		})
	}
}

// What arrives over a connection that has carried a response may be the rest of that. A plain
// attempt doesn't know what its connection has carried: it tells other protocols by their words.
//
//retrip:promise P8
func TestHopeless_RestOfAResponse(t *testing.T) {
	for rest, plain := range map[string]int32{"0\r\n\r\n": 4, "\x00\x00\x00\x18ftypmp42\n": 4, "\x00\x00\n": 4, strings.Repeat("\x00", 20) + "\n": 4,
		"\x15\x03\x01\x00\x02\x02\x16\n": 1, "SSH-2.0-OpenSSH_9.6\r\n": 1} {
		t.Run(fmt.Sprintf("%.9q", rest), func(t *testing.T) {
			var asked atomic.Int32
			addr := accept(t, func(c net.Conn) {
				for ask := bufio.NewReader(c); ; {
					req, err := http.ReadRequest(ask)
					switch {
					case err != nil:
						return
					case req.URL.Path == "/first":
						_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
					case req.URL.Path == "/second":
						asked.Add(1)
						_, _ = io.WriteString(c, rest)
						return
					}
				}
			})
			for timeout, want := range map[time.Duration]int32{0: plain, time.Hour: 2} {
				tr := &retrip.Transport{Base: new(http.Transport), Policy: atOnce(timeout)}
				play.Do(t, tr, request(t, "http://"+addr+"/first"))
				asked.Store(0)
				assert.Error(t, testenv.Try(tr, request(t, "http://"+addr+"/second")))
				assert.Equal(t, want, asked.Load(), "timeout %v: the second came first over its connection", timeout)
			}
		})
	}
}

// environs is a proxy that answers with line, and counts. net/http reads the environment once,
// so the proxy serves as long as the process.
var environs struct {
	line  atomic.Value
	asked atomic.Int32
	once  sync.Once
}

// The default base knows the status of a proxy's refusal, whatever its phrase.
//
//retrip:promise P8
func TestHopeless_ProxyOfTheDefaultBase(t *testing.T) {
	environs.once.Do(func() {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Setenv("HTTPS_PROXY", "http://"+l.Addr().String())
		go testenv.Accept(l, func(c net.Conn) {
			environs.asked.Add(1)
			says(c, fmt.Sprintf("HTTP/1.1 %s\r\n\r\n", environs.line.Load()))
		})
	})
	for status, want := range map[string]int32{"403 Blocked by policy": 1, "407 authenticationrequired": 1, "403": 1, "500 Oops": 4, "502 Blocked": 4, "429 Busy": 4, "503": 4} {
		environs.line.Store(status)
		environs.asked.Store(0)
		err := testenv.Try(&retrip.Transport{Policy: play.AtOnce}, request(t, "https://example.com/"))
		_, phrase, _ := strings.Cut(status, " ")
		assert.ErrorContains(t, err, cmp.Or(phrase, "unknown status code"))
		assert.Equal(t, want, environs.asked.Load(), status)
	}
}

// A proxy that refuses the client refuses it again. One that fails may recover.
//
//retrip:promise P8
func TestHopeless_Proxies(t *testing.T) {
	const socks = "\x05\x00\x05"
	for _, tt := range []struct {
		proxy string
		says  []string
		want  int
	}{
		{"http", []string{"407 Proxy Authentication Required", "403 Forbidden", "405 Method Not Allowed", "405 Not Allowed"}, 1},
		{"http", []string{"400 BAD REQUEST", "302 Found", "403 Forbidden ( The server denied the specified URL. )"}, 1},
		{"http", []string{"408 Request Timeout", "429 Too Many Requests", "500 Internal Server Error", "502 Bad Gateway", "503 Service Unavailable"}, 4},
		{"http", []string{"403 Blocked by policy", "403"}, 4},                   // net/http's error doesn't say 403
		{"socks5", []string{socks + "\x02", socks + "\x07", socks + "\x08"}, 1}, // what isn't allowed or supported
		{"socks5", []string{socks + "\x01", socks + "\x04", socks + "\x05"}, 4}, // a failure behind the proxy
		{"socks5", []string{"\x05\xff", "\x05\x02\x01\x01"}, 1},                 // another authentication, or password
		{"socks5", []string{"HTTP/1.1 400 Bad Request\r\n\r\n"}, 1},
		{"socks5", []string{"", socks}, 4},
	} {
		for _, says := range tt.says {
			play.Bubble(t, fmt.Sprintf("%s %q", tt.proxy, says), func(t *testing.T) {
				switch {
				case tt.proxy == "http":
					says = "HTTP/1.1 " + says + "\r\n\r\n"
				case len(says) == len(socks)+1:
					says += "\x00\x01\x00\x00\x00\x00\x00\x00" // an address
				}
				assert.Equal(t, tt.want, refusedProxy(t, tt.proxy+"://user:wrong@proxy:1", says))
			})
		}
	}
}

// refusedProxy returns how often a request asks a proxy that says only reply.
func refusedProxy(t *testing.T, proxy, reply string) (asked int) {
	for _, timeout := range []time.Duration{0, time.Hour} {
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			go func() {
				defer server.Close()
				go func() { _, _ = io.Copy(io.Discard, server) }()
				_, _ = io.WriteString(server, reply)
			}()
			return socksConn{client}, nil
		}}
		proxied(transport, proxy)
		base := play.Keep(transport.RoundTrip)
		tr := &retrip.Transport{Base: base, Policy: timely(timeout)}
		assert.Error(t, testenv.Try(tr, play.MustRequest(t, "GET", "https://example.com/", nil)))
		assert.True(t, base.Attempts() > 1 || len(play.Held(tr)) == 0)
		assert.True(t, asked == 0 || asked == base.Attempts(), "plain and derived")
		asked = base.Attempts()
	}
	return asked
}

// socksConn has an address, which net/http's SOCKS client reads.
type socksConn struct{ net.Conn }

func (socksConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1080} }

//retrip:promise P8
func TestHopeless_HeaderAboveTheLimit(t *testing.T) {
	play.EachProto(t, func(t *testing.T, proto memhttp.Proto) {
		for _, tt := range []struct{ fields, early int }{{60, 0}, {6, 60}} {
			s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for i := range tt.fields {
					w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 100))
				}
				for range tt.early {
					w.WriteHeader(http.StatusEarlyHints)
				}
			}))
			base := s.Transport()
			base.MaxResponseHeaderBytes = 5_000
			req, done := traced(t, play.MustRequest(t, "GET", s.URL, nil))
			assert.Error(t, testenv.Try(&retrip.Transport{Base: base, Policy: play.Steady}, req))
			assert.Equal(t, 1, done.Attempt, tt)
		}
	})
}

// A cache that has nothing stored has answered.
//
//retrip:promise P8
func TestHopeless_OnlyIfCached(t *testing.T) {
	for _, tt := range []struct {
		status int
		value  string
		want   int
	}{
		{504, "max-stale=5, Only-If-Cached", 1}, {504, "max-stale=5", 2}, {503, "only-if-cached", 2},
	} {
		play.Bubble(t, fmt.Sprint(tt), func(t *testing.T) {
			base := play.Base(play.Reply(tt.status), play.Reply(200))
			req := play.Request(t, "GET", nil)
			req.Header.Set("Cache-Control", tt.value)
			play.Do(t, &retrip.Transport{Base: base, Policy: play.Steady}, req)
			assert.Equal(t, tt.want, base.Attempts())
		})
	}
}
