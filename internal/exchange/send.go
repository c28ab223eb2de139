// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/replay"
	"github.com/retrip/retrip/internal/syntax"
)

// send makes an attempt, and reduces its outcome to what a decision needs.
func (x *exchange) send() {
	x.event = decide.Event{}
	x.tell.Sending(x.call.Attempts, &x.last.kept)
	x.last = last{}
	if x.timed() {
		x.last.began = x.beginning()
	}
	base := x.env.Base
	if spares := &x.env.Spares; x.route.Avoid(spares, x.req.URL) {
		base = x.route.Another(spares, base, x.req.URL, x.attemptTime())
	}
	hedges := x.cfg.Hedge.Share > 0 && x.hedges()
	var req *http.Request
	if hedges || x.derives() {
		req = x.derive()
	}
	switch {
	case hedges:
		x.sendHedged(base, req)
		return
	case req != nil:
		x.bound()
		x.use(base, req)
	default:
		x.last.take(base.RoundTrip(x.req))
		x.recordRoute(base)
	}
	x.classify()
}

// bound limits the time of the attempt.
func (x *exchange) bound() {
	if limit, tooLate := x.limit(); limit > 0 {
		x.last.awaits = tooLate == errBodyIdle
		x.last.attempt.Limit(x.start(), limit, tooLate)
	}
}

// use makes an attempt with a request of its own.
func (x *exchange) use(base http.RoundTripper, req *http.Request) {
	netHTTP := isNetHTTP(base)
	resp, err := x.last.attempt.Use(base, netHTTP, req)
	for resp == nil && fault.GoneAway(err) && x.last.attempt.MayUseAgain() && x.payload.MayReplay() {
		// net/http does the same if the request has a GetBody. The connection
		// has ended, which is no sign of trouble at the host.
		req = x.last.attempt.Again(x.payload.Once.Give)
		resp, err = x.last.attempt.Use(base, netHTTP, req)
	}
	if once := x.payload.Once; once != nil {
		once.Returned()
	}
	if limit := x.cfg.AttemptTimeout; x.last.awaits && x.last.attempt.InTime() && limit > 0 {
		// What Classify waits for must still arrive within AttemptTimeout.
		x.last.attempt.Limit(x.start(), limit, errAttemptTimeout)
	}
	if err != nil && fault.Unsent(err, x.env.Inner) {
		x.last.attempt.NotConnected()
	}
	x.last.kept.Sends = int32(x.last.attempt.Sends())
	x.last.take(resp, err)
	x.recordRoute(base)
	if x.last.resp != nil {
		x.last.attempt.GiveBack(x.last.resp, req, x.req)
	}
}

// beginning returns the current instant: that of the last step or, at first attempts to
// hosts in no trouble, the first reading of the clock. Nothing has waited since, unless a
// hook did.
func (x *journey) beginning() time.Duration {
	switch {
	case x.tell.Hooked:
	case x.host != nil:
		return x.stepped
	case x.call.Attempts == 1:
		return x.env.instant(x.start())
	}
	return x.now()
}

// timed reports whether the duration of an attempt matters: to a time limit, or because a
// good answer to an attempt that began after a pause says that other requests needn't wait.
func (x *journey) timed() bool {
	return x.call.Deadline != 0 || x.cfg.Timed || x.host != nil || x.req.URL != nil && !x.env.calm(x.req)
}

// derives reports whether the next attempt needs a request of its own.
func (x *exchange) derives() bool {
	retry := x.call.Attempts > 1
	switch {
	case x.cfg.Derives || x.deadline != 0, x.tell.Hooked, x.route.Other:
		// It is limited or observed.
		return true
	case x.payload.Kind >= replay.Gotten, retry && x.payload.Kind == replay.Memory:
		// It gets a body.
		return true
	case x.closes(), x.key != "", x.cfg.RetryHeader != "" && x.number() > 1:
		// It gets a header.
		return true
	}
	return x.env.Watch&attempt.WatchHandshake != 0 || attempt.ChecksInterim(x.req.Context())
}

// closes reports whether the connection of the next attempt is closed after it. Connection: close
// would spoil a header field Connection of the caller's, as for an upgrade.
func (x *exchange) closes() bool {
	return x.action.Close && x.req.Header["Connection"] == nil && isNetHTTP(x.env.Base)
}

// number returns the number of the attempt. It continues the count of the incoming
// request on whose behalf the request is made, if a header tells it.
func (x *journey) number() int {
	if x.tell.Override == nil || x.cfg.RetryHeader == "" {
		return x.call.Attempts
	}
	return x.tell.Override.Incoming(x.req.Context()) - 1 + x.call.Attempts
}

