// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package attempt runs one attempt at a base transport, with a context of its
// own.
package attempt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/alarm"
	"github.com/retrip/retrip/internal/body"
)

// Attempt is one attempt at the base. Its context ends the attempt on time
// without cutting the body of a response. Its httptrace hooks observe what
// net/http does by itself.
//
// An Attempt is itself the context of its request. It is a single allocation
// and lives as long as the response body. It creates its hooks, and whatever ends
// contexts derived from it, only when the base asks for them. An Attempt is never
// recycled, because a base may keep the request or the context for as long as it
// likes.
type Attempt struct {
	Req     http.Request // the request that the base gets
	parent  context.Context
	alarm   *alarm.Alarm   // nil if there is no limit, or once it is stopped
	body    body.Releasing // if the response needs one
	tooLate error          // nil if there is no limit

	mu       sync.Mutex    // guards the six below
	cause    error         // why the attempt ended; nil: it hasn't, or because parent had ended before
	done     chan struct{} // closed when the attempt has ended; nil until it is asked for
	unfollow func() bool   // parent's end is no longer that of the attempt; nil: nothing follows it
	after    func()        // to call when the attempt ends: net/http's context ends then
	taken    bool          // after has been set
	child    *child        // of parent; nil until it is asked for

	fate atomic.Uint32 // what came first: undecided, answered or exceeded

	watch   Watch
	sent    bool                        // the last use of the base got a connection
	late    bool                        // the time limit passed before the alarm was stopped
	using   atomic.Bool                 // the base is at work
	refused int32                       // sends that the server provably didn't process, each followed by another
	upload  atomic.Pointer[body.Ending] // the last request body, if it matters whether it was sent
	hooks   atomic.Pointer[hooks]
}

// Watch selects what an attempt observes in addition to the connections it got.
type Watch uint8

const (
	WatchHandshake Watch = 1 << iota // for [Attempt.HandshakeError]
	WatchDialTLS                     // a function of the caller may make the handshake; needs WatchHandshake
	ExpectHTTP2                      // every connection without TLS speaks HTTP/2
	OwnConns                         // the first connection that the base asks for is the request's, or its proxy's: it is net/http's transport, which passes requests to no other
)

// Begin returns an attempt at req.
func Begin(req *http.Request, watch Watch) *Attempt {
	a := &Attempt{parent: req.Context(), watch: watch}
	a.adopt(req)
	return a
}

// Limit ends a with the cause tooLate unless it reaches the response headers
// within limit from now. clock is as in [alarm.Set]. Limit may be called again
// only after InTime has returned true.
func (a *Attempt) Limit(clock time.Time, limit time.Duration, tooLate error) {
	a.tooLate = tooLate
	a.alarm = alarm.Set(clock, limit, a)
}

// adopt makes Req a copy of req with a as its context. It must not be inlined:
// the compiler makes another copy on the stack, in the frame of the caller.
//
//go:noinline
func (a *Attempt) adopt(req *http.Request) { a.Req = *req.WithContext(a) }

// ErrHiddenSends ends an attempt in which the base sent the request more often
// than maxSends.
var ErrHiddenSends = fmt.Errorf("retrip: net/http by itself sent the request more than %d times within an attempt", maxSends)

// NeverSent reports whether the attempt asked for a connection for its request and got
// none, which proves that nothing was sent. If it never asked, there is no proof: the base
// may not support httptrace, or send in another way.
func (a *Attempt) NeverSent() bool {
	asked, sends := a.state()
	return asked > 0 && sends == 0
}

func (a *Attempt) state() (asked, sends int) {
	if h := a.hooks.Load(); h != nil {
		return h.conns.state()
	}
	return 0, 0
}

// NotConnected says that the base's error is that of a dial. net/http's transport then had no
// connection for the last send: the one that it seems to have got was the dialer's.
func (a *Attempt) NotConnected() {
	h := a.hooks.Load()
	if h == nil || a.watch&OwnConns == 0 {
		return
	}
	h.conns.mu.Lock()
	defer h.conns.mu.Unlock()
	if h.conns.doubtful {
		h.conns.sends--
		h.conns.doubtful, a.sent = false, false
	}
}

// WatchSent makes BodySent report on the body of a's request, and on those that
// the base gets from GetBody. It must be the last change to the body.
func (a *Attempt) WatchSent() { a.wrapBodies(a.watchEnd) }

