// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
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

// alert has the shape of crypto/tls's own type.
type alert uint8

func (a alert) Error() string { return fmt.Sprint("tls: alert ", uint8(a)) }

// A server that refuses the client in a handshake would do so again. Other alerts may come
// from a server in trouble.
//
//retrip:promise P8
func TestHopeless_Alerts(t *testing.T) {
	for code, want := range map[alert]int{40: 1, 42: 1, 46: 1, 48: 1, 49: 1, 70: 1, 71: 1, 112: 1, 116: 1, 120: 1, 0: 4, 10: 4, 20: 4, 51: 4, 80: 4, 90: 4, 100: 4} {
		local := 4
		if code == 100 { // the server demands a renegotiation
			local = 1
		}
		for op, want := range map[string]int{"remote error": want, "local error": local} {
			play.Bubble(t, fmt.Sprint(op, code), func(t *testing.T) {
				base := play.Base(play.Err(fmt.Errorf("wrapped: %w", &net.OpError{Op: op, Err: code})))
				assert.Error(t, testenv.Try(&retrip.Transport{Base: base, Policy: play.Steady}, play.Request(t, "GET", nil)))
				assert.Equal(t, want, base.Attempts())
			})
		}
	}
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

// A port that speaks another protocol speaks it again. A plain attempt tells the protocols
// that are met most often; a derived one also knows that nothing else came over the connection.
//
//retrip:promise P8
func TestHopeless_AnotherProtocol(t *testing.T) {
	const settings = "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00@\x00" // of a gRPC server
	for _, tt := range []struct {
		scheme, says   string
		plain, derived int32
	}{
		{"https", "SSH-2.0-OpenSSH_9.6\r\n", 1, 1},
		{"https", "220 mail.example.com ESMTP\r\n", 1, 1},
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
	} {
		t.Run(fmt.Sprintf("%s %.9q", tt.scheme, tt.says), func(t *testing.T) {
			var asked atomic.Int32
			addr := accept(t, func(c net.Conn) {
				asked.Add(1)
				_, _ = bufio.NewReader(c).ReadByte()
				_, _ = io.WriteString(c, tt.says)
				_ = c.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, c)
			})
			base := new(http.Transport)
			for timeout, want := range map[time.Duration]int32{0: tt.plain, time.Hour: tt.derived} {
				asked.Store(0)
				tr := &retrip.Transport{Base: base, Policy: play.AtOnce}
				tr.Policy.AttemptTimeout = timeout
				assert.Error(t, testenv.Try(tr, request(t, tt.scheme+"://"+addr)))
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
				tr := &retrip.Transport{Base: new(http.Transport), Policy: play.AtOnce}
				tr.Policy.AttemptTimeout = timeout
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
			_, _ = bufio.NewReader(c).ReadByte()
			_, _ = fmt.Fprintf(c, "HTTP/1.1 %s\r\n\r\n", environs.line.Load())
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		})
	})
	for status, want := range map[string]int32{"403 Blocked by policy": 1, "407 authenticationrequired": 1, "403": 1, "502 Blocked": 4, "429 Busy": 4, "503": 4} {
		environs.line.Store(status)
		environs.asked.Store(0)
		err := testenv.Try(&retrip.Transport{Policy: play.AtOnce}, request(t, "https://example.com/"))
		_, phrase, _ := strings.Cut(status, " ")
		assert.ErrorContains(t, err, cmp.Or(phrase, "unknown status code"))
		assert.Equal(t, want, environs.asked.Load(), status)
	}
}

// A proxy that answers CONNECT with something else than HTTP is none.
//
//retrip:promise P8
func TestHopeless_ProxyIsNone(t *testing.T) {
	for timeout, want := range map[time.Duration]int32{0: 4, time.Hour: 1} {
		var asked atomic.Int32
		addr := accept(t, func(c net.Conn) {
			asked.Add(1)
			_, _ = bufio.NewReader(c).ReadByte()
			_, _ = io.WriteString(c, "<html>\r\n")
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		})
		base := new(http.Transport)
		proxied(base, "http://"+addr)
		tr := &retrip.Transport{Base: base, Policy: play.AtOnce}
		tr.Policy.AttemptTimeout = timeout
		assert.Error(t, testenv.Try(tr, request(t, "https://example.com/")))
		assert.Equal(t, want, asked.Load())
	}
}