// derive returns a request for the next attempt. It shares with the caller's
// request everything that doesn't have to differ.
func (x *exchange) derive() *http.Request {
	x.last.attempt = attempt.Begin(x.req, x.env.Watch)
	req := &x.last.attempt.Req
	if x.payload.Attach(req, x.idempotent) {
		x.last.attempt.EndBodies()
	}
	if x.cfg.WholeBody > 0 && x.payload.Kind >= replay.Gotten {
		x.last.attempt.WatchSent()
	}
	if x.key != "" {
		req.Header = syntax.WithHeader(req.Header, "Idempotency-Key", x.key)
	}
	req.Close = req.Close || x.closes()
	if name, n := x.cfg.RetryHeader, x.number(); name != "" && n > 1 {
		req.Header = syntax.WithHeader(req.Header, name, strconv.Itoa(n))
	}
	return req
}

// limit returns how long the attempt may take by the rules, and the error of one that takes
// longer. A limit of 0 is none.
func (x *exchange) limit() (limit time.Duration, tooLate error) {
	limit, tooLate = max(0, x.cfg.AttemptTimeout), errAttemptTimeout
	if idle := x.cfg.BodyIdleTimeout; x.ofBody && idle > 0 && (limit == 0 || idle < limit) {
		// A Read of the body that the response continues waits for it.
		limit, tooLate = idle, errBodyIdle
	}
	if left := max(1, x.deadline-x.last.began); x.deadline != 0 && (limit == 0 || left < limit) {
		limit, tooLate = left, x.lateError()
	}
	return limit, tooLate
}

// attemptTime returns how long the attempt may take, or 0 if nothing bounds it.
func (x *exchange) attemptTime() time.Duration {
	most, _ := x.limit()
	if left := max(1, x.call.Deadline-x.last.began); x.call.Deadline != 0 && (most == 0 || left < most) {
		most = left
	}
	return most
}

// lateError returns the error of an attempt that ends with x.deadline.
func (x *exchange) lateError() error {
	if x.ofBody {
		return errNoProgress
	}
	return errDeadline
}

// recordRoute records what the last use of base says about connections.
func (x *exchange) recordRoute(base http.RoundTripper) {
	if resp := x.last.resp; x.route.Other || resp != nil && resp.ProtoMajor == 2 && x.env.Spares.Some() {
		var began time.Time
		if x.last.began != 0 {
			began = x.env.Epoch.Add(x.last.began)
		}
		x.route.Used(&x.env.Spares, base, x.req.URL, resp, x.last.attempt.Conn(), began)
	}
}

// reroute chooses the connection of the next attempt by how the last one has ended. A 421 that
// another connection may mend is repeated, whatever the method; otherwise it is final.
func (x *exchange) reroute() {
	if failed := x.last.failure(); failed != nil {
		x.doubts(failed)
	}
	if o := &x.event.Outcome; o.Status == http.StatusMisdirectedRequest && x.cfg.Retryable(o) {
		// RFC 9110 §15.5.20: whatever the method, over a different connection.
		if o.Repeatable = true; !x.route.Renew(&x.env.Spares, x.env.Base) {
			o.Verdict = decide.Final
		}
	}
}

// doubts records what err, with which the last attempt has failed, says about its
// connection.
func (x *exchange) doubts(err error) {
	base, ok := x.env.Base.(*http.Transport)
	if !ok {
		return
	}
	var limit time.Duration
	switch {
	case errors.Is(err, errBodyIdle):
		limit = x.cfg.BodyIdleTimeout
	case errors.Is(err, errAttemptTimeout):
		limit = x.cfg.AttemptTimeout
	case base.ResponseHeaderTimeout > 0 && fault.AwaitedHeaders(err):
		limit = base.ResponseHeaderTimeout
	case !fault.Lost(err):
		// A dial that failed, for instance.
		return
	}
	switch a := x.last.attempt; {
	case a != nil && a.Sends() > 0:
		x.route.HTTP2, x.route.Pooled = a.SpokeHTTP2(), !a.Fresh()
	case a != nil && limit > 0:
		// An attempt without a connection waited for a dial or for its turn.
		// That says nothing about any connection.
		return
	case a == nil && !x.ofBody: // else it is what the body that has broken came over
		x.route.HTTP2 = fault.OverHTTP2(err)
	}
	x.event.Outcome.Dead = x.route.Suspect(&x.env.Spares, hostkey.Of(x.req.URL), limit, x.last.attempt.Conn())
}

// timeoutError is the error of an attempt that ran out of time.
type timeoutError struct{ text string }

func (e *timeoutError) Error() string        { return e.text }
func (e *timeoutError) Timeout() bool        { return true }
func (e *timeoutError) Temporary() bool      { return true }
func (e *timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

var (
	errAttemptTimeout = &timeoutError{"retrip: no response within Policy.AttemptTimeout"}
	errDeadline       = &timeoutError{"retrip: no response within Policy.Deadline"}
	errNoProgress     = &timeoutError{"retrip: no response within Policy.Resume"}
	errBodyIdle       = &timeoutError{"retrip: no progress of the response body within Policy.BodyIdleTimeout"}
)
