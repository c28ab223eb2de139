// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"cmp"
	"math"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/gate"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/span"
)

// Reason is the one cause of a retry or a give-up. Metrics, logs, hooks and
// [Error] all use the same word for it.
type Reason string

// Reasons for a retry.
const (
	ReasonServerError Reason = "server_error" // a 5xx response
	ReasonThrottled   Reason = "throttled"    // a 429 response
	ReasonStatus      Reason = "status"       // another response that the policy marks as retryable
	ReasonTimeout     Reason = "timeout"      // the attempt timed out
	ReasonError       Reason = "error"        // any other error
)

// Reasons for a give-up: RoundTrip returned although a retry might have helped.
const (
	ReasonMaxAttempts       Reason = "max_attempts"        // the request has used all of Policy.MaxAttempts
	ReasonNotIdempotent     Reason = "not_idempotent"      // the server might process the request twice
	ReasonBodyNotReplayable Reason = "body_not_replayable" // the request body can't be replayed
	ReasonRetryForbidden    Reason = "retry_forbidden"     // the server said not to retry
	ReasonWaitTooLong       Reason = "wait_too_long"       // the server asked for a wait longer than Policy.MaxWait
	ReasonHostPaused        Reason = "host_paused"         // the host asked all clients to pause for longer than MaxWait or the deadline allows
	ReasonDeadline          Reason = "deadline"            // the deadline leaves no time for the wait and another attempt
	ReasonBreakerOpen       Reason = "breaker_open"        // the breaker of the host is open
	ReasonBudgetExhausted   Reason = "budget_exhausted"    // the retry budget of the host is exhausted
	ReasonFleetBudget       Reason = "fleet_budget"        // too many retries of all processes together failed
	ReasonHiddenSends       Reason = "hidden_sends"        // net/http itself exceeded Policy.MaxSends in the last attempt
	ReasonCanceled          Reason = "canceled"            // the caller canceled the request
)

// Call is one request on its way through its attempts. The zero Call is a new
// request. All instants in Call and [Host] are durations since an epoch that
// the caller chooses, which must be the same for all calls to one host. A Call
// is not safe for concurrent use.
type Call struct {
	Deadline time.Duration // instant by which the response must arrive; 0 means no deadline
	Attempts int           // attempts made, including the last one
	Wait     time.Duration // the last wait drawn

	// Gate names the gate at which the call waits, if the policy has gates. If
	// empty, the call waits at the host's own gate.
	Gate string

	// Waiter identifies the caller: [Host.Woken] returns it when the call must
	// ask again. Host never looks inside. If nil, Host can't wake the call,
	// which must then ask from time to time.
	Waiter any

	pass breaker.Pass // of the host's breaker

	began time.Duration // instant at which the current wait began
	took  time.Duration // duration of the last attempt
	paid  int32         // micro-tokens that the last attempt, a retry, took from the host's budget

	paidShared int32       // micro-tokens that it took from the shared budget
	ticket     gate.Ticket // of the host's gates
}

// Outcome is the outcome of an attempt, reduced to what a decision needs.
type Outcome struct {
	Status     int           // status of the response; 0 means that the attempt ended in an error
	Verdict    Verdict       // verdict of Policy.Classify; ByRule if there is no Classify
	Hopeless   bool          // the error can't be fixed by another attempt
	Timeout    bool          // the error is a timeout
	Canceled   bool          // the caller has canceled the request, or its own deadline has passed
	Resent     bool          // the error is that net/http exceeded Policy.MaxSends within the attempt
	Idempotent bool          // repeating is safe: the request is idempotent, or provably was not processed
	Replay     bool          // the body can be replayed, or there is none
	Forbidden  bool          // the server said not to retry, for example with X-Should-Retry: false
	RetryAfter time.Duration // the wait that the server asked for, from now; 0 means none
	Took       time.Duration // duration of the attempt; needed only with a deadline or an AttemptTimeout

	lost int // status of a response that came before the error; 0 if none did
}

// received returns the status of the response, lost or not; 0 means that there
// was none. It is for what a refusal means to other requests, and Status is for
// how the attempt ended.
func (o Outcome) received() int { return cmp.Or(o.Status, o.lost) }

