// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"math"
	"time"

	"github.com/retrip/retrip/internal/account"
	"github.com/retrip/retrip/internal/gate"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/span"
)

// Event is what has happened to a request.
type Event struct {
	Kind    Kind
	Known   bool    // of Heard: there is a level
	Level   float64 // of Heard
	Outcome Outcome // of Ended
}

// Kind is the kind of an Event. A request begins with Began. If its first attempt has
// been made already, it begins with Ended, and a body's turn with Due; the caller then
// sets Call.Attempts.
type Kind uint8

const (
	Began  Kind = iota // nothing has been sent
	Ended              // an attempt has ended, or an attempt and its hedge
	NoBody             // after a Sleep or Queue that follows an attempt: the next one would get no body
	Heard              // the fleet's account has answered, or hasn't in time
	Due                // a wait is over, or the gate has woken the request
	Gone               // the caller has gone
	Late               // the request's own deadline has passed
)

// Action is what to do next, and what to report of it.
type Action struct {
	Do         Deed
	AtGate     bool          // of Sleep: the wait also ends when [host.Record.NextWoken] returns Call.Waiter
	Again      bool          // of Ask: the account has allowed the retry before a long wait
	Wakes      bool          // other calls must ask again now: those that [host.Record.NextWoken] returns
	Pays       bool          // the account gets what a success without a retry pays
	OfRoute    bool          // of RetriesFailing: retries of the route are stopped, not all of the host
	Reason     Reason        // of a retry, with the Ask, Sleep or Queue that follows its attempt; or why there is none
	Change     host.Change   // of the host's state
	Wait       time.Duration // of Sleep, for how long unless the call is woken; of Queue and Ask, an estimate; of Answer and Refuse, see readyIn
	FromServer bool          // of a retry: the server has asked for its wait
	Close      bool          // of Send: nothing else should use the connection of the attempt after it
	Tokens     float64       // to add to the fleet's account now
}

// Deed is what to do. The events that may follow are in brackets.
type Deed uint8

const (
	Send   Deed = iota // make an attempt, which is counted already [Ended]
	Ask                // ask for the level of the fleet's account [Heard, Gone, Late]
	Sleep              // wait; after an attempt, drop its outcome first [Due, Gone, Late, NoBody]
	Queue              // drop the outcome of the attempt, and take a place at the gate at once [Due, Gone, Late, NoBody]
	Answer             // return the outcome of the last attempt
	Refuse             // return that there is no attempt, and no outcome in hand
)

// Step takes c from an event to the action that follows, by the rules r. h is the record
// of its host, or nil if the host is in no trouble and the event isn't a failure. Step
// then ignores now and draw, but for a caller who has gone.
//
// The event and the action are in the caller's memory: a request that waits needs little
// stack.
func (c *Call) Step(r *Rules, h *host.Record, e *Event, a *Action, now time.Duration, draw uint64) {
	*a = Action{} // Send, unless something below says otherwise
	if h != nil {
		c.lock(r, h, now)
		defer h.Unlock()
	}
	switch e.Kind {
	case Began:
		c.admit(r, h, a, now, draw)
	case Ended:
		c.judge(r, h, &e.Outcome, a, now, draw)
		if o := &e.Outcome; a.Reason != None && a.Do == Answer && !o.Canceled && !o.Pending() {
			h.Debt.GiveUp(r.Budget, c.failure(o))
		}
	case Heard:
		c.judgeFleet(r, h, e, a, now, draw)
	case Due:
		c.endWait(r, h, a, now, draw)
	default:
		c.endUnsent(r, h, e.Kind, a)
	}
	if a.Do >= Answer {
		a.Wait = c.readyIn(h, e, a.Reason, now)
	}
}

// lock locks h. Room for the gate of c comes first: making it locks other hosts.
func (c *Call) lock(r *Rules, h *host.Record, now time.Duration) {
	if r.Gated && c.GateKey != "" {
		h.MakeRoom(now)
	}
	h.Lock()
}

// retry is what a Call keeps of a retry on its way to its attempt.
type retry struct {
	wait       time.Duration // drawn, or estimated
	askedAt    time.Duration // instant at which the account was asked first
	askedLast  time.Duration // and last
	draw       uint64        // decides about the level, so that asking twice forbids no more retries
	reason     Reason
	queues     bool // the wait is at the gate
	unpaid     bool // the budget hasn't allowed it yet, see payBudgetLate
	needsFleet bool // the account decides about the retry
	allowed    bool // it has allowed it
}

