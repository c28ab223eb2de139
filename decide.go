// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"math"
	"net/http"
	"time"
)

// Reason is the one cause of a retry or of giving up: the same word in
// metrics, logs, hooks and [Error].
type Reason string

// Reasons to retry.
const (
	ReasonServerError Reason = "server_error" // a 5xx
	ReasonThrottled   Reason = "throttled"    // a 429
	ReasonStatus      Reason = "status"       // another status or answer that the policy calls retryable
	ReasonTimeout     Reason = "timeout"      // an attempt that took too long
	ReasonError       Reason = "error"        // any other error
)

// Reasons to give up: to return although a retry would have been useful.
const (
	ReasonMaxAttempts       Reason = "max_attempts"        // Policy.MaxAttempts are used up
	ReasonNotIdempotent     Reason = "not_idempotent"      // repeating could do something twice
	ReasonBodyNotReplayable Reason = "body_not_replayable" // the request body can't be sent again
	ReasonRetryForbidden    Reason = "retry_forbidden"     // the server has said not to try again
	ReasonWaitTooLong       Reason = "wait_too_long"       // the server asked for more than Policy.MaxWait
	ReasonHostPaused        Reason = "host_paused"         // the host asked everyone to stay away for longer than fits
	ReasonDeadline          Reason = "deadline"            // the wait, and an attempt after it, don't fit the deadline
	ReasonBreakerOpen       Reason = "breaker_open"        // the host is taken for dead
	ReasonBudgetExhausted   Reason = "budget_exhausted"    // retries to this host failed too often
	ReasonHiddenSends       Reason = "hidden_sends"        // net/http sent more than Policy.MaxSends by itself in the last attempt
	ReasonCanceled          Reason = "canceled"            // the caller is gone
)

// Call is one request on its way through its attempts; the zero Call is a
// fresh one. All instants here and in [Host] are durations since an epoch of
// the caller's choice, the same for all calls to one host. A Call is not safe
// for concurrent use.
type Call struct {
	Deadline time.Duration // instant by which the answer must be there; 0 is none
	Attempts int           // attempts made, the last one included
	Wait     time.Duration // the last wait drawn

	// Gate names the gate that the call waits at, if its policy has one. If
	// empty, it is the host's own.
	Gate string

	// Waiter stands for whoever makes the call: what [Host.Woken] returns when
	// it must ask again. It is not looked at. If nil, it is never woken, and
	// must ask from time to time.
	Waiter any

	began  time.Duration // instant at which the running wait began
	took   time.Duration // duration of the last attempt
	period uint32        // of the breaker, when the last attempt was let through
	paid   int32         // micro-tokens, for the last attempt if it is a retry

	paidShared int32 // the same, to the budget that hosts share

	probe bool // the last attempt is a probe of the breaker

	gate    *gate         // that it has been at; nil is none yet
	number  int64         // of its arrival there; 0 is none
	gap     time.Duration // of the gate when it let the last attempt through
	sent    time.Duration // when that was
	epoch   uint32        // and its epoch
	refused uint8         // how often the call has been refused
	passed  uint8         // how often a later one has gone before it, as a probe
	held    bool          // it waits, or has waited, for its next attempt
	out     bool          // the gate has let it through, and doesn't know yet how it ends
	limited bool          // it could have gone earlier but for the pace
}

// Outcome is how an attempt ended, reduced to what a decision needs.
type Outcome struct {
	Status     int           // of the response; 0 is an error
	Verdict    Verdict       // of Policy.Classify; ByRule if there is none
	Hopeless   bool          // an error that no further attempt can heal
	Timeout    bool          // an error because the attempt took too long
	Canceled   bool          // the caller is gone: it has canceled, or its own deadline has passed
	Resent     bool          // an error because net/http has used up Policy.MaxSends within the attempt
	Idempotent bool          // sending again does no harm: by the request's nature, or by proof that it was not processed
	Replay     bool          // the body can be sent again, or there is none
	Forbidden  bool          // the server has said not to try again, by X-Should-Retry: false for instance
	RetryAfter time.Duration // the server's word, counted from now; 0 is none
	Took       time.Duration // duration of the attempt; needed with a deadline or an AttemptTimeout only
}

