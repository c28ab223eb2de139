// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/span"
)

// admit asks the host whether it allows the first attempt, and waits if it
// must.
func (x *exchange) admit() ending {
	if x.sent {
		return ending{}
	}
	if gone := x.gone(); gone != nil {
		x.decision = Decision{Reason: reasonGone(gone)}
		return ending{endAbsent, gone}
	}
	if x.r.breaker == nil && x.r.policy.Gate != On || x.t.hosts.Calm(&host.Lookup{URL: x.req.URL}) {
		return ending{}
	}
	if x.host = x.t.hosts.Pin(hostkey.Of(x.req.URL), x.now()); x.host == nil {
		return ending{}
	}
	return x.wake()
}

// startWait starts the timer of the wait before a retry, if it isn't at the gate,
// and drains the response of the last attempt.
func (x *exchange) startWait() (timer *time.Timer) {
	if d := &x.decision; d.Wait > 0 && !d.AtGate {
		timer = time.NewTimer(d.Wait)
	}
	if x.held {
		x.discard(x.decision.Wait)
	}
	return timer
}

// discard drains the response in hand before a wait.
func (x *exchange) discard(wait time.Duration) {
	resp := x.release()
	if body.CloseLocal(resp) {
		return
	}
	most := min(max(wait, body.DrainLeast), body.DrainTime)
	if x.call.Deadline != 0 && most > wait {
		most = min(most, max(wait, x.call.Deadline-x.now()))
	}
	body.Discard(x.req.Context(), legacyCancel(x.req), resp, x.clock(), most)
}

// release returns the response in hand, which the caller must discard.
func (x *exchange) release() *http.Response {
	resp := x.resp
	x.forget(resp)
	return resp
}

// forget keeps of resp, which is discarded, what x.seen keeps.
func (x *exchange) forget(resp *http.Response) {
	x.seen = seen{resp.StatusCode, resp.Header}
	x.resp, x.held, x.discarded = nil, false, true
}

// wake asks the host for permission to make the attempt, waiting as often and
// as long as the host requires.
func (x *exchange) wake() ending {
	if x.host.Undemanding() {
		return ending{}
	}
	x.mayQueue()
	since, end := x.ask()
	if since != 0 {
		x.r.metrics.WaitedAtGate(x.req.Context(), x.s.now()-since)
	}
	return end
}

// ask does the work of wake. It also returns the instant at which a wait at the
// gate began, or 0 if there was none.
func (x *exchange) ask() (since time.Duration, end ending) {
	for {
		var d Decision
		now := x.s.now()
		if x.call.Attempts == 0 {
			d = x.rules().first(&x.host.Record, &x.call, now, rand.Uint64())
		} else {
			d = x.rules().wake(&x.host.Record, &x.call, now, rand.Uint64())
		}
		wakeOthers(&x.host.Record, d.Wakes)
		x.changed(d.change)
		if !d.Retry {
			x.decision = d
			return since, ending{how: endHeldBack}
		}
		if d.Wait == 0 {
			return since, ending{}
		}
		if d.AtGate && since == 0 {
			since = max(1, now)
		}
		var timer *time.Timer
		if d.Wait < span.Forever {
			timer = time.NewTimer(d.Wait)
		}
		if gone := x.sleep(timer, x.woken); gone != nil {
			return since, x.leave(gone)
		}
	}
}

// sleep waits for timer or woken; either may be nil. If the caller goes
// meanwhile, sleep returns why. Its stack frame is part of every request that
// waits.
func (x *exchange) sleep(timer *time.Timer, woken <-chan struct{}) (gone error) {
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

// leave ends a wait because the caller has gone. It gives back what the attempt
// has taken.
func (x *exchange) leave(gone error) ending {
	x.giveBack(&x.host.Record)
	x.decision = Decision{Reason: reasonGone(gone)}
	return ending{endHeldBack, gone}
}

// gone returns why the caller no longer wants a response, or nil if it still
// does. If a context has a cause, gone joins the context's error and its cause;
// net/http returns only one of them.
func (x *exchange) gone() error {
	// Check Done, as net/http does: a custom context may have an error but no
	// Done channel.
	if err := x.req.Context().Err(); err != nil && x.req.Context().Done() != nil {
		if cause := fault.Usable(context.Cause(x.req.Context())); !errors.Is(cause, err) {
			return errors.Join(err, cause)
		}
		return err
	}
	select {
	case <-legacyCancel(x.req):
		// http.Client closes the channel for its Timeout, when the deadline of
		// the context passes.
		if deadline, ok := x.req.Context().Deadline(); ok && !time.Now().Before(deadline) {
			return context.DeadlineExceeded
		}
		return context.Canceled
	default:
		return nil
	}
}

// hasGone reports whether the caller has gone already. It asks the channels one
// after the other: a select of two locks them, and requests that share a context
// would wait for each other.
func hasGone(req *http.Request) bool {
	done, canceled := req.Context().Done(), legacyCancel(req)
	return done != nil && isClosed(done) || canceled != nil && isClosed(canceled)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// reasonGone returns the reason for the give-up when the caller has gone
// because of err.
func reasonGone(err error) Reason {
	if errors.Is(err, context.DeadlineExceeded) {
		return ReasonDeadline
	}
	return ReasonCanceled
}

// nameGate calls GateKey for the request, the first time that the gate matters.
func (x *exchange) nameGate() {
	if f := x.r.policy.GateKey; f != nil && x.r.policy.Gate == On && !x.keyed {
		x.call.Gate, x.keyed = f(x.req), true
	}
}

// mayQueue prepares x for a wait at the gate.
func (x *exchange) mayQueue() {
	if x.r.policy.Gate == On && x.woken == nil {
		x.woken = make(chan struct{}, 1)
		x.call.Waiter = x.woken
	}
	x.nameGate()
}

// wakeOthers wakes the calls that must ask h again, if there are any. Each
// channel has room for one wake-up. One is enough, because the call asks again
// after it has received that wake-up.
func wakeOthers(h *host.Record, any bool) {
	for any {
		woken, ok := h.Woken().(chan struct{})
		if !ok {
			return
		}
		select {
		case woken <- struct{}{}:
		default:
		}
	}
}

// giveBack returns to the host what a decision took for an attempt that isn't
// made.
func (x *exchange) giveBack(h *host.Record) { wakeOthers(h, x.rules().giveBack(h, &x.call)) }

// rules returns the rules that x follows at its host.
func (x *exchange) rules() *Rules {
	if x.host != nil && x.host.Others {
		return x.sharedRules()
	}
	return x.r
}

// sharedRules must not be inlined: the stack frame of every request that waits
// would then hold a copy of its rules.
//
//go:noinline
func (x *exchange) sharedRules() *Rules { return x.r.forShared() }

// legacyCancel returns the channel of Request.Cancel, which is deprecated. But
// http.Client closes it for its Timeout, and net/http obeys it.
func legacyCancel(req *http.Request) <-chan struct{} {
	return req.Cancel //lint:ignore SA1019 see above
}
