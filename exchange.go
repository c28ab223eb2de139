// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"time"
)

// exchange is one RoundTrip on its way through its attempts. It carries out
// what Host decides, and keeps what has to be cleaned up at the end. It lives on
// the stack of RoundTrip, as long as nothing keeps a pointer to it.
type exchange struct {
	t     *Transport
	s     *setUp
	r     *Rules
	req   *http.Request
	ctx   context.Context
	watch watcher
	call  Call
	kind  bodyKind
	body  *replay       // of a body that can be had only once; else nil
	host  *hostEntry    // pinned; nil while the host is in no trouble
	keyed bool          // call.Gate is known
	woken chan struct{} // tells that the call must ask again; nil where nothing can be held at a gate
	doubt doubt

	idempotent bool
	key        string        // generated; empty if there is none
	ungotten   error         // of GetBody, when a retry was to be made
	deadline   time.Duration // instant at which Policy.Deadline ends an attempt; 0 if the context does

	given   io.Closer // the body of the last attempt, where GetBody made it
	next    io.ReadCloser
	attempt *attempt       // the last one, if it was derived
	resp    *http.Response // of the last attempt
	err     error          // of the last attempt
	held    bool           // resp is in hand: neither returned nor discarded

	met  []error        // the errors of all attempts, the first one first
	seen *http.Response // the last one discarded
}

func (x *exchange) init(t *Transport, s *setUp, r *Rules, req *http.Request, kind bodyKind, o *override) {
	x.t, x.s, x.r, x.req, x.kind = t, s, r, req, kind
	x.ctx, x.given = req.Context(), req.Body
	x.watch.own, x.watch.logger = t.Trace, t.Logger
	if o != nil {
		x.watch.asked = o.traces
	}
	if x.watch.hooked() {
		x.watch.began = time.Now()
	}
	if deadline, ok := x.ctx.Deadline(); ok {
		// An instant of zero would mean none.
		x.call.Deadline = max(1, s.instant(deadline))
	}
	if d := r.policy.Deadline; d > 0 {
		if at := addCapped(s.now(), d); x.call.Deadline == 0 || at < x.call.Deadline {
			x.call.Deadline, x.deadline = at, at
		}
	}
}

// run makes the exchange from its start.
func (x *exchange) run() (*http.Response, error) {
	ended := false
	defer func() { x.cleanUp(ended) }()
	x.idempotent = x.r.idempotent(x.req)
	// A key of the caller's own stays: its retries, if any, go by it.
	if x.r.policy.IdempotencyKey == On && !x.idempotent && !hasKey(x.req.Header) {
		x.key, x.idempotent = newKey(), true
	}
	if x.kind == onceBody && x.r.policy.MaxAttempts > 1 {
		x.body = openReplay(x.req, max(0, x.r.policy.MaxReplayBody))
	}
	resp, err := x.begin()
	x.awaitClient(err)
	ended = true
	return resp, err
}

// begin makes the first attempt, if there is to be one, and goes on after it.
func (x *exchange) begin() (*http.Response, error) {
	if gone := x.gone(); gone != nil {
		return nil, x.goneBefore(gone)
	}
	if reason, err := x.admit(); reason != "" {
		return nil, x.fail(reason, err)
	}
	began := x.clock()
	x.send()
	return x.proceed(began)
}

// resume makes the rest of an exchange whose first attempt was made with the
// caller's own request, and began at the given instant where that matters.
func (x *exchange) resume(resp *http.Response, err error, began time.Duration) (*http.Response, error) {
	ended := false
	defer func() { x.cleanUp(ended) }()
	x.call.Attempts = 1
	x.take(resp, err)
	x.idempotent = x.r.idempotent(x.req)
	resp, err = x.proceed(began)
	x.awaitClient(err)
	ended = true
	return resp, err
}

