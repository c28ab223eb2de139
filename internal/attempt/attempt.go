// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package attempt runs one attempt at a base transport, with a context of its
// own.
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

// Attempt is one attempt at the base. Its context ends the attempt on time
// without cutting the body of a response. Its httptrace hooks observe what
// net/http does on its own.
//
// An Attempt is itself the context of its request. It is a single allocation
// and lives as long as the response body.
type Attempt struct {
	context.Context

	Req      http.Request // the request that the base gets
	parent   context.Context
	cancel   context.CancelCauseFunc
	timer    *time.Timer
	body     body.Releasing // if the response needs one
	tooLate  error
	maxSends int // 0 means no limit
	watch    Watch

	trace     httptrace.ClientTrace
	wanted    atomic.Bool  // net/http asked for a connection
	sends     atomic.Int32 // connections that the base got, each for one send
	bounded   boundedSends
	refused   int          // sends that the server provably didn't process, each followed by one of ours
	sent      bool         // the last use of the base got a connection
	fault     atomic.Bool  // the caller's body failed, not the host
	upload    *body.Ending // the request body, if it matters whether it was sent
	connected atomic.Bool  // package net made a connection
	handshake atomic.Pointer[error]
}

// Watch selects what an attempt observes in addition to the connections it got.
type Watch uint8

const (
	WatchSend      Watch = 1 << iota // for [Attempt.NeverSent]
	WatchHandshake                   // for [Attempt.HandshakeError]
	ExpectHTTP2                      // every connection without TLS speaks HTTP/2
)

// Begin starts an attempt at req that must reach the response headers within
// limit. If limit is 0, there is no limit. An attempt that takes longer ends
// with the cause tooLate.
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
		// WithClientTrace chains the caller's hooks behind ours, in place.
		// Value provides the trace, so the context that it returns isn't
		// needed.
		httptrace.WithClientTrace(a.parent, &a.trace)
	}
	a.Req = *req.WithContext(a)
	if limit > 0 {
		a.timer = time.AfterFunc(limit, func() { a.cancel(a.tooLate) })
	}
	return a
}

// ErrHiddenSends ends an attempt in which the base has sent more often than
// MaxSends allows.
var ErrHiddenSends = errors.New("retrip: net/http by itself sent the request more often than Policy.MaxSends within an attempt")

// Value implements [context.Context]. It replaces [httptrace.WithClientTrace]
// without another context.
func (a *Attempt) Value(key any) any {
	switch key {
	case traceKey:
		return &a.trace
	case attemptKey{}:
		return a
	}
	return a.Context.Value(key)
}

// traceKey is the context key under which httptrace looks for its hooks.
var traceKey = func() any {
	var asked keyRecorder
	httptrace.ContextClientTrace(&asked)
	return asked.key
}()

// keyRecorder is a context that records the key it was asked for.
type keyRecorder struct {
	context.Context
	key any
}

func (r *keyRecorder) Value(key any) any {
	r.key = key
	return nil
}

// Format implements [fmt.Formatter]. Logs may print the context of a request,
// and must not show the request's headers.
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

// HandshakeError returns the error of the last failed TLS handshake over a
// connection of package net. On other connections a handshake error may have
// any cause.
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

// NeverSent reports whether the attempt asked for a connection and got none,
// which proves that nothing was sent. If the first hook was never called, there
// is no proof, because the base may not support httptrace.
func (a *Attempt) NeverSent() bool { return a.wanted.Load() && a.sends.Load() == 0 }

// WatchSent makes BodySent report on the body of a's request. It must be the
// last change to the body.
func (a *Attempt) WatchSent() {
	a.upload = body.WatchEnd(a.Req.Body, a.Req.ContentLength)
	a.Req.Body = a.upload
}

// BodySent reports whether the body of a's request has been read to its end. It
// returns true if WatchSent wasn't called.
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

