// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

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
	for code, want := range map[alert]int{40: 1, 42: 1, 46: 1, 48: 1, 49: 1, 70: 1, 71: 1, 112: 1, 116: 1, 120: 1, 0: 4, 10: 4, 20: 4, 51: 4, 80: 4, 90: 4} {
		for op, want := range map[string]int{"remote error": want, "local error": 4} {
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

// A server that speaks another protocol speaks it again.
//
//retrip:promise P8
func TestHopeless_AnotherProtocol(t *testing.T) {
	for _, tt := range []struct {
		scheme, says string
		want         int
	}{
		{"https", "SSH-2.0-OpenSSH_9.6\r\n", 1},
		{"https", "220 mail.example.com ESMTP\r\n", 1},
		{"http", "\x15\x03\x01\x00\x02\x02\x16", 1},
		{"http", "SSH-2.0-OpenSSH_9.6\r\n", 4},
	} {
		t.Run(fmt.Sprintf("%s %.9q", tt.scheme, tt.says), func(t *testing.T) {
			addr := accept(t, func(c net.Conn) {
				_, _ = bufio.NewReader(c).ReadByte()
				_, _ = io.WriteString(c, tt.says)
				_ = c.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, c)
			})
			req, done := traced(t, request(t, tt.scheme+"://"+addr))
			assert.Error(t, testenv.Try(&retrip.Transport{Base: new(http.Transport), Policy: play.AtOnce}, req))
			assert.Equal(t, tt.want, done.Attempt)
		})
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

// A server that demands HTTP/1.1 isn't asked again over HTTP/2.
//
//retrip:promise P8
func TestHopeless_HTTP11Required(t *testing.T) {
	for name, answer := range map[string]func(w *play.H2Writer, stream uint32){
		"RST_STREAM": func(w *play.H2Writer, s uint32) { w.Reset(s, 0xd) },
		"GOAWAY":     func(w *play.H2Writer, s uint32) { w.GoAway(s, 0xd); w.Close() },
		"at first":   func(w *play.H2Writer, _ uint32) { w.GoAway(0, 0xd); w.Close() },
	} {
		for _, method := range []string{"GET", "POST"} {
			play.Bubble(t, name+" "+method, func(t *testing.T) {
				base, _ := play.H2Server(t, func(w *play.H2Writer, _ int, stream uint32) { answer(w, stream) })
				req, done := traced(t, play.MustRequest(t, method, "http://example.com/", nil))
				assert.ErrorContains(t, testenv.Try(&retrip.Transport{Base: base, Policy: play.Steady}, req), "HTTP_1_1_REQUIRED")
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
