// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
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
)

// A policy declares methods and requests idempotent, and the other way round.
func TestIdempotent_Policy(t *testing.T) {
	no := func(*http.Request) bool { return false }
	yes := func(*http.Request) bool { return true }
	for _, tt := range []struct {
		name   string
		method string
		change func(*retrip.Policy)
		want   int
	}{
		{"a POST isn't", "POST", func(*retrip.Policy) {}, 1},
		{"a CONNECT isn't", "CONNECT", func(*retrip.Policy) {}, 1},
		{"a QUERY is (RFC 10008)", "QUERY", func(*retrip.Policy) {}, 3},
		{"a QUERY in lower case isn't", "query", func(*retrip.Policy) {}, 1},
		{"methods are case-sensitive", "get", func(*retrip.Policy) {}, 1},
		{"no method is GET", "", func(*retrip.Policy) {}, 3},
		{"further methods", "REPORT", func(p *retrip.Policy) { p.IdempotentMethods = []string{"REPORT"} }, 3},
		{"declared", "POST", func(p *retrip.Policy) { p.Idempotent = yes }, 3},
		{"forbidden", "GET", func(p *retrip.Policy) { p.Idempotent = no }, 1},
		{"forbidden, but vouched for", "GET", func(p *retrip.Policy) { p.Idempotent = no; p.Unprocessed = []int{503} }, 3},
		{"unprocessed", "POST", func(p *retrip.Policy) { p.Unprocessed = []int{503} }, 3},
		{"another status unprocessed", "POST", func(p *retrip.Policy) { p.Unprocessed = []int{429} }, 1},
		{"Classify vouches", "POST", func(p *retrip.Policy) {
			p.Classify = func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
				if resp.StatusCode == 503 {
					return retrip.NotProcessed
				}
				return retrip.ByRule
			}
		}, 3},
		{"Classify doesn't vouch", "POST", func(p *retrip.Policy) {
			p.Classify = func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.Retryable }
		}, 1},
		{"a key of ours", "POST", func(p *retrip.Policy) { p.IdempotencyKey = retrip.On }, 3},
	} {
		bubbled(t, tt.name, func(t *testing.T) {
			base := plays(replies(503), replies(503), replies(200))
			resp, err := (&retrip.Transport{Base: base, Policy: with(tt.change)}).RoundTrip(&http.Request{
				Method: tt.method, URL: &url.URL{Scheme: "http", Host: "example.com"}, Header: http.Header{}})
			require.NoError(t, err)
			finish(t, resp)
			assert.Equal(t, tt.want, base.attempts())
		})
	}
}

// Every attempt carries the same key, the caller's own included.
func TestIdempotencyKey(t *testing.T) {
	keyed := func(p *retrip.Policy) { p.IdempotencyKey = retrip.On }
	bubbled(t, "fresh, quoted, the same on all attempts", func(t *testing.T) {
		base := plays(replies(503), replies(503), replies(200))
		tr := &retrip.Transport{Base: base, Policy: with(keyed)}
		seen := map[string]bool{}
		for range 3 {
			base.reqs, base.header = nil, nil
			req := request(t, "POST", strings.NewReader("x"))
			header := req.Header
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			finish(t, resp)
			require.Equal(t, 3, base.attempts())
			key := base.header[0].Get("Idempotency-Key")
			assert.Regexp(t, `^"[A-Z2-7]{26,}"$`, key)
			for _, h := range base.header {
				assert.Equal(t, []string{key}, h["Idempotency-Key"])
			}
			assert.False(t, seen[key])
			seen[key] = true
			assert.Empty(t, header)
			assert.Empty(t, req.Header)
		}
	})
	bubbled(t, "a request without a header map", func(t *testing.T) {
		base := plays(replies(200))
		req := request(t, "POST", nil)
		req.Header = nil
		resp, err := (&retrip.Transport{Base: base, Policy: with(keyed)}).RoundTrip(req)
		require.NoError(t, err)
		finish(t, resp)
		assert.NotEmpty(t, base.header[0].Get("Idempotency-Key"))
		assert.Nil(t, req.Header)
	})
	bubbled(t, "the caller's own stays", func(t *testing.T) {
		base := plays(replies(503), replies(200))
		req := request(t, "POST", nil)
		req.Header.Set("Idempotency-Key", "mine")
		resp, err := (&retrip.Transport{Base: base, Policy: with(keyed)}).RoundTrip(req)
		require.NoError(t, err)
		finish(t, resp)
		for _, h := range base.header {
			assert.Equal(t, []string{"mine"}, h["Idempotency-Key"])
		}
		assert.Same(t, req, base.reqs[0])
	})
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		bubbled(t, name+" of the caller's stays, also where the policy forbids to go by it", func(t *testing.T) {
			base := plays(replies(503))
			req := request(t, "POST", nil)
			req.Header.Set(name, "mine")
			tr := &retrip.Transport{Base: base, Policy: with(keyed)}
			tr.Policy.Idempotent = func(*http.Request) bool { return false }
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			finish(t, resp)
			require.Equal(t, 1, base.attempts())
			assert.Equal(t, http.Header{name: {"mine"}}, base.header[0])
		})
	}
	bubbled(t, "none where none is needed", func(t *testing.T) {
		base := plays(replies(503), replies(200))
		resp, err := (&retrip.Transport{Base: base, Policy: with(keyed)}).RoundTrip(request(t, "GET", nil))
		require.NoError(t, err)
		finish(t, resp)
		assert.NotContains(t, base.header[0], "Idempotency-Key")
		assert.NotContains(t, base.header[1], "Idempotency-Key")
	})
}

