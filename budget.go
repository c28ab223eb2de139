// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"math"
	"sync/atomic"
)

// Budget limits the retries to one host, so that retries don't keep an outage
// going (P14 in docs/promises.md). A Budget starts full. A retry takes half a
// token, or three quarters if the attempt before it timed out. A retry that
// succeeds gives its tokens back. A success without a retry adds Credit, up to
// Size. If too few tokens are left, the Transport doesn't retry, and the caller
// gets the response or error in hand at once. First attempts take no tokens and
// are never refused, so the budget of a host that has recovered always refills.
// Tokens don't come back with time, except that the Transport may forget a host
// that has had no failure for an hour.
//
// After four failed retries in a row, where a timeout counts as two, there are
// no retries until an attempt succeeds. An attempt succeeds if it gets a
// response that the policy doesn't retry.
//
// While attempts time out, a success that took more than 0.7 of
// Policy.AttemptTimeout is slow. "While attempts time out" means that the last
// failure was a timeout. A slow success adds no Credit. A slow retry gets no
// tokens back, and a slow first attempt takes two tokens from a budget that
// isn't full, because a host that is almost too slow has no capacity for
// retries. Without an AttemptTimeout, no success is slow.
//
// Only a retry that took tokens counts as a failed retry. A retry that the
// caller cancels doesn't count, but gets its tokens back only if it had not
// begun. A retry whose error says nothing about the host doesn't count either,
// and gets its tokens back. Each [Transport] keeps one budget per host, for all
// paths and methods. A host without trouble needs none.
type Budget struct {
	// Size is the number of tokens, 1 to 1 000 000. Off (see [Unlimited])
	// refuses no retry, and none of the rules above applies. If 0, it is
	// inherited; the default is 5.
	Size float64 `json:"size"`

	// Credit is the number of tokens that a success without a retry adds, 0.001
	// to 1 000 000. Off adds none. If 0, it is inherited; the default is 0.2.
	Credit float64 `json:"credit"`

	// Shared is the number of tokens, 1 to 1 000 000, in a second budget that
	// all hosts of the policy share. A retry takes its tokens from the host's
	// budget and from the shared one, and whatever adds tokens to the host's
	// budget adds them to the shared one too. Many names of one backend, such
	// as "*.tenants.example.com", then don't each get their own retries when
	// the backend is down.
	//
	// A policy in Transport.Hosts that sets Shared has a budget for its
	// pattern; other policies share that of Transport.Policy. If Size is Off,
	// the shared budget is the only one. The shared budget belongs to a
	// Transport: Rules made by [Policy.Rules] have none. Off means no shared
	// budget. If 0, Shared is inherited; the default is none.
	Shared float64 `json:"shared"`
}

const (
	// Fixed-point arithmetic makes sums exact, whatever the order of additions.
	microToken = 1_000_000

	maxBudget = 1_000_000
	minCredit = 0.001
)

// The constants of the rule come from experiments: `retripsim budget` compares the
// rule with and without them.
const (
	retryCost        = microToken / 2
	timeoutRetryCost = microToken * 3 / 4 // cost of a retry after a timeout
	streakLimit      = 4                  // weighted number of failed retries in a row that ends retries
	timeoutWeight    = 2                  // weight of a timeout in that number
	slowShare        = 0.7                // a success that took more than this share of AttemptTimeout is slow
	slowCost         = 2 * microToken
)

// fit reduces the debt to a budget of the given size: a smaller budget can't
// miss more than all its tokens, and an unlimited one misses none.
func (d *debt) fit(size int64) {
	d.change(func(o owed) (owed, bool) {
		o.missing = min(o.missing, size)
		return o, true
	})
}

func microTokens(tokens float64) int64 { return int64(math.Round(tokens * microToken)) }

// slow reports whether the success o took long enough to count as slow.
func (r *Rules) slow(o Outcome) bool {
	return r.timed && float64(o.Took) > slowShare*float64(r.policy.AttemptTimeout)
}

// debt is the state of a host's budget. The zero debt is a full budget. All
// parts are in one word, so that they always belong to the same instant.
type debt struct{ word atomic.Uint64 }

// owed is a debt at one instant.
type owed struct {
	missing  int64 // micro-tokens
	streak   uint8 // weighted number of retries that failed in a row
	timedOut bool  // the last failure was a timeout
}

const (
	streakShift  = 48 // above the largest budget in micro-tokens, 10^12
	timedOutFlag = 1 << 56
)

func (d *debt) load() owed { return unpack(d.word.Load()) }

// missing returns the number of missing micro-tokens.
func (d *debt) missing() int64 { return d.load().missing }

func (d *debt) clear() { d.word.Store(0) }

func unpack(word uint64) owed {
	return owed{
		missing:  int64(word & (1<<streakShift - 1)),
		streak:   uint8(word >> streakShift),
		timedOut: word&timedOutFlag != 0,
	}
}

// pack drops everything once no token is missing: a failed retry always leaves
// tokens missing, so there is nothing to remember.
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

// change replaces the debt by what step makes of it, unless step declines.
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

// spend takes the tokens for a retry after a failure and returns their number,
// or reports that there must be no retry.
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

// giveBack returns the tokens that a retry took.
func (d *debt) giveBack(paid int32) {
	d.change(func(o owed) (owed, bool) {
		o.missing = max(0, o.missing-int64(paid))
		return o, true
	})
}

// fail records a failure: that of a retry if paid isn't 0.
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

// succeed records a success: that of a retry if paid isn't 0, otherwise that of
// a first attempt if first is true. A retry that took no tokens only ends the
// streak.
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
