// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
)

type wrapped struct{ error }

func (w wrapped) Unwrap() error { return w.error }

// Which errors prove that a POST was not processed, and which don't (P6).
//
//retrip:promise P6
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
		{"refused stream", play.StreamError{StreamID: 1, Code: 7}, 2},
		{"refused stream, wrapped", fmt.Errorf("x: %w", play.StreamError{StreamID: 1, Code: 7}), 2},
		{"internal error", play.StreamError{StreamID: 1, Code: 2}, 1},
		{"joined internal error", errors.Join(errors.New("a"), play.StreamError{StreamID: 1, Code: 2}), 1},
		{"canceled by the server", play.StreamError{StreamID: 1, Code: 8}, 1},
		{"enhance your calm", play.StreamError{StreamID: 1, Code: 11}, 1},
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
		play.Bubble(t, tt.name, func(t *testing.T) {
			base := play.Base(play.Err(tt.err), play.Reply(200))
			resp, err := (&retrip.Transport{Base: base, Policy: play.Steady}).RoundTrip(play.Request(t, "POST", strings.NewReader("x")))
			assert.Equal(t, tt.want, base.Attempts())
			if tt.want == 1 {
				assert.Equal(t, tt.err, err)
			} else if assert.NoError(t, err) {
				play.Finish(t, resp)
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
//
//retrip:promise P6
func TestNeverProcessed_Conn(t *testing.T) {
	lost := errors.New("lost")
	asks := func(got bool) play.Step {
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
		first  play.Step
		derive bool
		want   int
	}{
		{"asked for, not had", asks(false), true, 1},
		{"had", asks(true), true, 1},
		{"nobody listened", asks(false), false, 1},
		{"a base that knows no hooks", play.Err(lost), true, 1},
	} {
		play.Bubble(t, tt.name, func(t *testing.T) {
			base := play.Base(tt.first, play.Reply(200))
			tr := &retrip.Transport{Base: base, Policy: play.Steady}
			if tt.derive {
				tr.Policy.AttemptTimeout = time.Minute
			}
			resp, err := tr.RoundTrip(play.Request(t, "POST", nil))
			assert.Equal(t, tt.want, base.Attempts())
			if err == nil {
				play.Finish(t, resp)
			}
		})
	}
}

// A POST whose connection is reset after it was sent is not repeated; a PUT is.
//
//retrip:promise P6
func TestNeverProcessed_Reset(t *testing.T) {
	play.EachProto(t, func(t *testing.T, proto memhttp.Proto) {
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
			tr := &retrip.Transport{Base: s.Transport(), Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout = timeout })}
			_, err := tr.RoundTrip(play.MustRequest(t, "POST", s.URL, strings.NewReader("once")))
			assert.Error(t, err)
			assert.EqualValues(t, 1, seen.Load())
			assert.NotErrorIs(t, err, context.Canceled)

			seen.Store(0)
			play.Do(t, tr, play.MustRequest(t, "PUT", s.URL, strings.NewReader("again")))
			assert.EqualValues(t, 2, seen.Load())
		}
	})
}

// Which HTTP/2 errors prove that a POST was not processed, and which don't.
//
//retrip:promise P6
func TestNeverProcessed_HTTP2(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer func(w *play.H2Writer, stream uint32) // for the first request
		again  bool
	}{
		{"REFUSED_STREAM", func(w *play.H2Writer, s uint32) { w.Reset(s, 7) }, true},
		{"GOAWAY below the stream", func(w *play.H2Writer, _ uint32) { w.GoAway(0, 0) }, true},
		// net/http's error for this has only a text.
		{"GOAWAY with an error at the first stream", func(w *play.H2Writer, _ uint32) { w.GoAway(0, 0xb); w.Close() }, false},
		{"INTERNAL_ERROR", func(w *play.H2Writer, s uint32) { w.Reset(s, 2) }, false},
		{"CANCEL", func(w *play.H2Writer, s uint32) { w.Reset(s, 8) }, false},
		{"GOAWAY that takes the stream in", func(w *play.H2Writer, s uint32) { w.GoAway(s, 0); w.Close() }, false},
	} {
		for _, kind := range []string{"none", "GetBody", "stream"} {
			play.Bubble(t, tt.name+"/body "+kind, func(t *testing.T) {
				var seen atomic.Int32
				base, _ := play.H2Server(t, func(w *play.H2Writer, _ int, stream uint32) {
					if seen.Add(1) == 1 {
						tt.answer(w, stream)
						return
					}
					w.OK(stream)
				})
				var body io.Reader
				switch kind {
				case "GetBody":
					body = strings.NewReader("payload")
				case "stream":
					body = play.Stream([]byte("payload"))
				}
				resp, err := (&retrip.Transport{Base: base, Policy: play.Steady}).RoundTrip(play.MustRequest(t, "POST", "http://example.com/", body))
				if tt.again {
					if assert.NoError(t, err) {
						play.Finish(t, resp)
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
//
//retrip:promise P6
func TestNeverProcessed_ResentWithoutBody(t *testing.T) {
	for name, policy := range map[string]retrip.Policy{
		"hooks":    play.Steady,
		"timeouts": play.With(func(p *retrip.Policy) { p.Deadline = time.Hour }),
	} {
		play.Bubble(t, name, func(t *testing.T) {
			const protocolError, refusedStream = 1, 7
			var seen atomic.Int32
			base, _ := play.H2Server(t, func(w *play.H2Writer, _ int, stream uint32) {
				if seen.Add(1) == 1 {
					w.Reset(stream, protocolError)
					return
				}
				w.Reset(stream, refusedStream)
			})
			tr, attempts := &retrip.Transport{Base: base, Policy: policy}, 0
			if name == "hooks" {
				tr.Trace = &retrip.Trace{Attempt: func(retrip.Event) { attempts++ }}
			}
			req := play.MustRequest(t, "POST", "http://example.com/", nil)
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
