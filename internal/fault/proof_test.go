// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// How net/http's HTTP/2 says that it would have sent a stream again.
const (
	retryBegin  = "http2: Transport: cannot retry err ["
	retryEnd    = "] after Request.Body was written; define Request.GetBody to avoid this error"
	refusedText = "stream error: stream ID 5; REFUSED_STREAM; received from peer"
	goAwayText  = "http2: Transport received Server's graceful shutdown GOAWAY"
)

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
	wrapped struct{ error }
)

func (lookalike) Error() string         { return "no stream error" }
func (textStreamError) Error() string   { return "no stream error" }
func (signedStreamError) Error() string { return "no stream error" }
func (wordyStreamError) Error() string  { return "no stream error" }

func (w wrapped) Unwrap() error { return w.error }

// Which errors prove that a POST was not processed, and which don't (P6). An error that
// joins others proves only what each of them proves, whatever their order and depth.
//
//retrip:promise P6
func TestProof_EveryBranch(t *testing.T) {
	op := func(op string, err error) error { return &net.OpError{Op: op, Net: "tcp", Err: err} }
	dial := op("dial", syscall.ECONNREFUSED)
	usedUp := func(status int, errs ...error) error {
		return &retrip.Error{Attempts: 2, Reason: retrip.ReasonMaxAttempts, StatusCode: status, Err: errors.Join(errs...)}
	}
	proofs := []error{
		dial,
		op("dial", context.DeadlineExceeded),
		op("proxyconnect", io.EOF),
		op("socks connect", io.EOF),
		wrapped{dial},
		&net.DNSError{Err: "server misbehaving", IsTemporary: true},
		&net.DNSError{Err: "timeout", Name: "example.com", IsTimeout: true},
		play.StreamError{StreamID: 1, Code: 7},
		&retrip.Error{Reason: retrip.ReasonBreakerOpen},
		usedUp(0, dial, dial),
	}
	others := []error{
		io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, context.DeadlineExceeded,
		op("read", syscall.ECONNRESET),
		op("read", dial),
		op("write", syscall.EPIPE),
		op("remote error", errors.New("tls: handshake failure")),
		op("dial", &net.DNSError{Err: "no such host", IsNotFound: true}), // can't be fixed
		play.StreamError{StreamID: 1, Code: 1},
		play.StreamError{StreamID: 1, Code: 2},
		play.StreamError{StreamID: 1, Code: 8},
		play.StreamError{StreamID: 1, Code: 11},
		lookalike{1, 7}, textStreamError("refused"), signedStreamError{1, 7}, wordyStreamError{1, "7"},
		errors.New("dial tcp: connection refused"),
		errors.New(retryBegin + refusedText + retryEnd), errors.New(goAwayText), // without a connection
		usedUp(0, dial, io.EOF),
		usedUp(503, dial),
	}
	random := rand.New(rand.NewPCG(1, 2))
	// build returns a random error, and whether all of its leaves are proof.
	var build func(depth int) (error, bool)
	build = func(depth int) (error, bool) {
		switch kind := random.IntN(6); {
		case depth == 0 || kind < 3:
			if random.IntN(2) == 0 {
				return proofs[random.IntN(len(proofs))], true
			}
			return others[random.IntN(len(others))], false
		case kind == 3:
			err, ok := build(depth - 1)
			return fmt.Errorf("wrapped: %w", err), ok
		default:
			a, okA := build(depth - 1)
			b, okB := build(depth - 1)
			if kind == 4 {
				return errors.Join(a, b), okA && okB
			}
			return fmt.Errorf("%w and %w", a, b), okA && okB
		}
	}
	repeats := 0
	for i := range 5000 {
		err, proof := build(3)
		if i < len(others) {
			err, proof = others[i], false
		} else if i -= len(others); i < len(proofs) {
			err, proof = proofs[i], true
		}
		base := play.Base(play.Err(err), play.Reply(200))
		tr := &retrip.Transport{Base: base, Policy: play.AtOnce}
		resp, got := tr.RoundTrip(play.Request(t, "POST", nil))
		if !proof {
			require.Equal(t, 1, base.Attempts(), "%v", err)
			require.Equal(t, err, got)
			continue
		}
		repeats++
		require.NoError(t, got, "%v", err)
		require.Equal(t, 2, base.Attempts())
		play.Finish(t, resp)
	}
	assert.Greater(t, repeats, 500)
}

