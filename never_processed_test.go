// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
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

// fakeStreamError looks like net/http's own stream error, whose type is
// unexported.
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

// Which errors prove that a POST was not processed, and which don't (P6).
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

// GetConn without GotConn is proof if the attempt observes both. A hook that
// was never called is no proof.
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

// h2Server speaks just enough HTTP/2 without TLS to answer streams in ways that
// real servers can't be asked for. answer gets the numbers of the connection
// and the stream, from 1, and writes the stream's frames.
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
		case kind <= 1 && flags&1 != 0: // the request is complete
			answer(w, conn, stream)
		}
	}
}

// Which HTTP/2 errors prove that a POST was not processed, and which don't.
func TestNeverProcessed_HTTP2(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer func(w *h2Writer, stream uint32) // for the first request
		again  bool
	}{
		{"REFUSED_STREAM", func(w *h2Writer, s uint32) { w.reset(s, 7) }, true},
		{"GOAWAY below the stream", func(w *h2Writer, _ uint32) { w.goAway(0, 0) }, true},
		// net/http's error for this has only a text.
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

// net/http can send http.NoBody again without a GetBody, and does so after a
// PROTOCOL_ERROR, which proves nothing. A later send that was refused doesn't
// prove that the first one was.
func TestNeverProcessed_ResentWithoutBody(t *testing.T) {
	for name, policy := range map[string]retrip.Policy{
		"hooks":    steady,
		"timeouts": with(func(p *retrip.Policy) { p.Deadline = time.Hour }),
	} {
		bubbled(t, name, func(t *testing.T) {
			const protocolError, refusedStream = 1, 7
			var seen atomic.Int32
			base, _ := h2Server(t, func(w *h2Writer, _ int, stream uint32) {
				if seen.Add(1) == 1 {
					w.reset(stream, protocolError)
					return
				}
				w.reset(stream, refusedStream)
			})
			tr, attempts := &retrip.Transport{Base: base, Policy: policy}, 0
			if name == "hooks" {
				tr.Trace = &retrip.Trace{Attempt: func(retrip.Event) { attempts++ }}
			}
			req := mustRequest(t, "POST", "http://example.com/", nil)
			req.Body = http.NoBody
			_, err := tr.RoundTrip(req)
			require.Error(t, err)
			var e *retrip.Error
			assert.False(t, errors.As(err, &e), "one attempt: %v", err)
			assert.LessOrEqual(t, attempts, 1)
			assert.Greater(t, seen.Load(), int32(2))
		})
	}
}
