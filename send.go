// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"maps"
	"net/http"
	"strconv"
	"time"
)

// send makes an attempt, unless plain has made it.
func (x *exchange) send() {
	if x.sent {
		x.sent = false
		return
	}
	x.began = x.clock()
	x.call.Attempts++
	if x.watch.hooked() {
		x.watch.run(hookAttempt, Event{Request: x.req, Policy: x.r.name, Attempt: x.call.Attempts, Elapsed: time.Since(x.watch.began)})
	}
	x.attempt = nil
	if !x.derives() {
		x.take(x.base().RoundTrip(x.req))
		return
	}
	base, req := x.base(), x.derive()
	resp, err := x.attempt.use(base, req)
	for resp == nil && x.attempt.sentOnce() && goneAway(err) && x.attempt.maySendAgain() && x.payload.again() {
		// net/http does the same at once where the request has a GetBody: the
		// connection has ended, and the host is in no trouble.
		req = x.attempt.again(x.payload.once.reader())
		resp, err = x.attempt.use(base, req)
	}
	x.take(resp, err)
	if x.resp != nil {
		x.attempt.giveBack(x.resp, req, x.req)
	}
	x.resp, x.err = x.attempt.end(x.resp, x.err)
	x.held = x.resp != nil
}

// clock returns the instant, or 0 where no deadline makes it matter.
func (x *exchange) clock() time.Duration {
	if x.call.Deadline == 0 {
		return 0
	}
	return x.s.now()
}

// derives reports whether the attempt about to be made needs a request of its
// own.
func (x *exchange) derives() bool {
	if x.r.derives || x.key != "" || x.payload.kind >= gottenBody || x.watch.hooked() || x.s.watch&watchHandshake != 0 {
		return true
	}
	return x.call.Attempts > 1 && x.payload.kind == memoryBody || x.r.retryHeader != "" && x.number() > 1
}

// number returns the number of the attempt, counted from the one by which the
// request on whose behalf it is made came in.
func (x *exchange) number() int { return x.incoming - 1 + x.call.Attempts }

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
	x.payload.attach(x.attempt, x.idempotent)
	if x.key != "" {
		req.Header = withHeader(req.Header, "Idempotency-Key", x.key)
	}
	if name, n := x.r.retryHeader, x.number(); name != "" && n > 1 {
		req.Header = withHeader(req.Header, name, strconv.Itoa(n))
	}
	return req
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