// Decision says what to do next.
type Decision struct {
	// Retry says to make an attempt: after Wait, and then only if [Host.Wake]
	// agrees.
	Retry bool

	// AtGate says that the wait is at the host's gate. In a result of First or
	// Wake, the wait also ends when [Host.Woken] returns the call's Waiter; if
	// Wait is the longest duration, nothing else ends it. In a result of Next,
	// Wait is an estimate, and the caller should call Wake at once to take its
	// place in the queue.
	AtGate bool

	// Wakes says that other calls at the gate must ask again now: those that
	// [Host.Woken] returns.
	Wakes bool

	change host.Change

	// Wait is how long to wait first. In a result of First or Wake, 0 means to
	// make the attempt now.
	Wait time.Duration

	// Reason says why. It is empty if there is nothing to retry because the
	// outcome is final.
	Reason Reason
}

// first implements [Host.First].
func (r *Rules) first(h *host.Record, c *Call, now time.Duration, draw uint64) Decision {
	d := Decision{Retry: true}
	if r.policy.Gate == On {
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
var gateReasons = [...]Reason{gate.TooLong: ReasonWaitTooLong, gate.Paused: ReasonHostPaused, gate.Late: ReasonDeadline}

// atGate returns c as its gate sees it.
func (r *Rules) atGate(c *Call) gate.Request {
	return gate.Request{Key: c.Gate, Who: c.Waiter, Deadline: c.Deadline, Took: c.took, Patience: r.policy.MaxWait}
}

// through also asks the breaker, if nothing before it forbids the attempt.
func (r *Rules) through(h *host.Record, c *Call, d Decision, now time.Duration, draw uint64) Decision {
	if d.Retry && d.Wait == 0 && r.breaker != nil {
		allowed, change := h.ThroughBreaker(r.breaker, &c.pass, now, draw)
		d = Decision{Retry: allowed, Wakes: d.Wakes, change: change}
		if !allowed {
			d.Reason = ReasonBreakerOpen
		}
	}
	if !d.Retry && r.giveBack(h, c) {
		d.Wakes = true
	}
	return d
}

// next implements [Host.Next].
func (r *Rules) next(h *host.Record, c *Call, o Outcome, now time.Duration, draw uint64) Decision {
	p := &r.policy
	c.Attempts = max(c.Attempts, 1)
	if o.Canceled {
		// The attempt was made, so its tokens stay spent, whoever ended it.
		// Otherwise the callers' deadlines would make retries to an
		// overloaded host free.
		c.paid, c.paidShared = 0, 0
		d := Decision{Reason: ReasonCanceled, Wakes: r.giveBack(h, c)}
		if c.Deadline != 0 && now >= c.Deadline {
			d.Reason = ReasonDeadline
		}
		return d
	}
	paused := h.PausedFor(now)
	failed := r.retryable(o)
	change, wakes := r.learn(h, c, o, failed, now, draw)
	giveUp := func(reason Reason) Decision { return Decision{Reason: reason, Wakes: wakes, change: change} }
	switch {
	case !failed:
		return giveUp("")
	case o.Forbidden:
		return giveUp(ReasonRetryForbidden)
	case o.Resent && (c.Attempts >= p.MaxAttempts || !r.repeatable(o)):
		return giveUp(ReasonHiddenSends)
	case c.Attempts >= p.MaxAttempts:
		return giveUp(ReasonMaxAttempts)
	case !r.repeatable(o):
		return giveUp(ReasonNotIdempotent)
	case !o.Replay:
		return giveUp(ReasonBodyNotReplayable)
	case o.RetryAfter > p.MaxWait:
		return giveUp(ReasonWaitTooLong)
	}

	c.took = o.Took
	left := c.timeLeft(now)
	var atGate time.Duration
	if p.Gate == On {
		q := r.atGate(c)
		var refusal gate.Refusal
		if atGate, refusal = h.Outlook(&c.ticket, &q, now); refusal != 0 {
			return giveUp(gateReasons[refusal])
		}
	} else if paused > o.RetryAfter {
		if lo, _ := p.Backoff.serverWindow(paused, c.Attempts, c.Wait); lo > left || paused > p.MaxWait {
			return giveUp(ReasonHostPaused)
		}
	}
	var wait time.Duration
	queues := p.Gate == On && r.refused(o)
	if queues {
		wait = atGate
	} else {
		var lo, hi time.Duration
		switch word := max(o.RetryAfter, paused); {
		case word > 0:
			lo, hi = p.Backoff.serverWindow(word, c.Attempts, c.Wait)
		case o.received() == http.StatusTooManyRequests:
			lo, hi = p.Backoff.throttled().window(c.Attempts, c.Wait)
		default:
			lo, hi = p.Backoff.window(c.Attempts, c.Wait)
		}
		if lo > left {
			return giveUp(ReasonDeadline)
		}
		wait = span.Draw(lo, min(hi, left), draw)
	}
	if r.breaker != nil && h.BreakerRefuses(span.Add(now, wait)) {
		return giveUp(ReasonBreakerOpen)
	}
	// A 429 costs nothing at a gate: the gate has already slowed down all
	// further requests, including this one.
	if priced := queues && o.received() == http.StatusTooManyRequests; !priced {
		if !r.spend(h, c, o.Timeout, now) {
			return giveUp(ReasonBudgetExhausted)
		}
	}
	if !queues {
		c.Wait = wait
	}
	c.began = now
	return Decision{Retry: true, Wait: wait, AtGate: queues, Wakes: wakes, Reason: retryReason(o), change: change}
}

// wake implements [Host.Wake].
func (r *Rules) wake(h *host.Record, c *Call, now time.Duration, draw uint64) Decision {
	d := Decision{Retry: true}
	if r.policy.Gate == On {
		d = r.throughGate(h, c, now, draw)
	} else if paused := h.PausedFor(now); paused > 0 {
		lo, hi := r.policy.Backoff.serverWindow(paused, c.Attempts, c.Wait)
		left := c.timeLeft(now)
		// A host that keeps renewing its pause must not hold a caller without
		// a deadline forever.
		if lo > left || now-c.began+paused > r.policy.MaxWait {
			d = Decision{Reason: ReasonHostPaused}
		} else {
			d.Wait = span.Draw(lo, min(hi, left), draw)
		}
	}
	return r.through(h, c, d, now, draw)
}

// giveBack implements [Host.Return].
func (r *Rules) giveBack(h *host.Record, c *Call) (wakes bool) {
	if c.paid > 0 {
		h.Debt.GiveBack(c.paid)
		c.paid = 0
	}
	if c.paidShared > 0 {
		r.pool.Earn(int64(c.paidShared))
		c.paidShared = 0
	}
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
	p := &r.policy
	if !failed && o.Status == 0 {
		// Without a response nothing has succeeded. A hopeless error is a
		// mistake of the client or a name that doesn't exist, so it says
		// nothing about the host. An error that the policy marks as final
		// keeps the tokens it took.
		if !o.Hopeless {
			c.paid, c.paidShared = 0, 0
		}
		return 0, r.giveBack(h, c)
	}
	if failed {
		h.Debt.Fail(r.budget, c.paid, o.Timeout)
		if o.RetryAfter > 0 && r.pauses(o.received()) {
			word := min(o.RetryAfter, p.MaxWait)
			if p.Gate == On {
				// MaxWait would let new requests through before the time
				// that the server asked for.
				word = min(o.RetryAfter, gate.PauseMost)
			}
			if h.PauseUntil(span.Add(now, word)) {
				change |= host.Paused
			}
		}
	} else {
		switch pays := h.Debt.Succeed(r.budget, c.paid, c.Attempts == 1, r.slow(o)); {
		case !pays:
		case c.Attempts == 1:
			r.pool.Earn(r.budget.Credit)
		default:
			r.pool.Earn(int64(c.paidShared))
		}
	}
	c.paid, c.paidShared = 0, 0
	if p.Gate == On {
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
	if r.breaker != nil {
		change |= h.RecordResult(r.breaker, &c.pass, failed, now, draw)
	} else if !failed {
		h.EndRun()
	}
	c.pass.Probe = false
	return change, wakes
}

// timeLeft returns how long a wait that begins now may last and still leave
// time before the deadline for an attempt as long as the last one.
func (c *Call) timeLeft(now time.Duration) time.Duration {
	if c.Deadline == 0 {
		return math.MaxInt64
	}
	return c.Deadline - now - c.took
}

func retryReason(o Outcome) Reason {
	switch {
	case o.Status == http.StatusTooManyRequests:
		return ReasonThrottled
	case o.Status >= 500:
		return ReasonServerError
	case o.Status > 0:
		return ReasonStatus
	case o.Resent:
		return ReasonHiddenSends
	case o.Timeout:
		return ReasonTimeout
	default:
		return ReasonError
	}
}

// spend takes the tokens for a retry of c after a failure from the budget of h
// and from the shared budget, or reports that one of them has too few.
func (r *Rules) spend(h *host.Record, c *Call, timeout bool, now time.Duration) bool {
	paid, ok := h.Debt.Spend(r.budget, timeout)
	if !ok {
		return false
	}
	shared, ok := r.pool.Spend(timeout, now)
	if !ok {
		h.Debt.GiveBack(paid)
		return false
	}
	c.paid, c.paidShared = paid, shared
	return true
}
