// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package decide is the machine that takes a request through its attempts: an event goes
// in, with an instant and a random number, and an action comes out. It has no clock and waits
// for nothing. Transport drives it with real outcomes, package sim with simulated ones.
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
	Wait     time.Duration // the last wait before a retry, as it was planned

	// GateKey names the gate at which the call waits, if the policy has gates. If
	// empty, the call waits at the host's own gate.
	GateKey string

	// Waiter identifies the caller: [host.Record.NextWoken] returns it when the call
	// must ask again. Nothing looks inside. If nil, nothing wakes the call, which
	// must then ask from time to time.
	Waiter any

	// Route names the route of the call, see [budget.RouteOf].
	Route uint32

	// Account is the size of the fleet's account. If 0, the call asks none.
	Account float64

	retry retry        // on its way
	pass  breaker.Pass // of the host's breaker

	skipped int // retries that the budget didn't allow, instead of which the call has waited on

	waitsFrom  time.Duration // instant at which the current wait began; of a retry that paid late, at which it ended
	needed     time.Duration // the time that the next attempt needs before the deadline
	paid       int32         // micro-tokens that the retry which is planned or under way has paid to the host's budget
	refundable int32         // those of earlier retries that come back if the request ends well

	ticket gate.Ticket // of the host's gates

	// Hedged says that one of the attempts was a hedge: it and the attempt beside it
	// count as two attempts, but as one step of the backoff.
	Hedged bool

	budgeted        bool  // the budget has allowed that retry
	polls           bool  // the last attempt only asks again: the answer before it was no failure of the host
	cuts            uint8 // windows of waits that the deadline has cut
	failed          uint8 // such retries that have failed
	fleetPaid       uint8 // tokens that the fleet's account was charged for the retry under way
	fleetRefundable uint8 // those of earlier retries that come back if the request ends well
}

// Goes says which requests to the host c is one of.
func (c *Call) Goes(method, path string) { c.Route = budget.RouteOf(method, path) }

// backoffStep returns the step of the backoff that c has reached, from 1.
func (c *Call) backoffStep() int {
	step := c.Attempts + c.skipped
	if c.Hedged {
		step--
	}
	return step
}

// WaitsFrom says that c, of which an attempt has failed, has waited since the instant
// now, though no step of c has said so. Due is then what it is after any other wait.
func (c *Call) WaitsFrom(now time.Duration) { c.waitsFrom = now }

// Outcome is the outcome of an attempt, reduced to what a decision needs.
type Outcome struct {
	Status     int           // status of the response; 0 means that the attempt ended in an error
	Verdict    Verdict       // verdict of Policy.Classify; ByRule if there is no Classify
	Hopeless   bool          // the error can't be fixed by another attempt
	Timeout    bool          // the error is a timeout
	Dead       bool          // it is that of a connection that delivers nothing, while another to the host does
	Canceled   bool          // the caller has canceled the request, or its own deadline has passed
	Resent     bool          // the error is that net/http by itself sent the request too often within the attempt
	Repeatable bool          // repeating is safe: the request is idempotent, or provably was not processed
	Replay     bool          // the body can be replayed, or there is none
	Forbidden  bool          // the server said not to retry, for example with X-Should-Retry: false
	OfRate     bool          // the server's own words refuse the request for its rate, whatever the status
	OfAll      bool          // such a refusal is one of all requests, whatever their gates
	RetryAfter time.Duration // the wait that the server asked for, from now; 0 means none
	Took       time.Duration // duration of the attempt; needed with a deadline or an AttemptTimeout, and at a host in trouble, for which a good answer then speaks

	Obeyed bool        // the host has obeyed o before, see Obey
	Change host.Change // of the host by that, which nothing has reported

	LostStatus int // status of a response that came before the error, or that it amounts to; 0 if none
}

// Received returns the status of the response, lost or not; 0 means that there
// was none. It is for what a refusal means to other requests, and Status is for
// how the attempt ended.
func (o *Outcome) Received() int { return cmp.Or(o.Status, o.LostStatus) }

// Well reports whether o is an answer of a host that is well, whatever it says.
func (o *Outcome) Well() bool {
	return o.Status > 0 && o.Status < 500 && !o.throttled()
}

// succeeds reports whether o speaks for the host, as a 421 doesn't: it comes from another server.
func (o *Outcome) succeeds() bool { return o.Well() && o.Status != http.StatusMisdirectedRequest }

