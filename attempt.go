// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"reflect"
	"strconv"
	"sync"
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
	watch    watched

	trace     httptrace.ClientTrace
	wanted    atomic.Bool  // a connection was asked for
	sends     atomic.Int32 // connections that were had, each for one send
	refused   int          // sends that provably were not processed, and that ours followed
	fault     atomic.Bool  // the caller's body is at fault, and not the host
	handshake atomic.Pointer[error]

	mu      sync.Mutex   // guards what follows
	first   net.Conn     // that of the first send
	pooled  []pooledConn // what further sends had from the pool, and the first
	counted int          // sends that count towards maxSends
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

func (a *attempt) tlsHandshakeDone(_ tls.ConnectionState, err error) {
	if err != nil {
		a.handshake.Store(&err)
	}
}

// handshakeError returns the error of the last TLS handshake that failed.
func (a *attempt) handshakeError() error {
	if err := a.handshake.Load(); err != nil {
		return *err
	}
	return nil
}

func (a *attempt) gotConn(info httptrace.GotConnInfo) {
	a.sends.Add(1)
	if a.maxSends > 0 && a.count(info.Conn, info.Reused) > a.maxSends {
		a.cancel(errHiddenSends)
	}
}

// count takes in a send over conn and returns how many sends count towards the
// bound. Over HTTP/1, net/http sends again only after a connection of its pool
// has turned out to be dead, and the pool bounds that. So a send over a
// connection of the pool doesn't count, unless the connection speaks HTTP/2 or
// the attempt has had it before.
func (a *attempt) count(conn net.Conn, reused bool) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.first == nil && a.counted == 0 && len(a.pooled) == 0 {
		// Nearly every attempt has one send. Only a second one makes it matter
		// over what the first one went.
		if !reused || conn == nil {
			a.counted = 1
		}
		a.first = conn
		return 1
	}
	if a.counted == 0 && len(a.pooled) == 0 {
		a.countPooled(a.first)
	}
	if reused {
		a.countPooled(conn)
	} else {
		a.counted++
	}
	return a.counted
}

// countPooled takes in a send over a connection of the pool. a is locked.
func (a *attempt) countPooled(conn net.Conn) {
	if !isComparable(conn) || a.speaksHTTP2(conn) {
		a.counted++
		return
	}
	for i := range a.pooled {
		if p := &a.pooled[i]; p.conn == conn {
			a.counted++
			if !p.counted {
				p.counted = true
				a.counted++
			}
			return
		}
	}
	a.pooled = append(a.pooled, pooledConn{conn: conn})
}

// pooledConn is a connection that net/http took from its pool.
type pooledConn struct {
	conn    net.Conn
	counted bool // the first send over it
}

// isComparable reports whether conn can be compared with others.
func isComparable(conn net.Conn) bool {
	v := reflect.ValueOf(conn)
	return v.IsValid() && v.Comparable()
}

func (a *attempt) speaksHTTP2(conn net.Conn) bool {
	if c, ok := conn.(interface{ ConnectionState() tls.ConnectionState }); ok {
		return c.ConnectionState().NegotiatedProtocol == "h2"
	}
	return a.watch&expectHTTP2 != 0
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
	for resp == nil && goneAway(err) && x.attempt.Err() == nil && x.hasBody() {
		// net/http would have done the same at once if it could have had the
		// body again: the connection has ended, and the host is in no trouble.
		req = x.attempt.again(x.body.reader())
		resp, err = x.s.base.RoundTrip(req)
	}
	x.take(resp, err)
	if x.resp != nil {
		x.attempt.giveBack(x.resp, req, x.req)
	}
	x.resp, x.err = x.attempt.end(x.resp, x.err)
	x.held = x.resp != nil
}

// hasBody reports whether the body, which can only be had once, can be sent
// again, and holds that true until it is.
func (x *exchange) hasBody() (again bool) {
	if x.body == nil {
		return false
	}
	x.body.decide(func(replayable bool) bool {
		again = replayable
		return again
	})
	return again
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

// derives reports whether the attempt about to be made needs a request of its
// own.
func (x *exchange) derives() bool {
	if x.r.derives || x.key != "" || x.kind >= gottenBody || x.watch.hooked() || x.s.watch&watchHandshake != 0 {
		return true
	}
	return x.call.Attempts > 1 && (x.kind == memoryBody || x.r.policy.RetryHeader != "")
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
	watch := x.s.watch
	if !x.idempotent {
		watch |= watchSend
	}
	x.attempt = begin(x.req, limit, tooLate, maxSends, watch)
	req := &x.attempt.req
	if x.next != nil {
		req.Body, x.given, x.next = x.next, x.next, nil
	}
	switch {
	case x.body != nil:
		req.Body = x.body.reader()
		// With GetBody net/http sends again by itself, also where that could
		// do something twice.
		if x.idempotent && x.body.always() {
			req.GetBody = x.body.getBody
		}
	case x.kind != noBody && !sound(req.Body, req.ContentLength):
		x.attempt.watchBody()
	}
	if x.key != "" {
		req.Header = withHeader(req.Header, "Idempotency-Key", x.key)
	}
	if name := p.RetryHeader; name != "" && x.call.Attempts > 1 {
		req.Header = withHeader(req.Header, http.CanonicalHeaderKey(name), strconv.Itoa(x.call.Attempts))
	}
	return req
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

// withHeader returns a copy of h with a further field.
func withHeader(h http.Header, name, value string) http.Header {
	h = maps.Clone(h)
	if h == nil {
		h = http.Header{}
	}
	h[name] = []string{value}
	return h
}
