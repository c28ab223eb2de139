// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package host keeps what is known of the hosts in trouble, and of no others: the
// tokens that they lack, their pauses, breakers and gates. It knows no policy, has no
// clock and decides nothing: the rules are in packages budget, breaker and gate, and
// their order is that of package decide.
package host

import (
	"cmp"
	"math"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/account"
	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/gate"
	"github.com/retrip/retrip/internal/span"
)

// Record is what is known of a host in trouble. The zero Record is that of a host
// without trouble. It is safe for concurrent use and must not be copied.
type Record struct {
	Debt   budget.Debt            // what is missing from its budget
	Charge account.Charge         // of the fleet's account
	paused atomic.Int64           // instant at which the pause ends that the host asked for
	guards atomic.Pointer[guards] // nil until a breaker or a gate needs it
	table  *Table                 // counts the gates of keys of all its hosts; nil: this host counts its own
}

// Change is what a decision changed about a host, for hooks and logs.
type Change uint8

const (
	Paused Change = 1 << iota
	Opened
	Probed
	Closed
	Emptied
	Refilled
)

// Undemanding reports whether s has never held back any request, nor counted
// failures for a breaker.
func (s *Record) Undemanding() bool { return s.paused.Load() == 0 && s.guards.Load() == nil }

// PausedFor returns the rest of the pause at the instant now, or 0.
func (s *Record) PausedFor(now time.Duration) time.Duration {
	return max(0, span.Sub(s.pausedUntil(), now))
}

// pausedUntil returns the instant at which the pause of the whole host ends,
// which may be in the past.
func (s *Record) pausedUntil() time.Duration {
	if until := s.paused.Load(); until != 0 {
		return time.Duration(until)
	}
	return neverPaused
}

// neverPaused is an instant before all others.
const neverPaused = time.Duration(math.MinInt64)

// PauseUntil moves the end of the pause forward, never back, and reports
// whether it moved.
func (s *Record) PauseUntil(until time.Duration) bool {
	for {
		paused := s.paused.Load()
		if paused != 0 && int64(until) <= paused {
			return false
		}
		if s.paused.CompareAndSwap(paused, cmp.Or(int64(until), 1)) {
			return true
		}
	}
}

// Healed reports whether s holds back no request and its breaker counts no
// failure.
func (s *Record) Healed(now time.Duration) bool { return s.healed(now, (*gate.Table).Idle) }

// healed is Healed, with what says that no gate has state worth keeping.
func (s *Record) healed(now time.Duration, idle func(*gate.Table, time.Duration) bool) bool {
	if s.Debt.Missing() != 0 || s.PausedFor(now) > 0 {
		return false
	}
	guards := s.guards.Load()
	return guards == nil || guards.healed(now, idle)
}
