// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/fault"
)

// classify reduces what the base returned to what a decision needs, and sets
// x.outcome.
func (x *exchange) classify() {
	o := &x.outcome
	*o = Outcome{Idempotent: x.idempotent}
	classify := x.r.policy.Classify
	x.enclose()
	x.readWhole()
	// Classify may peek at the body, so it runs within the attempt.
	if classify != nil && x.resp != nil && x.torn == nil {
		o.Verdict = classify(x.req, x.resp, nil)
	}
	came := x.resp
	x.settle()
	if err := x.failure(); err != nil {
		if x.gone() != nil {
			o.Canceled = true
			return
		}
		o.Timeout = fault.Timeout(err)
		o.Hopeless = x.faulty()
		if x.torn == nil {
			o.Resent = errors.Is(err, attempt.ErrHiddenSends)
			o.Hopeless = o.Hopeless || fault.Hopeless(x.req, err, innerError) || x.refusedByCaller()
			o.Idempotent = o.Idempotent || x.neverProcessed()
		}
		if classify != nil {
			o.Verdict = classify(x.req, nil, err)
		}
		o.Hopeless = o.Hopeless && o.Verdict == ByRule
		if came != nil {
			x.heed(came)
			if x.resp == nil {
				x.forget(came)
			}
		}
	} else {
		// A response without a status is still a response.
		o.Status = cmp.Or(x.resp.StatusCode, 1)
	}
	if o.Status >= 400 && o.Verdict == ByRule {
		if o.Verdict = x.r.verdict(o.Status, x.resp.Header); o.Verdict == Final {
			// The header forbids a retry but doesn't make the response a success.
			o.Verdict, o.Forbidden = ByRule, true
		}
	}
	if o.Status != 0 && x.r.retryable(*o) {
		o.Canceled = x.gone() != nil
		if x.r.dialects != nil || x.resp.Header["Retry-After"] != nil {
			o.RetryAfter = x.r.serverWord(o.Status, x.resp.Header, time.Now())
		}
	}
}

// heed records what the server said about retries in a response whose body
// broke or that came too late. What the server said holds nevertheless.
func (x *exchange) heed(resp *http.Response) {
	o := &x.outcome
	o.lost = resp.StatusCode
	o.Forbidden = o.Verdict == ByRule && x.r.verdict(resp.StatusCode, resp.Header) == Final
	o.RetryAfter = x.r.serverWord(resp.StatusCode, resp.Header, time.Now())
}

// faulty reports whether the caller's own body caused the failure.
func (x *exchange) faulty() bool {
	return x.payload.faulty() || x.attempt != nil && x.attempt.AtFault()
}

// fault.NeverProcessed reports whether the error of the attempt proves that no server
// has processed the request.
func (x *exchange) neverProcessed() bool {
	a := x.attempt
	if a == nil {
		// There is no record of what the base did before the error.
		return fault.NeverProcessed(x.err, 0, false, innerError)
	}
	if fault.Wraps(x.err, errAttemptTimeout) || fault.Wraps(x.err, errDeadline) {
		return a.NeverSent()
	}
	return fault.NeverProcessed(x.err, a.Processable(), a.Sent(), innerError)
}

// fault.RefusedByCaller reports whether the caller's own code has refused the server.
func (x *exchange) refusedByCaller() bool {
	if x.attempt == nil {
		return false
	}
	err := x.attempt.HandshakeError()
	return err != nil && errors.Is(x.err, err) && fault.RefusedByCaller(err)
}

// ending says how an exchange ends. The reason is that of its last decision.
// The zero ending means that the exchange continues.
type ending struct {
	how   endKind
	cause error // an error that isn't the outcome of an attempt: why the caller has gone, or the error of GetBody
}

type endKind uint8

const (
	goesOn      endKind = iota
	endAbsent           // the caller had gone before the first attempt
	endHeldBack         // the host refused an attempt, or the caller went during a wait
	endAnswered         // the outcome of the last attempt is final
)

