// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package attempt makes one use of a base transport with a context of its own.
package attempt

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

	"github.com/retrip/retrip/internal/body"
)

// Attempt is one use of the base with a context of its own: it ends the
// attempt in time, without cutting the body of a response, and sees what
// net/http does by itself.
//
// It is the context of its request itself. All of it is one allocation, and it
// lives as long as the body does.
type Attempt struct {
	context.Context

	Req      http.Request // what the base gets
	parent   context.Context
	cancel   context.CancelCauseFunc
	timer    *time.Timer
	body     body.Releasing // if the response needs one
	tooLate  error
	maxSends int // 0 is no bound
	watch    Watch

	trace     httptrace.ClientTrace
	wanted    atomic.Bool  // a connection was asked for
	sends     atomic.Int32 // connections that Base got, each for one send
	bounded   boundedSends
	refused   int          // sends that the server provably didn't process, each followed by one of ours
	sent      bool         // the last use of the base got a connection
	fault     atomic.Bool  // the caller's body is at fault, and not the host
	upload    *body.Ending // the body of the request, where it matters whether it was sent
	connected atomic.Bool  // by package net
	handshake atomic.Pointer[error]
}

// Watch says what is to be seen of an attempt besides the connections that
// it had.
type Watch uint8

const (
	WatchSend      Watch = 1 << iota // [Attempt.NeverSent] needs it
	WatchHandshake                   // [Attempt.HandshakeError] needs it
	ExpectHTTP2                      // every connection without TLS speaks it
)

// Begin makes an attempt at req that has limit to get to the response headers,
// 0 being no limit, and ends with the cause tooLate.
func Begin(req *http.Request, limit time.Duration, tooLate error, maxSends int, watch Watch) *Attempt {
	a := &Attempt{parent: req.Context(), tooLate: tooLate, maxSends: max(0, maxSends), watch: watch}
	a.Context, a.cancel = context.WithCancelCause(a.parent)
	if watch&WatchSend != 0 {
		a.trace.GetConn = a.getConn
	}
	if watch&WatchHandshake != 0 {
		a.trace.ConnectDone = a.connectDone
		a.trace.TLSHandshakeDone = a.tlsHandshakeDone
	}
	a.trace.GotConn = a.gotConn
	if httptrace.ContextClientTrace(a.parent) != nil {
		// It puts the caller's hooks behind ours, in place. The context it
		// returns is that of Value.
		httptrace.WithClientTrace(a.parent, &a.trace)
	}
	a.Req = *req.WithContext(a)
	if limit > 0 {
		a.timer = time.AfterFunc(limit, func() { a.cancel(a.tooLate) })
	}
	return a
}

// ErrHiddenSends is how an attempt ends in which the base has sent more often
// than it may.
var ErrHiddenSends = errors.New("retrip: net/http by itself sent the request more often than Policy.MaxSends within an attempt")

// Value implements [context.Context]: it is [httptrace.WithClientTrace] without
// a further context.
func (a *Attempt) Value(key any) any {
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
func (a *Attempt) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, "retrip.attempt") }

func (a *Attempt) getConn(string) { a.wanted.Store(true) }

func (a *Attempt) connectDone(_, _ string, err error) {
	if err == nil {
		a.connected.Store(true)
	}
}

func (a *Attempt) tlsHandshakeDone(_ tls.ConnectionState, err error) {
	if err != nil {
		a.handshake.Store(&err)
	}
}

// HandshakeError returns the error of the last TLS handshake that failed over a
// connection of package net. Another connection may have errors of any kind.
func (a *Attempt) HandshakeError() error {
	if err := a.handshake.Load(); err != nil && a.connected.Load() {
		return *err
	}
	return nil
}

func (a *Attempt) gotConn(info httptrace.GotConnInfo) {
	a.sends.Add(1)
	if n := a.bounded.count(info.Conn, info.Reused, a.watch&ExpectHTTP2 != 0); a.maxSends > 0 && n > a.maxSends {
		a.cancel(ErrHiddenSends)
	}
}

// NeverSent reports whether a connection was asked for and none was had: proof
// that nothing was sent. Without a call of the first hook there is none: the
// base may not know about them.
func (a *Attempt) NeverSent() bool { return a.wanted.Load() && a.sends.Load() == 0 }

// WatchSent has BodySent tell of the body of a's request. It must be the last
// that is done to the body.
func (a *Attempt) WatchSent() {
	a.upload = body.WatchEnd(a.Req.Body, a.Req.ContentLength)
	a.Req.Body = a.upload
}

// BodySent reports whether the body of a's request has been read to its end, or
// WatchSent wasn't called.
func (a *Attempt) BodySent() bool { return a.upload == nil || a.upload.Ended() }

// Cut implements [body.Cutter].
func (a *Attempt) Cut() { a.cancel(nil) }