// throttled reports whether the server may have refused the request for its rate, as a 429 says,
// a 503 that names a wait, whoever knows better, and any other 4xx that is retried and names
// a wait, unless it is about the resource or the connection. A gate slows down for all of
// these. As a reason, and to the budget, such a 503 is still a failure of the server.
func (o *Outcome) throttled() bool {
	if o.OfRate || o.Verdict == Throttle {
		return true
	}
	switch status := o.Received(); status {
	case http.StatusTooManyRequests:
		return true
	case http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusMisdirectedRequest, http.StatusLocked, http.StatusTooEarly:
		return false
	default:
		return o.RetryAfter > 0 && (status == http.StatusServiceUnavailable || status/100 == 4)
	}
}

// limited reports whether a gate slows down for o enough to make a retry free. After a 503, the
// host may also be overloaded, for which the budget is there.
func (o *Outcome) limited() bool {
	return o.throttled() && o.Received() != http.StatusServiceUnavailable
}

// returnAll returns what c has taken for an attempt that isn't made, or that says
// nothing about the host: tokens, a place at the gate and a place among the breaker's
// probes. It reports whether other calls must ask again now.
func (c *Call) returnAll(h *host.Record) (wakes bool) {
	if c.paid > 0 {
		h.Debt.Refund(c.paid)
		c.paid = 0
	}
	c.budgeted = false
	if c.pass.Probe {
		h.Guards.Breaker.ReturnProbe(&c.pass)
	}
	if c.ticket.Waited || c.ticket.Out {
		return h.Guards.Gates.Leave(&c.ticket, h.PausedUntil())
	}
	return false
}

// recordOutcome records what the outcome of an attempt says about the host.
func (c *Call) recordOutcome(r *Rules, h *host.Record, o *Outcome, a *Action, failed bool, now time.Duration, draw uint64) {
	if !failed && o.Status == 0 {
		// Without a response nothing has succeeded. A hopeless error is a
		// mistake of the client or a name that doesn't exist, so it says
		// nothing about the host. An error that the policy marks as final
		// keeps the tokens it took.
		if !o.Hopeless {
			c.settleBudget()
		}
		a.Wakes = c.returnAll(h)
		return
	}
	switch {
	case failed && o.Pending():
		c.polls = true
	case failed:
		f := c.failure(o)
		f.Old = c.waitsFrom < h.Full // what breaks a connection ends earlier retries, too
		h.Debt.Fail(r.Budget, f, c.budgeted, c.paid)
		if o.Dead {
			h.Debt.Recent = 0 // the timeouts before were the connection's, too
		}
		if c.budgeted && c.failed < math.MaxUint8 {
			c.failed++
		}
		a.Change |= r.pause(h, o, now)
	case o.succeeds():
		if o.Took > 0 {
			h.RecordAnswer(span.Sub(now, o.Took))
		}
		h.Proven = true
		h.Debt.Succeed(r.Budget, c.paid+c.refundable, c.Attempts == 1, c.budgeted, r.slow(o), c.Route)
		if !h.Debt.Spent(r.Budget) {
			h.Kept = 0
		}
		c.paid, c.refundable = 0, 0
	}
	c.settleBudget()
	unwell := failed && !o.Pending()
	switch {
	case !r.Gated:
	case unwell && o.throttled():
		var change host.Change
		change, a.Wakes = c.refuse(&c.ticket, h, o, now, draw)
		a.Change |= change
	case h.Guards != nil:
		// A refusal that the policy doesn't retry is one too, but the gate can't
		// learn from it.
		accepted := !unwell && !o.throttled() && o.Status != 0
		a.Wakes = h.Guards.Gates.Pass(&c.ticket, c.GateKey, accepted, now, h.PausedUntil())
	}
	if unwell || h.Guards != nil { // a success needs no breaker
		if r.Breaker != nil {
			a.Change |= host.BreakerChanges[h.Guard().Breaker.Record(r.Breaker, &c.pass, unwell, now, draw)]
		} else if !unwell {
			h.Guards.Breaker.EndRun()
		}
	}
	c.pass.Probe = false
}