// Decision is what to do next.
type Decision struct {
	// Retry says that an attempt is to be made: after Wait, and after asking
	// [Host.Wake], which may have more to say.
	Retry bool

	// Wait is how long to wait first. If 0 in an answer of First or Wake, the
	// attempt is to be made now.
	Wait time.Duration

	// AtGate says that the wait is one at the host's gate. In an answer of First
	// or Wake it ends early if [Host.Woken] returns the call's Waiter, and the
	// longest duration means that nothing else ends it. In one of Next it is an
	// estimate: Wake is to be asked at once, for the call's place in the queue.
	AtGate bool

	// Wakes says that others who wait at the gate must ask again now: those that
	// [Host.Woken] returns.
	Wakes bool

	// Reason is why. It is empty if Retry is false because there is nothing
	// to retry: the outcome is the answer.
	Reason Reason

	change hostChange
}

// First decides before the first attempt: to make it, to wait first, or to
// fail at once. The draw is uniformly distributed. Only a breaker or gate that
// is in use ever has anything to say; without them no first attempt is held
// back.
func (h *Host) First(r *Rules, c *Call, now time.Duration, draw uint64) Decision {
	d := Decision{Retry: true}
	if r.policy.Gate == On {
		d = h.throughGate(r, c, now, draw)
	}
	return h.through(r, c, d, now, draw)
}

// through has c pass the breaker too, if nothing before it has spoken against
// the attempt.
func (h *Host) through(r *Rules, c *Call, d Decision, now time.Duration, draw uint64) Decision {
	if d.Retry && d.Wait == 0 {
		wakes := d.Wakes
		d = h.throughBreaker(r, c, now, draw)
		d.Wakes = wakes
	}
	if !d.Retry && h.Return(r, c) {
		d.Wakes = true
	}
	return d
}

// Next decides after an attempt that ended in o at the instant now, in the
// order: caller gone; accepted or hopeless outcome; forbidden by the server;
// attempts used up; not safe to repeat; body not replayable; wait too long;
// host paused; deadline; breaker; budget. It also learns from o what it says
// about the host. Where it decides to retry, the tokens for that are taken: it
// must be followed by an attempt or by [Host.Return].
func (h *Host) Next(r *Rules, c *Call, o Outcome, now time.Duration, draw uint64) Decision {
	p := &r.policy
	c.Attempts = max(c.Attempts, 1)
	if o.Canceled {
		// The attempt was made: its tokens are spent, whoever ended it. Else
		// callers' deadlines would let an overloaded host be retried for
		// nothing.
		c.paid, c.paidShared = 0, 0
		d := Decision{Reason: ReasonCanceled, Wakes: h.Return(r, c)}
		if c.Deadline != 0 && now >= c.Deadline {
			d.Reason = ReasonDeadline
		}
		return d
	}
	paused := h.pausedFor(now)
	failed := r.retryable(o)
	change, wakes := h.learn(r, c, o, failed, now, draw)
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
		var reason Reason
		if atGate, reason = h.outlook(r, c, now); reason != "" {
			return giveUp(reason)
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
		case o.Status == http.StatusTooManyRequests:
			lo, hi = p.Backoff.throttled().window(c.Attempts, c.Wait)
		default:
			lo, hi = p.Backoff.window(c.Attempts, c.Wait)
		}
		if lo > left {
			return giveUp(ReasonDeadline)
		}
		wait = uniform(lo, min(hi, left), draw)
	}
	if r.breaker && h.breakerRefuses(addCapped(now, wait)) {
		return giveUp(ReasonBreakerOpen)
	}
	// A 429 costs nothing at a gate: it has already slowed down all requests to
	// come, this one among them.
	if priced := queues && o.Status == http.StatusTooManyRequests; !priced {
		if !h.spend(r, c, o.Timeout, now) {
			return giveUp(ReasonBudgetExhausted)
		}
	}
	if !queues {
		c.Wait = wait
	}
	c.began = now
	return Decision{Retry: true, Wait: wait, AtGate: queues, Wakes: wakes, Reason: retryReason(o), change: change}
}

