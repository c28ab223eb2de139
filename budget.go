// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"math"
	"sync/atomic"
)

// Budget is what retries to one host may spend, so that a fleet soon stops
// prolonging an outage by its retries (P14 in docs/promises.md). It starts
// full. A retry takes half a token, and a whole one if the attempt before it
// timed out. A retry that succeeds gives back what it took; a success without
// retry pays Credit, up to Size. When too little is left, the caller gets the
// response or error in hand at once. First attempts take nothing and are never
// refused, so a host that has healed always refills its budget. Time returns
// nothing, except that a host without a failure for an hour may be forgotten.
//
// After four retries in a row have failed, a timeout counting as two, none is
// made until something succeeds: any answer that the policy doesn't retry.
//
// While attempts time out, that is as long as the last failure was a timeout, a
// success that took more than 0.7 of Policy.AttemptTimeout pays nothing. A
// retry gets nothing back for it, and a first attempt takes two tokens from a
// budget that isn't full: a host that is nearly too slow has no room for
// retries. Without an AttemptTimeout no success is slow.
//
// Only retries that are paid for count. Attempts that the caller has canceled,
// and errors that say nothing about the host, change neither row nor credit.
// The state is that of one host in one [Transport], whatever the paths and
// methods; a host that is in no trouble has none.
type Budget struct {
	// Size is how many tokens there are, 1 to 1 000 000. If 0, it is
	// inherited; the default is 5. Off (see [Unlimited]) refuses no retry, and
	// none of the rules above applies.
	Size float64 `json:"size"`

	// Credit is how many tokens a success without retry pays back, 0.001 to
	// 1 000 000. If 0, it is inherited; the default is 0.2. Off pays none
	// back.
	Credit float64 `json:"credit"`

	// Shared is how many tokens all hosts of the policy have together, besides
	// those of each, 1 to 1 000 000. A retry takes its tokens from both budgets,
	// and what pays tokens back to a host pays them here too, so that many names
	// of one backend, as those of "*.tenants.example.com", aren't each retried
	// when it is down. A policy in Transport.Hosts that sets Shared has a budget
	// for its pattern; others share that of Transport.Policy. With Size Off it is
	// the only budget. If 0, it is inherited; the default is none. Off: none. It
	// belongs to a Transport: Rules made by [Policy.Rules] have none.
	Shared float64 `json:"shared"`
}

const (
	// Fixed-point arithmetic makes sums exact, in whatever order they are
	// made.
	microToken = 1_000_000

	maxBudget = 1_000_000
	minCredit = 0.001
)

// The constants of the rule were found by experiment: `retripsim budget` prints
// what they do, beside the rule without them.
const (
	retryCost        = microToken / 2
	timeoutRetryCost = microToken // of a retry after a timeout
	streakLimit      = 4          // failed retries in a row, weighed, after which none is made
	timeoutWeight    = 2          // of a timeout among them
	slowShare        = 0.7        // of AttemptTimeout; a success that took longer is slow
	slowCost         = 2 * microToken
)

// fit forgets what is owed beyond size: a budget that has shrunk owes no more
// than all of it, an unlimited one nothing.
func (d *debt) fit(size int64) {
	d.change(func(o owed) (owed, bool) {
		o.missing = min(o.missing, size)
		return o, true
	})
}

func microTokens(tokens float64) int64 { return int64(math.Round(tokens * microToken)) }

// slow reports whether a success as long as o is slow.
func (r *Rules) slow(o Outcome) bool {
	return r.timed && float64(o.Took) > slowShare*float64(r.policy.AttemptTimeout)
}

// debt is what is remembered of a host's budget. The zero debt is a full
// budget; that of one that isn't is all in one word, so that its parts are
// always of one instant.
type debt struct{ word atomic.Uint64 }

// owed is a debt at one instant.
type owed struct {
	missing  int64 // micro-tokens
	streak   uint8 // retries that failed in a row, weighed
	timedOut bool  // the last failure was a timeout
}

const (
	streakShift  = 48 // above the largest budget in micro-tokens, 10^12
	timedOutFlag = 1 << 56
)

func (d *debt) load() owed { return unpack(d.word.Load()) }

// missing returns the micro-tokens that are missing.
func (d *debt) missing() int64 { return d.load().missing }

func (d *debt) clear() { d.word.Store(0) }

func unpack(word uint64) owed {
	return owed{
		missing:  int64(word & (1<<streakShift - 1)),
		streak:   uint8(word >> streakShift),
		timedOut: word&timedOutFlag != 0,
	}
}

// pack forgets everything with the last missing token: a failed retry leaves
// what it took missing, so there is nothing to remember then.
func (o owed) pack() uint64 {
	if o.missing == 0 {
		return 0
	}
	word := uint64(o.missing) | uint64(o.streak)<<streakShift
	if o.timedOut {
		word |= timedOutFlag
	}
	return word
}

// change replaces what is owed by what step makes of it, unless step declines.
func (d *debt) change(step func(owed) (owed, bool)) bool {
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

// spend takes the cost of a retry after a failure, and returns it, or reports
// that there is to be none.
func (d *debt) spend(r *Rules, timeout bool) (paid int32, ok bool) {
	if r.size == 0 {
		return 0, true
	}
	paid = retryCost
	if timeout {
		paid = timeoutRetryCost
	}
	return paid, d.change(func(o owed) (owed, bool) {
		if o.streak >= streakLimit || o.missing+int64(paid) > r.size {
			return o, false
		}
		o.missing += int64(paid)
		o.timedOut = timeout
		return o, true
	})
}

// giveBack returns what a retry has paid.
func (d *debt) giveBack(paid int32) {
	d.change(func(o owed) (owed, bool) {
		o.missing = max(0, o.missing-int64(paid))
		return o, true
	})
}

// fail takes in a failure: that of a retry if paid isn't 0.
func (d *debt) fail(r *Rules, paid int32, timeout bool) {
	if r.size == 0 || d.word.Load() == 0 {
		return
	}
	d.change(func(o owed) (owed, bool) {
		o.timedOut = timeout
		switch {
		case paid == 0:
		case timeout:
			o.streak = min(streakLimit, o.streak+timeoutWeight)
		default:
			o.streak = min(streakLimit, o.streak+1)
		}
		return o, true
	})
}

// succeed takes in a success: that of a retry if paid isn't 0, else of a first
// attempt if first. A retry that wasn't paid for ends the row, no more. It
// reports whether the success pays: not if it was slow while attempts time out.
func (d *debt) succeed(r *Rules, paid int32, first, slow bool) (pays bool) {
	if r.size == 0 || d.word.Load() == 0 {
		return true
	}
	d.change(func(o owed) (owed, bool) {
		o.streak = 0
		pays = !slow || !o.timedOut
		switch {
		case !pays && first:
			o.missing = max(o.missing, min(r.size, o.missing+slowCost))
		case !pays:
		case first:
			o.missing -= r.credit
		default:
			o.missing -= int64(paid)
		}
		o.missing = max(0, o.missing)
		return o, true
	})
	return pays
}
