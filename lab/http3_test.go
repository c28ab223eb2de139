// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// serve3 starts an HTTP/3 server on loopback and returns its URL and a base for
// it.
func serve3(t *testing.T, h http.Handler) (url string, base *http3.Transport) {
	t.Helper()
	s := Serve(HTTP2, http.NotFoundHandler()) // for its certificate
	defer s.Close()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &http3.Server{Handler: h, TLSConfig: http3.ConfigureTLSConfig(&tls.Config{Certificates: s.TLS.Certificates})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(conn)
	}()
	base = base3(t)
	t.Cleanup(func() {
		base.Close()
		server.Close()
		<-done
		conn.Close()
	})
	return "https://" + conn.LocalAddr().String(), base
}

func base3(t *testing.T) *http3.Transport {
	base := &http3.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(func() { base.Close() })
	return base
}

// reset ends the stream of a request with an error code.
func reset(w http.ResponseWriter, code http3.ErrCode) {
	stream, err := w.(http3.HTTPStreamer).HTTPStream()
	if err != nil {
		panic(err)
	}
	stream.CancelRead(quic.StreamErrorCode(code))
	stream.CancelWrite(quic.StreamErrorCode(code))
}

// classifyHTTP3 is a [retrip.Policy.Classify] for quic-go's http3.Transport. A stream
// that was reset with H3_REQUEST_REJECTED was not processed (RFC 9114 §4.1.1), so the
// request may be repeated whatever its method. Other errors need no classification.
func classifyHTTP3(_ *http.Request, _ *http.Response, err error) retrip.Verdict {
	if e, ok := errors.AsType[*http3.Error](err); ok && e.Remote && e.ErrorCode == http3.ErrCodeRequestRejected {
		return retrip.Unprocessed
	}
	return retrip.ByRule
}

// With HTTP/3 as the base, the contract is the same: which requests are
// retried, when, and with which body. The first answer fails, the others
// succeed.
//
//retrip:promise P6 P11
func TestHTTP3(t *testing.T) {
	answer := func(status int, fields ...string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(fields); i += 2 {
				w.Header().Set(fields[i], fields[i+1])
			}
			w.WriteHeader(status)
		}
	}
	kill := func(code http3.ErrCode) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) { reset(w, code) }
	}
	// Long enough for a slow machine to connect and answer.
	const patience = 3 * time.Second
	hang := func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }
	const body = "the body, byte for byte"
	whole := func() io.Reader { return strings.NewReader(body) }
	large := func() io.Reader { return strings.NewReader(strings.Repeat(body, 50_000)) }
	streamed := func() io.Reader { return stream(body) }
	for _, tt := range []struct {
		name     string
		method   string
		body     func() io.Reader
		first    func(http.ResponseWriter, *http.Request)
		policy   retrip.Policy
		arrivals int64
		status   int // 0 means an error
		least    time.Duration
	}{
		{"200", http.MethodGet, nil, answer(200), retrip.Policy{}, 1, 200, 0},
		{"503", http.MethodGet, nil, answer(503), retrip.Policy{}, 2, 200, 0},
		{"404", http.MethodGet, nil, answer(404), retrip.Policy{}, 1, 404, 0},
		{"429 with Retry-After", http.MethodGet, nil, answer(429, "Retry-After", "1"), retrip.Policy{}, 2, 200, time.Second},
		{"Retry-After behind the deadline", http.MethodGet, nil, answer(503, "Retry-After", "20"), retrip.Policy{Deadline: 10 * time.Second}, 1, 503, 0},
		{"body with GetBody", http.MethodPut, whole, answer(503), retrip.Policy{}, 2, 200, 0},
		{"streamed body", http.MethodPut, streamed, answer(503), retrip.Policy{}, 2, 200, 0},
		{"large body, unread by the server", http.MethodPut, large, answer(503), retrip.Policy{}, 2, 200, 0},
		{"POST, 503", http.MethodPost, whole, answer(503), retrip.Policy{}, 1, 503, 0},
		{"POST with a key, 503", http.MethodPost, whole, answer(503), retrip.Policy{IdempotencyKey: retrip.On}, 2, 200, 0},
		{"GET, H3_INTERNAL_ERROR", http.MethodGet, nil, kill(http3.ErrCodeInternalError), retrip.Policy{}, 2, 200, 0},
		{"POST, H3_INTERNAL_ERROR", http.MethodPost, whole, kill(http3.ErrCodeInternalError), retrip.Policy{}, 1, 0, 0},
		{"POST, H3_REQUEST_REJECTED", http.MethodPost, streamed, kill(http3.ErrCodeRequestRejected), retrip.Policy{Classify: classifyHTTP3}, 2, 200, 0},
		{"POST, H3_REQUEST_CANCELLED", http.MethodPost, streamed, kill(http3.ErrCodeRequestCanceled), retrip.Policy{Classify: classifyHTTP3}, 1, 0, 0},
		{"GET, no answer in time", http.MethodGet, nil, hang, retrip.Policy{AttemptTimeout: patience}, 2, 200, patience},
		{"POST, no answer in time", http.MethodPost, whole, hang, retrip.Policy{AttemptTimeout: patience}, 1, 0, patience},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var arrivals atomic.Int64
			var got atomic.Value
			url, base := serve3(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if arrivals.Add(1) == 1 && tt.name != "200" {
					tt.first(w, req)
					return
				}
				if content, err := io.ReadAll(req.Body); err == nil {
					got.Store(string(content))
				}
			}))
			transport := &retrip.Transport{Base: base, Policy: tt.policy}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			want := ""
			var content io.Reader
			if tt.body != nil {
				want, content = string(play.Must(io.ReadAll(tt.body()))), tt.body()
			}
			began := time.Now()
			resp, err := transport.RoundTrip(play.MustRequest(t, tt.method, url, content).WithContext(ctx))
			took := time.Since(began)
			if tt.status == 0 {
				require.Error(t, err)
			} else {
				require.NoError(t, err)
				resp.Body.Close()
				assert.Equal(t, tt.status, resp.StatusCode)
				assert.Equal(t, "HTTP/3.0", resp.Proto)
				if resp.StatusCode == 200 {
					assert.Equal(t, want, got.Load())
				}
			}
			assert.Equal(t, tt.arrivals, arrivals.Load())
			assert.GreaterOrEqual(t, took, tt.least)
			if tt.least == 0 {
				assert.Less(t, took, 9*time.Second)
			}
		})
	}
}