// fakeStreamError looks like net/http's own, whose type is unexported.
type fakeStreamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e fakeStreamError) Error() string {
	return fmt.Sprintf("stream error: stream ID %d; %d", e.StreamID, e.Code)
}

type wrapped struct{ error }

func (w wrapped) Unwrap() error { return w.error }

// Proof that a POST was not processed, and what is none (P6).
func TestNeverProcessed(t *testing.T) {
	op := func(op string, err error) error { return &net.OpError{Op: op, Net: "tcp", Err: err} }
	for _, tt := range []struct {
		name string
		err  error
		want int
	}{
		{"dial refused", op("dial", syscall.ECONNREFUSED), 2},
		{"dial timeout", op("dial", context.DeadlineExceeded), 2},
		{"proxy", op("proxyconnect", syscall.ECONNREFUSED), 2},
		{"wrapped dial", wrapped{fmt.Errorf("x: %w", op("dial", syscall.ECONNREFUSED))}, 2},
		{"DNS timeout", &net.DNSError{Err: "timeout", Name: "example.com", IsTimeout: true}, 2},
		{"DNS server failure", op("dial", &net.DNSError{Err: "server misbehaving", IsTemporary: true}), 2},
		{"name doesn't exist", op("dial", &net.DNSError{Err: "no such host", IsNotFound: true}), 1},
		{"refused stream", fakeStreamError{StreamID: 1, Code: 7}, 2},
		{"refused stream, wrapped", fmt.Errorf("x: %w", fakeStreamError{StreamID: 1, Code: 7}), 2},
		{"internal error", fakeStreamError{StreamID: 1, Code: 2}, 1},
		{"joined internal error", errors.Join(errors.New("a"), fakeStreamError{StreamID: 1, Code: 2}), 1},
		{"canceled by the server", fakeStreamError{StreamID: 1, Code: 8}, 1},
		{"enhance your calm", fakeStreamError{StreamID: 1, Code: 11}, 1},
		{"a struct of that shape by another name", lookalike{1, 7}, 1},
		{"no struct, by that name", textStreamError("refused"), 1},
		{"another stream ID", signedStreamError{StreamID: 1, Code: 7}, 1},
		{"another code", wordyStreamError{StreamID: 1, Code: "7"}, 1},
		{"read", op("read", syscall.ECONNRESET), 1},
		{"write", op("write", syscall.EPIPE), 1},
		{"remote error", op("remote error", errors.New("tls: handshake failure")), 1},
		{"EOF", io.EOF, 1},
		{"unexpected EOF", io.ErrUnexpectedEOF, 1},
		{"text that only looks like it", errors.New("dial tcp: connection refused"), 1},
	} {
		bubbled(t, tt.name, func(t *testing.T) {
			base := plays(fails(tt.err), replies(200))
			resp, err := (&retrip.Transport{Base: base, Policy: steady}).RoundTrip(request(t, "POST", strings.NewReader("x")))
			assert.Equal(t, tt.want, base.attempts())
			if tt.want == 1 {
				assert.Equal(t, tt.err, err)
			} else if assert.NoError(t, err) {
				finish(t, resp)
			}
		})
	}
}

type (
	lookalike         struct{ StreamID, Code uint32 }
	textStreamError   string
	signedStreamError struct {
		StreamID int
		Code     uint32
	}
	wordyStreamError struct {
		StreamID uint32
		Code     string
	}
)

