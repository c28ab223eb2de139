// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package exchange takes a request through its attempts. It drives the machine of package
// decide: it sends and waits as the machine says, and lets package tell report that. It knows no
// retrip.Policy: a Config is what a policy amounts to.
//
// A request has three layers, each of which knows only those before it: place, where it is
// (its host, its clock, its waits); journey, what has happened to it; and exchange, which
// drives it.
package exchange

import (
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/caller"
	"github.com/retrip/retrip/internal/chance"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/replay"
	"github.com/retrip/retrip/internal/span"
	"github.com/retrip/retrip/internal/spare"
	"github.com/retrip/retrip/internal/tell"
)

// exchange is one RoundTrip on its way through its attempts. It tells the machine what
// happens, carries out its actions, and records what has to be cleaned up at the end. It
// lives on the stack of RoundTrip, as long as nothing keeps a pointer to it.
type exchange struct {
	journey
	route  spare.Route
	action decide.Action // the last
	key    string        // generated Idempotency-Key; empty if there is none
}

// journey is what has happened to a request so far. It reduces that for decisions.
// What belongs to the last attempt is in last, which is reset as a whole.
type journey struct {
	place
	payload    replay.Payload
	last       last
	event      decide.Event // the last
	cause      error        // an error that isn't the outcome of an attempt: why the caller has gone, or the error of GetBody
	tell       tell.Teller
	ofBody     bool // the request is for the rest of a body, and not the caller's own
	idempotent bool
	done       bool // run returns; false if a base, a body or a hook has panicked
}

// init begins x, for a request that follows cfg. Only ofBody and idempotent may be set before.
func (x *exchange) init(env *Env, cfg *Config, req *http.Request, kind replay.Kind, override tell.Override) {
	x.env, x.cfg, x.rules, x.req = env, cfg, &cfg.Rules, req
	x.payload.Kind = kind
	x.tell.Begin(tell.Request{Desk: &env.Desk, Policy: &cfg.Policy, Req: req, Override: override}, !x.ofBody)
	if x.tell.Hooked || cfg.Metrics.Timed() {
		x.tell.Entered = x.now()
	}
	if deadline, ok := x.req.Context().Deadline(); ok {
		x.call.Deadline = x.env.due(deadline, time.Now())
	}
	if x.cfg.Deadline > 0 && !x.ofBody {
		x.endBy(span.Add(x.now(), x.cfg.Deadline))
	}
	if env.Fleet != nil {
		x.call.Account = cfg.Fleet
	}
}

// hurry makes the deadline of the context that of x if it has come nearer. A deadline without a
// monotonic reading does that if the wall clock is set forward, or the machine sleeps. If the
// clock is set back, it goes away, but the context ends as if it hadn't.
func (x *exchange) hurry() {
	if x.call.Deadline == 0 {
		return
	}
	if at, ok := x.req.Context().Deadline(); ok && at == at.Round(0) {
		x.call.Deadline = min(x.call.Deadline, x.env.due(at, time.Now()))
	}
}

// endBy makes the instant at the deadline of x, unless the context's is earlier.
func (x *exchange) endBy(at time.Duration) {
	if x.call.Deadline == 0 || at < x.call.Deadline {
		x.call.Deadline, x.deadline = at, at
	}
}

// run takes the request from event to action, from Began on, or from Ended if the first
// attempt has been made, or from Due if x is the turn of a body that waits.
func (x *exchange) run(from decide.Kind) (*http.Response, error) {
	defer x.cleanUp()
	for what := x.enter(from); ; {
		switch do := x.step(what); do {
		case decide.Send:
			x.send()
			x.completeEvent()
			what = decide.Ended
		case decide.Ask:
			what = x.askFleet()
		case decide.Sleep, decide.Queue:
			what = x.wait()
		default:
			return x.finish()
		}
	}
}

