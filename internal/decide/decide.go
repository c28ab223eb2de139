// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package decide says whether a request is made, waits, is made again or ends. It is
// pure: an instant and a random number go in, a Decision comes out. It has no clock,
// waits for nothing and allocates nothing. Transport drives it with real outcomes,
// package sim with simulated ones.
//
// All instants are durations since an epoch that the caller chooses, which must be the
// same for all calls to one host. A draw must be uniformly distributed. The functions
// are safe for concurrent use with different Calls.
package decide

import (
	"cmp"
	"math"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/gate"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/span"
)

// Call is one request on its way through its attempts. The zero Call is a new
// request. A Call is not safe for concurrent use.
type Call struct {
	Deadline time.Duration // instant by which the response must arrive; 0 means no deadline
	Attempts int           // attempts made, including the last one
	Wait     time.Duration // the last wait drawn

	// Gate names the gate at which the call waits, if the policy has gates. If
	// empty, the call waits at the host's own gate.
	Gate string

	// Waiter identifies the caller: [host.Record.Woken] returns it when the call
	// must ask again. Nothing looks inside. If nil, nothing wakes the call, which
	// must then ask from time to time.
	Waiter any

	pass breaker.Pass // of the host's breaker

	began time.Duration // instant at which the current wait began
	took  time.Duration // duration of the last attempt
	paid  int32         // micro-tokens that the last attempt, a retry, took from the host's budget

	ticket gate.Ticket // of the host's gates

	// Hedged says that one of the attempts was a hedge: it and the attempt beside it
	// count as two attempts, but as one step of the backoff.
	Hedged bool

	budgeted bool // the last attempt is a retry that the budget allowed
	charged  bool // such a retry has failed
}

// step returns the step of the backoff that c has reached, from 1.
func (c *Call) step() int {
	if c.Hedged {
		return c.Attempts - 1
	}
	return c.Attempts
}

// WaitsFrom says that c, of which an attempt has failed, has waited since the instant
// now by no decision of Next. Wake then decides as after any other wait.
func (c *Call) WaitsFrom(now time.Duration) { c.began = now }

// Outcome is the outcome of an attempt, reduced to what a decision needs.
type Outcome struct {
	Status     int           // status of the response; 0 means that the attempt ended in an error
	Verdict    Verdict       // verdict of Policy.Classify; ByRule if there is no Classify
	Hopeless   bool          // the error can't be fixed by another attempt
	Timeout    bool          // the error is a timeout
	Canceled   bool          // the caller has canceled the request, or its own deadline has passed
	Resent     bool          // the error is that net/http by itself sent the request too often within the attempt
	Idempotent bool          // repeating is safe: the request is idempotent, or provably was not processed
	Replay     bool          // the body can be replayed, or there is none
	Forbidden  bool          // the server said not to retry, for example with X-Should-Retry: false
	RetryAfter time.Duration // the wait that the server asked for, from now; 0 means none
	Took       time.Duration // duration of the attempt; needed only with a deadline or an AttemptTimeout

	Lost int // status of a response that came before the error; 0 if none did
}

// Received returns the status of the response, lost or not; 0 means that there
// was none. It is for what a refusal means to other requests, and Status is for
// how the attempt ended.
func (o Outcome) Received() int { return cmp.Or(o.Status, o.Lost) }

// Decision says what to do next.
type Decision struct {
	// Retry says to make an attempt: after Wait, and then only if [Rules.Wake]
	// agrees.
	Retry bool

	// AtGate says that the wait is at the host's gate. In a result of First or
	// Wake, the wait also ends when [host.Record.Woken] returns the call's Waiter; if
	// Wait is the longest duration, nothing else ends it. In a result of Next,
	// Wait is an estimate, and the caller should call Wake at once to take its
	// place in the queue.
	AtGate bool

	// Wakes says that other calls at the gate must ask again now: those that
	// [host.Record.Woken] returns.
	Wakes bool

	Change host.Change // of the host's state, for hooks and logs

	// Wait is how long to wait first. In a result of First or Wake, 0 means to
	// make the attempt now.
	Wait time.Duration

	// Reason says why. It is None if there is nothing to retry because the
	// outcome is final.
	Reason Reason
}

// First decides before the first attempt: whether to make it, to wait first, or
// to fail at once. Only a breaker or a gate ever holds back a first attempt.
func (r *Rules) First(h *host.Record, c *Call, now time.Duration, draw uint64) Decision {
	d := Decision{Retry: true}
	if r.Gate {
		d = r.throughGate(h, c, now, draw)
	}
	return r.through(h, c, d, now, draw)
}

// throughGate asks the gate of c.
func (r *Rules) throughGate(h *host.Record, c *Call, now time.Duration, draw uint64) Decision {
	q := r.atGate(c)
	a := h.ThroughGate(&c.ticket, &q, now, draw)
	return Decision{Retry: a.Refusal == 0, Wait: a.Wait, AtGate: a.Waits, Wakes: a.Wakes, Reason: gateReasons[a.Refusal]}
}