// refuse tells the gate of c that the server has refused the attempt of t in o. It reports
// whether the server has told others to wait longer, and whether other calls must ask again.
func (c *Call) refuse(t *gate.Ticket, h *host.Record, o *Outcome, now time.Duration, draw uint64) (change host.Change, wakes bool) {
	longer, wakes := h.Guard().Gates.Refuse(t, c.GateKey, o.RetryAfter, now, h.PausedUntil(), draw)
	if longer {
		change = host.Paused
	}
	return change, wakes
}

// pause pauses h if the server has asked for that in o, which has failed.
func (r *Rules) pause(h *host.Record, o *Outcome, now time.Duration) (change host.Change) {
	change = o.Change
	if o.RetryAfter <= 0 || !r.pauses(o) {
		return change
	}
	wait := o.RetryAfter
	if r.Gated {
		// MaxWait would let new requests through before the time that the server
		// asked for.
		wait = min(wait, gate.PauseMost)
	} else if wait > r.MaxWait {
		// The request gives up. What it asked for may be gone for a day, and the rest
		// of the host well.
		return change
	}
	before := r.pausedFor(h, now)
	if !o.Obeyed {
		h.RecordRetryAfter(now)
	}
	h.PauseUntil(span.Add(now, wait))
	if r.pausedFor(h, now) > before {
		change |= host.Paused
	}
	return change
}

// pausedFor returns how long the pause of h holds back calls that it hasn't told to wait: at
// a gate all of it, and else until the host is seen to answer.
func (r *Rules) pausedFor(h *host.Record, now time.Duration) time.Duration {
	if r.Gated {
		return h.PausedFor(now)
	}
	return h.DoubtedFor(now)
}

// Pending reports whether o, which is retried, is the answer of a host that is well, such
// as the 202 of a job that isn't done.
func (o *Outcome) Pending() bool { return o.Status > 0 && o.Status < 400 && !o.throttled() }

// polls reports whether a retry after o repeats a question rather than a request that
// has failed. What it costs comes back if the request ends well.
func (o *Outcome) polls() bool { return o.Well() && o.Status != http.StatusRequestTimeout }

// timedOut reports whether o is a timeout, be it one that a gateway reports: the server may
// still work on the request.
func (o *Outcome) timedOut() bool {
	if o.Took >= patient {
		return false
	}
	switch o.Received() {
	case http.StatusRequestTimeout, http.StatusGatewayTimeout, 524, 598:
		return true
	}
	return o.Timeout && !o.Dead
}

// patient is how long an attempt takes that waits for an event, as a long poll does, and not
// in the queue of a server under load. It is no sign of overload, however it ends.
const patient = 30 * time.Second

// failure returns o, an outcome of c, as the budget sees it.
func (c *Call) failure(o *Outcome) budget.Failure {
	return budget.Failure{Route: c.Route, Retries: c.failed, Timeout: o.timedOut(), Polls: o.polls()}
}

// timeNeeded returns how much time the attempt after o needs before the deadline: as much as the
// slowest retry. The first attempt, which may have had to connect, counts until there is a
// retry. An attempt that hung predicts nothing, unless retries fail too.
func (c *Call) timeNeeded(h *host.Record, o *Outcome) time.Duration {
	took := o.Took
	if o.Received() == 0 && took >= hang && h.Debt.Row == 0 && c.failed == 0 {
		took /= 10
	}
	if c.backoffStep()-c.skipped > 2 {
		took = max(took, c.needed)
	}
	return took
}

// hang is the shortest attempt without an answer that counts as one that hung. With
// shorter timeouts, an attempt more at a server under load costs more than it wins.
const hang = time.Second / 2

// settleBudget ends what the last attempt has paid: it isn't refunded, or only at the end.
func (c *Call) settleBudget() {
	if c.polls && c.refundable < 1<<30 { // far above what a sane request pays
		c.refundable += c.paid
	}
	c.paid, c.budgeted = 0, false
}

// TimeLeft returns how long a wait that begins now may last and still leave
// time before the deadline for another attempt.
func (c *Call) TimeLeft(now time.Duration) time.Duration {
	if c.Deadline == 0 {
		return math.MaxInt64
	}
	return span.Sub(span.Sub(c.Deadline, now), c.needed)
}

// Why returns the reason to retry after o.
func (o *Outcome) Why() Reason {
	switch {
	case o.Verdict == Throttle || o.Status > 0 && o.Status < 500 && o.throttled():
		return Throttled
	case o.Status >= 500:
		return ServerError
	case o.Pending():
		return Pending
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
