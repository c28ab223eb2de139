// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/replay"
	"github.com/retrip/retrip/internal/spare"
)

// send makes an attempt.
func (x *exchange) send() {
	x.call.Attempts++
	x.last = last{}
	if x.watch().hooked() {
		x.tellAttempt()
	}
	if x.timed() {
		x.last.began = x.beginning()
	}
	if !x.derives() {
		x.sending()
		x.last.take(x.base().RoundTrip(x.req))
		return
	}
	base, req := x.base(), x.derive()
	netHTTP := isNetHTTP(base)
	x.sending()
	var left time.Duration
	if x.deadline != 0 {
		left = max(1, x.deadline-x.last.began)
	}
	awaits := x.awaitsRest()
	if awaits {
		x.last.attempt.Limit(x.start(), x.r.policy.BodyIdleTimeout, errBodyIdle)
	} else {
		x.r.limit(x.last.attempt, x.start(), left)
	}
	resp, err := x.last.attempt.Use(base, netHTTP, req)
	for resp == nil && fault.GoneAway(err) && x.last.attempt.MayUseAgain() && x.payload.again() {
		// net/http does the same if the request has a GetBody. The connection
		// has ended, which is no sign of trouble at the host.
		req = x.last.attempt.Again(x.payload.once.Reader())
		resp, err = x.last.attempt.Use(base, netHTTP, req)
	}
	if awaits && x.last.attempt.InTime() {
		// What Classify waits for must still arrive within AttemptTimeout.
		x.r.limit(x.last.attempt, x.start(), 0)
	}
	x.last.sends = x.last.attempt.Sends()
	x.last.take(resp, err)
	if x.last.resp != nil {
		x.last.attempt.GiveBack(x.last.resp, req, x.req)
	}
}

// beginning returns the current instant. At first attempts to hosts in no trouble,
// that is the first reading of the clock: nothing has waited since.
func (x *exchange) beginning() time.Duration {
	if x.call.Attempts == 1 && x.host == nil {
		return x.s.instant(x.start())
	}
	return x.now()
}

// awaitsRest reports whether the response to the next attempt must arrive within
// BodyIdleTimeout, because a Read of the body that it continues waits for it.
func (x *exchange) awaitsRest() bool {
	p := &x.r.policy
	return x.continues && p.BodyIdleTimeout > 0 && (p.AttemptTimeout <= 0 || p.BodyIdleTimeout < p.AttemptTimeout)
}

// isNetHTTP reports whether base is a transport of net/http.
func isNetHTTP(base http.RoundTripper) bool {
	switch base.(type) {
	case *http.Transport, *spare.Pool:
		return true
	}
	return false
}

// timed reports whether the duration of an attempt matters.
func (x *exchange) timed() bool { return x.call.Deadline != 0 || x.r.timed }

// derives reports whether the next attempt needs a request of its own.
func (x *exchange) derives() bool {
	if x.r.derives || x.key != "" || x.payload.kind >= replay.Gotten || x.watch().hooked() || x.s.watch&attempt.WatchHandshake != 0 {
		return true
	}
	return x.call.Attempts > 1 && x.payload.kind == replay.Memory || x.r.retryHeader != "" && x.number() > 1
}

// number returns the number of the attempt, continuing the count of the
// incoming request on whose behalf the request is made.
func (x *exchange) number() int { return x.incoming - 1 + x.call.Attempts }

// derive returns a request for the next attempt. It shares with the caller's
// request everything that doesn't have to differ.
func (x *exchange) derive() *http.Request {
	x.last.attempt = x.r.begin(x.req, x.idempotent, x.s.watch)
	req := &x.last.attempt.Req
	x.payload.attach(x.last.attempt, x.idempotent)
	if x.r.policy.WholeBody > 0 && x.payload.kind >= replay.Gotten {
		x.last.attempt.WatchSent()
	}
	if x.key != "" {
		req.Header = withHeader(req.Header, "Idempotency-Key", x.key)
	}
	if name, n := x.r.retryHeader, x.number(); name != "" && n > 1 {
		req.Header = withHeader(req.Header, name, strconv.Itoa(n))
	}
	return req
}

// begin returns an attempt that has a request of its own.
func (r *rules) begin(req *http.Request, idempotent bool, watch attempt.Watch) *attempt.Attempt {
	if !idempotent {
		watch |= attempt.WatchSend
	}
	return attempt.Begin(req, r.maxSends, watch)
}

// limit bounds a by AttemptTimeout and, if left isn't 0, by Policy.Deadline,
// which ends after left. clock is as in [alarm.Set].
func (r *rules) limit(a *attempt.Attempt, clock time.Time, left time.Duration) {
	limit, tooLate := r.policy.AttemptTimeout, errAttemptTimeout
	if left > 0 && (limit <= 0 || left < limit) {
		limit, tooLate = left, errDeadline
	}
	if limit > 0 {
		a.Limit(clock, limit, tooLate)
	}
}

// withHeader returns a copy of h with one more field.
func withHeader(h http.Header, name, value string) http.Header {
	h = maps.Clone(h)
	if h == nil {
		h = http.Header{}
	}
	h[name] = []string{value}
	return h
}

// lostLately is how long a lost connection is assumed to have been dead
// before its attempt failed, at most.
const lostLately = time.Second

// doubt is what a request knows about bad connections to its host.
type doubt struct {
	on    bool          // the next attempt avoids the pool of the base
	http2 bool          // the connection of the last attempt spoke HTTP/2
	lost  int32         // attempts whose connection was lost
	since time.Duration // an instant by which that attempt should have been answered
}