// gateReasons maps a refusal of a gate to a reason.
var gateReasons = [...]Reason{gate.TooLong: WaitTooLong, gate.Paused: HostPaused, gate.Late: Deadline}

// atGate returns c as its gate sees it.
func (r *Rules) atGate(c *Call) gate.Request {
	return gate.Request{Key: c.Gate, Who: c.Waiter, Deadline: c.Deadline, Took: c.took, Patience: r.MaxWait}
}

// through also asks the breaker, if nothing before it forbids the attempt.
func (r *Rules) through(h *host.Record, c *Call, d Decision, now time.Duration, draw uint64) Decision {
	if d.Retry && d.Wait == 0 && r.Breaker != nil {
		allowed, change := h.ThroughBreaker(r.Breaker, &c.pass, now, draw)
		d = Decision{Retry: allowed, Wakes: d.Wakes, Change: change}
		if !allowed {
			d.Reason = BreakerOpen
		}
	}
	if !d.Retry && r.Return(h, c) {
		d.Wakes = true
	}
	return d
}

// Next decides after an attempt that ended in o at the instant now. It checks,
// in this order: the caller has gone; the outcome is accepted or hopeless; the
// server forbids a retry; net/http has sent the request too often; attempts are
// used up; a repetition isn't safe; the body can't be replayed; the wait is too
// long; the host is paused; the deadline; the breaker; the budget. Next also records what o says about the host. If it decides to retry, it
// takes the tokens for the retry, so the caller must make the attempt or call
// [Rules.Return].
func (r *Rules) Next(h *host.Record, c *Call, o Outcome, now time.Duration, draw uint64) Decision {
	c.Attempts = max(c.Attempts, 1)
	if o.Canceled {
		// The attempt was made, so its tokens stay spent, whoever ended it.
		// Otherwise the callers' deadlines would make retries to an
		// overloaded host free.
		c.spent()
		d := Decision{Reason: Canceled, Wakes: r.Return(h, c)}
		if c.Deadline != 0 && now >= c.Deadline {
			d.Reason = Deadline
		}
		return d
	}
	paused := h.PausedFor(now)
	failed := r.Retryable(o)
	change, wakes := r.learn(h, c, o, failed, now, draw)
	giveUp := func(reason Reason) Decision { return Decision{Reason: reason, Wakes: wakes, Change: change} }
	switch {
	case !failed:
		return giveUp(None)
	case o.Forbidden:
		return giveUp(RetryForbidden)
	case o.Resent && (c.Attempts >= r.MaxAttempts || !r.repeatable(o)):
		return giveUp(HiddenSends)
	case c.Attempts >= r.MaxAttempts:
		return giveUp(MaxAttempts)
	case !r.repeatable(o):
		return giveUp(NotIdempotent)
	case !o.Replay:
		return giveUp(BodyNotReplayable)
	case o.RetryAfter > r.MaxWait:
		return giveUp(WaitTooLong)
	}

	c.took = o.Took
	left := c.TimeLeft(now)
	var atGate time.Duration
	if r.Gate {
		q := r.atGate(c)
		var refusal gate.Refusal
		if atGate, refusal = h.Outlook(&c.ticket, &q, now); refusal != 0 {
			return giveUp(gateReasons[refusal])
		}
	} else if paused > o.RetryAfter {
		if lo, _ := r.Backoff.ServerWindow(paused, c.step(), c.Wait); lo > left || paused > r.MaxWait {
			return giveUp(HostPaused)
		}
	}
	var wait time.Duration
	refused := r.Gate && r.refused(o)
	queues := refused && !c.ticket.Alone
	if queues {
		wait = atGate
	} else {
		var lo, hi time.Duration
		switch word := max(o.RetryAfter, paused); {
		case word > 0:
			lo, hi = r.Backoff.ServerWindow(word, c.step(), c.Wait)
		case o.Received() == http.StatusTooManyRequests:
			lo, hi = r.Backoff.Throttled().Window(c.step(), c.Wait)
		default:
			lo, hi = r.Backoff.Window(c.step(), c.Wait)
		}
		if lo > left {
			return giveUp(Deadline)
		}
		wait = span.Draw(lo, min(hi, left), draw)
	}
	if r.Breaker != nil && h.BreakerRefuses(span.Add(now, wait)) {
		return giveUp(BreakerOpen)
	}
	// A 429 costs nothing at a gate: the gate has already slowed down all
	// further requests, including this one.
	if priced := refused && o.Received() == http.StatusTooManyRequests; !priced {
		if refusal := r.spend(h, c, o.Timeout); refusal != 0 {
			return giveUp(budgetReasons[refusal])
		}
	}
	if !queues {
		c.Wait = wait
	}
	c.began = now
	return Decision{Retry: true, Wait: wait, AtGate: queues, Wakes: wakes, Reason: o.Why(), Change: change}
}

