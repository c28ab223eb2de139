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

// The constants of the rule come from experiments: TestFigures in internal/sim holds
// what they reach.
const (
	RetryCost        = Token / 2      // cost of a request's retries after failures that aren't timeouts
	timeoutRetryCost = Token * 7 / 10 // cost of each retry while attempts time out
	recentOutcomes   = 10             // attempts time out while a timeout is among so many last outcomes
	Credit           = Token / 5      // back per success without a retry
	SlowShare        = 0.7            // a success that took more than this share of AttemptTimeout is slow
	slowCost         = 2 * Token

	// These are shares of a budget's size.
	rowTenths        = 6 // failed retries in a row that end retries, at least rowLeast
	timeoutRowTenths = 4 // the same after a timeout
	timeoutReserve   = 5 // a retry after a timeout leaves one token in so many

	rowLeast = 2
)

// Refusal says why a budget allows no retry.
type Refusal uint8

const (
	_         Refusal = iota
	Exhausted         // too few tokens are left
	Failing           // too many retries in a row have failed
)

// Micro returns a number of tokens in micro-tokens.
func Micro(tokens float64) int64 { return int64(math.Round(tokens * Token)) }

// Rule is a budget as its owner set it, in micro-tokens.
type Rule struct {
	Size   int64 // 0 means unlimited
	Credit int64 // back per success without a retry
}

// row returns how many failed retries in a row end retries, as tenths of the size,
// rounded up.
func (r Rule) row(tenths int64) uint32 { return uint32((r.Size*tenths + 10*Token - 1) / (10 * Token)) }

// Stopped reports whether so many failed retries in a row end all retries until
// something succeeds. After a timeout, fewer do.
func (r Rule) Stopped(row uint32) bool { return r.Size > 0 && row >= max(rowLeast, r.row(rowTenths)) }

// Debt is the state of a host's budget. The zero debt is a full budget. All
// parts are in one word, so that they always belong to the same instant.
type Debt struct{ word atomic.Uint64 }

// Owed is a debt at one instant.
type Owed struct {
	Missing int64  // micro-tokens
	Row     uint32 // retries that failed in a row
	Recent  uint8  // outcomes until the last timeout is forgotten
}

const (
	rowShift    = 40 // above the largest budget in micro-tokens, 10^12
	rowMost     = 1<<20 - 1
	recentShift = 60
)

func (d *Debt) Load() Owed { return unpack(d.word.Load()) }

// TimingOut reports whether one of the last outcomes was a timeout.
func (d *Debt) TimingOut() bool { return d.Load().Recent > 0 }

// Missing returns the number of missing micro-tokens.
func (d *Debt) Missing() int64 { return d.Load().Missing }

func (d *Debt) Clear() { d.word.Store(0) }

func unpack(word uint64) Owed {
	return Owed{
		Missing: int64(word & (1<<rowShift - 1)),
		Row:     uint32(word >> rowShift & rowMost),
		Recent:  uint8(word >> recentShift),
	}
}

// pack drops everything once no token is missing, so that a host without debt needs
// no state. If successes have paid back what a retry took before the retry fails, the
// failure therefore leaves no trace: it costs nothing and begins no row.
func (o Owed) pack() uint64 {
	if o.Missing == 0 {
		return 0
	}
	return uint64(o.Missing) | uint64(o.Row)<<rowShift | uint64(o.Recent)<<recentShift
}

// after returns for how many outcomes the last timeout is remembered after an
// outcome.
func after(recent uint8, timeout bool) uint8 {
	if timeout {
		return recentOutcomes
	}
	return max(recent, 1) - 1
}

// price returns the cost of a retry. Unless attempts time out, a request pays
// once for all retries that fail.
func price(recent uint8, again bool) int32 {
	switch {
	case recent > 0:
		return timeoutRetryCost
	case again:
		return 0
	default:
		return RetryCost
	}
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
// or says why there must be no retry. again says that a retry of the same request
// has already failed.
func (d *Debt) Spend(r Rule, again, timeout bool) (paid int32, refusal Refusal) {
	if r.Size == 0 {
		return 0, 0
	}
	d.change(func(o Owed) (Owed, bool) {
		stopped, left := r.Stopped(o.Row), int64(0)
		if timeout {
			o.Recent = recentOutcomes
			stopped, left = o.Row >= r.row(timeoutRowTenths), r.Size/timeoutReserve
		}
		paid, refusal = price(o.Recent, again), 0
		switch {
		case stopped:
			refusal = Failing
		case o.Missing+int64(paid)+left > r.Size:
			refusal = Exhausted
		default:
			o.Missing += int64(paid)
		}
		return o, refusal == 0
	})
	return paid, refusal
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

// Fail records a failure: that of a retry that the budget allowed, if retry is
// true. Unless attempts time out, the failed retries of a request count once: again
// says that one has failed before. While no token is missing, there is nothing to
// record.
func (d *Debt) Fail(r Rule, retry, again, timeout bool) {
	if r.Size == 0 || d.word.Load() == 0 {
		return
	}
	d.change(func(o Owed) (Owed, bool) {
		o.Recent = after(o.Recent, timeout)
		if retry && (!again || o.Recent > 0) {
			o.Row = min(rowMost, o.Row+1)
		}
		return o, true
	})
}

// Succeed records a success: that of a first attempt if first is true, or else of a
// retry, which took paid.
func (d *Debt) Succeed(r Rule, paid int32, first, slow bool) {
	if r.Size == 0 || d.word.Load() == 0 {
		return
	}
	d.change(func(o Owed) (Owed, bool) {
		o.Row = 0
		pays := !slow || o.Recent == 0
		o.Recent = after(o.Recent, false)
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
}
