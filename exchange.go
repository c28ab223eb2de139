// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/chance"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/replay"
	"github.com/retrip/retrip/internal/span"
)

// exchange is one RoundTrip on its way through its attempts. It carries out
// what package decide decides, and records what has to be cleaned up at the end.
// It lives on the stack of RoundTrip, as long as nothing keeps a pointer to it.
//
// Its parts are its concerns. What belongs to the last attempt is in last, which
// is reset as a whole.
type exchange struct {
	place
	t        *Transport
	asked    *override // of the context, for its hooks; nil if there is none
	payload  payload
	doubt    doubt
	last     last
	decision decide.Decision // about the next attempt; in the end, why there is none
	met      []error         // errors of all attempts, in order
	seen     seen            // of the last discarded response
	key      string          // generated Idempotency-Key; empty if there is none
	incoming int             // number of the incoming attempt on whose behalf the request is made; 1 if none
	asking   asking          // of the fleet's account

	// Together these take little space.
	told       tally
	how        host.Failure // of the last attempt that failed; 0: none
	idempotent bool
	atFleet    bool  // the next attempt is a retry that the fleet's account has let through
	held       uint8 // tokens that the account was charged for the retry under way
	continues  bool  // x continues the body of a response that was returned
	turn       bool  // x is the turn of a body that waits: one attempt, to which the host's budget doesn't apply
	ended      bool  // run has returned; false if a base, a body or a hook panicked
}

// seen is what an error or hook may have to show of a discarded response. The
// response itself would keep its attempt in memory during a wait.
type seen struct {
	status int
	header http.Header
}

// clock is the time of an exchange. It reads the machine's clock only if the time
// matters.
type clock struct {
	s        *settings     // for its epoch
	started  time.Time     // first reading; zero before
	hooked   time.Duration // instant at which RoundTrip began, if there are hooks or histograms of durations
	deadline time.Duration // instant at which Policy.Deadline, or Policy.Resume, ends an attempt; 0 if the context's deadline does
}

// start returns the first reading of the clock.
func (c *clock) start() time.Time {
	if c.started.IsZero() {
		c.started = time.Now()
	}
	return c.started
}

// now returns the current instant.
func (c *clock) now() time.Duration {
	if c.started.IsZero() {
		return c.s.instant(c.start())
	}
	return c.s.now()
}

// init begins x, for a request that follows r. Only x.continues and x.turn may be set
// before.
func (x *exchange) init(t *Transport, s *settings, r *rules, req *http.Request, kind replay.Kind, asked *override) {
	x.t, x.s, x.r, x.req, x.table = t, s, r, req, &t.hosts
	x.payload.req, x.payload.kind, x.payload.given = req, kind, req.Body
	x.incoming = 1
	if asked != nil {
		x.asked = asked
		if x.r.retryHeader != "" {
			x.incoming = asked.from.Attempt(req.Context())
		}
	}
	if x.watch().hooked() || r.metrics.Timed() {
		x.hooked = x.now()
	}
	if deadline, ok := x.req.Context().Deadline(); ok {
		// An instant of 0 would mean no deadline.
		x.call.Deadline = max(1, x.s.instant(deadline))
	}
	if x.r.policy.Deadline > 0 && !x.continues {
		x.endBy(span.Add(x.now(), x.r.policy.Deadline))
	}
}

// endBy makes the instant at the deadline of x, unless the context's is earlier.
func (x *exchange) endBy(at time.Duration) {
	if x.call.Deadline == 0 || at < x.call.Deadline {
		x.call.Deadline, x.deadline = at, at
	}
}

// most returns how long the attempt may take, or 0 if nothing bounds it.
func (x *exchange) most() time.Duration {
	most := max(0, x.r.policy.AttemptTimeout)
	if x.awaitsRest() {
		most = x.r.policy.BodyIdleTimeout
	}
	if left := max(1, x.call.Deadline-x.last.began); x.call.Deadline != 0 && (most == 0 || left < most) {
		most = left
	}
	return most
}

// run takes the request from one attempt to the next, until an outcome is final
// or a rule forbids another attempt. If x continues a body, the attempt that
// broke has already been made.
func (x *exchange) run() (*http.Response, error) {
	defer x.cleanUp()
	x.prepare()
	end := x.admit()
	for made := x.continues && !x.turn; end.how == goesOn; made = false {
		if !made {
			x.send()
		}
		if end = x.judge(); end.how != goesOn {
			break
		}
		// A request spends its time in sleep, so as little as possible is on the
		// stack.
		timer := x.startWait()
		end = x.awake(x.sleep(timer, nil))
	}
	resp, err := x.finish(end)
	x.awaitClient(err)
	x.ended = true
	return resp, err
}