// judge decides after an attempt that ended in o, and records what o says about the
// host. It checks, in this order: the caller has gone; what forbids a retry whatever the
// host; the gate or the pause; the deadline; the breaker; the budget. The fleet's account
// comes last.
func (c *Call) judge(r *Rules, h *host.Record, o *Outcome, a *Action, now time.Duration, draw uint64) {
	a.Do = Answer
	failed := r.Retryable(o)
	c.settleFleet(h, o, a, failed)
	if o.Canceled {
		c.endCanceled(h, a, now)
		return
	}
	if h == nil {
		return
	}
	// What others were told holds back a request that was told nothing only while the host
	// is in doubt. This comes before recordOutcome, which adds o's own pause.
	paused := h.DoubtedFor(now)
	if o.RetryAfter > 0 && r.pauses(o) {
		paused = h.PausedFor(now)
	}
	c.recordOutcome(r, h, o, a, failed, now, draw)
	if !failed {
		return
	}
	if a.Reason = c.final(r, o); a.Reason != None {
		return
	}
	c.needed = c.timeNeeded(h, o)
	c.retry = retry{reason: o.Why()}
	if a.Reason = c.plan(r, h, o, paused, now, draw); a.Reason != None {
		return
	}
	if a.Reason = c.payBudget(r, h, o, a, now); a.Reason != None {
		return
	}
	if !c.retry.queues {
		c.Wait = c.retry.wait
	}
	a.FromServer = o.RetryAfter > 0 || paused > 0
	c.waitsFrom = now
	costsNothing := c.retry.queues && o.limited() || o.Pending()
	if c.Account == 0 || costsNothing {
		c.startWait(a, 0)
		return
	}
	c.retry.needsFleet, c.retry.askedAt, c.retry.askedLast = true, now, now
	a.Do, a.Reason, a.Wait = Ask, c.retry.reason, c.retry.wait
}

// final returns the reason why nothing is sent after o, whatever the host's record holds, or None.
func (c *Call) final(r *Rules, o *Outcome) Reason {
	switch {
	case o.Forbidden:
		return RetryForbidden
	case o.Resent && (c.Attempts >= r.MaxAttempts || !r.repeatable(o)):
		return HiddenSends
	case c.Attempts >= r.MaxAttempts:
		return MaxAttempts
	case c.Attempts+c.skipped >= r.MaxAttempts:
		return BudgetExhausted
	case !r.repeatable(o):
		return NotIdempotent
	case !o.Replay:
		return BodyNotReplayable
	case o.RetryAfter > r.MaxWait, r.Gated && o.RetryAfter > gate.PauseMost:
		return WaitTooLong
	}
	return None
}

// plan draws the wait of the retry after o, or returns why it can't be waited for. paused
// is the rest of an earlier pause of the host for which the request must wait, too.
func (c *Call) plan(r *Rules, h *host.Record, o *Outcome, paused, now time.Duration, draw uint64) Reason {
	left, step := c.TimeLeft(now), c.backoffStep()
	var atGate time.Duration
	if r.Gated && h.Guards != nil {
		q := c.gateRequest(r)
		var refusal gate.Refusal
		if atGate, refusal = h.Guards.Gates.Outlook(&c.ticket, &q, now, h.PausedUntil()); refusal != 0 {
			return gateReasons[refusal]
		}
	} else if !r.Gated && paused > o.RetryAfter {
		if lo, _ := r.Backoff.ServerWindow(paused, step, c.Wait); lo > left || paused > r.MaxWait {
			return HostPaused
		}
	}
	if c.retry.queues = o.throttled() && r.Gated && !c.ticket.Alone; c.retry.queues {
		c.retry.wait = atGate
		return None
	}
	var lo, hi time.Duration
	retryAfter := max(o.RetryAfter, paused)
	switch {
	case retryAfter > 0:
		lo, hi = r.Backoff.ServerWindow(retryAfter, step, c.Wait)
	case o.throttled():
		lo, hi = r.Backoff.Throttled().Window(step, c.Wait)
	default:
		lo, hi = r.Backoff.Window(step, c.Wait)
	}
	if lo > left {
		return Deadline
	}
	if hi > left && retryAfter == 0 {
		if c.cuts == cutsMost {
			return Deadline
		}
		c.cuts++
	}
	c.retry.wait = span.Draw(lo, within(lo, hi, left), draw)
	return None
}

