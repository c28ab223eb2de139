// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/replay"
	"github.com/retrip/retrip/internal/span"
)

// place is where a request stands: at its host, in its waits, with what
// the machine keeps of it.
type place struct {
	clock
	r     *Rules
	rules *decide.Rules // of r, or those for a host without an entry of its own
	req   *http.Request
	call  decide.Call
	host  *host.Entry   // pinned; nil while the host is in no trouble
	woken chan struct{} // signals that the call must ask again; nil if it can't wait at a gate
	since time.Duration // instant at which the wait at the gate began; 0: there is none
}

// pin finds the host of the request, which has failed. It returns the current instant. It
// must not be inlined, to keep the stack frame of weigh small.
//
//go:noinline
func (p *place) pin() time.Duration {
	now := p.now()
	key := hostkey.Of(p.req.URL)
	if hostkey.IsLong(p.req.URL) {
		// A new entry keeps the key, and with it the string of the URL.
		key = key.Clone()
	}
	p.at(p.env.Hosts.PinNew(key, now))
	return now
}

// look finds the host of the request with pin, if the host may be in trouble. It returns
// the current instant, or 0 if it isn't.
//
//go:noinline
func (p *place) look(pin func(*host.Table, hostkey.Key, time.Duration) *host.Entry) time.Duration {
	if p.env.Hosts.Calm(p.req.URL, new(host.Hash)) {
		return 0
	}
	now := p.now()
	p.at(pin(&p.env.Hosts, hostkey.Of(p.req.URL), now))
	return now
}

// at makes e, which may be nil, the host of the request.
func (p *place) at(e *host.Entry) {
	if p.host = e; e != nil {
		p.call.Goes(p.req.Method, p.req.URL.Path)
	}
	switch {
	case e == nil:
	case e.Others:
		p.rules = p.r.ForOthers()
	case p.r.Gate:
		p.call.Gate = p.r.Asks.GateName(p.req)
	}
}

// wakeOthers wakes the calls that must ask h again. Each channel has room for one
// wake-up. One is enough, because the call asks again after it has received that
// wake-up.
func wakeOthers(h *host.Record) {
	for {
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
			if late = x.last.held && x.last.broken == nil && x.payload.inUse(); !late && !x.renew() {
				return x.noBody()
			}
		}
		x.goOn()
	}
	var timer *time.Timer
	if a.Do == decide.Sleep && a.Wait > 0 && a.Wait < span.Forever {
		timer = time.NewTimer(a.Wait)
	}
	if x.last.held {
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
		gone = x.late()
	}
	if gone != nil {
		return x.leave(gone)
	}
	return decide.Due
}

// noBody returns what has happened if the next attempt would get no body. The caller may
// have gone in the wait for the body of the last one.
func (x *exchange) noBody() decide.Kind {
	if gone := x.gone(); gone != nil && !x.last.held {
		if x.last.err != nil {
			x.meet(x.last.err)
		}
		return x.leave(gone)
	}
	return decide.NoBody
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
	d := body.Discarding{Req: x.req, Attempt: x.last.cutter(), Clock: x.started}
	x.last.attempt = nil
	if d.Resp = x.forget(x.last.resp); body.CloseLocal(d.Resp) {
		return
	}
	d.Most = x.spare(wait)
	body.Discard(d)
}

// spare returns how long the end of the last attempt may take in the wait.
func (x *exchange) spare(wait time.Duration) time.Duration {
	most := min(max(wait, body.DrainLeast), body.DrainTime)
	if x.call.Deadline != 0 && most > wait {
		// The attempt gets half of what is left.
		most = min(most, max(wait, (x.call.Deadline-x.now())/2))
	}
	return most
}

// forget drops resp, but for what seen keeps of it, and returns it: the caller must
// discard what is in hand.
func (j *journey) forget(resp *http.Response) *http.Response {
	j.seen = seen{resp.StatusCode, bounded(resp.Header)}
	j.last.resp, j.last.held, j.last.discarded = nil, false, true
	return resp
}

// seenMost is how many bytes of a header a request keeps that has dropped the response.
const seenMost = 64 << 10

// sizeOf returns about how many bytes a field takes in memory.
func sizeOf(name string, values []string) int {
	n := len(name) + 32
	for _, v := range values {
		n += len(v) + 32
	}
	return n
}

// bounded returns h or, if it is larger than seenMost, a copy of its smallest fields: those
// that people ask for, such as the server's name of the request, are short.
func bounded(h http.Header) http.Header {
	total := 0
	for name, values := range h {
		total += sizeOf(name, values)
	}
	if total <= seenMost {
		return h
	}
	type field struct {
		size int
		name string
	}
	fields := make([]field, 0, len(h))
	for name, values := range h {
		fields = append(fields, field{sizeOf(name, values), name})
	}
	slices.SortFunc(fields, func(a, b field) int { return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.name, b.name)) })
	kept, left := http.Header{}, seenMost
	for _, f := range fields {
		if left -= f.size; left < 0 {
			break
		}
		// The values of all fields may be in one array.
		kept[f.name] = slices.Clone(h[f.name])
	}
	return kept
}