// prepare sets up what all attempts share.
func (x *exchange) prepare() {
	x.idempotent = x.r.idempotent(x.req)
	if x.continues {
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

// judge decides whether there is another attempt after the last one.
func (x *exchange) judge() ending {
	x.classify()
	if x.last.race != nil {
		x.endRace(false)
	}
	if failed := x.last.failure(); failed != nil {
		x.doubts(failed)
	}
	err := x.decide()
	if x.last.outcome.Canceled {
		x.heedGone()
	}
	if !x.answered() {
		x.count(&x.last.outcome, x.decision.Reason)
	}
	x.tellFleet()
	if !x.decision.Retry {
		return ending{endAnswered, err}
	}
	end := x.askFleet()
	if end.how == goesOn {
		x.goOn()
	}
	return end
}

// decide asks the host what to do after an attempt, and sets x.decision. If
// there is no retry because GetBody failed, it returns the error of GetBody.
func (x *exchange) decide() error {
	o, d := &x.last.outcome, &x.decision
	*d = decide.Decision{}
	failed := x.r.Retryable(*o)
	if x.host == nil {
		x.last.decided = x.pin(failed)
	}
	if x.host == nil && !o.Canceled {
		// There is nothing to retry, and a success doesn't change the state of
		// a host without trouble.
		return nil
	}
	if x.last.decided == 0 {
		x.last.decided = x.now()
	}
	now := x.last.decided
	var record *host.Record
	if x.host != nil {
		record = &x.host.Record
		if failed {
			x.host.FailsAt(now)
			x.how = x.describe()
			x.host.Failed.Store(uint32(x.how))
		}
	} else {
		record = new(host.Record)
	}
	if x.timed() {
		o.Took = now - x.last.began
	}
	x.nameGate()
	faulty := x.faulty()
	o.Replay = x.payload.hold() && !faulty
	*d = x.rules().Next(record, &x.call, *o, now, chance.Draw())
	// The fleet may still forbid the retry, and the upload must then go on.
	x.payload.release(d.Retry && !x.asksFleet())
	wakeOthers(record, d.Wakes)
	if (d.Reason == decide.BudgetExhausted || d.Reason == decide.RetriesFailing) && x.host.RanOut() {
		x.host.GaveUp.Store(uint32(d.Reason))
		d.Change |= host.Emptied
	}
	x.changed(d.Change)
	if d.Retry {
		x.told.fromServer = d.Wait > 0 && (o.RetryAfter > 0 || x.host.PausedFor(now) > 0)
		// Call GetBody now, while the response in hand can still be returned
		// if it fails.
		if err := x.payload.renew(x.last.unsent()); err != nil {
			x.giveBack(record)
			*d = decide.Decision{Reason: decide.BodyNotReplayable}
			return err
		}
	}
	return nil
}

// overhear makes the host heed what a server has said in o, the outcome of an attempt that
// doesn't count. Nothing else in o counts for the host.
func (x *exchange) overhear(o *decide.Outcome) {
	if !x.r.Refused(*o) {
		return
	}
	if x.host == nil {
		x.pin(true)
	}
	x.nameGate()
	change, wakes := x.rules().Overhear(&x.host.Record, &x.call, *o, x.s.now(), chance.Draw())
	wakeOthers(&x.host.Record, wakes)
	x.changed(change)
}

// heedGone makes the host heed a response whose caller has gone: what the server said
// holds for others.
func (x *exchange) heedGone() {
	o := x.last.outcome
	o.Canceled = false
	x.overhear(&o)
}

// goOn records the decision to make another attempt.
func (x *exchange) goOn() {
	if x.last.torn != nil {
		x.last.err = x.last.failure()
		body.Dismiss(x.release())
		x.last.torn = nil
	}
	if x.last.err != nil {
		x.met = append(x.met, x.last.err)
	}
	x.announce()
	x.last = x.last.kept()
}

// awake ends the wait before a retry. If gone isn't nil, the caller has gone
// meanwhile.
func (x *exchange) awake(gone error) ending {
	if gone == nil && x.deadline != 0 && x.now() >= x.deadline {
		// The discarded body or a busy machine has held up the request.
		gone = x.late()
	}
	if gone != nil {
		return x.leave(gone)
	}
	end := x.wake()
	if x.atFleet && end.how == goesOn {
		x.payRetry()
	}
	x.atFleet = false
	return end
}

// drop releases what the hedge x holds.
func (x *exchange) drop() {
	// Nobody would recover a panic of a body that is closed here.
	defer func() { _ = recover() }()
	x.last.attempt.Abandon()
	if x.last.held {
		body.Dismiss(x.release())
	}
}
