// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/replay"
)

// finish ends the exchange, and returns the results of RoundTrip.
func (x *exchange) finish(do decide.Deed) (resp *http.Response, err error) {
	switch {
	case do == decide.Answer && x.last.resp != nil:
		x.reportEnd()
		x.last.inHand = false
		resp = x.last.resp
		if once := x.payload.once; once != nil && once.Seal(bodyEnd(x.env.Base, resp)) {
			// The end of resp is also that of a request body that the base may still read.
			body.EndWith(resp, once, true, new(body.Releasing))
		}
	case do == decide.Answer:
		err = x.failLast()
	case x.call.Attempts == 0 && x.host == nil && x.cause != nil:
		err = x.failGone()
	default:
		err = x.failWith(x.cause)
	}
	if err != nil {
		x.awaitClient()
	}
	x.done = true
	return resp, err
}

// bodyEnd returns how an attempt with base has ended for its body. net/http passes a body that
// it has closed on to another connection only over HTTP/2, and reads it no more after a
// refusal. Another base may.
func bodyEnd(base http.RoundTripper, resp *http.Response) replay.End {
	if isNetHTTP(base) && (resp.ProtoMajor == 1 || resp.StatusCode >= 300) {
		return replay.Refused
	}
	return replay.Answered
}

// failLast ends the exchange with the error of its last attempt.
func (x *journey) failLast() error {
	if x.last.err != nil { // else the response has been discarded
		x.addError(x.last.err)
	}
	if x.cause != nil {
		return x.failWith(x.cause)
	}
	single := len(x.errs) == 1 && x.call.Attempts == 1
	if gone := x.gone(); x.event.Outcome.Canceled && x.hides(gone) {
		canceled := fault.Canceled(x.last.err)
		blames := !canceled && errors.Is(x.last.err, context.Canceled) // the caller, though its time was up
		if !single || blames || !errors.Is(gone, context.DeadlineExceeded) || context.Cause(x.req.Context()) != x.req.Context().Err() {
			if errors.Is(gone, x.last.err) {
				// gone already wraps the error.
				x.errs[len(x.errs)-1], x.last.err = gone, gone
				return x.failWith(nil)
			}
			return x.failWith(gone)
		}
		if canceled {
			x.last.err = context.DeadlineExceeded
		}
	}
	if !single {
		return x.failWith(nil)
	}
	x.reportEnd()
	if e, ok := x.last.err.(fault.NilPointer); ok {
		return e.Err
	}
	if isLong(x.last.err) {
		return longError{x.last.err}
	}
	return x.last.err
}

// failGone ends the exchange for a caller that went before the first attempt,
// with the error that net/http returns in that case.
func (x *journey) failGone() error {
	x.last.err = context.Cause(x.req.Context())
	switch {
	case x.last.err != nil && x.req.Context().Done() != nil:
	case x.decision.reason == decide.Deadline:
		x.last.err = x.cause
	default:
		x.last.err = fault.ErrRequestCanceled
	}
	x.reportEnd()
	return x.last.err
}

// hides reports whether the last error doesn't say why the caller has gone.
// After Request.Cancel, the base's error is returned alone if it is the only
// one.
func (x *journey) hides(gone error) bool {
	if x.req.Context().Err() == nil {
		return gone != nil && (len(x.errs) > 1 || !errors.Is(gone, context.Canceled))
	}
	return !(errors.Is(x.last.err, x.req.Context().Err()) && errors.Is(x.last.err, context.Cause(x.req.Context())))
}

// failWith ends the exchange with an *Error. If err isn't nil, it is the last error
// in it.
func (x *journey) failWith(err error) error {
	if err != nil {
		x.last.err = err
		x.addError(err)
	}
	x.reportEnd()
	return x.env.Owner.Error(&Error{Attempts: x.call.Attempts, Reason: x.decision.reason, StatusCode: x.excerpt.status, Header: x.excerpt.header, RetryAfter: x.decision.wait, Errs: x.errs, Last: x.last.err})
}

// cleanUp releases everything that the exchange holds.
func (x *exchange) cleanUp() {
	defer x.closeBodies()
	// Release first what other requests depend on: closing a body may panic.
	if !x.done {
		// Give back what an attempt that has panicked has taken.
		x.step(decide.Gone)
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
	if x.done {
		return
	}
	if x.last.attempt != nil {
		x.last.attempt.Abandon()
	}
	if x.last.inHand {
		body.Dismiss(x.last.resp)
	}
}

// awaitClient waits until http.Client knows that its Timeout has passed. The
// client signals its Timeout with the deadline of the context and with
// Request.Cancel, and names the Timeout in the error only if it has closed
// Request.Cancel.
func (x *place) awaitClient() {
	canceled := legacyCancel(x.req)
	if canceled == nil || x.req.Context().Err() != context.DeadlineExceeded {
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
