// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/play"
)

// What an error means.
const (
	hopeless    = "hopeless"    // no attempt follows
	unknown     = "unknown"     // a server may have processed the request
	unprocessed = "unprocessed" // none has
	byText      = "by text"     // none has, if there was a connection
	unsent      = "unsent"      // none has, if there was no connection
)

// How net/http's HTTP/2 says that it would have sent a stream again.
const (
	retryBegin  = "http2: Transport: cannot retry err ["
	retryEnd    = "] after Request.Body was written; define Request.GetBody to avoid this error"
	refusedText = "stream error: stream ID 5; REFUSED_STREAM; received from peer"
	goAwayText  = "http2: Transport received Server's graceful shutdown GOAWAY"
)

// errorsOfAttempts are errors, their words, and what they mean.
func errorsOfAttempts() (rows []errorRow) {
	op := func(op string, err error) error { return &net.OpError{Op: op, Net: "tcp", Err: err} }
	unix := func(err error) error {
		return &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", err)}
	}
	usedUp := func(status int, errs ...error) error {
		return &retrip.Error{Attempts: 2, Reason: retrip.ReasonMaxAttempts, StatusCode: status, Err: errors.Join(errs...)}
	}
	text := errors.New
	untrusted := &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}
	refused := op("dial", syscall.ECONNREFUSED)
	rows = []errorRow{
		{text("the dialer's own words"), "other", unknown},
		{context.DeadlineExceeded, "timeout", unknown},
		{timeout{}, "timeout", unknown},
		{fault.ErrNothing, "other", hopeless},

		// Names and addresses. DNS heals.
		{op("dial", &net.DNSError{Err: "no such host", IsNotFound: true}), "no_such_host", hopeless},
		{&net.DNSError{Err: "no such host", IsNotFound: true}, "no_such_host", hopeless},
		{&net.DNSError{Err: "timeout", IsTimeout: true, IsNotFound: true}, "no_such_host", unsent},
		{&net.DNSError{Err: "try again", IsTemporary: true, IsNotFound: true}, "no_such_host", unsent},
		{&net.DNSError{Err: "server misbehaving", IsTemporary: true}, "dns", unsent},
		{op("dial", &net.DNSError{Err: "i/o timeout", IsTimeout: true}), "dns", unsent},
		{&net.DNSError{Err: "lame referral"}, "dns", unsent},
		{op("dial", &net.AddrError{Err: "missing port in address"}), "unreachable", hopeless},
		{op("dial", net.UnknownNetworkError("tpc")), "unreachable", hopeless},

		// Connecting.
		{refused, "connection_refused", unsent},
		{op("dial", syscall.Errno(10061)), "connection_refused", unsent}, // on Windows
		{op("dial", syscall.ETIMEDOUT), "timeout", unsent},
		{op("dial", context.DeadlineExceeded), "timeout", unsent},
		{op("dial", syscall.EAGAIN), "unreachable", unsent}, // a unix socket's backlog is full
		{op("dial", syscall.ENETUNREACH), "unreachable", unsent},
		{op("dial", os.NewSyscallError("connect", syscall.EPERM)), "unreachable", unsent}, // the network may forbid it
		{unix(syscall.EACCES), "unreachable", hopeless},
		{unix(syscall.EINVAL), "unreachable", hopeless},
		{unix(syscall.ENOENT), "unreachable", unsent},
		{op("proxyconnect", text("x")), "unreachable", unsent},
		{op("proxyconnect", io.EOF), "unreachable", unsent},
		{op("socks connect", io.EOF), "unreachable", unsent},
		{text(`invalid proxy address "::": missing protocol scheme`), "other", hopeless},
		{&url.Error{Op: "parse", URL: "http://[::1", Err: text("missing ']' in host")}, "other", hopeless},
		{text("dial tcp: connection refused"), "other", unknown},

		// A connection that ends.
		{io.EOF, "connection_lost", unknown},
		{io.ErrUnexpectedEOF, "other", unknown},
		{syscall.ECONNRESET, "connection_lost", unknown},
		{op("read", syscall.ECONNABORTED), "connection_lost", unknown},
		{op("read", syscall.Errno(10053)), "connection_lost", unknown},
		{op("read", refused), "connection_refused", unknown},
		{op("write", syscall.Errno(10054)), "connection_lost", unknown},
		{op("write", syscall.EPIPE), "connection_lost", unknown},

		// TLS.
		{untrusted, "tls", hopeless},
		{fmt.Errorf("%w: %w", net.ErrClosed, untrusted), "tls", hopeless}, // like the errors of quic-go
		{fmt.Errorf("another implementation: %w", x509.UnknownAuthorityError{}), "other", hopeless},
		{x509.HostnameError{Certificate: new(x509.Certificate), Host: "example.com"}, "other", hopeless},
		{x509.CertificateInvalidError{Reason: x509.Expired}, "other", hopeless},
		{&tls.ECHRejectionError{}, "other", hopeless},
		{http.ErrSchemeMismatch, "tls", hopeless},
		{tls.RecordHeaderError{Msg: "x"}, "tls", unknown},
		{text("tls: server selected unsupported protocol version 301"), "tls", hopeless},
		{op("proxyconnect", text("tls: server selected unsupported protocol version 301")), "tls", hopeless},
		{fmt.Errorf("tls: failed to send closeNotify alert: %w", syscall.EPIPE), "connection_lost", unknown},
		{op("remote error", text("handshake failure")), "tls", unknown},

		// HTTP.
		{http.ErrNotSupported, "other", hopeless},
		{fmt.Errorf("http2: failed reading the frame payload: %w, note that the frame header looked like an HTTP/1.1 header", text("http2: frame too large")), "other", hopeless},
		{text("http2: client connection lost"), "connection_lost", unknown},
		{play.StreamError{StreamID: 1, Code: 7}, "other", unprocessed},
		{play.StreamError{StreamID: 1, Code: 1}, "other", unknown},
		{play.StreamError{StreamID: 1, Code: 11}, "other", unknown},
		{lookalike{1, 7}, "other", unknown},
		{textStreamError("refused"), "other", unknown},
		{signedStreamError{1, 7}, "other", unknown},
		{wordyStreamError{1, "7"}, "other", unknown},

		// The texts with which net/http says that it would have resent a stream, verbatim.
		{text(retryBegin + refusedText + retryEnd), "other", byText},
		{text(retryBegin + goAwayText + retryEnd), "other", byText},
		{text("net/http: cannot rewind body after connection loss"), "other", byText},
		{text("http2: Transport received GOAWAY from server ErrCode:PROTOCOL_ERROR"), "other", byText},
		{textError(retryBegin + goAwayText + retryEnd), "other", unknown},
		{text("net/http: cannot rewind body after connection loss."), "other", unknown},
		{text(retryBegin + "stream error: stream ID 5; PROTOCOL_ERROR; received from peer" + retryEnd), "other", unknown},
		{text(retryBegin + "stream error: stream ID 5; REFUSED_STREAM" + retryEnd), "other", unknown},
		{text(retryBegin + "stream error: stream ID x; REFUSED_STREAM; received from peer" + retryEnd), "other", unknown},
		{text(retryBegin + "stream error: stream ID ; REFUSED_STREAM; received from peer" + retryEnd), "other", unknown},
		{text(retryBegin + refusedText + retryEnd + "."), "other", unknown},
		{text(" " + retryBegin + goAwayText + retryEnd), "other", unknown},
		{text(retryBegin + goAwayText), "other", unknown},
		{text(goAwayText), "other", unknown},
		{text(refusedText), "other", unknown},

		// Another Transport, which decides itself whether there is hope.
		{&retrip.Error{Reason: retrip.ReasonBreakerOpen}, "other", unsent},
		{usedUp(0, refused, refused), "connection_refused", unsent},
		{usedUp(0, refused, io.EOF), "connection_refused", unknown},
		{usedUp(503, refused), "connection_refused", unknown},
		{usedUp(0, io.EOF, untrusted), "tls", unknown},
		{&retrip.Error{Attempts: 2, Err: errors.Join(untrusted, io.EOF)}, "tls", hopeless},
	}
	// Alerts: a server that refuses the client would do so again. Others may come from a
	// server in trouble. Code 100, from the client, says that the server renegotiates.
	for _, code := range []alert{40, 42, 46, 48, 49, 70, 71, 112, 116, 120} {
		rows = append(rows, errorRow{op("remote error", code), "tls", hopeless}, errorRow{op("local error", code), "tls", unknown})
	}
	for _, code := range []alert{0, 10, 20, 51, 80, 90, 100} {
		rows = append(rows, errorRow{op("remote error", code), "tls", unknown})
	}
	return append(rows, errorRow{op("local error", alert(100)), "tls", hopeless})
}

