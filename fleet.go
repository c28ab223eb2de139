// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/retrip/retrip/internal/account"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/chance"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fleet"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/redact"
)

// Fleet limits what all processes together spend on retries, with one account
// of Policy.FleetBudget tokens for each host. An account may forbid a retry
// that the budget of this process allows, but never the reverse. A program
// should make one Fleet with [NewFleet] and set it as Transport.Fleet in all
// its Transports. A Fleet is safe for concurrent use.
//
// A retry that fails costs one token, and a success without a retry pays 0.2. Below
// a quarter of its size, an account lets retries through with a probability of
// level/(size/4). A retry waits for the level for at most 50 ms, as part of its wait;
// first attempts never ask. If the store fails, the budget decides alone for 5 to
// 15 s. docs/fleet.md has the rule and its figures.
type Fleet struct{ accounts fleet.Accounts }

// NewFleet returns a Fleet with its accounts in a store that all processes of the
// fleet share, and a goroutine, which Close ends. If add is nil, the accounts
// are in the memory of this program, for all Transports with this Fleet; such a
// Fleet needs no Close. The module github.com/retrip/retrip/contrib/fleetredis is
// a store in Redis or Valkey, whose method Add is such a function.
//
// add adds tokens to the account of a host, given as "example.com:443", and
// returns the new level. Tokens may be negative, or 0 to read the level. The level
// stays between 0 and size. An account that doesn't exist, or that nobody has used
// or read for a minute, holds size. Processes may pass different sizes for one
// account, so a store should keep the number of missing tokens, not the level.
//
// The Fleet calls add from up to 64 goroutines. add should return when ctx ends.
// After an error, a panic or an impossible level, the budget decides alone.
func NewFleet(add func(ctx context.Context, host string, tokens, size float64) (level float64, err error)) *Fleet {
	f := &Fleet{}
	f.accounts.Open(add)
	return f
}

// Close closes f but not the store: from then on, the budget of each process decides
// alone. Close cancels the operations in progress and returns an error if one hasn't
// returned after a second. It is safe to call twice, and during requests.
func (f *Fleet) Close() error { return f.accounts.Close() }

// This file connects an exchange with the fleet's account.

// payFleet pays for a success without a retry into the account of its host.
func (t *Transport) payFleet(r *rules, u *url.URL) {
	if t.Fleet != nil && r.fleet != 0 {
		t.deposit(r, u)
	}
}

// deposit pays nothing in most calls. The others pay for them too.
func (t *Transport) deposit(r *rules, u *url.URL) {
	if tokens := account.Deposit(r.fleet, chance.Draw()); tokens > 0 {
		t.Fleet.accounts.Add(hostkey.Of(u), r.fleet, tokens)
	}
}

// tellFleet tells the account how the attempt ended.
func (x *exchange) tellFleet() {
	o := &x.last.outcome
	if x.t.Fleet == nil {
		return
	}
	failed := x.r.Retryable(*o) || o.Canceled || o.Status == 0 && !o.Hopeless
	charged := x.payBack(!failed)
	if failed {
		// As with the budget, a retry counts no matter who ended it.
		return
	}
	if x.host != nil && (o.Status != 0 || charged) {
		// Even if the policy takes no part in the account: an earlier one may
		// have charged it.
		x.host.Charge.Succeeded()
	}
	if !charged && o.Status != 0 && x.call.Attempts == 1 && !x.continues {
		x.t.payFleet(x.r, x.req.URL)
	}
}

// payBack gives back what the account holds for the retry that has ended, and
// reports whether the account was charged for it.
func (x *exchange) payBack(succeeded bool) (charged bool) {
	held := x.held
	x.held = 0
	if tokens := account.Back(held, succeeded); tokens > 0 {
		x.t.Fleet.accounts.Add(hostkey.Of(x.req.URL), x.r.fleet, tokens)
	}
	return held > 0
}

// asking is what a retry keeps of its question to the account, to ask again
// after a long wait.
type asking struct {
	at    time.Duration // instant at which the account has allowed it
	again time.Duration // the last such instant
	draw  uint64        // decides again, so that asking twice forbids no more retries
}

