// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/incoming"
	"github.com/retrip/retrip/internal/replay"
)

// RoundTrip sends req, retrying until it gets a final answer or a rule forbids
// another attempt. It implements [http.RoundTripper].
//
// If RoundTrip gives up with a response in hand, it returns that response and a
// nil error. It returns the error of a single attempt as Base gave it; after
// several attempts, the error is an *[Error] that wraps every failure. If t's
// policies, or a policy from [WithPolicy], are invalid, the error names each
// field and value, and nothing is sent. RoundTrip always closes the request
// body, but may do so after it has returned. It is safe for concurrent use.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	s := t.settings.Load()
	if s == nil {
		s = t.start()
	}
	if !s.looked {
		s = t.look()
	}
	if s.err != nil {
		body.CloseRequest(req)
		return nil, s.err
	}
	o := overrideOf(req.Context())
	r := s.find(req.URL)
	if !r.matched.Load() {
		r.matched.Store(true)
	}
	if o != nil && o.policy != nil {
		var err error
		if r, err = o.rules(r); err != nil {
			body.CloseRequest(req)
			return nil, err
		}
	}

	kind := replay.KindOf(req)
	host := hostLookup{url: req.URL}
	if t.Trace != nil || o != nil && (o.traces != nil || r.retryHeader != "") || r.apart || s.watch&attempt.WatchHandshake != 0 || kind >= replay.Gotten && r.tendsBodies ||
		r.policy.IdempotencyKey == On && (r.policy.Idempotent != nil || !r.idempotent(req)) || !t.hosts.calm(&host) {
		return t.exchange(s, r, req, kind, o)
	}
	if r.derives {
		return t.bounded(s, r, req, kind, host)
	}
	return t.plain(s, r, req, kind, host)
}

// rules returns r as overridden by o. It must not be inlined: the stack frame
// of every request would then hold a Policy.
//
//go:noinline
func (o *override) rules(r *Rules) (*Rules, error) { return r.override(*o.policy) }

// plain makes a first attempt with the caller's own request while the host
// isn't in trouble. An attempt that succeeds costs next to nothing; plain hands
// any other attempt to resume.
func (t *Transport) plain(s *settings, r *Rules, req *http.Request, kind replay.Kind, host hostLookup) (*http.Response, error) {
	var began time.Duration
	if hasGone(req) {
		return t.exchange(s, r, req, kind, nil)
	}
	// The duration of an attempt matters only with a deadline. A custom
	// context may have a deadline and no Done channel.
	if _, ok := req.Context().Deadline(); ok {
		began = s.now()
	}
	returned := false
	defer func() {
		if !returned {
			r.metrics.attempt(resultError)
			r.metrics.request(outcomeFailed, true)
			body.CloseRequest(req)
		}
	}()
	resp, err := s.base.RoundTrip(req)
	returned = true
	if err == nil && resp != nil && r.plainly(resp.StatusCode) && t.hosts.calm(&host) && !r.pool.owes() {
		r.metrics.answered(resp.StatusCode)
		t.payFleet(r, req.URL)
		return resp, nil
	}
	return t.resume(s, r, req, kind, nil, resp, err, began)
}

// bounded is plain for a policy with time limits: the attempt has a request and
// a context of its own.
func (t *Transport) bounded(s *settings, r *Rules, req *http.Request, kind replay.Kind, host hostLookup) (*http.Response, error) {
	if hasGone(req) {
		return t.exchange(s, r, req, kind, nil)
	}
	clock := time.Now()
	began, left := s.instant(clock), r.policy.Deadline
	if left > 0 {
		// As in limit of an exchange, the context's deadline stands for both if
		// it isn't later.
		if at, ok := req.Context().Deadline(); ok && s.instant(at) <= addCapped(began, left) {
			left = 0
		}
	}
	a := r.begin(req, r.idempotent(req), s.watch)
	r.limit(a, clock, left)
	returned := false
	defer func() {
		if !returned {
			r.metrics.attempt(resultError)
			r.metrics.hiddenSends(a.Sends() - 1)
			r.metrics.request(outcomeFailed, true)
			a.Abandon()
			body.CloseRequest(req)
		}
	}()
	// A body that net/http can't send twice takes exchange, so it doesn't matter
	// here whether the base is net/http's.
	resp, err := a.Use(s.base, false, &a.Req)
	returned = true
	if err == nil && resp != nil && r.plainly(resp.StatusCode) && t.hosts.calm(&host) && !r.pool.owes() && a.InTime() {
		a.GiveBack(resp, &a.Req, req)
		resp, _ = a.End(resp, nil)
		r.metrics.answered(resp.StatusCode)
		r.metrics.hiddenSends(a.Sends() - 1)
		t.payFleet(r, req.URL)
		return resp, nil
	}
	return t.resume(s, r, req, kind, a, resp, err, began)
}