// enter sets up what all attempts share, and returns the kind of the first event.
func (x *exchange) enter(from decide.Kind) decide.Kind {
	x.idempotent = x.cfg.Program.Idempotent(x.req)
	// Keep the caller's own key: the caller may retry with the same key.
	if x.cfg.GeneratesKeys && !x.idempotent && !x.ofBody {
		x.key = x.cfg.Program.NewKey(x.req.Header)
		x.idempotent = x.key != ""
	}
	if x.payload.Kind >= replay.Gotten {
		x.payload.Open(x.req, x.cfg.MaxAttempts <= 1, x.cfg.MaxReplayBody)
	}
	switch from {
	case decide.Began:
		if gone := caller.Gone(x.req); gone != nil {
			return x.recordGone(gone)
		}
		pin := (*host.Table).PinOwing // without tokens, the attempt may close its connection
		if x.cfg.Breaker != nil || x.cfg.Gated {
			pin = (*host.Table).Pin
		}
		x.pinIfTroubled(pin)
	case decide.Ended:
		if !x.ofBody {
			// Here, not in adopt: a body that panics as it is closed must find x cleaned up.
			x.last.take(x.last.resp, x.last.err)
			x.recordRoute(x.env.Base)
		}
		x.classify()
		x.completeEvent()
	case decide.Due:
		x.call.WaitsFrom(x.pin())
		x.beginRetry()
	}
	return from
}

// step tells the machine what has happened, and the teller what the machine says. It returns
// what to do next.
func (x *exchange) step(what decide.Kind) decide.Deed {
	now := x.last.decided
	var h *host.Record
	var draw uint64
	if x.host != nil {
		x.hurry()
		if h = &x.host.Record; what != decide.Ended {
			now = x.env.Now()
			if x.rules.Gated && x.woken == nil {
				x.woken = make(chan struct{}, 1)
				x.call.Waiter = x.woken
			}
		}
		x.stepped, draw = now, chance.Draw()
	}
	e, a := &x.event, &x.action
	e.Kind = what
	x.call.Step(x.rules, h, e, a, now, draw)
	if a.Wakes {
		wakeOthers(h)
	}
	if a.Pays || a.Tokens != 0 {
		x.payFleet()
	}
	if what == decide.Ended {
		x.settle(&e.Outcome, a)
	}
	x.tell.Step(x.host, &x.call, e, a, int(x.last.kept.Sends))
	return a.Do
}

// completeEvent completes the event that the last attempt has ended, with what its decision needs:
// it pins the host's record, tells it of a failure, and holds the request body until settle. A
// success doesn't change the state of a host without trouble, and its instant then
// doesn't matter.
func (x *exchange) completeEvent() {
	x.reroute()
	o := &x.event.Outcome
	failed := x.cfg.Retryable(o)
	switch {
	case x.host != nil:
		x.last.decided = x.now()
	case failed:
		x.last.decided = x.pin()
	default:
		x.last.decided = x.pinIfTroubled((*host.Table).PinGood)
	}
	if x.host == nil {
		if o.Canceled {
			x.last.decided = x.now()
		}
		return
	}
	if failed && !o.Pending() {
		x.describeFailure()
	}
	if x.last.began != 0 {
		o.Took = x.last.decided - x.last.began
	}
	// settle ends the hold, once it is decided whether there is another attempt.
	once := x.payload.Once
	o.Replay = (once == nil || once.Hold()) && !x.payload.AtFault()
}

// describeFailure tells the host how the last attempt has failed. It must not be inlined, to
// keep the stack frame of completeEvent small.
//
//go:noinline
func (x *exchange) describeFailure() {
	x.host.FailsAt(x.last.decided, x.tell.Failed(&x.event.Outcome, x.last.failure(), x.last.kept.Blame))
}

// settle carries out what a means for the body of the last attempt, and what o, its outcome, for
// other requests though a caller has gone.
func (x *exchange) settle(o *decide.Outcome, a *decide.Action) {
	if once := x.payload.Once; once != nil && x.host != nil {
		// The fleet may still forbid the retry, and the upload must then go on.
		once.Release(a.Do == decide.Sleep || a.Do == decide.Queue)
	}
	if o.Canceled {
		said := *o
		said.Canceled = false
		x.obey(&said)
	}
}
