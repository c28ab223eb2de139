// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/chance"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/meter"
	"github.com/retrip/retrip/internal/span"
)

// place is where a request stands: at its host, in its waits. It knows nothing of
// attempts.
type place struct {
	clock
	table *host.Table
	r     *rules
	req   *http.Request
	call  decide.Call
	host  *host.Entry   // pinned; nil while the host is in no trouble
	woken chan struct{} // signals that the call must ask again; nil if it can't wait at a gate
	keyed bool          // call.Gate is known
}

// pin finds the host of the request, if the attempt failed or the host is in
// trouble. It returns the current instant, or 0 if it didn't look. It must not be
// inlined, to keep the stack frame of decide small.
//
//go:noinline
func (p *place) pin(failed bool) time.Duration {
	if !failed && p.table.Calm(&host.Lookup{URL: p.req.URL}) {
		return 0
	}
	now := p.now()
	if key := hostkey.Of(p.req.URL); failed {
		if hostkey.IsLong(p.req.URL) {
			// A new entry keeps the key, and with it the string of the URL.
			key = key.Clone()
		}
		p.host = p.table.PinNew(key, now)
	} else {
		p.host = p.table.PinGood(key, now)
	}
	return now
}

// rules returns the rules that the request follows at its host.
func (p *place) rules() *decide.Rules {
	if p.host != nil && p.host.Others {
		return p.othersRules()
	}
	return &p.r.Rules
}

// othersRules must not be inlined: the stack frame of every request that waits
// would then hold a copy of its rules.
//
//go:noinline
func (p *place) othersRules() *decide.Rules { return p.r.ForOthers() }

// ask asks the host whether the attempt may be made now.
func (p *place) ask(now time.Duration) decide.Decision {
	h, draw := &p.host.Record, chance.Draw()
	var d decide.Decision
	if p.call.Attempts == 0 {
		d = p.rules().First(h, &p.call, now, draw)
	} else {
		d = p.rules().Wake(h, &p.call, now, draw)
	}
	wakeOthers(h, d.Wakes)
	return d
}

// giveBack returns to the host what a decision took for an attempt that isn't
// made.
func (p *place) giveBack(h *host.Record) { wakeOthers(h, p.rules().Return(h, &p.call)) }

// nameGate calls Gate.Key for the request, the first time that the gate matters.
func (p *place) nameGate() {
	if f := p.r.policy.Gate.Key; f != nil && p.r.Gate && !p.keyed {
		p.call.Gate, p.keyed = f(p.req), true
	}
}

