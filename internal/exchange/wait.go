// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"errors"
	"time"

	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/replay"
	"github.com/retrip/retrip/internal/span"
)

// sleep waits for timer or woken; either may be nil. If the caller goes
// meanwhile, sleep returns why. Its stack frame is part of every request that
// waits.
func (x *place) sleep(timer *time.Timer, woken <-chan struct{}) (gone error) {
	if timer != nil || woken != nil {
		var over <-chan time.Time
		if timer != nil {
			over = timer.C
		}
		select {
		case <-over:
		case <-woken:
		case <-x.req.Context().Done():
		case <-legacyCancel(x.req):
		}
		if timer != nil {
			timer.Stop()
		}
	}
	return x.gone()
}

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
		if x.payload.kind != replay.None {
			// If the base is done with the body, the response in hand can still be returned
			// if there is no other.
			if late = x.last.inHand && x.last.broken == nil && x.payload.inUse(); !late && !x.renew() {
				return x.noBody()
			}
		}
		x.beginRetry()
	}
	var timer *time.Timer
	if a.Do == decide.Sleep && a.Wait > 0 && a.Wait < span.Forever {
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
	gone := x.sleep(timer, woken)
	if gone == nil && x.deadline != 0 && x.now() >= x.deadline {
		// The discarded body or a busy machine has held up the request.
		gone = x.lateError()
	}
	if gone != nil {
		return x.recordGone(gone)
	}
	return decide.Due
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
	if gone := x.gone(); gone != nil && !x.last.inHand {
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
	if reasonGone(gone) == decide.Deadline {
		return decide.Late
	}
	return decide.Gone
}

// reasonGone returns the reason for the give-up when the caller has gone
// because of err.
func reasonGone(err error) decide.Reason {
	if errors.Is(err, context.DeadlineExceeded) {
		return decide.Deadline
	}
	return decide.Canceled
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