// finish ends the exchange and returns the results of RoundTrip.
func (x *exchange) finish(end ending) (*http.Response, error) {
	switch {
	case end.how == endAbsent:
		return nil, x.goneBefore(end)
	case end.how == endHeldBack:
		return nil, x.fail(end.cause)
	case x.resp != nil:
		x.report()
		x.held = false
		x.handOver()
		return x.resp, nil
	default:
		return nil, x.failed(end)
	}
}

// failed ends the exchange with the error of its last attempt.
func (x *exchange) failed(end ending) error {
	x.met = append(x.met, x.err)
	if end.cause != nil {
		return x.fail(end.cause)
	}
	single := len(x.met) == 1 && x.call.Attempts == 1
	if gone := x.gone(); x.outcome.Canceled && x.hides(gone) {
		if !single || !errors.Is(gone, context.DeadlineExceeded) || context.Cause(x.req.Context()) != x.req.Context().Err() {
			if errors.Is(gone, x.err) {
				// gone already wraps the error.
				x.met = x.met[:len(x.met)-1]
			}
			return x.fail(gone)
		}
		if fault.Canceled(x.err) {
			x.err = context.DeadlineExceeded
		}
	}
	if !single {
		return x.fail(nil)
	}
	x.report()
	if e, ok := x.err.(fault.NilPointer); ok {
		return e.Err
	}
	return x.err
}

// goneBefore ends the exchange for a caller that went before the first attempt,
// with the error that net/http returns in that case.
func (x *exchange) goneBefore(end ending) error {
	x.err = context.Cause(x.req.Context())
	switch {
	case x.err != nil && x.req.Context().Done() != nil:
	case x.decision.Reason == ReasonDeadline:
		x.err = end.cause
	default:
		x.err = fault.ErrRequestCanceled
	}
	x.report()
	return x.err
}

// hides reports whether the last error doesn't say why the caller has gone.
// After Request.Cancel, the base's error is returned alone if it is the only
// one.
func (x *exchange) hides(gone error) bool {
	if x.req.Context().Err() == nil {
		return gone != nil && (len(x.met) > 1 || !errors.Is(gone, context.Canceled))
	}
	return !(errors.Is(x.err, x.req.Context().Err()) && errors.Is(x.err, context.Cause(x.req.Context())))
}

// fail ends the exchange with an *Error. If err isn't nil, it is the last error
// in it.
func (x *exchange) fail(err error) error {
	if err != nil {
		x.err = err
		x.met = append(x.met, err)
	}
	e := &Error{Attempts: x.call.Attempts, Reason: x.decision.Reason, last: x.err}
	e.StatusCode, e.Header = x.seen.status, x.seen.header
	if n := len(x.met); n > 0 {
		joined := make([]error, n)
		for i, err := range x.met {
			joined[n-1-i] = err
		}
		e.Err = errors.Join(joined...)
	}
	x.report()
	return e
}

// cleanUp releases everything that the exchange holds.
func (x *exchange) cleanUp() {
	defer func() { x.payload.end(!x.ended, x.call.Attempts) }()
	// Release first what other requests depend on: closing a body may panic.
	if !x.ended {
		x.countRest()
	}
	if x.host != nil {
		if !x.ended {
			x.giveBack(&x.host.Record)
		}
		// If SetPolicies has replaced the policies meanwhile, the exchange may
		// have spent more tokens than the new budget holds.
		if s := x.t.settings.Load(); s != x.s && s.err == nil {
			x.host.Debt.Fit(s.sizeOf(x.host))
		}
		now := x.decided
		if now == 0 {
			now = x.s.now()
		}
		x.t.hosts.Unpin(x.host, now)
	}
	if !x.ended && x.attempt != nil {
		x.attempt.Abandon()
	}
	if !x.ended && x.held {
		body.Dismiss(x.resp)
	}
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
