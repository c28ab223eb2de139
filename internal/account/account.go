// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package account is the rule of a fleet's account: how many tokens all
// processes together may spend on retries to one host. Transport and the
// simulator share it. It has no clock, no store and no lock. Instants are
// durations since an epoch of the caller's choice. Draws must be uniformly
// distributed.
//
// A retry pays the account a token when it is sent, and gets it back when it
// succeeds. So the account also holds the retries under way, and a host that
// answers ever later is noticed before it answers too late. A retry that has
// waited long pays two, because those that a server sent away come back
// together. Each process pays only once until something succeeds there again: a process
// whose own network is dead can't know that, and must not spend the tokens of all. If
// the host is in trouble, all processes pay. A success without a retry pays a fifth of a
// token. Below a quarter of its size, the account forbids retries, and the lower its
// level, the more of them. It never allows what the local budget refuses.
package account

import (
	"math"
	"math/bits"
	"time"
)

const (
	// DefaultSize is the traffic of a quarter of a second in the simulations
	// of the rule. A larger account notices an overload later, and a smaller one
	// forbids retries when many attempts fail whatever the load.
	DefaultSize = 175

	// OpTimeout is how long the store may take to answer. A slower store counts
	// as away.
	OpTimeout = 50 * time.Millisecond

	// LongWait is the longest wait before a retry after which the account need
	// not be asked again.
	LongWait = time.Second

	// longPrice is what a retry pays after a longer wait.
	longPrice = 2

	// Age is how old a level may be to count as known.
	Age = 5 * time.Second

	// Cost is what a retry costs.
	Cost = 1

	fresh = time.Second            // a level of this age must be asked for again
	again = 100 * time.Millisecond // the same after a long wait
	low   = 0.25                   // share of the size below which retries are forbidden
	pay   = 0.2                    // tokens per success without a retry

	// The number of successes that a deposit pays for: these bounds save operations
	// of the store, and between them it is a share of the size. Where charges come
	// close to the payments, large deposits make the level wander below the one that
	// forbids retries.
	fewest, most = 5, 100
	batchShare   = 1.0 / 7

	offLeast = 5 * time.Second
	offMost  = 15 * time.Second
)

// Deposit returns the deposit for one success without a retry into an account
// of the given size. It is mostly 0: one success in a batch pays for all of
// them.
func Deposit(size float64, draw uint64) float64 {
	batch := max(1, min(fewest, size/2), min(most, size*batchShare))
	if share(draw) >= 1/batch {
		return 0
	}
	return pay * batch
}

// Price returns the number of tokens that a retry takes when it is sent after a wait.
func Price(waited time.Duration) uint8 {
	if waited > LongWait {
		return longPrice
	}
	return Cost
}

// Refund returns how many of the tokens that a retry has paid it gets back when it has ended.
func Refund(paid uint8, succeeded bool) float64 {
	if paid > 0 && !succeeded {
		paid -= Cost
	}
	return float64(paid)
}

// Forbids reports whether an account of the given size forbids a retry at the
// given level.
func Forbids(level, size float64, draw uint64) bool {
	return share(draw) >= min(1, level/(size*low))
}

// share maps a draw to [0, 1).
func share(draw uint64) float64 { return float64(draw>>11) / (1 << 53) }

// View is what a process knows about an account. The zero View knows nothing.
//
// It keeps what the account lacks, which is the same for all sizes: a new size
// may be rolled out while processes share the account, or swapped while a
// request asks.
type View struct {
	lacks float64
	of    float64 // size of the account as heard: lacks is never more
	at    time.Duration
	heard bool
}

// Record records the level of an account of the given size, as the store returned
// it. It returns false for an impossible level, which it ignores.
func (v *View) Record(level, size float64, now time.Duration) bool {
	if !(level >= 0) || math.IsInf(level, 0) {
		return false
	}
	v.lacks, v.of, v.at, v.heard = max(0, size-level), size, now, true
	return true
}

// Stale reports whether the process should ask for the level of an account of
// the given size. An account that was empty for a smaller size may lack more
// than that size.
func (v *View) Stale(size float64, now time.Duration) bool { return v.older(fresh, size, now) }

// StaleAgain is Stale for a retry that has waited for longer than LongWait: others
// may have ended their waits at the same instant.
func (v *View) StaleAgain(size float64, now time.Duration) bool { return v.older(again, size, now) }

func (v *View) older(age time.Duration, size float64, now time.Duration) bool {
	return !v.heard || now-v.at > age || v.lacks >= v.of && size > v.of
}

// Level returns the level of an account of the given size, if it is known.
func (v *View) Level(size float64, now time.Duration) (level float64, known bool) {
	known = v.heard && now >= v.at && now-v.at <= Age
	return max(0, size-v.lacks), known
}

// Link decides whether a process uses the store. The zero Link does.
type Link struct{ off time.Duration }

// Lose stops the use of the store for a while, after an operation that failed
// or took longer than OpTimeout. The draw makes different processes come back
// at different times.
func (l *Link) Lose(now time.Duration, draw uint64) {
	past, _ := bits.Mul64(draw, uint64(offMost-offLeast)+1)
	l.off = now + offLeast + time.Duration(past)
}

// Up reports whether the process may use the store.
func (l *Link) Up(now time.Duration) bool { return now >= l.off }