// Wake decides at the end of a wait: whether to make the attempt, to keep
// waiting because the host has asked for more time, or to stop. If Wake decides
// to stop, there is nothing left to return with [Rules.Return].
func (r *Rules) Wake(h *host.Record, c *Call, now time.Duration, draw uint64) Decision {
	d := Decision{Retry: true}
	if r.Gate {
		d = r.throughGate(h, c, now, draw)
	} else if paused := h.PausedFor(now); paused > 0 {
		lo, hi := r.Backoff.ServerWindow(paused, c.step(), c.Wait)
		left := c.TimeLeft(now)
		// A host that keeps renewing its pause must not hold a caller without
		// a deadline forever.
		if lo > left || span.Add(span.Sub(now, c.began), paused) > r.MaxWait {
			d = Decision{Reason: HostPaused}
		} else {
			d.Wait = span.Draw(lo, min(hi, left), draw)
		}
	}
	return r.through(h, c, d, now, draw)
}

// Return gives back what a decision to make an attempt has taken, when no
// attempt follows or when the attempt says nothing about the host: tokens, a
// place at the gate and a place among the breaker's probes. It reports whether
// other calls at the gate must ask again now: those that [host.Record.Woken]
// returns. The caller must then call Woken until it returns nil. Calling Return
// twice is harmless.
func (r *Rules) Return(h *host.Record, c *Call) (wakes bool) {
	if c.paid > 0 {
		h.Debt.GiveBack(c.paid)
		c.paid = 0
	}
	c.budgeted = false
	if c.pass.Probe {
		h.ReturnProbe(&c.pass)
	}
	if c.ticket.Held || c.ticket.Out {
		return h.LeaveGate(&c.ticket)
	}
	return false
}

// learn records what the outcome of an attempt says about the host. It reports
// whether any call waiting at the gate must be woken.
func (r *Rules) learn(h *host.Record, c *Call, o Outcome, failed bool, now time.Duration, draw uint64) (change host.Change, wakes bool) {
	if !failed && o.Status == 0 {
		// Without a response nothing has succeeded. A hopeless error is a
		// mistake of the client or a name that doesn't exist, so it says
		// nothing about the host. An error that the policy marks as final
		// keeps the tokens it took.
		if !o.Hopeless {
			c.spent()
		}
		return 0, r.Return(h, c)
	}
	if failed {
		h.Debt.Fail(r.Budget, c.budgeted, c.charged, o.Timeout)
		c.charged = c.charged || c.budgeted
		change |= r.pause(h, o, now)
	} else {
		h.Debt.Succeed(r.Budget, c.paid, c.Attempts == 1, r.slow(o))
	}
	c.spent()
	if r.Gate {
		if failed && r.refused(o) {
			var told bool
			if told, wakes = h.RefusedAt(&c.ticket, c.Gate, o.RetryAfter, now, draw); told {
				change |= host.Paused
			}
		} else {
			// A 429 that the policy doesn't retry is a refusal too, but not one
			// that the gate can learn from.
			accepted := !failed && o.Status != http.StatusTooManyRequests && o.Status != 0
			wakes = h.PassedAt(&c.ticket, c.Gate, accepted, now)
		}
	}
	if r.Breaker != nil {
		change |= h.RecordResult(r.Breaker, &c.pass, failed, now, draw)
	} else if !failed {
		h.EndRun()
	}
	c.pass.Probe = false
	return change, wakes
}

// pause pauses h if the server has asked for that in o, which has failed.
func (r *Rules) pause(h *host.Record, o Outcome, now time.Duration) (change host.Change) {
	if o.RetryAfter <= 0 || !r.pauses(o.Received()) {
		return 0
	}
	word := min(o.RetryAfter, r.MaxWait)
	if r.Gate {
		// MaxWait would let new requests through before the time that the server
		// asked for.
		word = min(o.RetryAfter, gate.PauseMost)
	}
	if h.PauseUntil(span.Add(now, word)) {
		change = host.Paused
	}
	return change
}

// spent keeps what the last attempt took: it isn't given back.
func (c *Call) spent() { c.paid, c.budgeted = 0, false }

// TimeLeft returns how long a wait that begins now may last and still leave
// time before the deadline for an attempt as long as the last one.
func (c *Call) TimeLeft(now time.Duration) time.Duration {
	if c.Deadline == 0 {
		return math.MaxInt64
	}
	return span.Sub(span.Sub(c.Deadline, now), c.took)
}

// Why returns the reason to retry after o.
func (o Outcome) Why() Reason {
	switch {
	case o.Status == http.StatusTooManyRequests:
		return Throttled
	case o.Status >= 500:
		return ServerError
	case o.Status > 0:
		return Status
	case o.Resent:
		return HiddenSends
	case o.Timeout:
		return Timeout
	default:
		return Error
	}
}

// spend takes the tokens for a retry of c after a failure from the budget of h, or
// says why the budget refuses.
func (r *Rules) spend(h *host.Record, c *Call, timeout bool) budget.Refusal {
	paid, refusal := h.Debt.Spend(r.Budget, c.charged, timeout)
	if refusal != 0 {
		return refusal
	}
	c.paid, c.budgeted = paid, true
	return 0
}

// budgetReasons maps a refusal of a budget to a reason.
var budgetReasons = [...]Reason{budget.Exhausted: BudgetExhausted, budget.Failing: RetriesFailing}
