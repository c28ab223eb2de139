// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"errors"
	"time"

	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/caller"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/replay"
	"github.com/retrip/retrip/internal/span"
)

// bodyWaits reports whether x, which continues a body and has been given up, may wait for
// a turn.
func (x *exchange) bodyWaits() bool {
	if !x.ofBody || x.cfg.MaxAttempts <= 1 {
		return false
	}
	switch x.action.Reason {
	case decide.MaxAttempts, decide.BudgetExhausted, decide.RetriesFailing, decide.FleetBudget, decide.BreakerOpen:
		return true
	case decide.HostPaused:
		return x.host.PausedFor(x.env.Now()) <= x.cfg.MaxWait
	}
	return false
}

// wait waits as the last action says, and returns what has happened. Before a retry, it
// drops the outcome in hand, unless the next attempt would get no body. A request spends
// its time here.
func (x *exchange) wait() decide.Kind {
	a := &x.action
	late := false
	if a.Reason != decide.None { // of a retry: this wait follows an attempt
		if x.payload.Kind != replay.None {
			// If the base is done with the body, the response in hand can still be returned
			// if there is no other.
			if late = x.last.inHand && x.last.broken == nil && x.payload.InUse(); !late && !x.renew() {
				return x.noBody()
			}
		}
		x.beginRetry()
	}
	// A Queue doesn't wait here: the call takes its place at the gate when it is due, at once.
	var timer *time.Timer
	if a.Do == decide.Sleep && a.Wait > 0 && (a.Wait < span.Forever || !a.AtGate) {
		timer = time.NewTimer(a.Wait)
	}
	if x.last.inHand {
		x.discard(a.Wait) // within the wait
	}
	if late && !x.renew() {
		return x.noBody()
	}
	var woken <-chan struct{}
	if a.AtGate {
		woken = x.woken
	}
	gone := caller.Sleep(x.req, timer, woken)
	if gone == nil && x.deadline != 0 && x.now() >= x.deadline {
		// The discarded body or a busy machine has held up the request.
		gone = x.lateError()
	}
	if gone != nil {
		return x.recordGone(gone)
	}
	return decide.Due
}

// renew gets the body of the next attempt.
func (x *exchange) renew() (ok bool) {
	if x.payload.Once != nil {
		// While the account was asked, the base may have read more of the body than is kept.
		return x.event.Kind != decide.Heard || x.payload.MayReplay()
	}
	err := x.payload.Renew(x.req, x.last.unsent(x.env.Inner), caller.LegacyCancel(x.req), x.drainTime(x.action.Wait))
	x.cause = fault.Usable(err)
	return err == nil
}

// beginRetry tells that the wait before a retry begins. Of the last attempt, which nobody needs
// during a wait that may be long, it keeps only what hooks and errors show.
func (x *journey) beginRetry() {
	l, s := &x.last, x.last.show()
	if l.broken != nil {
		l.err, l.broken = l.failure(), nil
		body.Dismiss(l.forget())
	}
	x.tell.Retrying(&x.event.Outcome, &s)
	next := last{resp: l.resp, err: s.Err, inHand: l.inHand, kept: l.kept}
	if l.inHand {
		next.attempt = l.attempt // for discard
	}
	x.last = next
	x.event.Outcome = decide.Outcome{}
}

// noBody returns what has happened if the next attempt would get no body. The caller may
// have gone in the wait for the body of the last one.
func (x *exchange) noBody() decide.Kind {
	if gone := caller.Gone(x.req); gone != nil && !x.last.inHand {
		if x.last.err != nil {
			x.tell.Add(x.last.err)
		}
		return x.recordGone(gone)
	}
	return decide.NoBody
}

// recordGone records why the caller has gone, and returns what has happened.
func (x *exchange) recordGone(gone error) decide.Kind {
	x.cause = gone
	if errors.Is(gone, context.DeadlineExceeded) {
		return decide.Late
	}
	return decide.Gone
}

// discard drains the response in hand before a wait.
func (x *exchange) discard(wait time.Duration) {
	d := body.Discarding{Req: x.req, Attempt: x.last.cutter(), Clock: x.started}
	x.last.attempt = nil
	if d.Resp = x.last.forget(); body.CloseLocal(d.Resp) {
		return
	}
	d.Most = x.drainTime(wait)
	body.Discard(d)
}
