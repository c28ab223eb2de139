// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"log/slog"
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

// payFleet adds to the account of the host what the last action says. A success pays
// nothing in most calls; the others pay for them too.
//
//go:noinline
func (x *exchange) payFleet() {
	tokens := x.action.Tokens
	if x.action.Pays {
		tokens += account.Deposit(x.call.Account, chance.Draw())
	}
	if tokens != 0 {
		x.t.Fleet.accounts.Add(hostkey.Of(x.req.URL), x.call.Account, tokens)
	}
}

// askFleet asks the account for its level, and returns what has happened. The outcome of
// the last attempt is in hand, unless the account has allowed the retry before.
func (x *exchange) askFleet() decide.Kind {
	f, host, size, again := &x.t.Fleet.accounts, hostkey.Of(x.req.URL), x.call.Account, x.action.Again
	ask := f.Ask
	if again {
		ask = f.AskAgain
	}
	if answer := ask(host, size); answer != nil {
		if gone := x.awaitFleet(host, answer); gone != nil {
			// Waiting for the answer is part of the wait, so end as in a wait.
			if !again {
				x.goOn()
			}
			if x.last.held {
				body.Dismiss(x.release())
			}
			return x.leave(gone)
		}
	}
	x.event.Level, x.event.Known = f.Level(host, size)
	return decide.Heard
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
