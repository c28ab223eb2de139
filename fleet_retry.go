// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/retrip/retrip/internal/account"
	"github.com/retrip/retrip/internal/body"
)

// This file connects an exchange with the fleet's account.

// payFleet pays for a success without a retry into the account of its host.
func (t *Transport) payFleet(r *Rules, u *url.URL) {
	if t.Fleet != nil && r.fleet != 0 {
		t.deposit(r, u)
	}
}

// deposit pays nothing in most calls. The others pay for them too.
func (t *Transport) deposit(r *Rules, u *url.URL) {
	if tokens := account.Deposit(r.fleet, rand.Uint64()); tokens > 0 {
		t.Fleet.add(keyOf(u), r.fleet, tokens)
	}
}

// tellFleet tells the account how the attempt ended.
func (x *exchange) tellFleet() {
	o := &x.outcome
	if x.t.Fleet == nil {
		return
	}
	retry := x.atFleet
	x.atFleet = false
	switch failed := x.r.retryable(*o) || o.Canceled; {
	case failed || o.Status == 0 && !o.Hopeless:
		// As with the budget, a retry counts no matter who ended it.
		if retry && x.host.charge.Failed() {
			x.t.Fleet.add(keyOf(x.req.URL), x.r.fleet, -1)
		}
	case o.Status != 0:
		if x.host != nil {
			// Even if the policy takes no part in the account: an earlier
			// one may have charged it.
			x.host.charge.Succeeded()
		}
		if x.call.Attempts == 1 && !x.continues {
			x.t.payFleet(x.r, x.req.URL)
		}
	}
}

// asksFleet reports whether the retry that decide has allowed needs the
// account's permission too.
func (x *exchange) asksFleet() bool {
	return x.t.Fleet != nil && x.r.fleet != 0 && x.decision.Retry && !(x.decision.AtGate && x.outcome.received() == http.StatusTooManyRequests)
}

// askFleet asks the account about the retry that decide has allowed, while the
// outcome before it is in hand. It subtracts the time that this takes from the
// wait.
func (x *exchange) askFleet() ending {
	if !x.asksFleet() {
		return ending{}
	}
	d := &x.decision
	f, size := x.t.Fleet, x.r.fleet
	host, began := keyOf(x.req.URL), x.s.now()
	if answer := f.ask(host, size); answer != nil {
		if gone := x.awaitFleet(host, answer); gone != nil {
			// Waiting for the answer is part of the wait, so end as in a wait.
			x.goOn()
			if x.held {
				body.Dismiss(x.release())
			}
			return x.leave(gone)
		}
	}
	forbids, known := f.forbids(host, size, rand.Uint64())
	x.r.metrics.askedFleet(forbids, known)
	x.logFleet()
	switch {
	case forbids:
		return x.forgo(ReasonFleetBudget)
	case x.payload.once != nil && !x.payload.again():
		// Meanwhile the base has read more of the body than is kept.
		return x.forgo(ReasonBodyNotReplayable)
	}
	x.atFleet = true
	if d.Wait > 0 && !d.AtGate {
		d.Wait = max(0, d.Wait-(x.s.now()-began))
	}
	return ending{}
}

// forgo gives back the retry that decide has allowed. The outcome in hand is
// final.
func (x *exchange) forgo(reason Reason) ending {
	x.giveBack(&x.host.Host)
	x.decision = Decision{Reason: reason}
	return ending{how: endAnswered}
}

// awaitFleet waits for the store's answer, for as long as a request may. If the
// caller goes meanwhile, it returns why.
func (x *exchange) awaitFleet(host hostKey, answer <-chan struct{}) (gone error) {
	select {
	case <-answer:
		return nil
	default:
	}
	most, now := account.OpTimeout, x.s.now()
	left := x.call.timeLeft(now)
	timer := time.NewTimer(min(most, left))
	if gone := x.sleep(timer, answer); gone != nil {
		return gone
	}
	if x.s.now()-now >= most {
		x.t.Fleet.overdue(host, answer)
	}
	return nil
}

// logFleet logs that the store is away or back, if that is news.
func (x *exchange) logFleet() {
	if x.t.Logger == nil {
		return
	}
	away, news := x.t.Fleet.tell()
	switch {
	case !news:
	case away != nil:
		x.t.Logger.LogAttrs(x.req.Context(), slog.LevelWarn, "retrip: the fleet's store is away, budgets decide alone", slog.String("error", errorText(away)))
	default:
		x.t.Logger.LogAttrs(x.req.Context(), slog.LevelInfo, "retrip: the fleet's store is back")
	}
}