// proceed goes on after an attempt, until there is nothing more to do.
func (x *exchange) proceed(began time.Duration) (*http.Response, error) {
	for {
		o := x.outcome()
		d := x.decide(&o, began)
		x.count(o)
		if !d.Retry {
			return x.finish(o, d.Reason)
		}
		if x.err != nil {
			x.met = append(x.met, x.err)
			x.doubts()
		}
		x.announce(d, o)
		if reason, err := x.wait(d); reason != "" {
			return nil, x.fail(reason, err)
		}
		began = x.clock()
		x.send()
	}
}

// clock returns the instant, or 0 where no deadline makes it matter.
func (x *exchange) clock() time.Duration {
	if x.call.Deadline == 0 {
		return 0
	}
	return x.s.now()
}

// admit asks for the first attempt, and waits if it has to. It returns why
// none is made, if so, and what ended the wait for it.
func (x *exchange) admit() (Reason, error) {
	if !x.r.breaker && x.r.policy.Gate != On || x.t.hosts.calm(x.req.URL) {
		return "", nil
	}
	if x.host = x.t.hosts.pin(keyOf(x.req.URL)); x.host == nil {
		return "", nil
	}
	return x.wake()
}

// wake asks the host whether the attempt may be made now, as often and after
// as many waits as it wants.
func (x *exchange) wake() (Reason, error) {
	x.mayQueue()
	since, reason, err := x.ask()
	if since != 0 {
		x.r.metrics.waitedAtGate(x.s.now() - since)
	}
	return reason, err
}

// ask is wake, and returns the instant at which a wait at the gate began, 0 if
// there was none, besides.
func (x *exchange) ask() (since time.Duration, reason Reason, err error) {
	for {
		var d Decision
		now := x.s.now()
		if x.call.Attempts == 0 {
			d = x.host.First(x.rules(), &x.call, now, rand.Uint64())
		} else {
			d = x.host.Wake(x.rules(), &x.call, now, rand.Uint64())
		}
		wakeOthers(&x.host.Host, d.Wakes)
		x.changed(d.change)
		if !d.Retry {
			return since, d.Reason, nil
		}
		if d.Wait == 0 {
			return since, "", nil
		}
		if d.AtGate && since == 0 {
			since = max(1, now)
		}
		var timer *time.Timer
		if d.Wait < noLimit {
			timer = time.NewTimer(d.Wait)
		}
		if reason, err := x.sleep(timer, x.woken); reason != "" {
			return since, reason, err
		}
	}
}

// nameGate asks for the gate of the request, at the first time that it matters.
func (x *exchange) nameGate() {
	if f := x.r.policy.GateKey; f != nil && x.r.policy.Gate == On && !x.keyed {
		x.call.Gate, x.keyed = f(x.req), true
	}
}

// mayQueue makes ready for a wait at the gate.
func (x *exchange) mayQueue() {
	if x.r.policy.Gate == On && x.woken == nil {
		x.woken = make(chan struct{}, 1)
		x.call.Waiter = x.woken
	}
	x.nameGate()
}