// A proxy that refuses the client refuses it again. One that fails may recover.
//
//retrip:promise P8
func TestHopeless_Proxies(t *testing.T) {
	for line, want := range map[string]int{
		"407 Proxy Authentication Required": 1, "403 Forbidden": 1, "405 Method Not Allowed": 1, "405 Not Allowed": 1, "400 BAD REQUEST": 1, "302 Found": 1,
		"408 Request Timeout": 4, "429 Too Many Requests": 4, "500 Internal Server Error": 4, "502 Bad Gateway": 4, "503 Service Unavailable": 4,
		"403 Forbidden ( The server denied the specified URL. )": 1,
		"403 Blocked by policy":                                  4, "403": 4, // net/http's error doesn't say 403
	} {
		play.Bubble(t, line, func(t *testing.T) {
			asked := refusedProxy(t, "http://proxy:1", "HTTP/1.1 "+line+"\r\n\r\n")
			assert.Equal(t, want, asked)
		})
	}
	for reply, want := range map[string]int{
		"\x05\x00\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00": 1, // not allowed by ruleset
		"\x05\x00\x05\x07\x00\x01\x00\x00\x00\x00\x00\x00": 1, // command not supported
		"\x05\x00\x05\x08\x00\x01\x00\x00\x00\x00\x00\x00": 1, // address type not supported
		"\x05\x00\x05\x01\x00\x01\x00\x00\x00\x00\x00\x00": 4, // general failure
		"\x05\x00\x05\x04\x00\x01\x00\x00\x00\x00\x00\x00": 4, // host unreachable
		"\x05\x00\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00": 4, // connection refused
		"\x05\xff":                         1, // no acceptable authentication method
		"\x05\x02\x01\x01":                 1, // wrong password
		"HTTP/1.1 400 Bad Request\r\n\r\n": 1,
		"":                                 4,
		"\x05\x00\x05":                     4,
	} {
		play.Bubble(t, fmt.Sprintf("SOCKS %q", reply), func(t *testing.T) {
			assert.Equal(t, want, refusedProxy(t, "socks5://user:wrong@proxy:1", reply))
		})
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

// The client's own refusals of a server are final, whoever's implementation of TLS says so.
//
//retrip:promise P8
func TestHopeless_RefusedByTheClient(t *testing.T) {
	t.Run("an old version", func(t *testing.T) {
		var asked atomic.Int32
		addr := accept(t, func(c net.Conn) {
			asked.Add(1)
			_, _ = bufio.NewReader(c).ReadByte()
			// A ServerHello of TLS 1.0.
			hello := append([]byte{2, 0, 0, 38, 3, 1}, make([]byte, 32)...)
			hello = append(hello, 0, 0xc0, 0x13, 0)
			_, _ = c.Write(append([]byte{22, 3, 1, 0, byte(len(hello))}, hello...))
			_, _ = io.Copy(io.Discard, c)
		})
		for _, timeout := range []time.Duration{0, time.Hour} {
			asked.Store(0)
			tr := &retrip.Transport{Base: new(http.Transport), Policy: play.AtOnce}
			tr.Policy.AttemptTimeout = timeout
			assert.ErrorContains(t, testenv.Try(tr, request(t, "https://"+addr)), "unsupported protocol version 301")
			assert.EqualValues(t, 1, asked.Load())
			assert.Empty(t, play.Held(tr))
		}
	})
	refused := errors.New("tls: server selected unsupported protocol version 301")
	for _, tt := range []struct {
		err  error
		want int
	}{
		{refused, 1},
		{fmt.Errorf("http2: failed reading the frame payload: %w, note that the frame header looked like an HTTP/1.1 header", errors.New("http2: frame too large")), 1},
		{&net.OpError{Op: "proxyconnect", Err: refused}, 1},
		{&tls.ECHRejectionError{}, 1},
		{fmt.Errorf("another implementation: %w", x509.UnknownAuthorityError{}), 1},
		{x509.HostnameError{Certificate: new(x509.Certificate), Host: "example.com"}, 1},
		{x509.CertificateInvalidError{Reason: x509.Expired}, 1},
		{fmt.Errorf("tls: failed to send closeNotify alert: %w", syscall.EPIPE), 4},
		{&net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.EACCES)}, 1},
		{&net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.EINVAL)}, 1},
		{&net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.ENOENT)}, 4},
		// What forbids this may be the network's.
		{&net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.EPERM)}, 4},
		{&net.OpError{Op: "dial", Net: "tpc", Err: net.UnknownNetworkError("tpc")}, 1},
		{errors.New(`invalid proxy address "::": missing protocol scheme`), 1},
		{errors.New("the dialer's own words"), 4},
	} {
		for _, timeout := range []time.Duration{0, time.Hour} {
			play.Bubble(t, fmt.Sprintf("%v, timeout %v", tt.err, timeout), func(t *testing.T) {
				base := play.Base(play.Err(tt.err))
				tr := &retrip.Transport{Base: base, Policy: timely(timeout)}
				assert.ErrorIs(t, testenv.Try(tr, play.Request(t, "GET", nil)), tt.err)
				assert.Equal(t, tt.want, base.Attempts())
				assert.True(t, tt.want > 1 || len(play.Held(tr)) == 0)
			})
		}
	}
}