// Wake decides at the end of a wait: to make the attempt, to wait on since the
// host has asked for more meanwhile, or to stop. Where it stops, nothing is
// left to be returned.
func (h *Host) Wake(r *Rules, c *Call, now time.Duration, draw uint64) Decision {
	d := Decision{Retry: true}
	if r.policy.Gate == On {
		d = h.throughGate(r, c, now, draw)
	} else if paused := h.pausedFor(now); paused > 0 {
		lo, hi := r.policy.Backoff.serverWindow(paused, c.Attempts, c.Wait)
		left := c.timeLeft(now)
		// A host that renews its pause for ever must not hold a caller
		// without a deadline for ever.
		if lo > left || now-c.began+paused > r.policy.MaxWait {
			d = Decision{Reason: ReasonHostPaused}
		} else {
			d.Wait = uniform(lo, min(hi, left), draw)
		}
	}
	return h.through(r, c, d, now, draw)
}

// Return takes back what a decision to make an attempt has claimed, its tokens
// and its places at the gate and among the breaker's probes, when no attempt
// follows or when it ended in nothing that says anything about the host. It
// reports whether others who wait at the gate must ask again now: those that
// [Host.Woken] returns. It may be called twice.
func (h *Host) Return(r *Rules, c *Call) (wakes bool) {
	if c.paid > 0 {
		h.debt.giveBack(c.paid)
		c.paid = 0
	}
	if c.paidShared > 0 {
		r.pool.earn(int64(c.paidShared))
		c.paidShared = 0
	}
	if c.probe {
		c.probe = false
		h.returnProbe(c)
	}
	if c.held || c.out {
		return h.leaveGate(c)
	}
	return false
}

// learn takes in what the outcome of an attempt says about the host. It reports
// whether anyone who waits at the gate is to be woken.
func (h *Host) learn(r *Rules, c *Call, o Outcome, failed bool, now time.Duration, draw uint64) (change hostChange, wakes bool) {
	p := &r.policy
	if !failed && o.Status == 0 {
		// Without an answer nothing has succeeded. A hopeless error is a
		// mistake of ours, or a name that doesn't exist: the host had no part
		// in it. One that the policy calls final costs what it has taken.
		if !o.Hopeless {
			c.paid, c.paidShared = 0, 0
		}
		return 0, h.Return(r, c)
	}
	if failed {
		h.debt.fail(r, c.paid, o.Timeout)
		if o.RetryAfter > 0 && r.pauses(o.Status) {
			word := min(o.RetryAfter, p.MaxWait)
			if p.Gate == On {
				// New requests would be let go within the server's word.
				word = min(o.RetryAfter, gatePauseMost)
			}
			if h.pauseUntil(addCapped(now, word)) {
				change |= hostPaused
			}
		}
	} else {
		switch pays := h.debt.succeed(r, c.paid, c.Attempts == 1, r.slow(o)); {
		case !pays:
		case c.Attempts == 1:
			r.pool.earn(r.credit)
		default:
			r.pool.earn(int64(c.paidShared))
		}
	}
	c.paid, c.paidShared = 0, 0
	if p.Gate == On {
		var told bool
		if told, wakes = h.atGate(c, o, failed, failed && r.refused(o), now, draw); told {
			change |= hostPaused
		}
	}
	if r.breaker {
		change |= h.recordResult(r, c, failed, now, draw)
	} else if !failed {
		h.endRun()
	}
	c.probe = false
	return change, wakes
}

// timeLeft returns how long a wait that begins now may last to leave room for an
// attempt as long as the last one before the deadline.
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