// wakeOthers wakes those who must ask h again, if there are any. Each of them
// has room for one call, and needs no second: it asks after the first.
func wakeOthers(h *Host, any bool) {
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

// giveBack returns to the host what was taken for an attempt that is not made.
func (x *exchange) giveBack(h *Host) { wakeOthers(h, h.Return(x.rules(), &x.call)) }

// rules returns the rules that x follows at its host.
func (x *exchange) rules() *Rules {
	if x.host == &x.t.hosts.overflow {
		return x.sharedRules()
	}
	return x.r
}

// sharedRules isn't inlined: the stack of every request that waits would have
// to hold a copy of its rules.
//
//go:noinline
func (x *exchange) sharedRules() *Rules { return x.r.forShared() }

// take takes in what the base returned.
func (x *exchange) take(resp *http.Response, err error) {
	switch {
	case err != nil:
		dismiss(resp)
		resp, err = nil, usable(err)
	case resp == nil:
		err = errNothing
	}
	x.resp, x.err, x.held = resp, err, resp != nil
}

// decide asks the host what to do after an attempt that began at the given
// instant.
func (x *exchange) decide(o *Outcome, began time.Duration) Decision {
	var now time.Duration
	failed := x.r.retryable(*o)
	if x.host == nil && (failed || !x.t.hosts.calm(x.req.URL)) {
		now = x.s.now()
		if key := keyOf(x.req.URL); failed {
			x.host = x.t.hosts.pinNew(key, now)
		} else {
			x.host = x.t.hosts.pinGood(key)
		}
	}
	if x.host == nil && !o.Canceled {
		// Neither is there anything to retry, nor does a host in no trouble
		// learn anything from an answer.
		return Decision{}
	}
	var host *Host
	if x.host != nil {
		host, now = &x.host.Host, x.s.now()
		if failed {
			x.host.used.Store(int64(now))
		}
	} else {
		host = new(Host)
	}
	if x.call.Deadline != 0 {
		now = x.s.now()
		o.Took = now - began
	}
	x.nameGate()
	var d Decision
	faulty := x.faulty()
	ask := func(replayable bool) bool {
		o.Replay = replayable && !faulty
		d = host.Next(x.rules(), &x.call, *o, now, rand.Uint64())
		wakeOthers(host, d.Wakes)
		return d.Retry
	}
	if x.body != nil {
		x.body.decide(ask)
	} else {
		ask(true)
	}
	x.changed(d.change)
	if d.Retry && (x.kind == memoryBody || x.kind == gottenBody) {
		// Made now, while the response in hand can still be returned instead.
		body, err := x.req.GetBody()
		if err == nil && body == nil {
			err = errNoBody
		}
		if err != nil {
			x.giveBack(host)
			x.ungotten = err
			return Decision{Reason: ReasonBodyNotReplayable}
		}
		x.next = body
	}
	return d
}

// gone returns why the caller has no use for an answer any more, nil if it
// has. net/http tells of a context's cause alone; both are needed.
func (x *exchange) gone() error {
	// As net/http does, go by Done: a context of the caller's own making may
	// have an error and never end.
	if err := x.ctx.Err(); err != nil && x.ctx.Done() != nil {
		if cause := context.Cause(x.ctx); !errors.Is(cause, err) {
			return errors.Join(err, cause)
		}
		return err
	}
	select {
	case <-legacyCancel(x.req):
		// http.Client closes it for its Timeout, as the context's deadline
		// passes.
		if deadline, ok := x.ctx.Deadline(); ok && !time.Now().Before(deadline) {
			return context.DeadlineExceeded
		}
		return context.Canceled
	default:
		return nil
	}
}

// wait lets the wait pass, and in it the response before it. It returns why
// the exchange ends in it, if it does, and what ended it.
func (x *exchange) wait(d Decision) (Reason, error) {
	var timer *time.Timer
	if d.Wait > 0 && !d.AtGate {
		timer = time.NewTimer(d.Wait)
	}
	if x.held {
		x.seen, x.held = x.resp, false
		most := min(max(d.Wait, drainLeast), drainTime)
		if x.call.Deadline != 0 {
			most = min(most, max(d.Wait, x.call.Deadline-x.s.now()))
		}
		discard(x.req, x.resp, most)
	}
	if reason, err := x.sleep(timer, nil); reason != "" {
		return reason, err
	}
	return x.wake()
}

// sleep waits for timer or woken, those that aren't nil. If the caller goes
// meanwhile, it returns what was taken for the attempt, and why.
func (x *exchange) sleep(timer *time.Timer, woken <-chan struct{}) (Reason, error) {
	if timer != nil || woken != nil {
		var over <-chan time.Time
		if timer != nil {
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-over:
		case <-woken:
		case <-x.ctx.Done():
		case <-legacyCancel(x.req):
		}
	}
	reason, err := x.left()
	if reason != "" {
		x.giveBack(&x.host.Host)
	}
	return reason, err
}

// left returns the reason to make no attempt when the caller has gone, and why
// it went.
func (x *exchange) left() (Reason, error) {
	err := x.gone()
	switch {
	case err == nil:
		return "", nil
	case errors.Is(err, context.DeadlineExceeded):
		return ReasonDeadline, err
	default:
		return ReasonCanceled, err
	}
}
