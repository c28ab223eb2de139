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

	"github.com/retrip/retrip/internal/budget"
)

// Record is what is known of a host in trouble. The zero Record is that of a host
// without trouble. It is safe for concurrent use and must not be copied.
type Record struct {
	Debt   budget.Debt            // what is missing from its budget
	paused atomic.Int64           // instant at which the pause ends that the host asked for
	guards atomic.Pointer[guards] // nil until a breaker or a gate needs it
	keyed  *atomic.Int64          // number of keyed gates of all hosts of a table; nil: counts this host alone
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
	return max(0, s.pausedUntil()-now)
}

// pausedUntil returns the instant at which the pause of the whole host ends,
// which may be in the past.
func (s *Record) pausedUntil() time.Duration {
	if until := s.paused.Load(); until != 0 {
		return time.Duration(until)
	}
	return neverPaused
}

// neverPaused is an instant before all others, small enough to sort first and
// large enough for differences not to overflow.
const neverPaused = time.Duration(math.MinInt64 / 2)

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
func (s *Record) Healed(now time.Duration) bool {
	if s.Debt.Missing() != 0 || s.PausedFor(now) > 0 {
		return false
	}
	guards := s.guards.Load()
	return guards == nil || guards.healed(now)
}