// cutsMost is how many waits of a request the deadline may cut. With more, waits shrink where
// they should grow, and attempts pile up at the deadline. With one, fewer requests succeed
// whose deadline is shorter than the waits (TestLastWait).
const cutsMost = 2

// within returns the upper end of the window from lo to hi of a wait for which there is time
// until left. If the window doesn't fit, the wait gets a third of that time, and the rest is
// for an attempt that takes longer than expected.
func within(lo, hi, left time.Duration) time.Duration {
	if hi > left {
		return lo + (left-lo)/3
	}
	return hi
}

// admit decides whether the attempt may be made now: it asks the gate or, before a
// retry, whether the host is paused, and then the breaker. Only a gate or a breaker ever
// holds back a first attempt.
func (c *Call) admit(r *Rules, h *host.Record, a *Action, now time.Duration, draw uint64) {
	if h != nil {
		switch {
		case r.Gated:
			c.atGate(r, h, a, now, draw)
		case c.Attempts > 0:
			c.obeyPause(r, h, a, now, draw)
		}
		if a.Do == Send && c.retry.unpaid {
			c.payBudgetLate(r, h, a, now, draw)
		}
		if a.Do == Send && r.Breaker != nil && h.Guards != nil {
			allowed, change := h.Guards.Breaker.Admit(r.Breaker, &c.pass, now, draw)
			if a.Change = host.BreakerChanges[change]; !allowed {
				a.Do, a.Reason = Refuse, BreakerOpen
			}
		}
		if a.Do == Refuse && c.returnAll(h) {
			a.Wakes = true
		}
	}
	if a.Do != Send {
		return
	}
	if c.retry.needsFleet && !h.Charged {
		h.Charged = true
		c.fleetPaid = account.Price(now - c.retry.askedAt)
		a.Tokens = -float64(c.fleetPaid)
	}
	a.Close = h != nil && c.closes(r, h, now)
	c.retry = retry{}
	c.Attempts++
}

// atGate asks the gate of c.
func (c *Call) atGate(r *Rules, h *host.Record, a *Action, now time.Duration, draw uint64) {
	pausedUntil := h.PausedUntil()
	if h.Guards == nil && pausedUntil <= now {
		return
	}
	q := c.gateRequest(r)
	answer := h.Guard().Gates.Admit(&c.ticket, &q, now, pausedUntil, draw)
	a.AtGate, a.Wakes, a.Wait = answer.Waits, answer.Wakes, answer.Wait
	switch {
	case answer.Refusal != 0:
		a.Do, a.Reason = Refuse, gateReasons[answer.Refusal]
	case answer.Wait > 0:
		a.Do = Sleep
	}
}

// gateRequest returns c as its gate sees it.
func (c *Call) gateRequest(r *Rules) gate.Request {
	return gate.Request{Key: c.GateKey, Who: c.Waiter, Deadline: c.Deadline, Needed: c.needed, Patience: r.MaxWait}
}

// gateReasons maps a refusal of a gate to a reason.
var gateReasons = [...]Reason{gate.TooLong: WaitTooLong, gate.Paused: HostPaused, gate.Late: Deadline}

// obeyPause waits on if the host has asked for more time during the wait, and isn't seen to
// answer: if it were one bad part that asks, its words to others would hold c forever.
func (c *Call) obeyPause(r *Rules, h *host.Record, a *Action, now time.Duration, draw uint64) {
	paused := h.DoubtedFor(now)
	if paused == 0 {
		return
	}
	lo, hi := r.Backoff.ServerWindow(paused, c.backoffStep(), c.Wait)
	left := c.TimeLeft(now)
	// A host that keeps renewing its pause must not hold a caller without a deadline
	// forever.
	if lo > left || span.Add(span.Sub(now, c.waitsFrom), paused) > r.MaxWait {
		a.Do, a.Reason = Refuse, HostPaused
		return
	}
	a.Do, a.Wait = Sleep, span.Draw(lo, within(lo, hi, left), draw)
}