// No server listens. In QUIC that is silence, not a refusal. Our own timeout
// ends an attempt that had no connection yet, so a POST is repeated too. If
// quic-go gives up the handshake, its error proves nothing, as over TCP.
//
//retrip:promise P6
func TestHTTP3_NobodyListens(t *testing.T) {
	for _, tt := range []struct {
		method      string
		ours, quics time.Duration
		want        int
	}{
		{method: http.MethodPost, ours: 200 * time.Millisecond, quics: 10 * time.Second, want: 2},
		{method: http.MethodPost, ours: 10 * time.Second, quics: 300 * time.Millisecond, want: 2},
		{method: http.MethodGet, ours: 10 * time.Second, quics: 300 * time.Millisecond, want: 2},
	} {
		t.Run(fmt.Sprintf("%s, AttemptTimeout %v, handshake %v", tt.method, tt.ours, tt.quics), func(t *testing.T) {
			conn, err := net.ListenPacket("udp", "127.0.0.1:0")
			require.NoError(t, err)
			defer conn.Close() // held open and never read
			base := base3(t)
			base.QUICConfig = &quic.Config{HandshakeIdleTimeout: tt.quics}
			attempts := 0
			transport := &retrip.Transport{
				Base: base, Policy: retrip.Policy{MaxAttempts: 2, AttemptTimeout: tt.ours},
				Trace: &retrip.Trace{Attempt: func(retrip.Event) { attempts++ }},
			}
			err = testenv.Try(transport, play.MustRequest(t, tt.method, "https://"+conn.LocalAddr().String(), strings.NewReader("body")))
			var timeout interface{ Timeout() bool }
			require.ErrorAs(t, err, &timeout)
			assert.True(t, timeout.Timeout())
			assert.Equal(t, tt.want, attempts)
		})
	}
}