func (lookalike) Error() string         { return "no stream error" }
func (textStreamError) Error() string   { return "no stream error" }
func (signedStreamError) Error() string { return "no stream error" }
func (wordyStreamError) Error() string  { return "no stream error" }

// GetConn without GotConn is proof where both were listened for, and a missing
// hook is none.
func TestNeverProcessed_Conn(t *testing.T) {
	lost := errors.New("lost")
	asks := func(got bool) step {
		return func(r *http.Request) (*http.Response, error) {
			if trace := httptrace.ContextClientTrace(r.Context()); trace != nil {
				trace.GetConn("example.com:80")
				if got {
					trace.GotConn(httptrace.GotConnInfo{})
				}
			}
			return nil, lost
		}
	}
	for _, tt := range []struct {
		name   string
		first  step
		derive bool
		want   int
	}{
		{"asked for, not had", asks(false), true, 1},
		{"had", asks(true), true, 1},
		{"nobody listened", asks(false), false, 1},
		{"a base that knows no hooks", fails(lost), true, 1},
	} {
		bubbled(t, tt.name, func(t *testing.T) {
			base := plays(tt.first, replies(200))
			tr := &retrip.Transport{Base: base, Policy: steady}
			if tt.derive {
				tr.Policy.AttemptTimeout = time.Minute
			}
			resp, err := tr.RoundTrip(request(t, "POST", nil))
			assert.Equal(t, tt.want, base.attempts())
			if err == nil {
				finish(t, resp)
			}
		})
	}
}

// A POST whose connection is reset after it was sent is not repeated; a PUT is.
func TestNeverProcessed_Reset(t *testing.T) {
	eachProto(t, func(t *testing.T, proto memhttp.Proto) {
		var seen atomic.Int32
		s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if seen.Add(1) == 1 {
				memhttp.RequestConn(r).Reset()
				panic(http.ErrAbortHandler)
			}
		}))
		for _, timeout := range []time.Duration{0, time.Minute} {
			seen.Store(0)
			tr := &retrip.Transport{Base: s.Transport(), Policy: with(func(p *retrip.Policy) { p.AttemptTimeout = timeout })}
			_, err := tr.RoundTrip(mustRequest(t, "POST", s.URL, strings.NewReader("once")))
			assert.Error(t, err)
			assert.EqualValues(t, 1, seen.Load())
			assert.NotErrorIs(t, err, context.Canceled)

			seen.Store(0)
			resp, err := tr.RoundTrip(mustRequest(t, "PUT", s.URL, strings.NewReader("again")))
			require.NoError(t, err)
			finish(t, resp)
			assert.EqualValues(t, 2, seen.Load())
		}
	})
}

// h2Server speaks just enough HTTP/2 without TLS to answer streams the way
// real servers don't on demand. answer gets the connection's and the stream's
// number, from 1, and writes its frames.
func h2Server(t *testing.T, answer func(w *h2Writer, conn int, stream uint32)) (*http.Transport, *memhttp.Listener) {
	l := memhttp.Listen()
	var mu sync.Mutex
	var conns []net.Conn
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			c.Close()
		}
	})
	go func() {
		for conn := 1; ; conn++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			go serveH2(c, conn, answer)
		}
	}()
	tr := &http.Transport{DialContext: l.Dial, Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return tr, l
}

type h2Writer struct{ net.Conn }

func (w *h2Writer) frame(kind, flags byte, stream uint32, payload ...byte) {
	head := []byte{0, byte(len(payload) >> 8), byte(len(payload)), kind, flags, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(head[5:], stream)
	_, _ = w.Write(append(head, payload...))
}

func (w *h2Writer) ok(stream uint32) { w.frame(1, 4|1, stream, 0x88) } // HEADERS: END_HEADERS, END_STREAM, ":status: 200"
func (w *h2Writer) reset(stream, code uint32) {
	w.frame(3, 0, stream, binary.BigEndian.AppendUint32(nil, code)...)
}
func (w *h2Writer) goAway(last, code uint32) {
	w.frame(7, 0, 0, binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, last), code)...)
}