// settleFleet ends what the attempt has paid to the account, and says in a what the account gets.
func (c *Call) settleFleet(h *host.Record, o *Outcome, a *Action, failed bool) {
	// As with the budget, a retry counts no matter who ended it.
	failed = failed || o.Canceled || !o.succeeds() && !o.Hopeless
	paid := c.fleetPaid
	a.Tokens, c.fleetPaid = account.Refund(paid, !failed), 0
	if failed {
		if paid > 0 && (c.polls || o.Pending()) && c.fleetRefundable < math.MaxUint8 {
			c.fleetRefundable += account.Cost
		}
		return
	}
	a.Tokens += float64(c.fleetRefundable)
	c.fleetRefundable = 0
	if h != nil && (o.Status != 0 || paid > 0) {
		// Even if the policy takes no part in the account: an earlier one may have
		// charged it.
		h.Charged = false
	}
	a.Pays = c.Account > 0 && paid == 0 && o.Status != 0 && c.Attempts == 1
}

// endCanceled ends an attempt whose caller has gone.
func (c *Call) endCanceled(h *host.Record, a *Action, now time.Duration) {
	a.Reason = Canceled
	if c.Deadline != 0 && now >= c.Deadline {
		a.Reason = Deadline
	}
	// The attempt was made, so its tokens stay spent, whoever ended it. Otherwise the
	// callers' deadlines would make retries to an overloaded host free.
	c.settleBudget()
	if h != nil {
		a.Wakes = c.returnAll(h)
	}
}

// startWait makes a the wait before the retry, of which some has passed.
func (c *Call) startWait(a *Action, passed time.Duration) {
	a.Do, a.Reason, a.Wait = Sleep, c.retry.reason, max(0, c.retry.wait-passed)
	if c.retry.queues {
		a.Do, a.Wait = Queue, c.retry.wait
	}
}

// judgeFleet decides when the account has answered.
func (c *Call) judgeFleet(r *Rules, h *host.Record, e *Event, a *Action, now time.Duration, draw uint64) {
	again := c.retry.allowed
	if !again {
		c.retry.draw = draw
	}
	switch c.retry.allowed = true; {
	case e.Known && account.Forbids(e.Level, c.Account, c.retry.draw):
		a.Do, a.Reason, a.Wakes = Answer, FleetBudget, c.returnAll(h)
		if again {
			a.Do = Refuse
		}
		c.retry = retry{}
	case again:
		c.retry.askedLast = now
		c.admit(r, h, a, now, draw)
	default:
		c.startWait(a, now-c.retry.askedAt)
	}
}

// endWait decides at the end of a wait. The account comes before the host: its answer takes
// time, in which the host may forbid what it has allowed.
func (c *Call) endWait(r *Rules, h *host.Record, a *Action, now time.Duration, draw uint64) {
	if c.retry.needsFleet && now-c.retry.askedLast > account.LongWait {
		a.Do, a.Again = Ask, true
		return
	}
	c.admit(r, h, a, now, draw)
}

// endUnsent returns everything, because no attempt follows.
func (c *Call) endUnsent(r *Rules, h *host.Record, why Kind, a *Action) {
	a.Do, a.Reason = Refuse, Canceled
	switch why {
	case NoBody:
		a.Do, a.Reason = Answer, BodyNotReplayable
	case Late:
		a.Reason = Deadline
	}
	if h != nil {
		a.Wakes = c.returnAll(h)
	}
	a.Tokens, c.fleetPaid = account.Refund(c.fleetPaid, false), 0
	c.retry = retry{}
}

// readyIn returns how long it takes until the host may take what it can't take now, for a
// reason to give up after e, or 0 if nobody knows. The reason is h's, so h isn't nil.
func (c *Call) readyIn(h *host.Record, e *Event, reason Reason, now time.Duration) time.Duration {
	switch reason {
	case BreakerOpen:
		return h.Guards.Breaker.OpenFor(now)
	case WaitTooLong, HostPaused:
		wait := max(h.PausedFor(now), c.ticket.RetryAfterLeft(now))
		if e.Kind == Ended {
			wait = max(wait, e.Outcome.RetryAfter)
		}
		return wait
	}
	return 0
}
