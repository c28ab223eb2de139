// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/dialect"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/host"
)

// last is the last attempt and its outcome. The next attempt begins with a
// zero last, so that nothing of an earlier attempt can be taken for its own.
type last struct {
	attempt   *attempt.Attempt // nil if it wasn't derived
	race      *race            // nil if there is no hedge, whatever happens
	began     time.Duration    // instant; 0 if its duration doesn't matter
	decided   time.Duration    // instant of the decision about it; 0 before that
	sends     int              // number of sends seen
	resp      *http.Response
	err       error
	torn      *body.Prefixed // the body of resp, if it had to be whole and broke
	held      bool           // resp is in hand: neither returned nor discarded
	discarded bool           // its response has been discarded
	whole     bool           // all of the body of resp has been read
	awaits    bool           // the attempt is limited as a Read of the body is that it continues
}

// kept returns what a wait before the next attempt still needs of l. A wait may be
// long, and nobody needs the attempt any more.
func (l *last) kept() last {
	return last{sends: l.sends, resp: l.resp, err: l.err, held: l.held, discarded: l.discarded}
}

// take records what the base returned.
func (l *last) take(resp *http.Response, err error) {
	switch {
	case err != nil:
		body.Dismiss(resp)
		resp, err = nil, fault.Usable(err)
	case resp == nil:
		err = fault.ErrNothing
	}
	l.resp, l.err, l.held = resp, err, resp != nil
}

// classify reduces what the base returned to what a decision needs, and sets
// x.event.Outcome.
func (x *exchange) classify() {
	o := &x.event.Outcome
	o.Idempotent = x.idempotent
	classify := x.r.Asks.Classify
	x.requireProgress()
	x.readWhole()
	// Classify may peek at the body, so it runs within the attempt.
	if x.r.Classifies && x.last.resp != nil && x.last.torn == nil {
		o.Verdict = classify(x.req, x.last.resp, nil)
		x.last.resp = body.Apart(x.last.resp)
	}
	came := x.last.resp
	x.last.settle()
	if err := x.last.failure(); err != nil {
		if x.last.race != nil && x.last.race.decided() {
			// The error is that the hedge was faster.
			return
		}
		if x.gone() != nil {
			o.Canceled = true
			return
		}
		o.Timeout = fault.Timeout(err)
		o.Hopeless = x.faulty()
		if x.last.torn == nil {
			o.Resent = errors.Is(err, attempt.ErrHiddenSends)
			o.Hopeless = o.Hopeless || fault.Hopeless(x.req, err, x.env.Inner) || x.last.refusedByCaller()
			o.Idempotent = o.Idempotent || x.last.neverProcessed(x.env.Inner)
		}
		if x.r.Classifies {
			o.Verdict = classify(x.req, nil, err)
		}
		o.Hopeless = o.Hopeless && o.Verdict == decide.ByRule
		if came != nil {
			x.heed(came)
			if x.last.resp == nil {
				x.forget(came)
			}
		}
	} else {
		// A response without a status is still a response.
		o.Status = cmp.Or(x.last.resp.StatusCode, 1)
	}
	if o.Status >= 400 && o.Verdict == decide.ByRule {
		switch x.r.Dialects.Verdict(o.Status, x.last.resp.Header) {
		case dialect.Retry:
			o.Verdict = decide.Retryable
		case dialect.Stop:
			// The header forbids a retry but doesn't make the response a success.
			o.Forbidden = true
		}
	}
	if o.Status != 0 && x.r.Retryable(o) {
		o.Canceled = x.gone() != nil
		if x.r.Dialects != nil || x.last.resp.Header["Retry-After"] != nil {
			o.RetryAfter = x.r.Dialects.Wait(o.Status, x.last.resp.Header, time.Now())
		}
	}
}

// good reports whether the outcome of the attempt is an answer that no other attempt
// should replace.
func (x *exchange) good() bool {
	o := &x.event.Outcome
	return o.Status != 0 && o.Status < http.StatusInternalServerError && o.Status != http.StatusTooManyRequests && !x.r.Retryable(o)
}