// exchange handles a whole exchange.
func (t *Transport) exchange(s *settings, r *Rules, req *http.Request, kind replay.Kind, o *override) (*http.Response, error) {
	var x exchange
	x.init(t, s, r, req, kind, o)
	if r.policy.Deadline > 0 {
		x.limit(x.now())
	}
	return x.run()
}

// resume makes the rest of an exchange whose first attempt ended with resp or
// err. If a is nil, the attempt used the caller's own request. The attempt began
// at the instant began, which is 0 if its duration doesn't matter.
func (t *Transport) resume(s *settings, r *Rules, req *http.Request, kind replay.Kind, a *attempt.Attempt, resp *http.Response, err error, began time.Duration) (*http.Response, error) {
	var x exchange
	x.init(t, s, r, req, kind, nil)
	if r.policy.Deadline > 0 {
		x.limit(began)
	}
	x.first(a, resp, err, began)
	return x.run()
}

// exchange is one RoundTrip on its way through its attempts. It carries out
// what Host decides, and records what has to be cleaned up at the end. It lives
// on the stack of RoundTrip, as long as nothing keeps a pointer to it.
type exchange struct {
	t        *Transport
	s        *settings
	r        *Rules
	req      *http.Request
	ctx      context.Context
	watch    watcher
	call     Call
	payload  payload
	host     *hostEntry    // pinned; nil while the host is in no trouble
	woken    chan struct{} // signals that the call must ask again; nil if it can't wait at a gate
	doubt    doubt
	incoming int    // number of the incoming attempt on whose behalf the request is made; 1 if none
	key      string // generated; empty if there is none

	started  time.Time     // first reading of the clock; zero before
	hooked   time.Duration // instant at which RoundTrip began, if there are hooks
	limited  time.Duration // instant of limit; 0 if there is no Policy.Deadline
	deadline time.Duration // instant at which Policy.Deadline ends an attempt; 0 if the context's deadline does
	began    time.Duration // instant at which the last attempt began; 0 if no deadline needs it
	decided  time.Duration // instant of the decision about the last attempt, until the wait that follows it

	attempt  *attempt.Attempt // the last one, if it was derived
	sends    int              // number of sends seen in the last attempt
	resp     *http.Response   // of the last attempt
	err      error            // of the last attempt
	torn     *body.Prefixed   // the body of resp, if it had to be whole and broke
	download *download        // the body of resp, if it is watched or may be continued
	cut      *cutter          // ends a stalled Read of the body of resp, if x continues another body
	outcome  Outcome          // of the last attempt
	decision Decision         // about the next attempt
	gaveUp   Reason           // the reason for the give-up, if any
	met      []error          // errors of all attempts, in order
	seen     *http.Response   // the last discarded response

	// Together these take little space.
	told       tally
	idempotent bool
	keyed      bool // call.Gate is known
	atFleet    bool // the attempt under way is a retry that the fleet's account has let through
	sent       bool // plain or bounded has made the first attempt
	held       bool // resp is in hand: neither returned nor discarded
	whole      bool // all of the body of resp has been read
	continues  bool // x continues the body of a response that was returned
	ended      bool // run has returned; false if a base, a body or a hook panicked
}

func (x *exchange) init(t *Transport, s *settings, r *Rules, req *http.Request, kind replay.Kind, o *override) {
	x.t, x.s, x.r, x.req, x.ctx = t, s, r, req, req.Context()
	x.payload = payload{req: req, kind: kind, given: req.Body}
	x.watch.t = t
	x.incoming = 1
	if o != nil {
		x.watch.asked = o
		if r.retryHeader != "" {
			x.incoming = incoming.Attempt(x.ctx)
		}
	}
	if x.watch.hooked() {
		x.hooked = x.now()
	}
	if deadline, ok := x.ctx.Deadline(); ok {
		// An instant of 0 would mean no deadline.
		x.call.Deadline = max(1, s.instant(deadline))
	}
}

// clock returns the first reading of the clock by x.
func (x *exchange) clock() time.Time {
	if x.started.IsZero() {
		x.started = time.Now()
	}
	return x.started
}

// now returns the current instant.
func (x *exchange) now() time.Duration {
	if x.started.IsZero() {
		return x.s.instant(x.clock())
	}
	return x.s.now()
}

// limit bounds x by Policy.Deadline, which is set, from the instant now on.
func (x *exchange) limit(now time.Duration) {
	x.limited = now
	if at := addCapped(now, x.r.policy.Deadline); x.call.Deadline == 0 || at < x.call.Deadline {
		x.call.Deadline, x.deadline = at, at
	}
}