//retrip:promise P8
func TestHopeless_HeaderAboveTheLimit(t *testing.T) {
	play.EachProto(t, func(t *testing.T, proto memhttp.Proto) {
		s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for i := range 60 {
				w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 100))
			}
		}))
		base := s.Transport()
		base.MaxResponseHeaderBytes = 5_000
		req, done := traced(t, play.MustRequest(t, "GET", s.URL, nil))
		assert.Error(t, testenv.Try(&retrip.Transport{Base: base, Policy: play.Steady}, req))
		assert.Equal(t, 1, done.Attempt)
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

// A server that demands HTTP/1.1, or better TLS, isn't asked again over HTTP/2.
//
//retrip:promise P8
func TestHopeless_HTTP2Refused(t *testing.T) {
	for name, answer := range map[string]func(w *play.H2Writer, stream uint32, code uint32){
		"RST_STREAM": func(w *play.H2Writer, s, code uint32) { w.Reset(s, code) },
		"GOAWAY":     func(w *play.H2Writer, s, code uint32) { w.GoAway(s, code); w.Close() },
		"at first":   func(w *play.H2Writer, _, code uint32) { w.GoAway(0, code); w.Close() },
	} {
		for code, text := range map[uint32]string{0xc: "INADEQUATE_SECURITY", 0xd: "HTTP_1_1_REQUIRED"} {
			play.Bubble(t, name+" "+text, func(t *testing.T) {
				method := []string{"GET", "POST"}[code&1]
				base, _ := play.H2Server(t, func(w *play.H2Writer, _ int, stream uint32) { answer(w, stream, code) })
				req, done := traced(t, play.MustRequest(t, method, "http://example.com/", nil))
				assert.ErrorContains(t, testenv.Try(&retrip.Transport{Base: base, Policy: play.Steady}, req), text)
				assert.Equal(t, 1, done.Attempt)
				assert.Empty(t, done.Reason)
			})
		}
	}
}

// HTTP/2's ENHANCE_YOUR_CALM says what a 429 says.
//
//retrip:promise P9
func TestCalm(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(w *play.H2Writer, stream uint32)
		want   time.Duration
	}{
		"RST_STREAM":              {func(w *play.H2Writer, s uint32) { w.Reset(s, 0xb) }, 7 * time.Second},
		"GOAWAY":                  {func(w *play.H2Writer, s uint32) { w.GoAway(s, 0xb); w.Close() }, 7 * time.Second},
		"GOAWAY at first":         {func(w *play.H2Writer, _ uint32) { w.GoAway(0, 0xb); w.Close() }, 7 * time.Second},
		"RST_STREAM for a cancel": {func(w *play.H2Writer, s uint32) { w.Reset(s, 8) }, time.Second},
	} {
		play.Bubble(t, name, func(t *testing.T) {
			first := true
			base, _ := play.H2Server(t, func(w *play.H2Writer, _ int, stream uint32) {
				if first {
					first = false
					tt.answer(w, stream)
					return
				}
				w.OK(stream)
			})
			policy := retrip.Policy{Backoff: retrip.Backoff{Base: time.Second, ThrottleBase: 7 * time.Second, Jitter: retrip.NoJitter}}
			start := time.Now()
			play.Do(t, &retrip.Transport{Base: base, Policy: policy}, play.MustRequest(t, "GET", "http://example.com/", nil))
			assert.Equal(t, tt.want, time.Since(start))
		})
	}
}