// mayQueue prepares p for a wait at the gate.
func (p *place) mayQueue() {
	if p.r.Gate && p.woken == nil {
		p.woken = make(chan struct{}, 1)
		p.call.Waiter = p.woken
	}
	p.nameGate()
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

// sleep waits for timer or woken; either may be nil. If the caller goes
// meanwhile, sleep returns why. Its stack frame is part of every request that
// waits.
func (p *place) sleep(timer *time.Timer, woken <-chan struct{}) (gone error) {
	if timer != nil || woken != nil {
		var over <-chan time.Time
		if timer != nil {
			over = timer.C
		}
		select {
		case <-over:
		case <-woken:
		case <-p.req.Context().Done():
		case <-legacyCancel(p.req):
		}
		if timer != nil {
			timer.Stop()
		}
	}
	return p.gone()
}

// gone returns why the caller no longer wants a response, or nil if it still
// does. If a context has a cause, gone joins the context's error and its cause;
// net/http returns only one of them.
func (p *place) gone() error {
	// Check Done, as net/http does: a custom context may have an error but no
	// Done channel.
	if err := p.req.Context().Err(); err != nil && p.req.Context().Done() != nil {
		if cause := fault.Usable(context.Cause(p.req.Context())); !errors.Is(cause, err) {
			return errors.Join(err, cause)
		}
		return err
	}
	canceled := legacyCancel(p.req)
	if canceled == nil {
		return nil
	}
	select {
	case <-canceled:
		// http.Client closes the channel for its Timeout, when the deadline of
		// the context passes.
		if deadline, ok := p.req.Context().Deadline(); ok && !time.Now().Before(deadline) {
			return context.DeadlineExceeded
		}
		return context.Canceled
	default:
		return nil
	}
}

// reasonGone returns the reason for the give-up when the caller has gone
// because of err.
func reasonGone(err error) decide.Reason {
	if errors.Is(err, context.DeadlineExceeded) {
		return decide.Deadline
	}
	return decide.Canceled
}

// legacyCancel returns the channel of Request.Cancel, which is deprecated. But
// http.Client closes it for its Timeout, and net/http obeys it.
func legacyCancel(req *http.Request) <-chan struct{} {
	return req.Cancel //lint:ignore SA1019 see above
}

// admit asks the host whether it allows the first attempt, and waits if it
// must.
func (x *exchange) admit() ending {
	if x.turn {
		return x.takeTurn()
	}
	if x.continues {
		return ending{}
	}
	if gone := x.gone(); gone != nil {
		x.decision = decide.Decision{Reason: reasonGone(gone)}
		return ending{endAbsent, gone}
	}
	if x.r.Breaker == nil && !x.r.Gate || x.table.Calm(&host.Lookup{URL: x.req.URL}) {
		return ending{}
	}
	if x.host = x.table.Pin(hostkey.Of(x.req.URL), x.now()); x.host == nil {
		return ending{}
	}
	return x.wake()
}

// bodyWaits reports whether x, which has been given up, continues a body that may wait
// for a turn.
func (x *exchange) bodyWaits() bool {
	if !x.continues || x.r.MaxAttempts <= 1 {
		return false
	}
	switch x.decision.Reason {
	case decide.MaxAttempts, decide.BudgetExhausted, decide.RetriesFailing, decide.FleetBudget, decide.BreakerOpen:
		return true
	case decide.HostPaused:
		return x.host.PausedFor(x.s.now()) <= x.r.MaxWait
	}
	return false
}

// takeTurn asks the host for permission to use a turn, as after a wait before a retry.
func (x *exchange) takeTurn() ending {
	now := x.pin(true)
	x.call.WaitsFrom(now)
	x.goOn()
	return x.wake()
}

// usual returns how long the response in hand took, if the duration of an attempt
// matters. It is bounded, because the host may have been overloaded.
func (x *exchange) usual() time.Duration {
	if !x.timed() {
		return 0
	}
	return min(x.s.now()-x.last.began, x.r.turns().Slow/3*4)
}

// startWait starts the timer of the wait before a retry, if it isn't at the gate,
// and drains the response of the last attempt.
func (x *exchange) startWait() (timer *time.Timer) {
	if d := &x.decision; d.Wait > 0 && !d.AtGate {
		timer = time.NewTimer(d.Wait)
	}
	if x.last.held {
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
		// The attempt gets half of what is left.
		most = min(most, max(wait, (x.call.Deadline-x.now())/2))
	}
	body.Discard(x.req.Context(), legacyCancel(x.req), resp, x.start(), most)
}

// release returns the response in hand, which the caller must discard.
func (x *exchange) release() *http.Response {
	resp := x.last.resp
	x.forget(resp)
	return resp
}

// forget drops resp, but for what x.seen keeps of it.
func (x *exchange) forget(resp *http.Response) {
	x.seen = seen{resp.StatusCode, resp.Header}
	x.last.resp, x.last.held, x.last.discarded = nil, false, true
}

// wake asks the host for permission to make the attempt, waiting as often and
// as long as the host requires.
func (x *exchange) wake() ending {
	if end := x.askAgain(); end.how != goesOn {
		return end
	}
	if x.host.Undemanding() {
		return ending{}
	}
	x.mayQueue()
	since, end := x.queue()
	if since != 0 {
		x.r.metrics.WaitedAtGate(x.req.Context(), x.s.now()-since)
	}
	return end
}

// queue does the work of wake. It also returns the instant at which a wait at the
// gate began, or 0 if there was none.
func (x *exchange) queue() (since time.Duration, end ending) {
	for {
		now := x.s.now()
		d := x.ask(now)
		x.changed(d.Change)
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
		if end := x.askAgain(); end.how != goesOn {
			return since, end
		}
	}
}

// leave ends a wait because the caller has gone. It gives back what the attempt
// has taken.
func (x *exchange) leave(gone error) ending {
	x.giveBack(&x.host.Record)
	x.decision = decide.Decision{Reason: reasonGone(gone)}
	return ending{endHeldBack, gone}
}

// holds maps what forbids hedges to a host to the reason for metrics.
var holds = [...]int{decide.OfTokens: meter.SkipTokens, decide.OfPause: meter.SkipPaused, decide.OfGate: meter.SkipGate, decide.OfBreaker: meter.SkipBreaker}

// forbids reports whether anything but the rule forbids a hedge, and what.
func (c *race) forbids() (reason int, forbidden bool) {
	p := place{r: c.r, req: c.req}
	key, now := hostkey.Of(c.req.URL), c.s.now()
	record := new(host.Record)
	if p.host = c.t.hosts.Look(key, now); p.host != nil {
		record = &p.host.Record
		p.nameGate()
	}
	if hold := p.rules().HoldsHedge(record, p.call.Gate, now); hold != decide.NoHold {
		return holds[hold], true
	}
	if c.t.Fleet != nil && c.r.fleet != 0 {
		forbidden, _ = c.t.Fleet.accounts.Forbids(key, c.r.fleet, chance.Draw())
	}
	return meter.SkipFleet, forbidden
}
