// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// attempt is one use of the base with a context of its own: it ends the
// attempt in time, without cutting the body of a response, and sees what
// net/http does by itself.
//
// It is the context of its request itself. All of it is one allocation, and it
// lives as long as the body does.
type attempt struct {
	context.Context

	req      http.Request
	parent   context.Context
	cancel   context.CancelCauseFunc
	timer    *time.Timer
	body     releasingBody // if the response needs one
	tooLate  *timeoutError
	maxSends int // 0 is no bound
	watch    watched

	trace     httptrace.ClientTrace
	wanted    atomic.Bool  // a connection was asked for
	sends     atomic.Int32 // connections that Base got, each for one send
	bounded   boundedSends
	refused   int         // sends that the server provably didn't process, each followed by one of ours
	sent      bool        // the last use of the base got a connection
	fault     atomic.Bool // the caller's body is at fault, and not the host
	connected atomic.Bool // by package net
	handshake atomic.Pointer[error]
}

// watched says what is to be seen of an attempt besides the connections that
// it had.
type watched uint8

const (
	watchSend      watched = 1 << iota // neverSent needs it
	watchHandshake                     // handshakeError needs it
	expectHTTP2                        // every connection without TLS speaks it
)

// begin makes an attempt at req that has limit to get to the response headers,
// 0 being no limit, and ends with the cause tooLate.
func begin(req *http.Request, limit time.Duration, tooLate *timeoutError, maxSends int, watch watched) *attempt {
	a := &attempt{parent: req.Context(), tooLate: tooLate, maxSends: max(0, maxSends), watch: watch}
	a.Context, a.cancel = context.WithCancelCause(a.parent)
	if watch&watchSend != 0 {
		a.trace.GetConn = a.getConn
	}
	if watch&watchHandshake != 0 {
		a.trace.ConnectDone = a.connectDone
		a.trace.TLSHandshakeDone = a.tlsHandshakeDone
	}
	a.trace.GotConn = a.gotConn
	if httptrace.ContextClientTrace(a.parent) != nil {
		// It puts the caller's hooks behind ours, in place. The context it
		// returns is that of Value.
		httptrace.WithClientTrace(a.parent, &a.trace)
	}
	a.req = *req.WithContext(a)
	if limit > 0 {
		a.timer = time.AfterFunc(limit, func() { a.cancel(a.tooLate) })
	}
	return a
}

// Value implements [context.Context]: it is [httptrace.WithClientTrace] without
// a further context.
func (a *attempt) Value(key any) any {
	switch key {
	case traceKey:
		return &a.trace
	case attemptKey{}:
		return a
	}
	return a.Context.Value(key)
}

// traceKey is the key of a context by which httptrace asks for its hooks.
var traceKey = func() any {
	var asked keyRecorder
	httptrace.ContextClientTrace(&asked)
	return asked.key
}()

// keyRecorder is a context that remembers what it was asked for.
type keyRecorder struct {
	context.Context
	key any
}

func (r *keyRecorder) Value(key any) any {
	r.key = key
	return nil
}

// Format implements [fmt.Formatter]: the context of a request is printed in
// logs, and must not show the request's headers there.
func (a *attempt) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, "retrip.attempt") }

func (a *attempt) getConn(string) { a.wanted.Store(true) }

func (a *attempt) connectDone(_, _ string, err error) {
	if err == nil {
		a.connected.Store(true)
	}
}

func (a *attempt) tlsHandshakeDone(_ tls.ConnectionState, err error) {
	if err != nil {
		a.handshake.Store(&err)
	}
}

// handshakeError returns the error of the last TLS handshake that failed over a
// connection of package net. Another connection may have errors of any kind.
func (a *attempt) handshakeError() error {
	if err := a.handshake.Load(); err != nil && a.connected.Load() {
		return *err
	}
	return nil
}

func (a *attempt) gotConn(info httptrace.GotConnInfo) {
	a.sends.Add(1)
	if n := a.bounded.count(info.Conn, info.Reused, a.watch&expectHTTP2 != 0); a.maxSends > 0 && n > a.maxSends {
		a.cancel(errHiddenSends)
	}
}

// neverSent reports whether a connection was asked for and none was had: proof
// that nothing was sent. Without a call of the first hook there is none: the
// base may not know about them.
func (a *attempt) neverSent() bool { return a.wanted.Load() && a.sends.Load() == 0 }

// abandon ends an attempt whose base has panicked.
func (a *attempt) abandon() {
	if a.timer != nil {
		a.timer.Stop()
	}
	a.cancel(nil)
}

// end takes what the base returned. From the response headers on nothing of
// the attempt's time counts any more: its timer is stopped, and its context
// lives as long as the body.
func (a *attempt) end(resp *http.Response, err error) (*http.Response, error) {
	inTime := a.timer == nil || a.timer.Stop()
	if !inTime {
		// The timer's function may not have got to it yet.
		a.cancel(a.tooLate)
	}
	cause := context.Cause(a)
	own := a.parent.Err() == nil && (errors.Is(cause, errAttemptTimeout) || errors.Is(cause, errDeadline) || errors.Is(cause, errHiddenSends))
	switch {
	case err != nil:
		a.cancel(nil)
		switch {
		case !own || errors.Is(err, cause):
		case errors.Is(err, context.Canceled):
			// A base that doesn't know about causes calls it a cancellation,
			// which it was not as far as the caller is concerned.
			err = cause
		default:
			// The base may have failed for a reason of its own in the same
			// instant, and ours must not hide it.
			err = errors.Join(cause, err)
		}
		return nil, err
	case !inTime && own:
		// The headers came as the time ran out: the body is lost.
		dismiss(resp)
		a.cancel(nil)
		return nil, cause
	}
	a.release(resp)
	return resp, nil
}