// readWhole reads the body of the response ahead, within the attempt, up to
// Policy.WholeBody. It skips a response that is retried anyway, one whose body
// the server produces over time, and one that continues a body, because the
// reader of that body watches and continues it.
func (x *exchange) readWhole() {
	limit := x.r.WholeBody
	if limit <= 0 || x.rest != nil || x.req.Method == http.MethodConnect || !body.In(x.last.resp) || x.r.Retry.Has(x.last.resp.StatusCode) || body.Endless(x.last.resp.Header) || x.last.attempt != nil && !x.last.attempt.BodySent() {
		return
	}
	ahead := body.Ahead(x.last.resp.Body, limit, x.last.resp.ContentLength)
	x.last.resp.Body = ahead
	switch err := ahead.Err(); err {
	case nil:
	case io.EOF:
		x.last.whole = true
	default:
		ahead.SetErr(fault.Usable(err))
		x.last.torn = ahead
	}
}

// settle ends the attempt once its outcome is known.
func (l *last) settle() {
	a := l.attempt
	switch {
	case a == nil:
	case l.torn != nil:
		_, err := a.End(nil, l.torn.Err())
		l.torn.SetErr(err)
	case l.whole:
		a.Finish(l.resp)
	default:
		l.resp, l.err = a.End(l.resp, l.err)
		l.held = l.resp != nil
	}
}

// failure returns the error of the attempt, if it failed: that of the base, or
// that of a response body that had to be whole.
func (l *last) failure() error {
	if l.torn != nil {
		return tornError{l.torn.Err()}
	}
	return l.err
}

// tornError is the error of a body that broke within its attempt.
type tornError struct{ error }

func (e tornError) Error() string { return fmt.Sprintf("response body: %v", e.error) }
func (e tornError) Unwrap() error { return e.error }

// heed records what the server said about retries in a response whose body
// broke or that came too late. What the server said holds nevertheless.
func (x *exchange) heed(resp *http.Response) {
	o := &x.event.Outcome
	o.Lost = resp.StatusCode
	o.Forbidden = o.Verdict == decide.ByRule && x.r.Dialects.Verdict(resp.StatusCode, resp.Header) == dialect.Stop
	o.RetryAfter = x.r.Dialects.Wait(resp.StatusCode, resp.Header, time.Now())
}

// faulty reports whether the caller's own body caused the failure.
func (x *exchange) faulty() bool {
	return x.payload.faulty() || x.last.attempt != nil && x.last.attempt.AtFault()
}

// neverProcessed reports whether the error of the attempt proves that no server
// has processed the request.
func (l *last) neverProcessed(inner func(error) (fault.Inner, bool)) bool {
	a := l.attempt
	if a == nil {
		// There is no record of what the base did before the error.
		return fault.NeverProcessed(l.err, 0, false, inner)
	}
	if fault.Wraps(l.err, errAttemptTimeout) || fault.Wraps(l.err, errDeadline) {
		return a.NeverSent()
	}
	return fault.NeverProcessed(l.err, a.Processable(), a.Sent(), inner)
}

// unsent reports whether the error of the attempt proves that nothing was sent: there
// was no connection to send over.
func (l *last) unsent(inner func(error) (fault.Inner, bool)) bool {
	a := l.attempt
	switch {
	case l.err == nil:
		return false
	case a != nil && fault.Wraps(l.err, errAttemptTimeout):
		return a.NeverSent()
	default:
		return (a == nil || a.Sends() == 0) && fault.Unsent(l.err, inner)
	}
}

// refusedByCaller reports whether the caller's own code has refused the server,
// or an interim response.
func (l *last) refusedByCaller() bool {
	if l.attempt == nil {
		return false
	}
	if l.attempt.InterimRefused() {
		return true
	}
	err := l.attempt.HandshakeError(l.err)
	return err != nil && fault.RefusedByCaller(err)
}

// finish ends the exchange, and returns the results of RoundTrip.
func (x *exchange) finish(do decide.Deed) (resp *http.Response, err error) {
	switch {
	case do == decide.Answer && x.last.resp != nil:
		x.report()
		x.last.held = false
		x.payload.answered(x.last.resp)
		resp = x.last.resp
	case do == decide.Answer:
		err = x.failed()
	case x.call.Attempts == 0 && x.host == nil && x.cause != nil:
		err = x.goneBefore()
	default:
		err = x.fail(x.cause)
	}
	x.awaitClient(err)
	x.ended = true
	return resp, err
}