// first records the attempt that plain or bounded has made, as what send will
// take.
func (x *exchange) first(a *attempt.Attempt, resp *http.Response, err error, began time.Duration) {
	x.sent, x.began, x.call.Attempts = true, began, 1
	x.told.attempted, x.told.pending = true, true
	x.resp, x.err, x.held = resp, err, resp != nil
	if a != nil {
		x.attempt, x.sends = a, a.Sends()
	}
}

// run takes the request from one attempt to the next, until an outcome is final
// or a rule forbids another attempt.
func (x *exchange) run() (*http.Response, error) {
	defer x.cleanUp()
	x.prepare()
	end := x.admit()
	for end.how == goesOn {
		x.send()
		x.classify()
		err := x.decide()
		x.count(&x.outcome, x.decision.Reason)
		x.tellFleet()
		if !x.decision.Retry {
			end = ending{how: endAnswered, reason: x.decision.Reason, cause: err, canceled: x.outcome.Canceled}
			break
		}
		if end = x.askFleet(); end.how != goesOn {
			break
		}
		x.goOn()
		// A request spends its time in sleep, so nothing else is on the stack.
		timer := x.startWait()
		if end = x.sleep(timer, nil); end.how == goesOn {
			end = x.wake()
		}
	}
	resp, err := x.finish(end)
	x.awaitClient(err)
	x.ended = true
	return resp, err
}

// prepare sets up what all attempts share.
func (x *exchange) prepare() {
	x.idempotent = x.r.idempotent(x.req)
	if x.sent {
		return
	}
	// Keep the caller's own key: the caller may retry with the same key.
	if x.r.policy.IdempotencyKey == On && !x.idempotent && !hasKey(x.req.Header) {
		x.key, x.idempotent = newKey(), true
	}
	if x.r.policy.MaxAttempts > 1 {
		x.payload.open(max(0, x.r.policy.MaxReplayBody))
	}
}

// take records what the base returned.
func (x *exchange) take(resp *http.Response, err error) {
	switch {
	case err != nil:
		body.Dismiss(resp)
		resp, err = nil, usable(err)
	case resp == nil:
		err = errNothing
	}
	x.resp, x.err, x.held = resp, err, resp != nil
}

// decide asks the host what to do after an attempt. If there is no retry
// because GetBody failed, it returns the error of GetBody.
func (x *exchange) decide() error {
	o, d := &x.outcome, &x.decision
	*d = Decision{}
	failed := x.r.retryable(*o)
	if x.host == nil {
		x.pin(failed)
	}
	if x.host == nil && !o.Canceled && !x.r.pool.owes() {
		// There is nothing to retry, and a success doesn't change the state of
		// a host without trouble.
		return nil
	}
	if x.decided == 0 {
		x.decided = x.now()
	}
	now := x.decided
	var host *Host
	if x.host != nil {
		host = &x.host.Host
		if failed {
			x.host.used.Store(int64(now))
			x.host.failed.store(retryReason(*o))
		}
	} else {
		host = new(Host)
	}
	if x.timed() {
		o.Took = now - x.began
	}
	x.nameGate()
	faulty := x.faulty()
	o.Replay = x.payload.hold() && !faulty
	*d = host.Next(x.rules(), &x.call, *o, now, rand.Uint64())
	x.payload.release(d.Retry)
	wakeOthers(host, d.Wakes)
	if d.Reason == ReasonBudgetExhausted && x.host.ranOut() {
		d.change |= hostEmptied
	}
	x.changed(d.change)
	if d.Retry {
		// Call GetBody now, while the response in hand can still be returned
		// if it fails.
		if err := x.payload.renew(); err != nil {
			x.giveBack(host)
			*d = Decision{Reason: ReasonBodyNotReplayable}
			return err
		}
	}
	return nil
}

// pin finds the host of the request, if the attempt failed or the host is in
// trouble. It must not be inlined, to keep the stack frame of decide small.
//
//go:noinline
func (x *exchange) pin(failed bool) {
	if !failed && x.t.hosts.calm(&hostLookup{url: x.req.URL}) {
		return
	}
	x.decided = x.now()
	if key := keyOf(x.req.URL); failed {
		if isLong(x.req.URL) {
			key = key.clone()
		}
		x.host = x.t.hosts.pinNew(key, x.decided)
	} else {
		x.host = x.t.hosts.pinGood(key, x.decided)
	}
}

// goOn records the decision to make another attempt.
func (x *exchange) goOn() {
	if x.torn != nil {
		x.err = x.failure()
		body.Dismiss(x.resp)
		x.resp, x.held, x.torn = nil, false, nil
	}
	if x.err != nil {
		x.met = append(x.met, x.err)
		x.doubts()
	}
	x.announce()
	// A wait may be long, and nobody needs the attempt any more.
	x.attempt, x.decided = nil, 0
}
