// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"
)

// attempt is one use of the base with a context of its own: it ends the
// attempt in time, without cutting the body of a response, and sees what
// net/http does on its own accord.
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

	trace  httptrace.ClientTrace
	wanted atomic.Bool  // a connection was asked for
	sends  atomic.Int32 // connections that were had, each for one send
}

// begin makes an attempt at req that has limit to get to the response headers,
// 0 being no limit, and ends with the cause tooLate. Only where proof is asked
// for can neverSent give it.
func begin(req *http.Request, limit time.Duration, tooLate *timeoutError, maxSends int, proof bool) *attempt {
	a := &attempt{parent: req.Context(), tooLate: tooLate, maxSends: max(0, maxSends)}
	a.Context, a.cancel = context.WithCancelCause(a.parent)
	if proof {
		a.trace.GetConn = a.getConn
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
	if key == traceKey {
		return &a.trace
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

func (a *attempt) getConn(string) { a.wanted.Store(true) }

func (a *attempt) gotConn(httptrace.GotConnInfo) {
	if sends := int(a.sends.Add(1)); a.maxSends > 0 && sends > a.maxSends {
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
		if own && !errors.Is(err, cause) {
			// A base that doesn't know about causes calls it a cancellation,
			// which it was not as far as the caller is concerned.
			err = cause
		}
		return nil, err
	case !inTime && own:
		// The headers came as the time ran out: the body is lost.
		closeBody(resp)
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

func closeBody(resp *http.Response) {
	if resp != nil && resp.Body != nil {
		resp.Body.Close()
	}
}

// send makes an attempt.
func (x *exchange) send() {
	x.call.Attempts++
	if x.watch.hooked() {
		x.watch.run(hookAttempt, Event{Request: x.req, Policy: x.r.name, Attempt: x.call.Attempts, Elapsed: time.Since(x.watch.began)})
	}
	x.attempt = nil
	if !x.derives() {
		x.take(x.s.base.RoundTrip(x.req))
		return
	}
	req := x.derive()
	resp, err := x.s.base.RoundTrip(req)
	x.take(resp, err)
	if x.resp != nil && x.resp.Request == req {
		x.resp.Request = x.req
	}
	x.resp, x.err = x.attempt.end(x.resp, x.err)
	x.held = x.resp != nil
}

// derives reports whether the attempt about to be made needs a request of its
// own.
func (x *exchange) derives() bool {
	if x.r.derives || x.key != "" || x.watch.hooked() || x.body != nil {
		return true
	}
	return x.call.Attempts > 1 && (x.kind == gottenBody || x.replaysStale() || x.r.policy.RetryHeader != "")
}

// replaysStale reports whether a retry is to be marked as idempotent for
// net/http, which then makes up for a dead connection of its pool on its own
// accord, as it does for a GET. A retry might meet one dead connection after
// the other otherwise. The mark is a header with no value: nothing is sent.
func (x *exchange) replaysStale() bool {
	return x.err != nil && x.idempotent && !hasKey(x.req.Header) &&
		(x.req.Method == http.MethodPut || x.req.Method == http.MethodDelete)
}

// derive returns a request for the attempt about to be made. It shares
// everything with the caller's but what it has to have of its own.
func (x *exchange) derive() *http.Request {
	p := &x.r.policy
	limit, tooLate := max(0, p.AttemptTimeout), errAttemptTimeout
	if x.deadline != 0 {
		if left := max(1, x.deadline-x.s.now()); limit == 0 || left < limit {
			limit, tooLate = left, errDeadline
		}
	}
	maxSends := p.MaxSends
	if maxSends == 0 {
		maxSends = defaultMaxSends
	}
	x.attempt = begin(x.req, limit, tooLate, maxSends, !x.idempotent)
	req := &x.attempt.req
	switch {
	case x.next != nil:
		req.Body, x.given, x.next = x.next, x.next, nil
	case x.body != nil:
		req.Body = x.body.reader()
		// With GetBody and a key net/http would repeat the request on its own
		// accord, also where the policy forbids it.
		if x.idempotent || p.Idempotent == nil {
			req.GetBody = x.body.getBody
		}
	}
	switch {
	case x.key != "":
		req.Header = withHeader(req.Header, "Idempotency-Key", []string{x.key})
	case x.call.Attempts > 1 && x.replaysStale():
		req.Header = withHeader(req.Header, "Idempotency-Key", []string{})
	}
	if name := p.RetryHeader; name != "" && x.call.Attempts > 1 {
		req.Header = withHeader(req.Header, http.CanonicalHeaderKey(name), []string{strconv.Itoa(x.call.Attempts)})
	}
	return req
}

// withHeader returns a copy of h with a further field.
func withHeader(h http.Header, name string, values []string) http.Header {
	h = maps.Clone(h)
	if h == nil {
		h = http.Header{}
	}
	h[name] = values
	return h
}