// The texts with which net/http says that it would have resent a stream are
// proof only verbatim, and only for a request that had a connection.
//
//retrip:promise P6
func TestProof_Texts(t *testing.T) {
	for text, want := range map[string]int{
		retryBegin + refusedText + retryEnd:                                                     2,
		retryBegin + goAwayText + retryEnd:                                                      2,
		"net/http: cannot rewind body after connection loss":                                    2,
		"net/http: cannot rewind body after connection loss.":                                   1,
		retryBegin + "stream error: stream ID 5; PROTOCOL_ERROR; received from peer" + retryEnd: 1,
		retryBegin + "stream error: stream ID 5; REFUSED_STREAM" + retryEnd:                     1,
		retryBegin + "stream error: stream ID x; REFUSED_STREAM; received from peer" + retryEnd: 1,
		retryBegin + "stream error: stream ID ; REFUSED_STREAM; received from peer" + retryEnd:  1,
		retryBegin + refusedText + retryEnd + ".":                                               1,
		" " + retryBegin + goAwayText + retryEnd:                                                1,
		retryBegin + goAwayText:                                                                 1,
		goAwayText:                                                                              1,
		refusedText:                                                                             1,
	} {
		for _, connected := range []bool{true, false} {
			plain := errors.New(text)
			for kind, err := range map[string]error{"plain": plain, "wrapped": fmt.Errorf("wrapped: %w", plain), "of another type": textError(text)} {
				play.Bubble(t, fmt.Sprintf("%s/%v/%s", text, connected, kind), func(t *testing.T) {
					connects := func(step play.Step) play.Step {
						return func(r *http.Request) (*http.Response, error) {
							if connected {
								httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
							}
							return step(r)
						}
					}
					base := play.Base(connects(play.Err(err)), connects(play.Reply(200)))
					resp, _ := (&retrip.Transport{Base: base, Policy: play.Steady}).RoundTrip(play.Request(t, "POST", play.Stream([]byte("payload"))))
					if resp != nil {
						play.Finish(t, resp)
					}
					if !connected || kind == "of another type" {
						assert.Equal(t, 1, base.Attempts())
					} else {
						assert.Equal(t, want, base.Attempts())
					}
				})
			}
		}
	}
}

type textError string

func (e textError) Error() string { return string(e) }

// The history of an inner Transport proves something to the outer one only if
// all of it is proof.
//
//retrip:promise P6
func TestProof_TransportInsideATransport(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for _, tt := range []struct {
		name  string
		steps []play.Step
		want  int // attempts of the inner Transport, of 3 each
	}{
		{"never sent", []play.Step{play.Err(dial)}, 12},
		{"sent, then not", []play.Step{play.Err(io.EOF), play.Err(dial)}, 3},
		{"not sent, then sent", []play.Step{play.Err(dial), play.Err(io.EOF), play.Err(dial)}, 3},
		{"answered, then not sent", []play.Step{play.Reply(503), play.Err(dial)}, 3},
	} {
		for _, timeout := range []time.Duration{0, time.Hour} {
			play.Bubble(t, fmt.Sprint(tt.name, " timeout ", timeout), func(t *testing.T) {
				base := play.Base(tt.steps...)
				inner := &retrip.Transport{Base: base, Policy: timely(timeout)}
				inner.Policy.MaxAttempts, inner.Policy.IdempotentMethods = 3, []string{"POST"}
				outer := &retrip.Transport{Base: inner, Policy: timely(timeout)}
				_, err := outer.RoundTrip(play.Request(t, "POST", strings.NewReader("once")))
				assert.Error(t, err)
				assert.Equal(t, tt.want, base.Attempts())
			})
		}
	}
}

// A nil pointer as an error is an error, wrapped or not, and proves nothing.
//
//retrip:promise P6
func TestProof_NilPointers(t *testing.T) {
	for _, pointer := range []error{(*net.OpError)(nil), (*net.DNSError)(nil), (*url.Error)(nil), (*retrip.Error)(nil), (*ownError)(nil)} {
		for i, err := range []error{pointer, fmt.Errorf("%T: %w", pointer, pointer), errors.Join(io.EOF, pointer), &net.OpError{Op: "dial", Err: pointer}} {
			for method, want := range map[string]int{"GET": 4, "POST": 1} {
				play.Bubble(t, fmt.Sprintf("%T/%d/%s", pointer, i, method), func(t *testing.T) {
					base := play.Base(play.Err(err))
					tr := &retrip.Transport{Base: base, Policy: play.Steady, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
					_, got := tr.RoundTrip(play.Request(t, method, nil))
					assert.Equal(t, want, base.Attempts())
					if method == "POST" {
						assert.Equal(t, err, got)
					} else {
						assert.Contains(t, got.Error(), "nil")
						assert.False(t, play.AsError(t, got).Timeout())
					}
				})
			}
		}
	}
}

// GetBody and the cause of a context may also be such errors.
func TestProof_NilPointersOfTheCaller(t *testing.T) {
	pointer := error((*net.OpError)(nil))
	req := play.Request(t, "PUT", play.NewSend("x"))
	req.GetBody = func() (io.ReadCloser, error) { return nil, pointer }
	_, err := (&retrip.Transport{Base: play.Base(play.Err(io.EOF)), Policy: play.AtOnce}).RoundTrip(req)
	assert.ErrorContains(t, err, "nil *net.OpError")

	for _, timeout := range []time.Duration{0, time.Hour} {
		ctx, cancel := context.WithCancelCause(t.Context())
		base := play.Base(func(*http.Request) (*http.Response, error) {
			cancel(pointer)
			return nil, context.Canceled
		})
		_, err = (&retrip.Transport{Base: base, Policy: timely(timeout)}).RoundTrip(play.Request(t, "GET", nil).WithContext(ctx))
		assert.ErrorContains(t, err, "canceled")
	}
}

type ownError struct{ timeout bool }

func (e *ownError) Error() string { return fmt.Sprint(e.timeout) }
func (e *ownError) Timeout() bool { return e.timeout }
