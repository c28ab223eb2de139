// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package account is the rule of a fleet's account: how many tokens all
// processes together may spend on retries to one host. It is what Transport and
// the simulator share, and has no clock, no store and no lock. Instants are
// durations since an epoch of the caller's choice; draws are uniformly
// distributed.
//
// A retry that fails costs the account a token, but only one for each process
// until something succeeds there again; successes without retry pay a fifth of
// one each. Below half of its size it forbids retries, the more the less there
// is. It never allows what the local budget refuses.
package account

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	// DefaultSize is about the traffic of one second for which the rule was
	// simulated. From a seventh of it to three times as much makes no difference
	// there.
	DefaultSize = 500

	// OpTimeout is how long the answer of the store may take. A store that is
	// slower is away.
	OpTimeout = 50 * time.Millisecond

	// Age is how old a level may be to count as known.
	Age = 5 * time.Second

	fresh    = time.Second // a level that old is not asked for again
	pay      = 0.2         // per success without retry
	maxBatch = 100         // successes that are paid in at once

	offLeast = 5 * time.Second
	offMost  = 15 * time.Second
)

// Deposit returns what a success without retry pays into an account of the size
// given. That is mostly nothing: one in a batch pays for all.
func Deposit(size float64, draw uint64) float64 {
	batch := max(1, min(maxBatch, size/2))
	if share(draw) >= 1/batch {
		return 0
	}
	return pay * batch
}

// Forbids reports whether an account of the size given forbids a retry at the
// level given.
func Forbids(level, size float64, draw uint64) bool {
	return share(draw) >= min(1, level/(size/2))
}

// share maps a draw to [0, 1).
func share(draw uint64) float64 { return float64(draw>>11) / (1 << 53) }

// View is what a process knows of an account. The zero View knows nothing.
type View struct {
	level float64
	at    time.Duration
	heard bool
}

// Hear takes in a level that the store has told, and reports whether it can be
// one: whoever tells anything else is not to be believed.
func (v *View) Hear(level, size float64, now time.Duration) bool {
	if !(level >= 0) || math.IsInf(level, 0) {
		return false
	}
	// Others may have another size for the same account.
	v.level, v.at, v.heard = min(level, size), now, true
	return true
}

// Stale reports whether the level is to be asked for.
func (v *View) Stale(now time.Duration) bool { return !v.heard || now-v.at > fresh }

// Level returns the level, if it is known.
func (v *View) Level(now time.Duration) (level float64, known bool) {
	known = v.heard && now >= v.at && now-v.at <= Age
	return v.level, known
}

// Charge is whether a process charges an account for its retries. The zero
// Charge does. It is safe for concurrent use.
//
// A process whose own network is dead must not spend what everyone has, and
// can't know that it is: nothing has succeeded since its last charge, so it
// makes no other. Where the host is in trouble, all processes say so.
type Charge struct{ made atomic.Bool }

// Failed reports whether the account is to be charged for a retry that failed.
func (c *Charge) Failed() bool { return !c.made.Swap(true) }

// Succeeded takes in that an attempt has succeeded.
func (c *Charge) Succeeded() {
	if c.made.Load() {
		c.made.Store(false)
	}
}

// Link is whether a process talks to the store at all. The zero Link does.
type Link struct{ off time.Duration }

// Lose has the process leave the store alone for a while, after an operation
// that failed or took longer than OpTimeout. Processes come back at different
// times.
func (l *Link) Lose(now time.Duration, draw uint64) {
	past, _ := bits.Mul64(draw, uint64(offMost-offLeast)+1)
	l.off = now + offLeast + time.Duration(past)
}

// Up reports whether the process may talk to the store.
func (l *Link) Up(now time.Duration) bool { return now >= l.off }
