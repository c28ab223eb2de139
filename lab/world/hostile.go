// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/retrip/retrip/internal/errno"
)

// http2StreamError is like that of net/http.
type http2StreamError struct {
	StreamID uint32
	Code     uint32
}

func (e http2StreamError) Error() string { return fmt.Sprint("stream error ", e.StreamID) }

// nilError is an error of which some forget that a nil pointer in an interface isn't nil.
type nilError struct{}

func (*nilError) Error() string { return "nil" }

// odd are errors that a Base may return without having sent anything.
var odd = []error{
	errors.New("something else"),
	io.ErrUnexpectedEOF,
	fmt.Errorf("wrapped: %w", errno.Reset),
	os.ErrDeadlineExceeded,
	(*nilError)(nil),
	errors.Join(errors.New("one"), (*nilError)(nil)),
	errors.Join(&net.DNSError{Err: "one", Name: "a.test"}, io.ErrUnexpectedEOF),
	errors.Join(&net.DNSError{Err: "one", Name: "a.test"}, http2StreamError{1, 7}),
	&net.DNSError{Err: "server misbehaving", Name: "a.test", IsTemporary: true},
	&net.DNSError{Err: "no such host", Name: "a.test", IsNotFound: true},
	&net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", errno.Unreachable)},
	&net.OpError{Op: "proxyconnect", Net: "tcp", Err: errors.New("no")},
	&net.OpError{Op: "remote error", Net: "tcp", Err: tls.AlertError(40)},
	&net.OpError{Op: "read", Net: "tcp", Err: io.EOF},
	&tls.CertificateVerificationError{Err: errors.New("expired")},
	tls.RecordHeaderError{Msg: "not TLS"},
	tls.AlertError(80),
	http2StreamError{3, 7},
	http2StreamError{3, 2},
	http2StreamError{3, 0xd},
	http.ErrSchemeMismatch,
	http.ErrNotSupported,
	&net.AddrError{Err: "missing port in address", Addr: "a"},
	errors.New("http2: Transport: cannot retry err [http2: Transport received Server's graceful shutdown GOAWAY] after Request.Body was written; define Request.GetBody to avoid this error"),
	errors.New("http2: Transport: cannot retry err [stream error: stream ID 5; REFUSED_STREAM; received from peer] after Request.Body was written; define Request.GetBody to avoid this error"),
	errors.New("invalid Host header"),
	errors.New(http.StatusText(http.StatusProxyAuthRequired)),
	errors.New("net/http: HTTP/1.x transport connection broken: x"),
}

// hostile answers some attempts as no good Base does, without sending them. It reports
// whether it has.
func (b *wrapper) hostile(req *http.Request) (*http.Response, error, bool) {
	w := b.c.w
	id, err := strconv.Atoi(req.Header.Get("World-Id"))
	if err != nil || !b.c.plan.Hostile || w.calm.Load() {
		return nil, nil, false
	}
	r := w.trip(id)
	if r == nil {
		return nil, nil, false
	}
	r.mu.Lock()
	r.uses++
	x := w.chance(hashOf("hostile", id, r.uses))
	spared := x.next()%100 < 60 || id >= 800_000
	if !spared {
		attempts := 0
		for _, e := range r.events {
			if e.hook == "Attempt" {
				attempts++
			}
		}
		r.hostile, r.spoiled = true, append(r.spoiled, attempts)
	}
	r.mu.Unlock()
	if spared {
		return nil, nil, false
	}
	if err := pause(req.Context(), x.tiny()); err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err, true
	}
	if req.Body != nil {
		_ = req.Body.Close()
	}
	kind := x.next() % 16
	w.log("%v: the base is hostile, %d", r, kind)
	switch kind {
	case 0, 1:
		return nil, nil, true
	case 2:
		panic(aPanic)
	case 4:
		return nil, &url.Error{Op: "Get", URL: req.URL.String(), Err: odd[0]}, true
	case 3:
		resp := &http.Response{StatusCode: http.StatusServiceUnavailable, Body: io.NopCloser(strings.NewReader("x"))}
		w.lend(r, resp, nil)
		return resp, odd[0], true
	}
	return nil, odd[x.next()%uint64(len(odd))], true
}