// release ties the end of the attempt's context to the end of the body. A
// parent that never ends keeps no record of its children: then nothing needs
// releasing, and the body stays as it is.
func (a *attempt) release(resp *http.Response) {
	if a.parent.Done() == nil {
		return
	}
	// Over HTTP/2 a response may end while its request's body is still being
	// sent, and that needs the context, too.
	uploading := resp.ProtoMajor > 1 && a.req.Body != nil && a.req.Body != http.NoBody
	switch body := resp.Body.(type) {
	case nil:
		a.cancel(nil)
	case io.ReadWriteCloser:
		// After 101 Switching Protocols: one direction may end before the
		// other, so only Close is the end.
		resp.Body = &releasingConn{body, a.cancel}
	default:
		if body == http.NoBody && !uploading {
			a.cancel(nil)
			return
		}
		a.body = releasingBody{body, a.cancel, uploading}
		resp.Body = &a.body
	}
}

// releasingBody ends the context of its attempt with its last byte, unless the
// request's body may still need it, and when it is closed.
type releasingBody struct {
	io.ReadCloser
	cancel    context.CancelCauseFunc
	uploading bool
}

func (b *releasingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !b.uploading {
		b.cancel(nil)
	}
	return n, err
}

func (b *releasingBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

// releasingConn is a releasingBody that can be written to.
type releasingConn struct {
	io.ReadWriteCloser
	cancel context.CancelCauseFunc
}

func (b *releasingConn) Close() error {
	err := b.ReadWriteCloser.Close()
	b.cancel(nil)
	return err
}

// CloseWrite ends one direction, as net/http's own body can.
func (b *releasingConn) CloseWrite() error {
	if c, ok := b.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return fmt.Errorf("CloseWrite: %w", http.ErrNotSupported)
}

// use hands req to base, and notes whether base got a connection for it.
func (a *attempt) use(base http.RoundTripper, req *http.Request) (*http.Response, error) {
	before := a.sends.Load()
	resp, err := base.RoundTrip(req)
	n := int(a.sends.Load() - before)
	a.sent = n > 0
	if n > 1 && req.Body != nil && req.GetBody == nil && isNetHTTP(base) {
		// net/http can't send such a body twice: it took another connection
		// because those before could take no request.
		a.refused += n - 1
	}
	return resp, err
}

// isNetHTTP reports whether base is net/http's own.
func isNetHTTP(base http.RoundTripper) bool {
	switch base.(type) {
	case *http.Transport, *spare:
		return true
	}
	return false
}

// sentOnce reports whether the base got a connection, and only the last send may
// have been processed.
func (a *attempt) sentOnce() bool { return a.sent && int(a.sends.Load())-a.refused == 1 }

// maySendAgain reports whether a request that provably was not processed may be
// sent again within the attempt.
func (a *attempt) maySendAgain() bool {
	return a.Err() == nil && (a.maxSends == 0 || a.refused < a.maxSends)
}

// again returns the request of a, with another body, for a further send after
// one that provably was not processed.
func (a *attempt) again(body io.ReadCloser) *http.Request {
	a.refused++
	// The base may have kept the one before.
	req := a.req
	req.Body = body
	return &req
}

// giveBack puts the caller's request into resp where the base has put req, and
// the caller's context where the base has put a context that a would end.
func (a *attempt) giveBack(resp *http.Response, req, callers *http.Request) {
	switch r := resp.Request; {
	case r == req:
		resp.Request = callers
	case r != nil && r.Context().Value(attemptKey{}) == a:
		resp.Request = r.WithContext(outlived{a.parent, r.Context()})
	}
}

// attemptKey is the key under which the context of an attempt has the attempt.
type attemptKey struct{}

// outlived is the context of a request that a base derived from an attempt's,
// without the end of the attempt.
type outlived struct {
	context.Context                 // of the caller
	values          context.Context // of the base
}

func (c outlived) Value(key any) any {
	if key == (attemptKey{}) {
		return c.Context.Value(key)
	}
	return c.values.Value(key)
}

// watchBody makes a see whether the body of its request is at fault when the
// attempt fails, also that of a GetBody.
func (a *attempt) watchBody() {
	watch := func(body io.ReadCloser) io.ReadCloser {
		return &watchedBody{ReadCloser: body, length: a.req.ContentLength, fault: &a.fault}
	}
	a.req.Body = watch(a.req.Body)
	if get := a.req.GetBody; get != nil {
		a.req.GetBody = func() (io.ReadCloser, error) {
			body, err := get()
			if err != nil || body == nil {
				return body, err
			}
			return watch(body), nil
		}
	}
}
