// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/span"
)

// payBudget asks the breaker whether it will allow the retry, and takes the tokens for it from
// the host's budget, or lets the retry pay late.
func (c *Call) payBudget(r *Rules, h *host.Record, o *Outcome, a *Action, now time.Duration) Reason {
	if r.Breaker != nil && h.Guards != nil && h.Guards.Breaker.Refuses(span.Add(now, c.retry.wait)) {
		return BreakerOpen
	}
	if c.polls = o.polls(); o.Pending() {
		return None
	}
	if r.Gated && o.limited() {
		// A refusal costs nothing at a gate: the gate has already slowed down all further
		// requests, including this one.
		return None
	}
	if h.Debt.Missing == 0 {
		h.Full, h.Proven = now, false
	}
	var refusal budget.Refusal
	if c.paid, refusal = h.Debt.Pay(r.Budget, c.failure(o)); refusal == 0 {
		c.budgeted = true
		return None
	}
	if o.Dead && !r.Gated && refusal == budget.Exhausted && h.Debt.Row == 0 && !h.Debt.Stops(r.Budget, c.Route) {
		// Attempts over the dead connection fail for as long as they last, and the retry has another.
		c.budgeted = true
		return None
	}
	failing := h.Debt.Stops(r.Budget, c.Route) || refusal == budget.Failing && o.Timeout
	within := burst
	if o.Timeout && !h.Proven {
		within = young
	}
	answered := o.Status != 0 && o.Status != http.StatusMisdirectedRequest || o.LostStatus >= 400
	if failing || answered || now-h.Full > within || !c.mayPayLate(r) {
		a.OfRoute = refusal == budget.RouteFailing
		return budgetReasons[refusal]
	}
	c.retry.unpaid = true
	return None
}

// When a connection breaks or freezes, or leads to the wrong server (a 421), all requests on it fail
// at once, some amid a good response (WholeBody), and their retries need more tokens than there
// are, though the host is well.
const (
	burst = 250 * time.Millisecond // after the budget was last full: attempts that fail so soon may have one cause
	young = time.Second            // the same for timeouts until something succeeds; and so long may a retry wait for its tokens. The windows of three retries end before
)

// mayPayLate reports whether a retry may wait for its tokens: for no longer than all retries
// would wait. A gate keeps no place meanwhile.
func (c *Call) mayPayLate(r *Rules) bool {
	return !r.Gated && c.Attempts+c.skipped < r.MaxAttempts
}

// payBudgetLate takes the tokens for a retry that is unpaid, at the end of its wait. If there are
// none, c skips the retry, and waits on as if it had been sent and had failed: the requests
// that had tokens find out whether the host is well. The last retry is sent without tokens
// unless retries fail. If one of the last attempts timed out, it waits as long as it and the
// deadline may, and isn't sent if that is still so.
func (c *Call) payBudgetLate(r *Rules, h *host.Record, a *Action, now time.Duration, draw uint64) {
	refusal := budget.Failing
	if c.retry.reason != Timeout || h.Debt.Row == 0 {
		c.paid, refusal = h.Debt.Pay(r.Budget, budget.Failure{Route: c.Route, Retries: c.failed, Late: c.retry.reason == Timeout})
	}
	if refusal != 0 {
		c.skipped++
		lo, hi := r.Backoff.Window(c.backoffStep(), c.Wait)
		end := min(h.Full, c.waitsFrom) + young
		wait, fits, left := span.Draw(lo, hi, draw), c.mayPayLate(r) && span.Add(now, hi) <= end, c.TimeLeft(now)
		unknown := refusal == budget.Exhausted && h.Debt.Row == 0 && !h.Debt.Stops(r.Budget, c.Route)
		if unknown && h.Debt.Recent > 0 {
			if !fits {
				wait, fits = span.Sub(end, now), end > now
			}
			wait, fits = min(wait, left), fits && left > 0
		}
		if fits && wait <= left {
			c.Wait, a.Do, a.Wait = wait, Sleep, wait
			return
		}
		if !unknown || h.Debt.Recent > 0 {
			a.Do, a.Reason, a.OfRoute = Refuse, budgetReasons[refusal], refusal == budget.RouteFailing
			return
		}
	}
	c.budgeted, c.retry.unpaid = true, false
	c.waitsFrom = now // it is allowed only now, see budget.Failure.Old
}

// budgetReasons maps a refusal of a budget to a reason.
var budgetReasons = [...]Reason{budget.Exhausted: BudgetExhausted, budget.Failing: RetriesFailing, budget.RouteFailing: RetriesFailing}