// failed ends the exchange with the error of its last attempt.
func (x *exchange) failed() error {
	x.met = append(x.met, x.last.err)
	if x.cause != nil {
		return x.fail(x.cause)
	}
	single := len(x.met) == 1 && x.call.Attempts == 1
	if gone := x.gone(); x.event.Outcome.Canceled && x.hides(gone) {
		if !single || !errors.Is(gone, context.DeadlineExceeded) || context.Cause(x.req.Context()) != x.req.Context().Err() {
			if errors.Is(gone, x.last.err) {
				// gone already wraps the error.
				x.met = x.met[:len(x.met)-1]
			}
			return x.fail(gone)
		}
		if fault.Canceled(x.last.err) {
			x.last.err = context.DeadlineExceeded
		}
	}
	if !single {
		return x.fail(nil)
	}
	x.report()
	if e, ok := x.last.err.(fault.NilPointer); ok {
		return e.Err
	}
	return x.last.err
}

// goneBefore ends the exchange for a caller that went before the first attempt,
// with the error that net/http returns in that case.
func (x *exchange) goneBefore() error {
	x.last.err = context.Cause(x.req.Context())
	switch {
	case x.last.err != nil && x.req.Context().Done() != nil:
	case x.decision.reason == decide.Deadline:
		x.last.err = x.cause
	default:
		x.last.err = fault.ErrRequestCanceled
	}
	x.report()
	return x.last.err
}

// hides reports whether the last error doesn't say why the caller has gone.
// After Request.Cancel, the base's error is returned alone if it is the only
// one.
func (x *exchange) hides(gone error) bool {
	if x.req.Context().Err() == nil {
		return gone != nil && (len(x.met) > 1 || !errors.Is(gone, context.Canceled))
	}
	return !(errors.Is(x.last.err, x.req.Context().Err()) && errors.Is(x.last.err, context.Cause(x.req.Context())))
}

// fail ends the exchange with an *Error. If err isn't nil, it is the last error
// in it.
func (x *exchange) fail(err error) error {
	if err != nil {
		x.last.err = err
		x.met = append(x.met, err)
	}
	x.report()
	return x.env.Owner.Error(&Error{Attempts: x.call.Attempts, Reason: x.decision.reason, StatusCode: x.seen.status, Header: x.seen.header, Errs: x.met, Last: x.last.err})
}

// cleanUp releases everything that the exchange holds.
func (x *exchange) cleanUp() {
	defer func() { x.payload.end(x.last.err != nil, !x.ended, x.call.Attempts) }()
	// Release first what other requests depend on: closing a body may panic.
	if !x.ended {
		x.giveBack()
		x.countRest()
	}
	if x.host != nil {
		// If the policies have been replaced meanwhile, the exchange may have spent more
		// tokens than the new budget holds.
		x.env.Owner.Fit(x.host, x.env)
		now := x.last.decided
		if now == 0 {
			now = x.env.now()
		}
		x.env.Hosts.Unpin(x.host, now)
	}
	if !x.ended && x.last.race != nil {
		x.endRace(true)
	}
	if !x.ended && x.last.attempt != nil {
		x.last.attempt.Abandon()
	}
	if !x.ended && x.last.held {
		body.Dismiss(x.last.resp)
	}
}

// giveBack gives back what an attempt that has panicked has taken.
func (x *exchange) giveBack() {
	var h *host.Record
	if x.host != nil {
		h = &x.host.Record
	}
	x.event.Kind = decide.Gone
	x.call.Step(x.rules(), h, &x.event, &x.action, 0, 0)
	x.settle(h)
}

// awaitClient waits until http.Client knows that its Timeout has passed. The
// client signals its Timeout with the deadline of the context and with
// Request.Cancel, and names the Timeout in the error only if it has closed
// Request.Cancel.
func (x *exchange) awaitClient(err error) {
	canceled := legacyCancel(x.req)
	if err == nil || canceled == nil || x.req.Context().Err() != context.DeadlineExceeded {
		return
	}
	timer := time.NewTimer(clientGrace)
	defer timer.Stop()
	select {
	case <-canceled:
	case <-timer.C:
		// The deadline was the caller's own.
	}
}

// clientGrace is how far apart the two signals may be.
const clientGrace = 5 * time.Millisecond