type errorRow struct {
	err           error
	kind, verdict string
}

// Each error in errorsOfAttempts, however it is wrapped, ends or repeats a GET and a POST.
// One that is joined with another proves only what both prove, but ends all hope, whatever
// their order.
//
//retrip:promise P6 P8
func TestErrors(t *testing.T) {
	for i, row := range errorsOfAttempts() {
		assert.Equal(t, row.kind, fault.KindOf(row.err).String(), "%v", row.err)
		assert.Equal(t, row.kind, fault.KindOf(errors.Join(row.err, nil)).String(), "%v", row.err)
		with := func(first, second error) errorRow {
			if row.verdict == hopeless {
				return errorRow{errors.Join(first, second), "", hopeless}
			}
			return errorRow{errors.Join(first, second), "", unknown}
		}
		for _, form := range []errorRow{
			row,
			{fmt.Errorf("wrapped: %w", row.err), "", row.verdict},
			{errors.Join(row.err, fmt.Errorf("deeper: %w", errors.Join(row.err))), "", row.verdict},
			with(row.err, io.EOF), with(io.EOF, row.err),
		} {
			play.Bubble(t, fmt.Sprintf("%d %v", i, form.err), func(t *testing.T) { testErrorRow(t, form) })
		}
	}
}

func testErrorRow(t *testing.T, row errorRow) {
	for _, tt := range []struct {
		name      string
		method    string
		timeout   time.Duration // 0: nothing but the error says whether there was a connection
		connected bool
		repeats   []string // the verdicts after which the request is sent again
	}{
		{"plain GET", "GET", 0, false, []string{unknown, unprocessed, byText, unsent}},
		{"derived GET", "GET", time.Hour, false, []string{unknown, unprocessed, byText, unsent}},
		{"plain POST", "POST", 0, false, []string{unprocessed, unsent}},
		{"derived POST", "POST", time.Hour, false, []string{unprocessed, unsent}},
		{"sent POST", "POST", time.Hour, true, []string{unprocessed, byText}},
	} {
		connect := func(step play.Step) play.Step {
			return func(r *http.Request) (*http.Response, error) {
				if tt.connected {
					httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
				}
				return step(r)
			}
		}
		base := play.Base(connect(play.Err(row.err)), connect(play.Reply(200)))
		tr := &retrip.Transport{Base: base, Policy: timely(tt.timeout)}
		req := play.Request(t, tt.method, nil)
		if tt.connected {
			req = play.Request(t, tt.method, play.Stream([]byte("payload")))
		}
		resp, err := tr.RoundTrip(req)
		if slices.Contains(tt.repeats, row.verdict) {
			if assert.NoError(t, err, tt.name) {
				play.Finish(t, resp)
			}
			assert.Equal(t, 2, base.Attempts(), tt.name)
			continue
		}
		assert.Equal(t, row.err, err, tt.name)
		assert.Equal(t, 1, base.Attempts(), tt.name)
		if row.verdict == hopeless {
			assert.Empty(t, play.Held(tr), tt.name)
		}
	}
}

type timeout struct{}

func (timeout) Error() string { return "slow" }
func (timeout) Timeout() bool { return true }

// alert has the shape of crypto/tls's own type.
type alert uint8

func (a alert) Error() string { return fmt.Sprint("tls: alert ", uint8(a)) }

type textError string

func (e textError) Error() string { return string(e) }

// Types that resemble that of an error of a stream.
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

// secretive is an error whose text nobody may ask for.
type secretive struct{}

func (secretive) Error() string { panic("asked for its text") }

func TestKindOf_AsksForNoText(t *testing.T) {
	assert.Equal(t, "other", fault.KindOf(secretive{}).String())
	assert.Empty(t, fault.KindOf(nil).String())
	for k := fault.KindOther; k <= fault.KindPanic; k++ {
		assert.NotEmpty(t, k.String())
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
