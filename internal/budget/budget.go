// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package budget is the rule that limits retries to a host. It has no clock. Tokens
// are counted in millionths, so that sums are exact.
package budget

import (
	"math"
	"sync/atomic"
)

const (
	// Fixed-point arithmetic makes sums exact, whatever the order of additions.
	Token = 1_000_000
)

// The constants of the rule come from experiments: `retripsim budget` compares the
// rule with and without them.
const (
	RetryCost        = Token / 2
	timeoutRetryCost = Token * 3 / 4 // cost of a retry after a timeout
	streakLimit      = 4             // weighted number of failed retries in a row that ends retries
	timeoutWeight    = 2             // weight of a timeout in that number
	Credit           = Token / 5     // back per success without a retry
	SlowShare        = 0.7           // a success that took more than this share of AttemptTimeout is slow
	slowCost         = 2 * Token
)

// Micro returns a number of tokens in micro-tokens.
func Micro(tokens float64) int64 { return int64(math.Round(tokens * Token)) }

// Rule is a budget as its owner set it, in micro-tokens.
type Rule struct {
	Size   int64 // 0 means unlimited
	Credit int64 // back per success without a retry
}

// Debt is the state of a host's budget. The zero debt is a full budget. All
// parts are in one word, so that they always belong to the same instant.
type Debt struct{ word atomic.Uint64 }

// Owed is a debt at one instant.
type Owed struct {
	Missing  int64 // micro-tokens
	Streak   uint8 // weighted number of retries that failed in a row
	TimedOut bool  // the last failure was a timeout
}

const (
	streakShift  = 48 // above the largest budget in micro-tokens, 10^12
	timedOutFlag = 1 << 56
)

func (d *Debt) Load() Owed { return unpack(d.word.Load()) }

// Missing returns the number of missing micro-tokens.
func (d *Debt) Missing() int64 { return d.Load().Missing }

func (d *Debt) Clear() { d.word.Store(0) }

func unpack(word uint64) Owed {
	return Owed{
		Missing:  int64(word & (1<<streakShift - 1)),
		Streak:   uint8(word >> streakShift),
		TimedOut: word&timedOutFlag != 0,
	}
}

// pack drops everything once no token is missing: a failed retry always leaves
// tokens missing, so there is nothing to remember.
func (o Owed) pack() uint64 {
	if o.Missing == 0 {
		return 0
	}
	word := uint64(o.Missing) | uint64(o.Streak)<<streakShift
	if o.TimedOut {
		word |= timedOutFlag
	}
	return word
}

// change replaces the debt by what step makes of it, unless step declines.
func (d *Debt) change(step func(Owed) (Owed, bool)) bool {
	for {
		word := d.word.Load()
		next, ok := step(unpack(word))
		if !ok {
			return false
		}
		if packed := next.pack(); packed == word || d.word.CompareAndSwap(word, packed) {
			return true
		}
	}
}

// Spend takes the tokens for a retry after a failure and returns their number,
// or reports that there must be no retry.
func (d *Debt) Spend(r Rule, timeout bool) (paid int32, ok bool) {
	if r.Size == 0 {
		return 0, true
	}
	paid = RetryCost
	if timeout {
		paid = timeoutRetryCost
	}
	return paid, d.change(func(o Owed) (Owed, bool) {
		if o.Streak >= streakLimit || o.Missing+int64(paid) > r.Size {
			return o, false
		}
		o.Missing += int64(paid)
		o.TimedOut = timeout
		return o, true
	})
}

// GiveBack returns the tokens that a retry took.
func (d *Debt) GiveBack(paid int32) {
	d.change(func(o Owed) (Owed, bool) {
		o.Missing = max(0, o.Missing-int64(paid))
		return o, true
	})
}

// Fit reduces the debt to a budget of the given size: a smaller budget can't
// miss more than all its tokens, and an unlimited one misses none.
func (d *Debt) Fit(size int64) {
	d.change(func(o Owed) (Owed, bool) {
		o.Missing = min(o.Missing, size)
		return o, true
	})
}

// Fail records a failure: that of a retry if paid isn't 0.
func (d *Debt) Fail(r Rule, paid int32, timeout bool) {
	if r.Size == 0 || d.word.Load() == 0 {
		return
	}
	d.change(func(o Owed) (Owed, bool) {
		o.TimedOut = timeout
		switch {
		case paid == 0:
		case timeout:
			o.Streak = min(streakLimit, o.Streak+timeoutWeight)
		default:
			o.Streak = min(streakLimit, o.Streak+1)
		}
		return o, true
	})
}

// Succeed records a success: that of a retry if paid isn't 0, otherwise that of
// a first attempt if first is true. A retry that took no tokens only ends the
// streak.
func (d *Debt) Succeed(r Rule, paid int32, first, slow bool) (pays bool) {
	if r.Size == 0 || d.word.Load() == 0 {
		return true
	}
	d.change(func(o Owed) (Owed, bool) {
		o.Streak = 0
		pays = !slow || !o.TimedOut
		switch {
		case !pays && first:
			o.Missing = max(o.Missing, min(r.Size, o.Missing+slowCost))
		case !pays:
		case first:
			o.Missing -= r.Credit
		default:
			o.Missing -= int64(paid)
		}
		o.Missing = max(0, o.Missing)
		return o, true
	})
	return pays
}