// wrapBodies replaces the body of a's request, and those that the base gets from
// GetBody, except for those in memory: net/http must know them, and they don't block.
func (a *Attempt) wrapBodies(with func(io.ReadCloser) io.ReadCloser) {
	wrap := func(b io.ReadCloser) io.ReadCloser {
		if _, ok := body.InMemory(b); ok {
			return b
		}
		return with(b)
	}
	a.Req.Body = wrap(a.Req.Body)
	if get := a.Req.GetBody; get != nil {
		a.Req.GetBody = func() (io.ReadCloser, error) {
			made, err := get()
			if err != nil || made == nil {
				return made, err
			}
			return wrap(made), nil
		}
	}
}

// EndBodies makes the body of a's request, and those that the base gets from
// GetBody, fail if a ends while the base is at work. net/http's HTTP/1 reads a body to its
// end even if it is longer than announced, and doesn't return before that. If no length was
// announced, it notices the end of its context in time.
func (a *Attempt) EndBodies() {
	if a.Req.ContentLength > 0 {
		a.wrapBodies(func(b io.ReadCloser) io.ReadCloser { return &timely{b, a} })
	}
}

// timely is a body that fails if its attempt ends while the base is at work.
type timely struct {
	io.ReadCloser
	attempt *Attempt
}

func (b *timely) Read(p []byte) (int, error) {
	if a := b.attempt; a.using.Load() && a.over() {
		return 0, context.Cause(a)
	}
	return b.ReadCloser.Read(p)
}

func (a *Attempt) watchEnd(b io.ReadCloser) io.ReadCloser {
	for {
		before := a.upload.Load()
		if watched := body.WatchEnd(b, a.Req.ContentLength, before); a.upload.CompareAndSwap(before, watched) {
			return watched
		}
	}
}

// BodySent reports whether the bodies of a's request have been read to their
// end. It returns true if WatchSent wasn't called.
func (a *Attempt) BodySent() bool {
	b := a.upload.Load()
	return b == nil || b.Ended()
}

// Abandon ends a at once: nothing more is expected of it.
func (a *Attempt) Abandon() {
	a.InTime()
	a.cancel(nil)
}

// Finish ends a, whose response resp has been read to its end. If the request
// body may still be being sent, a lives until the response body is closed.
func (a *Attempt) Finish(resp *http.Response) {
	a.answer(resp)
	if !a.uploading(resp) {
		a.Abandon()
		return
	}
	a.InTime()
	a.release(resp)
}

// uploading reports whether the request body may still be being sent: over
// HTTP/2, a response may end before that. A body that has been read to its end
// may still wait for room in the stream.
func (a *Attempt) uploading(resp *http.Response) bool {
	return resp.ProtoMajor > 1 && a.Req.Body != nil && a.Req.Body != http.NoBody
}

// Ring implements [alarm.Ringer].
func (a *Attempt) Ring(*alarm.Alarm) { a.cancel(a.tooLate) }

// InTime stops the alarm and reports whether the time limit has not passed. It
// may be called again.
func (a *Attempt) InTime() bool {
	if r := a.alarm; r != nil {
		a.alarm = nil // it may belong to somebody else from here on
		a.late = !r.Stop()
	}
	return !a.late
}

// The fates of an attempt.
const (
	undecided uint32 = iota
	answered         // it has a response: what the base still sends doesn't end it
	exceeded         // the base sent too often, which has ended it
)

// answer decides that a has a response, and reports whether resp can be used. If
// the base had sent too often before, only a response without a body can.
func (a *Attempt) answer(resp *http.Response) bool {
	return a.fate.CompareAndSwap(undecided, answered) || a.bodiless(resp)
}

// bodiless reports whether resp has no body. HTTP/2 doesn't use http.NoBody.
func (a *Attempt) bodiless(resp *http.Response) bool {
	return resp.Body == nil || resp.Body == http.NoBody || body.Never(&a.Req, resp) || resp.ProtoMajor > 1 && resp.ContentLength == 0
}