func serveH2(c net.Conn, conn int, answer func(w *h2Writer, conn int, stream uint32)) {
	defer c.Close()
	r, w := bufio.NewReader(c), &h2Writer{c}
	if _, err := io.ReadFull(r, make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
		return
	}
	w.frame(4, 0, 0)
	for {
		head := make([]byte, 9)
		if _, err := io.ReadFull(r, head); err != nil {
			return
		}
		n := int64(head[0])<<16 | int64(head[1])<<8 | int64(head[2])
		if _, err := io.CopyN(io.Discard, r, n); err != nil {
			return
		}
		stream := binary.BigEndian.Uint32(head[5:])
		switch kind, flags := head[3], head[4]; {
		case kind == 4 && flags&1 == 0:
			w.frame(4, 1, 0)
		case kind <= 1 && flags&1 != 0: // the request has ended
			answer(w, conn, stream)
		}
	}
}

// What HTTP/2 says about a POST that proves that it was not processed, and what
// doesn't.
func TestNeverProcessed_HTTP2(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer func(w *h2Writer, stream uint32) // of the first request
		again  bool
	}{
		{"REFUSED_STREAM", func(w *h2Writer, s uint32) { w.reset(s, 7) }, true},
		{"GOAWAY below the stream", func(w *h2Writer, _ uint32) { w.goAway(0, 0) }, true},
		// net/http's error for it is nothing but text.
		{"GOAWAY with an error at the first stream", func(w *h2Writer, _ uint32) { w.goAway(0, 0xb); w.Close() }, false},
		{"INTERNAL_ERROR", func(w *h2Writer, s uint32) { w.reset(s, 2) }, false},
		{"CANCEL", func(w *h2Writer, s uint32) { w.reset(s, 8) }, false},
		{"GOAWAY that takes the stream in", func(w *h2Writer, s uint32) { w.goAway(s, 0); w.Close() }, false},
	} {
		for _, kind := range []string{"none", "GetBody", "stream"} {
			bubbled(t, tt.name+"/body "+kind, func(t *testing.T) {
				var seen atomic.Int32
				base, _ := h2Server(t, func(w *h2Writer, _ int, stream uint32) {
					if seen.Add(1) == 1 {
						tt.answer(w, stream)
						return
					}
					w.ok(stream)
				})
				var body io.Reader
				switch kind {
				case "GetBody":
					body = strings.NewReader("payload")
				case "stream":
					body = stream([]byte("payload"))
				}
				resp, err := (&retrip.Transport{Base: base, Policy: steady}).RoundTrip(mustRequest(t, "POST", "http://example.com/", body))
				if tt.again {
					if assert.NoError(t, err) {
						finish(t, resp)
					}
					assert.EqualValues(t, 2, seen.Load())
				} else {
					assert.Error(t, err)
					assert.EqualValues(t, 1, seen.Load())
				}
			})
		}
	}
}

// MaxSends bounds what net/http sends within one attempt (P18).
func TestHiddenSends(t *testing.T) {
	for _, tt := range []struct {
		maxSends int
		timeout  time.Duration
		want     int
	}{
		{0, time.Hour, 10},
		{3, time.Hour, 3},
		{3, 0, 3},
	} {
		bubbled(t, fmt.Sprint("MaxSends ", tt.maxSends, ", timeout ", tt.timeout), func(t *testing.T) {
			var seen atomic.Int32
			base, _ := h2Server(t, func(w *h2Writer, _ int, _ uint32) {
				seen.Add(1)
				w.goAway(0, 0)
				w.Close()
			})
			metrics := retrip.NewMetrics()
			tr := &retrip.Transport{Base: base, Metrics: metrics, Policy: with(func(p *retrip.Policy) {
				p.MaxSends, p.AttemptTimeout = tt.maxSends, tt.timeout
			})}
			var last retrip.Event
			ctx := retrip.WithTrace(t.Context(), &retrip.Trace{Done: func(e retrip.Event) { last = e }})
			_, err := tr.RoundTrip(mustRequest(t, "GET", "http://example.com/", nil).WithContext(ctx))
			require.Error(t, err)
			assert.ErrorContains(t, err, "MaxSends")
			assert.Equal(t, retrip.ReasonHiddenSends, last.Reason)
			// Reaching the bound is a failed attempt like any other.
			assert.Equal(t, 4, last.Attempt)
			assert.Equal(t, 3*time.Second, last.Elapsed)
			assert.LessOrEqual(t, seen.Load(), int32(4*tt.want))
			assert.Equal(t, tt.want+1, last.Sends)
			assert.NotErrorIs(t, err, context.Canceled)
		})
	}
}

