// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/body"
)

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
		if canceled(x.err) {
			x.err = context.DeadlineExceeded
		}
	}
	if !single {
		return x.fail(nil)
	}
	x.report()
	if e, ok := x.err.(nilPointer); ok {
		return e.err
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
		x.err = errRequestCanceled
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
			x.giveBack(&x.host.Host)
		}
		// If SetPolicies has replaced the policies meanwhile, the exchange may
		// have spent more tokens than the new budget holds.
		if s := x.t.settings.Load(); s != x.s && s.err == nil {
			x.host.debt.fit(s.sizeOf(x.host))
		}
		now := x.decided
		if now == 0 {
			now = x.s.now()
		}
		x.t.hosts.unpin(x.host, now)
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