// doubts records what the error of the last attempt says about its connection.
// From then on the request may avoid the pool of the base.
func (x *exchange) doubts() {
	base, ok := x.s.base.(*http.Transport)
	if !ok {
		return
	}
	var limit time.Duration
	a := x.last.attempt
	had := a != nil && a.HadConn()
	switch {
	// An attempt without a connection waited for a dial or for its turn. That
	// says nothing about a connection of the base, but counts against a spare.
	case errors.Is(x.last.err, errBodyIdle):
		if a != nil && !x.doubt.on && !had {
			return
		}
		limit = x.r.policy.BodyIdleTimeout
	case errors.Is(x.last.err, errAttemptTimeout):
		if a == nil || !x.doubt.on && !had {
			return
		}
		limit = x.r.policy.AttemptTimeout
	case base.ResponseHeaderTimeout > 0 && strings.HasSuffix(x.last.err.Error(), awaitingHeaders):
		limit = base.ResponseHeaderTimeout
	case fault.Lost(x.last.err):
		if x.doubt.lost++; x.doubt.lost < 2 || had && a.SpokeHTTP2() {
			return
		}
		limit = lostLately
	default:
		// A dial that failed, for instance.
		return
	}
	switch {
	case x.continues && a == nil:
		// x.doubt.http2 is already set, from the body that broke.
	case a == nil:
		x.doubt.http2 = strings.HasPrefix(x.last.err.Error(), "http2: ")
	case had:
		x.doubt.http2 = a.SpokeHTTP2()
	}
	// Ignore responses from the first half of the attempt: the connection may
	// have frozen after them. The second half lets requests that time out at
	// different moments share a spare.
	x.doubt.on, x.doubt.since = true, x.s.now()-limit/2
}

// awaitingHeaders ends the texts of net/http's errors for
// ResponseHeaderTimeout.
const awaitingHeaders = "timeout awaiting response headers"

// base returns the RoundTripper for the next attempt.
func (x *exchange) base() http.RoundTripper {
	if !x.doubt.on {
		return x.s.base
	}
	return x.spare()
}

// spare returns the spare of the request's host, or the base if there can't be
// one. It must not be inlined, to keep the stack frames of other attempts
// small.
//
//go:noinline
func (x *exchange) spare() http.RoundTripper {
	key := spare.Key{Key: hostkey.Of(x.req.URL), Scheme: x.req.URL.Scheme, HTTP2: x.doubt.http2}
	if p := x.t.spares.Get(x.s.epoch, x.s.base.(*http.Transport), key, x.doubt.since); p != nil {
		return p
	}
	return x.s.base
}

// payload is the body of a request, which each attempt gets anew.
type payload struct {
	req   *http.Request
	kind  replay.Kind
	once  *replay.Body  // replays a one-shot body; nil for other kinds
	given io.Closer     // the body of the last attempt, if GetBody made it
	next  io.ReadCloser // the body of the next attempt, if GetBody made it
}

// open makes a one-shot body replayable, keeping up to limit bytes if it is a
// stream.
func (p *payload) open(limit int64) {
	if p.kind == replay.Once {
		p.once = replay.Open(p.req, limit)
	}
}

// hold reports whether the body can be replayed, as far as is known. The caller
// must then decide at once about another attempt, and call release.
func (p *payload) hold() (replayable bool) { return p.once == nil || p.once.Hold() }

// release ends hold. If again is true, the body stays replayable until the next
// attempt.
func (p *payload) release(again bool) {
	if p.once != nil {
		p.once.Release(again)
	}
}

// renew calls GetBody for the body of the next attempt.
func (p *payload) renew() error {
	if p.kind != replay.Memory && p.kind != replay.Gotten {
		return nil
	}
	next, err := p.req.GetBody()
	if err == nil && next == nil {
		err = replay.ErrNoBody
	}
	if err != nil {
		return fault.Usable(err)
	}
	p.next = next
	return nil
}

// attach gives a its body.
func (p *payload) attach(a *attempt.Attempt, idempotent bool) {
	if p.next != nil {
		a.Req.Body, p.given, p.next = p.next, p.next, nil
	}
	switch {
	case p.once != nil:
		a.Req.Body = p.once.Reader()
		// With a GetBody, net/http repeats the request by itself, even if the
		// server might then process it twice.
		if idempotent && p.once.Always() {
			a.Req.GetBody = p.once.GetBody
		}
	case p.kind != replay.None && !body.Sound(a.Req.Body, a.Req.ContentLength):
		a.WatchBody()
	}
}

// again reports whether a one-shot body can be replayed within the attempt. If
// it reports true, the body stays replayable until then.
func (p *payload) again() (again bool) {
	if p.once == nil {
		return false
	}
	again = p.hold()
	p.release(again)
	return again
}

// faulty reports whether a one-shot body caused the failure.
func (p *payload) faulty() bool { return p.once != nil && p.once.AtFault() }

// end closes every body of the request that nothing else closes. panicked says
// that the last of the attempts may not have returned.
func (p *payload) end(panicked bool, attempts int) {
	if p.next != nil {
		p.next.Close()
	}
	if panicked && p.kind != replay.Once && attempts > 1 && p.given != nil {
		p.given.Close()
	}
	unused := panicked || attempts == 0
	switch {
	case p.once != nil:
		p.once.Seal(unused)
	case unused:
		body.CloseRequest(p.req)
	}
}
