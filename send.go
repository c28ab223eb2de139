// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"io"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/replay"
	"github.com/retrip/retrip/internal/spare"
)

// send makes an attempt, or takes the one that first has recorded.
func (x *exchange) send() {
	if x.sent {
		// take may panic as it closes the response. cleanUp must not close it
		// again.
		x.sent, x.held = false, false
		x.take(x.resp, x.err)
		if x.attempt != nil && x.resp != nil {
			x.attempt.GiveBack(x.resp, &x.attempt.Req, x.req)
		}
		return
	}
	x.call.Attempts++
	if x.watch().hooked() {
		x.tellAttempt()
	}
	x.attempt, x.sends, x.torn, x.whole, x.download = nil, 0, nil, false, nil
	x.began = x.beginning()
	if !x.derives() {
		x.sending()
		x.take(x.base().RoundTrip(x.req))
		return
	}
	base, req := x.base(), x.derive()
	netHTTP := isNetHTTP(base)
	x.sending()
	var left time.Duration
	if x.deadline != 0 {
		left = max(1, x.deadline-x.began)
	}
	awaits := x.awaitsRest()
	if awaits {
		x.attempt.Limit(x.clock(), x.r.policy.BodyIdle, errBodyIdle)
	} else {
		x.r.limit(x.attempt, x.clock(), left)
	}
	resp, err := x.attempt.Use(base, netHTTP, req)
	for resp == nil && fault.GoneAway(err) && x.attempt.MayUseAgain() && x.payload.again() {
		// net/http does the same if the request has a GetBody. The connection
		// has ended, which is no sign of trouble at the host.
		req = x.attempt.Again(x.payload.once.Reader())
		resp, err = x.attempt.Use(base, netHTTP, req)
	}
	if awaits && x.attempt.InTime() {
		// From here on, the stream that gets the body watches it. What Classify
		// waits for must still arrive within AttemptTimeout.
		x.r.limit(x.attempt, x.clock(), 0)
	}
	x.sends = x.attempt.Sends()
	x.take(resp, err)
	if x.resp != nil {
		x.attempt.GiveBack(x.resp, req, x.req)
	}
}

// awaitsRest reports whether the response to the next attempt must arrive within
// BodyIdle, because a Read of the body that it continues waits for it.
func (x *exchange) awaitsRest() bool {
	p := &x.r.policy
	return x.continues && p.BodyIdle > 0 && (p.AttemptTimeout <= 0 || p.BodyIdle < p.AttemptTimeout)
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

// beginning returns the current instant, or 0 if the duration of an attempt
// doesn't matter.
func (x *exchange) beginning() time.Duration {
	if !x.timed() {
		return 0
	}
	return x.now()
}

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
	x.attempt = x.r.begin(x.req, x.idempotent, x.s.watch)
	req := &x.attempt.Req
	x.payload.attach(x.attempt, x.idempotent)
	if x.r.policy.WholeBody > 0 && x.payload.kind >= replay.Gotten {
		x.attempt.WatchSent()
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
func (r *Rules) begin(req *http.Request, idempotent bool, watch attempt.Watch) *attempt.Attempt {
	if !idempotent {
		watch |= attempt.WatchSend
	}
	return attempt.Begin(req, r.maxSends, watch)
}

// limit bounds a by AttemptTimeout and, if left isn't 0, by Policy.Deadline,
// which ends after left. clock is as in [alarm.Set].
func (r *Rules) limit(a *attempt.Attempt, clock time.Time, left time.Duration) {
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