// A kept connection dies in the instant in which it is used again: GET, PUT and
// DELETE succeed all the same.
func TestStaleConnection(t *testing.T) {
	for _, method := range []string{"GET", "PUT", "DELETE"} {
		for _, body := range []func() io.Reader{
			func() io.Reader { return nil },
			func() io.Reader { return strings.NewReader("payload") },
			func() io.Reader { return stream([]byte("payload")) },
		} {
			bubbled(t, fmt.Sprintf("%s %T", method, body()), func(t *testing.T) {
				var dead atomic.Bool
				s := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					assert.NotContains(t, r.Header, "Idempotency-Key")
					_, _ = io.Copy(io.Discard, r.Body)
					if dead.CompareAndSwap(true, false) {
						c := memhttp.RequestConn(r)
						c.Close()
						panic(http.ErrAbortHandler)
					}
				}))
				tr := &retrip.Transport{Base: s.Transport(), Policy: steady}
				for range 2 {
					resp, err := tr.RoundTrip(mustRequest(t, method, s.URL, body()))
					require.NoError(t, err)
					finish(t, resp)
					assert.Equal(t, 200, resp.StatusCode)
					dead.Store(true)
				}
			})
		}
	}
}

// A base may know schemes that net/http doesn't: what failed on the network was
// not refused for its form.
func TestHopeless_ForeignScheme(t *testing.T) {
	bubbled(t, "unix", func(t *testing.T) {
		attempts := 0
		tr := &retrip.Transport{Policy: steady, Base: rtFunc(func(r *http.Request) (*http.Response, error) {
			attempts++
			return nil, &net.OpError{Op: "dial", Net: "unix", Err: syscall.ECONNREFUSED}
		})}
		req := mustRequest(t, "GET", "http://host/", nil)
		req.URL.Scheme = "http+unix"
		_, err := tr.RoundTrip(req)
		assert.ErrorIs(t, err, syscall.ECONNREFUSED)
		assert.Equal(t, 4, attempts)
	})
}

// What net/http itself refuses fails at once, whoever the base is (P8).
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
		bubbled(t, tt.name, func(t *testing.T) {
			s := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			attempts, inner := 0, s.Transport()
			tr := &retrip.Transport{Policy: steady, Base: rtFunc(func(r *http.Request) (*http.Response, error) {
				attempts++
				return inner.RoundTrip(r)
			})}
			req := mustRequest(t, "GET", s.URL, nil)
			req.Header.Set("Idempotency-Key", "k")
			tt.change(req)
			_, err := tr.RoundTrip(req)
			assert.Error(t, err)
			assert.NotErrorAs(t, err, new(*retrip.Error))
			assert.Equal(t, 1, attempts)
			assert.Empty(t, tr.HostStates())
		})
	}
	for _, err := range []error{
		&net.DNSError{Err: "no such host", IsNotFound: true},
		&tls.CertificateVerificationError{Err: errors.New("unknown authority")},
		&net.OpError{Op: "dial", Err: &net.AddrError{Err: "missing port in address"}},
		http.ErrSchemeMismatch, http.ErrNotSupported,
	} {
		bubbled(t, fmt.Sprintf("%T %[1]v", err), func(t *testing.T) {
			base := plays(fails(err))
			_, got := (&retrip.Transport{Base: base, Policy: steady}).RoundTrip(request(t, "GET", nil))
			assert.Equal(t, err, got)
			assert.Equal(t, 1, base.attempts())
		})
	}
	for _, err := range []*net.DNSError{
		{Err: "timeout", IsTimeout: true, IsNotFound: true},
		{Err: "try again", IsTemporary: true, IsNotFound: true},
		{Err: "lame referral"},
	} {
		bubbled(t, "DNS heals: "+err.Err, func(t *testing.T) {
			base := plays(fails(err), replies(200))
			resp, err := (&retrip.Transport{Base: base, Policy: steady}).RoundTrip(request(t, "POST", bytes.NewReader(nil)))
			require.NoError(t, err)
			finish(t, resp)
			assert.Equal(t, 2, base.attempts())
		})
	}
	// All that a header may hold.
	bubbled(t, "well-formed", func(t *testing.T) {
		base := plays(fails(errors.New("broken")), replies(200))
		req := request(t, "GET", strings.NewReader("x"))
		req.Header["AZaz09!#$%&'*+-.^_`|~"] = []string{"", "\t !~\x80\xff"}
		req.Trailer = http.Header{"X": {"a b"}}
		resp, err := (&retrip.Transport{Base: base, Policy: steady}).RoundTrip(req)
		require.NoError(t, err)
		finish(t, resp)
		assert.Equal(t, 2, base.attempts())
	})
}