// Abandon ends an attempt whose base has panicked.
func (a *Attempt) Abandon() {
	if a.timer != nil {
		a.timer.Stop()
	}
	a.cancel(nil)
}

// End takes what the base returned. From the response headers on nothing of
// the attempt's time counts any more: its timer is stopped, and its context
// lives as long as the body.
func (a *Attempt) End(resp *http.Response, err error) (*http.Response, error) {
	inTime := a.timer == nil || a.timer.Stop()
	if !inTime {
		// The timer's function may not have got to it yet.
		a.cancel(a.tooLate)
	}
	cause := context.Cause(a)
	own := a.parent.Err() == nil && (errors.Is(cause, a.tooLate) || errors.Is(cause, ErrHiddenSends))
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
		body.Dismiss(resp)
		a.cancel(nil)
		return nil, cause
	}
	a.release(resp)
	return resp, nil
}

// release ties the end of the attempt's context to the end of the body. A
// parent that never ends keeps no record of its children: then nothing needs
// releasing, and the body stays as it is.
func (a *Attempt) release(resp *http.Response) {
	if a.parent.Done() == nil {
		return
	}
	// Over HTTP/2 a response may end while its request's body is still being
	// sent, and that needs the context, too.
	uploading := resp.ProtoMajor > 1 && a.Req.Body != nil && a.Req.Body != http.NoBody
	switch b := resp.Body.(type) {
	case nil:
		a.cancel(nil)
	case io.ReadWriteCloser:
		// After 101 Switching Protocols: one direction may end before the
		// other, so only Close is the end.
		resp.Body = body.NewReleasingConn(b, a.cancel)
	default:
		if b == http.NoBody && !uploading {
			a.cancel(nil)
			return
		}
		a.body.Release(b, a.cancel, uploading)
		resp.Body = &a.body
	}
}

// Use hands req to base, and notes whether base got a connection for it. netHTTP
// says that base is net/http's own.
func (a *Attempt) Use(base http.RoundTripper, netHTTP bool, req *http.Request) (*http.Response, error) {
	before := a.sends.Load()
	resp, err := base.RoundTrip(req)
	n := int(a.sends.Load() - before)
	a.sent = n > 0
	if n > 1 && req.Body != nil && req.GetBody == nil && netHTTP {
		// net/http can't send such a body twice: it took another connection
		// because those before could take no request.
		a.refused += n - 1
	}
	return resp, err
}

// MayUseAgain reports whether the request may be sent again within the attempt,
// provided that the last send provably was not processed: only that one may have
// been.
func (a *Attempt) MayUseAgain() bool {
	return a.sent && a.Processable() == 1 && a.Err() == nil && (a.maxSends == 0 || a.refused < a.maxSends)
}

// Sends returns how many connections the base got, each for one send.
func (a *Attempt) Sends() int { return int(a.sends.Load()) }

// Processable returns how many sends may have been processed.
func (a *Attempt) Processable() int { return a.Sends() - a.refused }

// Sent reports whether the base got a connection in its last use.
func (a *Attempt) Sent() bool { return a.sent }

// AtFault reports whether a body under WatchBody is at fault, and not the host.
func (a *Attempt) AtFault() bool { return a.fault.Load() }

// HadConn reports whether the base got a connection.
func (a *Attempt) HadConn() bool {
	_, had := a.bounded.firstConn()
	return had
}

// SpokeHTTP2 reports whether the first connection that the base got spoke
// HTTP/2.
func (a *Attempt) SpokeHTTP2() bool {
	conn, had := a.bounded.firstConn()
	return had && speaksHTTP2(conn, a.watch&ExpectHTTP2 != 0)
}

// Again returns the request of a, with b as its body, for a further send after
// one that provably was not processed.
func (a *Attempt) Again(b io.ReadCloser) *http.Request {
	a.refused++
	// The base may have kept the one before.
	req := a.Req
	req.Body = b
	if a.upload != nil {
		a.upload = body.WatchEnd(b, req.ContentLength)
		req.Body = a.upload
	}
	return &req
}

// GiveBack puts the caller's request into resp where the base has put req, and
// the caller's context where the base has put a context that a would end.
func (a *Attempt) GiveBack(resp *http.Response, req, callers *http.Request) {
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

// WatchBody makes a see whether the body of its request is at fault when the
// attempt fails, also that of a GetBody.
func (a *Attempt) WatchBody() {
	watch := func(b io.ReadCloser) io.ReadCloser { return body.Watch(b, a.Req.ContentLength, &a.fault) }
	a.Req.Body = watch(a.Req.Body)
	if get := a.Req.GetBody; get != nil {
		a.Req.GetBody = func() (io.ReadCloser, error) {
			made, err := get()
			if err != nil || made == nil {
				return made, err
			}
			return watch(made), nil
		}
	}
}
