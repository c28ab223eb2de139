// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"time"

	"github.com/retrip/retrip/internal/account"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/caller"
	"github.com/retrip/retrip/internal/chance"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/hostkey"
)

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
		x.env.Fleet.Add(hostkey.Of(x.req.URL), x.call.Account, tokens)
	}
}

// askFleet asks the account for its level, and returns what has happened. The outcome of
// the last attempt is in hand, unless the account has allowed the retry before.
func (x *exchange) askFleet() decide.Kind {
	f, host, size, again := x.env.Fleet, hostkey.Of(x.req.URL), x.call.Account, x.action.Again
	ask := f.Ask
	if again {
		ask = f.AskAgain
	}
	if answer := ask(host, size); answer != nil {
		if gone := x.awaitFleet(host, answer); gone != nil {
			// Waiting for the answer is part of the wait, so end as in a wait.
			if !again {
				x.beginRetry()
			}
			if x.last.inHand {
				body.Dismiss(x.last.forget())
			}
			return x.recordGone(gone)
		}
	}
	x.event.Level, x.event.Known = f.Level(host, size)
	return decide.Heard
}

// awaitFleet waits for the store's answer, for as long as a request may. If the
// caller goes meanwhile, it returns why.
func (x *place) awaitFleet(host hostkey.Key, answer <-chan struct{}) (gone error) {
	select {
	case <-answer:
		return nil
	default:
	}
	most, now := account.OpTimeout, x.env.Now()
	left := x.call.TimeLeft(now)
	timer := time.NewTimer(min(most, left))
	if gone := caller.Sleep(x.req, timer, answer); gone != nil {
		return gone
	}
	if x.env.Now()-now >= most {
		x.env.Fleet.Overdue(host, answer)
	}
	return nil
}