// End processes what the base returned. Once the response headers have arrived,
// the attempt's time limit no longer applies: its alarm is stopped, and its
// context lives as long as the body.
func (a *Attempt) End(resp *http.Response, err error) (*http.Response, error) {
	inTime := a.InTime()
	if inTime && err == nil && a.answer(resp) {
		a.release(resp)
		return resp, nil
	}
	if !inTime {
		// Ring may not have run yet.
		a.cancel(a.tooLate)
	}
	cause := context.Cause(a)
	// Without a limit tooLate is nil, and so is the cause of an attempt that goes
	// on.
	own := cause != nil && a.parent.Err() == nil && (errors.Is(cause, a.tooLate) || errors.Is(cause, ErrHiddenSends))
	if err == nil {
		if own {
			// The headers arrived as the attempt was ended: the body is lost.
			body.Dismiss(resp)
			a.cancel(nil)
			return nil, cause
		}
		a.release(resp)
		return resp, nil
	}
	a.cancel(nil)
	switch {
	case !own || errors.Is(err, cause):
	case errors.Is(err, context.Canceled):
		// A base that doesn't know about causes returns a cancellation.
		err = alarm.Ended(cause, err)
	default:
		// The base may have failed at the same moment for a reason of its
		// own, which our cause must not hide.
		err = errors.Join(cause, err)
	}
	return nil, err
}

// release ties the end of the attempt's context to the end of the body. A
// parent that never ends keeps no record of its children; then nothing needs
// releasing, and the body stays as it is.
func (a *Attempt) release(resp *http.Response) {
	if a.parent.Done() == nil {
		return
	}
	// Sending the request body needs the context too.
	body.EndWith(resp, a, a.uploading(resp), &a.body)
}

// Use calls base with req and records whether base got a connection for it.
// netHTTP says that base is net/http's own transport.
func (a *Attempt) Use(base http.RoundTripper, netHTTP bool, req *http.Request) (*http.Response, error) {
	before := a.Sends()
	a.using.Store(true)
	resp, err := base.RoundTrip(req)
	a.using.Store(false)
	n := a.Sends() - before
	a.sent = n > 0
	if n > 1 && req.Body != nil && req.Body != http.NoBody && req.GetBody == nil && netHTTP {
		// net/http can't send this body twice, so it moved to another
		// connection because the earlier ones couldn't take a request.
		a.refused += int32(n - 1)
	}
	return resp, err
}

// MayUseAgain reports whether the request may be sent again within the attempt,
// if the last send was provably not processed: no other send may have been
// processed.
func (a *Attempt) MayUseAgain() bool {
	return a.sent && a.Processable() == 1 && a.Err() == nil && a.refused < maxSends
}

// Sends returns how many connections the base got for the request, each for one send: nothing
// shows how many bytes it then sent.
func (a *Attempt) Sends() int {
	_, sends := a.state()
	return sends
}

// Fresh reports whether the last connection that the base got was new.
func (a *Attempt) Fresh() bool {
	h := a.hooks.Load()
	return h != nil && h.fresh.Load()
}

// Processable returns how many sends the server may have processed.
func (a *Attempt) Processable() int { return a.Sends() - int(a.refused) }

// Sent reports whether the base got a connection in its last use.
func (a *Attempt) Sent() bool { return a.sent }

// SpokeHTTP2 reports whether the first connection of the base spoke HTTP/2.
func (a *Attempt) SpokeHTTP2() bool {
	h := a.hooks.Load()
	if h == nil {
		return false
	}
	conn, had := h.conns.firstConn()
	return had && speaksHTTP2(conn, a.watch&ExpectHTTP2 != 0)
}

// Conn returns the connection of the base, or nil if it had none or several, or one that
// can't be compared with others. a may be nil.
func (a *Attempt) Conn() net.Conn {
	if a == nil {
		return nil
	}
	if h := a.hooks.Load(); h != nil {
		if conn, _ := h.conns.firstConn(); a.Sends() == 1 && isComparable(conn) {
			return conn
		}
	}
	return nil
}

// Again returns the request of a, with what give gives it, for another send after
// one that was provably not processed.
func (a *Attempt) Again(give func(*http.Request)) *http.Request {
	a.refused++
	// The base may have kept the previous request.
	req := a.Req
	if give(&req); a.Req.ContentLength > 0 {
		req.Body = &timely{req.Body, a}
	}
	if a.upload.Load() != nil {
		req.Body = a.watchEnd(req.Body)
	}
	return &req
}
