// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// finish ends the exchange with the outcome of its last attempt.
func (x *exchange) finish(o Outcome, reason Reason) (*http.Response, error) {
	if x.resp != nil {
		x.report(reason)
		x.held = false
		return x.resp, nil
	}
	x.met = append(x.met, x.err)
	if x.ungotten != nil {
		return nil, x.fail(reason, x.ungotten)
	}
	single := len(x.met) == 1 && x.call.Attempts == 1
	if gone := x.gone(); o.Canceled && x.hides(gone) {
		if !single || !errors.Is(gone, context.DeadlineExceeded) || context.Cause(x.ctx) != x.ctx.Err() {
			if errors.Is(gone, x.err) {
				// Told once is enough.
				x.met = x.met[:len(x.met)-1]
			}
			return nil, x.fail(reason, gone)
		}
		if canceled(x.err) {
			x.err = context.DeadlineExceeded
		}
	}
	if single {
		x.report(reason)
		if e, ok := x.err.(nilPointer); ok {
			return nil, e.err
		}
		return nil, x.err
	}
	return nil, x.fail(reason, nil)
}

// goneBefore ends the exchange for a caller that went before the first attempt,
// with the error that net/http has for it.
func (x *exchange) goneBefore(gone error) error {
	reason := ReasonCanceled
	if errors.Is(gone, context.DeadlineExceeded) {
		reason = ReasonDeadline
	}
	x.err = context.Cause(x.ctx)
	switch {
	case x.err != nil && x.ctx.Done() != nil:
	case reason == ReasonDeadline:
		x.err = gone
	default:
		x.err = errRequestCanceled
	}
	x.report(reason)
	return x.err
}

// hides reports whether the last error doesn't say why the caller is gone. That
// of Request.Cancel is the base's to tell, as long as it is all there is.
func (x *exchange) hides(gone error) bool {
	if x.ctx.Err() == nil {
		return gone != nil && (len(x.met) > 1 || !errors.Is(gone, context.Canceled))
	}
	return !(errors.Is(x.err, x.ctx.Err()) && errors.Is(x.err, context.Cause(x.ctx)))
}

// fail ends the exchange with an error of ours, of which err, if not nil, is
// the last part.
func (x *exchange) fail(reason Reason, err error) error {
	if err != nil {
		x.err = err
		x.met = append(x.met, err)
	}
	e := &Error{Attempts: x.call.Attempts, Reason: reason, last: x.err}
	if x.seen != nil {
		e.StatusCode, e.Header = x.seen.StatusCode, x.seen.Header
	}
	if n := len(x.met); n > 0 {
		joined := make([]error, n)
		for i, err := range x.met {
			joined[n-1-i] = err
		}
		e.Err = errors.Join(joined...)
	}
	x.report(reason)
	return e
}

// cleanUp leaves nothing of the exchange behind: what happens at its end, and
// what there is to do when a base, a body or a hook has panicked.
func (x *exchange) cleanUp(ended bool) {
	// First of all what concerns others: closing a body may panic.
	if x.host != nil {
		if !ended {
			x.giveBack(&x.host.Host)
		}
		x.t.hosts.unpin(x.host, x.s.now())
	}
	if !ended && x.attempt != nil {
		x.attempt.abandon()
	}
	if x.next != nil {
		x.next.Close()
	}
	if !ended {
		if x.held {
			dismiss(x.resp)
		}
		if x.kind != onceBody && x.call.Attempts > 1 && x.given != nil {
			x.given.Close()
		}
	}
	unused := !ended || x.call.Attempts == 0
	switch {
	case x.body != nil:
		x.body.seal(unused)
	case unused:
		closeRequest(x.req)
	}
}

// awaitClient waits until http.Client knows that its Timeout has passed. The
// client tells us by the deadline of the context and by Request.Cancel, and it
// names its Timeout in the error only if the latter came first.
func (x *exchange) awaitClient(err error) {
	canceled := legacyCancel(x.req)
	if err == nil || canceled == nil || x.ctx.Err() != context.DeadlineExceeded {
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

// clientGrace is how far the two may be apart.
const clientGrace = 5 * time.Millisecond
