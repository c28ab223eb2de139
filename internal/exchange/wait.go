// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

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
	r     *Rules
	req   *http.Request
	call  decide.Call
	host  *host.Entry   // pinned; nil while the host is in no trouble
	woken chan struct{} // signals that the call must ask again; nil if it can't wait at a gate
	keyed bool          // call.Gate is known
	since time.Duration // instant at which the wait at the gate began; 0: there is none
}

// pin finds the host of the request, if the attempt failed or the host is in
// trouble. It returns the current instant, or 0 if it didn't look. It must not be
// inlined, to keep the stack frame of judge small.
//
//go:noinline
func (p *place) pin(failed bool) time.Duration {
	if !failed && p.env.Hosts.Calm(&host.Lookup{URL: p.req.URL}) {
		return 0
	}
	now := p.now()
	if key := hostkey.Of(p.req.URL); failed {
		if hostkey.IsLong(p.req.URL) {
			// A new entry keeps the key, and with it the string of the URL.
			key = key.Clone()
		}
		p.host = p.env.Hosts.PinNew(key, now)
	} else {
		p.host = p.env.Hosts.PinGood(key, now)
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

// nameGate calls Gate.Key for the request, the first time that the gate matters.
func (p *place) nameGate() {
	if p.r.Gate && !p.keyed {
		p.call.Gate, p.keyed = p.r.Asks.GateName(p.req), true
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

// legacyCancel returns the channel of Request.Cancel, which is deprecated. But
// http.Client closes it for its Timeout, and net/http obeys it.
func legacyCancel(req *http.Request) <-chan struct{} {
	return req.Cancel //lint:ignore SA1019 see above
}

// bodyWaits reports whether x, which continues a body and has been given up, may wait for
// a turn.
func (j *journey) bodyWaits() bool {
	if j.r.MaxAttempts <= 1 {
		return false
	}
	switch j.decision.reason {
	case decide.MaxAttempts, decide.BudgetExhausted, decide.RetriesFailing, decide.FleetBudget, decide.BreakerOpen:
		return true
	case decide.HostPaused:
		return j.host.PausedFor(j.env.now()) <= j.r.MaxWait
	}
	return false
}

// usual returns how long the response in hand took, if the duration of an attempt
// matters. It is bounded, because the host may have been overloaded.
func (j *journey) usual() time.Duration {
	if !j.timed() {
		return 0
	}
	return min(j.env.now()-j.last.began, j.r.turns().Slow/3*4)
}

// startWait starts the timer of a wait. Before a retry, it also drops the outcome in
// hand, unless the next attempt would get no body.
func (x *exchange) startWait() (timer *time.Timer, ok bool) {
	a := &x.action
	if a.Reason != decide.None {
		if !x.renew() {
			return nil, false
		}
		x.goOn()
	}
	if a.Do == decide.Sleep && a.Wait > 0 && a.Wait < span.Forever {
		timer = time.NewTimer(a.Wait)
	}
	if x.last.held {
		x.discard(a.Wait)
	}
	return timer, true
}

// renew gets the body of the next attempt, while the response in hand can still be
// returned if there is none.
func (x *exchange) renew() bool {
	if x.event.Kind == decide.Heard && x.payload.once != nil && !x.payload.again() {
		// While the account was asked, the base has read more of the body than is kept.
		return false
	}
	x.cause = x.payload.renew(x.last.unsent(x.env.Inner))
	return x.cause == nil
}

// pause waits, and returns what has happened.
func (x *exchange) pause(timer *time.Timer) decide.Kind {
	var woken <-chan struct{}
	if x.action.AtGate {
		woken = x.woken
	}
	gone := x.sleep(timer, woken)
	if gone == nil && x.deadline != 0 && x.now() >= x.deadline {
		// The discarded body or a busy machine has held up the request.
		gone = x.late()
	}
	if gone != nil {
		return x.leave(gone)
	}
	return decide.Due
}

// leave records why the caller has gone, and returns what has happened.
func (x *exchange) leave(gone error) decide.Kind {
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

// timeQueue observes how long x has waited at the gate.
func (x *exchange) timeQueue(now time.Duration) {
	switch a := &x.action; {
	case a.Do == decide.Sleep && a.AtGate:
		if x.since == 0 {
			x.since = max(1, now)
		}
	case x.since != 0 && a.Do != decide.Ask:
		x.r.Metrics.WaitedAtGate(x.req.Context(), x.env.now()-x.since)
		x.since = 0
	}
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
func (j *journey) release() *http.Response {
	resp := j.last.resp
	j.forget(resp)
	return resp
}

// forget drops resp, but for what seen keeps of it.
func (j *journey) forget(resp *http.Response) {
	j.seen = seen{resp.StatusCode, resp.Header}
	j.last.resp, j.last.held, j.last.discarded = nil, false, true
}

// holds maps what forbids hedges to a host to the reason for metrics.
var holds = [...]int{decide.OfTokens: meter.SkipTokens, decide.OfPause: meter.SkipPaused, decide.OfGate: meter.SkipGate, decide.OfBreaker: meter.SkipBreaker}

// forbids reports whether anything but the rule forbids a hedge, and what.
func (c *race) forbids() (reason int, forbidden bool) {
	p := place{clock: c.clock, r: c.r, req: c.req}
	key, now := hostkey.Of(c.req.URL), c.env.now()
	record := new(host.Record)
	if p.host = c.env.Hosts.Look(key, now); p.host != nil {
		record = &p.host.Record
		p.nameGate()
	}
	if hold := p.rules().HoldsHedge(record, p.call.Gate, now); hold != decide.NoHold {
		return holds[hold], true
	}
	if c.env.Fleet != nil && c.r.Fleet != 0 {
		forbidden, _ = c.env.Fleet.Forbids(key, c.r.Fleet, chance.Draw())
	}
	return meter.SkipFleet, forbidden
}
