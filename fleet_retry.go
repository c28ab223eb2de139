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

// What an exchange has to do with the fleet's account.

// payFleet pays a success without retry into the account of its host: mostly
// nothing, and sometimes for all.
func (t *Transport) payFleet(r *Rules, u *url.URL) {
	if t.Fleet == nil || r.fleet == 0 {
		return
	}
	if tokens := account.Deposit(r.fleet, rand.Uint64()); tokens > 0 {
		t.Fleet.add(keyOf(u), r.fleet, tokens)
	}
}

// tellFleet tells the account how the attempt has ended.
func (x *exchange) tellFleet(o Outcome) {
	if x.t.Fleet == nil || x.r.fleet == 0 {
		return
	}
	retry := x.atFleet
	x.atFleet = false
	switch failed := x.r.retryable(o) || o.Canceled; {
	case failed || o.Status == 0 && !o.Hopeless:
		// As for the budget: whoever has ended a retry, it was made.
		if retry && x.host.charge.Failed() {
			x.t.Fleet.add(keyOf(x.req.URL), x.r.fleet, -1)
		}
	case o.Status != 0:
		if x.host != nil {
			x.host.charge.Succeeded()
		}
		if x.call.Attempts == 1 && !x.continues {
			x.t.payFleet(x.r, x.req.URL)
		}
	}
}

// askFleet asks the account for the retry that has been decided on, with the
// outcome before it in hand. It takes the time for that out of the wait.
func (x *exchange) askFleet(d *Decision, o Outcome) ending {
	f, size := x.t.Fleet, x.r.fleet
	if f == nil || size == 0 || d.AtGate && o.Status == http.StatusTooManyRequests {
		return ending{}
	}
	host, began := keyOf(x.req.URL), x.s.now()
	if answer := f.ask(host, size); answer != nil {
		if end := x.awaitFleet(host, answer); end.how != goesOn {
			// As in a wait, which this is a part of.
			x.goOn(*d, o)
			if x.held {
				x.seen, x.held = x.resp, false
				body.Dismiss(x.resp)
			}
			return end
		}
	}
	forbids, known := f.forbids(host, size, rand.Uint64())
	x.r.metrics.askedFleet(forbids, known)
	x.logFleet()
	if forbids {
		x.giveBack(&x.host.Host)
		return ending{how: endAnswered, reason: ReasonFleetBudget}
	}
	x.atFleet = true
	if d.Wait > 0 && !d.AtGate {
		d.Wait = max(0, d.Wait-(x.s.now()-began))
	}
	return ending{}
}

// awaitFleet waits for the answer of the store, as long as it may take.
func (x *exchange) awaitFleet(host hostKey, answer <-chan struct{}) ending {
	select {
	case <-answer:
		return ending{}
	default:
	}
	most, now := account.OpTimeout, x.s.now()
	left := x.call.timeLeft(now)
	timer := time.NewTimer(min(most, left))
	if end := x.sleep(timer, answer); end.how != goesOn {
		return end
	}
	if x.s.now()-now >= most {
		x.t.Fleet.overdue(host, answer)
	}
	return ending{}
}

// logFleet tells the log of a store that is away, or back.
func (x *exchange) logFleet() {
	if x.watch.logger == nil {
		return
	}
	away, news := x.t.Fleet.tell()
	switch {
	case !news:
	case away != nil:
		x.watch.logger.LogAttrs(x.ctx, slog.LevelWarn, "retrip: the fleet's store is away, budgets decide alone", slog.String("error", errorText(away)))
	default:
		x.watch.logger.LogAttrs(x.ctx, slog.LevelInfo, "retrip: the fleet's store is back")
	}
}