// End processes what the base returned. Once the response headers have arrived,
// the attempt's time limit no longer applies: its timer is stopped, and its
// context lives as long as the body.
func (a *Attempt) End(resp *http.Response, err error) (*http.Response, error) {
	inTime := a.timer == nil || a.timer.Stop()
	if !inTime {
		// The timer's function may not have run yet.
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
			// A base that doesn't know about causes returns a cancellation, but
			// the caller has canceled nothing.
			err = cause
		default:
			// The base may have failed at the same moment for a reason of its
			// own, which our cause must not hide.
			err = errors.Join(cause, err)
		}
		return nil, err
	case !inTime && own:
		// The headers arrived as the time ran out: the body is lost.
		body.Dismiss(resp)
		a.cancel(nil)
		return nil, cause
	}
	a.release(resp)
	return resp, nil
}

// release ties the end of the attempt's context to the end of the body. A
// parent that never ends keeps no record of its children; then nothing needs
// releasing, and the body stays as it is.
func (a *Attempt) release(resp *http.Response) {
	if a.parent.Done() == nil {
		return
	}
	// Over HTTP/2 a response may end while the request body is still being
	// sent, and sending it needs the context too.
	uploading := resp.ProtoMajor > 1 && a.Req.Body != nil && a.Req.Body != http.NoBody
	switch b := resp.Body.(type) {
	case nil:
		a.cancel(nil)
	case io.ReadWriteCloser:
		// After 101 Switching Protocols, one direction may end before the
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

// Use calls base with req and records whether base got a connection for it.
// netHTTP says that base is net/http's own transport.
func (a *Attempt) Use(base http.RoundTripper, netHTTP bool, req *http.Request) (*http.Response, error) {
	before := a.sends.Load()
	resp, err := base.RoundTrip(req)
	n := int(a.sends.Load() - before)
	a.sent = n > 0
	if n > 1 && req.Body != nil && req.GetBody == nil && netHTTP {
		// net/http can't send this body twice, so it moved to another
		// connection because the earlier ones couldn't take a request.
		a.refused += n - 1
	}
	return resp, err
}

// MayUseAgain reports whether the request may be sent again within the attempt,
// if the last send was provably not processed: no other send may have been
// processed.
func (a *Attempt) MayUseAgain() bool {
	return a.sent && a.Processable() == 1 && a.Err() == nil && (a.maxSends == 0 || a.refused < a.maxSends)
}

// Sends returns how many connections the base got, each for one send.
func (a *Attempt) Sends() int { return int(a.sends.Load()) }

// Processable returns how many sends the server may have processed.
func (a *Attempt) Processable() int { return a.Sends() - a.refused }

// Sent reports whether the base got a connection in its last use.
func (a *Attempt) Sent() bool { return a.sent }

// AtFault reports whether the body caused the failure, and not the host. It
// needs WatchBody.
func (a *Attempt) AtFault() bool { return a.fault.Load() }

// HadConn reports whether the base got a connection.
func (a *Attempt) HadConn() bool {
	_, had := a.bounded.firstConn()
	return had
}

// SpokeHTTP2 reports whether the first connection of the base spoke HTTP/2.
func (a *Attempt) SpokeHTTP2() bool {
	conn, had := a.bounded.firstConn()
	return had && speaksHTTP2(conn, a.watch&ExpectHTTP2 != 0)
}

// Again returns the request of a, with b as its body, for another send after
// one that was provably not processed.
func (a *Attempt) Again(b io.ReadCloser) *http.Request {
	a.refused++
	// The base may have kept the previous request.
	req := a.Req
	req.Body = b
	if a.upload != nil {
		a.upload = body.WatchEnd(b, req.ContentLength)
		req.Body = a.upload
	}
	return &req
}

// GiveBack replaces req in resp by the caller's request, and a context that a
// would end by the caller's context.
func (a *Attempt) GiveBack(resp *http.Response, req, callers *http.Request) {
	switch r := resp.Request; {
	case r == req:
		resp.Request = callers
	case r != nil && r.Context().Value(attemptKey{}) == a:
		resp.Request = r.WithContext(outlived{a.parent, r.Context()})
	}
}

// attemptKey is the key under which the context of an attempt returns the
// attempt.
type attemptKey struct{}

// outlived is a context that a base derived from an attempt's context, without
// the end of the attempt.
type outlived struct {
	context.Context                 // the caller's
	values          context.Context // the base's
}

func (c outlived) Value(key any) any {
	if key == (attemptKey{}) {
		return c.Context.Value(key)
	}
	return c.values.Value(key)
}

// WatchBody makes a record whether its request's body, or a body from GetBody,
// caused a failure of the attempt.
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