// askAgain asks the account again if it allowed the retry long ago. It comes
// before the host is asked: the answer takes time, in which the host may forbid
// what it has allowed.
func (x *exchange) askAgain() ending {
	if !x.atFleet || x.s.now()-x.asking.again <= account.LongWait {
		return ending{}
	}
	forbids, gone := x.forbidden(hostkey.Of(x.req.URL), x.t.Fleet.accounts.AskAgain)
	switch {
	case gone != nil:
		return x.leave(gone)
	case forbids:
		x.giveBack(&x.host.Record)
		x.decision = decide.Decision{Reason: decide.FleetBudget}
		return ending{how: endHeldBack}
	}
	x.asking.again = x.s.now()
	return ending{}
}

// payRetry charges the account for the retry that is about to be made.
func (x *exchange) payRetry() {
	if x.host.Charge.Sent() {
		x.held = account.Held(x.s.now() - x.asking.at)
		x.t.Fleet.accounts.Add(hostkey.Of(x.req.URL), x.r.fleet, -float64(x.held))
	}
}

// forbidden asks the account about a retry, by a method of Accounts. If the caller
// goes meanwhile, it returns why.
func (x *exchange) forbidden(host hostkey.Key, ask func(hostkey.Key, float64) <-chan struct{}) (forbids bool, gone error) {
	f, size := &x.t.Fleet.accounts, x.r.fleet
	if answer := ask(host, size); answer != nil {
		if gone := x.awaitFleet(host, answer); gone != nil {
			return false, gone
		}
	}
	forbids, known := f.Forbids(host, size, x.asking.draw)
	x.r.metrics.AskedFleet(forbids, known)
	x.logFleet()
	return forbids, nil
}

// asksFleet reports whether the retry that decide has allowed needs the
// account's permission too.
func (x *exchange) asksFleet() bool {
	return x.t.Fleet != nil && x.r.fleet != 0 && x.decision.Retry && !(x.decision.AtGate && x.last.outcome.Received() == http.StatusTooManyRequests)
}

// askFleet asks the account about the retry that decide has allowed, while the
// outcome before it is in hand. It subtracts the time that this takes from the
// wait.
func (x *exchange) askFleet() ending {
	if !x.asksFleet() {
		return ending{}
	}
	d := &x.decision
	now := x.s.now()
	x.asking = asking{now, now, chance.Draw()}
	forbids, gone := x.forbidden(hostkey.Of(x.req.URL), x.t.Fleet.accounts.Ask)
	switch {
	case gone != nil:
		// Waiting for the answer is part of the wait, so end as in a wait.
		x.goOn()
		if x.last.held {
			body.Dismiss(x.release())
		}
		return x.leave(gone)
	case forbids:
		return x.forgo(decide.FleetBudget)
	case x.payload.once != nil && !x.payload.again():
		// Meanwhile the base has read more of the body than is kept.
		return x.forgo(decide.BodyNotReplayable)
	}
	x.atFleet = true
	if d.Wait > 0 && !d.AtGate {
		d.Wait = max(0, d.Wait-(x.s.now()-x.asking.at))
	}
	return ending{}
}

// forgo gives back the retry that decide has allowed. The outcome in hand is
// final.
func (x *exchange) forgo(reason decide.Reason) ending {
	x.giveBack(&x.host.Record)
	x.decision = decide.Decision{Reason: reason}
	return ending{how: endAnswered}
}

// awaitFleet waits for the store's answer, for as long as a request may. If the
// caller goes meanwhile, it returns why.
func (x *exchange) awaitFleet(host hostkey.Key, answer <-chan struct{}) (gone error) {
	select {
	case <-answer:
		return nil
	default:
	}
	most, now := account.OpTimeout, x.s.now()
	left := x.call.TimeLeft(now)
	timer := time.NewTimer(min(most, left))
	if gone := x.sleep(timer, answer); gone != nil {
		return gone
	}
	if x.s.now()-now >= most {
		x.t.Fleet.accounts.Overdue(host, answer)
	}
	return nil
}

// logFleet logs that the store is away or back, if that is news.
func (x *exchange) logFleet() {
	if x.t.Logger == nil {
		return
	}
	host, news, away := x.t.Fleet.accounts.Tell()
	switch {
	case !news:
	case host != "":
		x.t.Logger.LogAttrs(x.req.Context(), slog.LevelWarn, "retrip: the fleet's store is away for a host, whose budget decides alone", slog.String("host", host), slog.String("error", redact.Error(away)))
	case away != nil:
		x.t.Logger.LogAttrs(x.req.Context(), slog.LevelWarn, "retrip: the fleet's store is away, budgets decide alone", slog.String("error", redact.Error(away)))
	default:
		x.t.Logger.LogAttrs(x.req.Context(), slog.LevelInfo, "retrip: the fleet's store is back")
	}
}
