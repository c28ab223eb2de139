// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"cmp"
	"math"
	"sync/atomic"
	"time"
)

// Host is the state of a host in trouble: the tokens missing from its budget,
// the pause it asked for, its breaker and its gates. The zero Host is a host
// without trouble. A Host is safe for concurrent use and must not be copied.
//
// Transport keeps Hosts of its own. Programs use a Host directly to find out
// what a policy would do, in a test or a simulation.
type Host struct {
	debt   debt                   // what is missing from its budget
	paused atomic.Int64           // instant at which the pause ends that the host asked for
	guards atomic.Pointer[guards] // nil until a breaker or a gate needs it
	keyed  *atomic.Int64          // number of keyed gates of all hosts of a table; nil: counts this host alone
}

// hostChange is what a decision changed about a host, for hooks and logs.
type hostChange uint8

const (
	hostPaused hostChange = 1 << iota
	hostOpened
	hostProbed
	hostClosed
	hostEmptied
	hostRefilled
)

// undemanding reports whether h has never held back any request, nor counted
// failures for a breaker.
func (h *Host) undemanding() bool { return h.paused.Load() == 0 && h.guards.Load() == nil }

// pausedFor returns the rest of the pause at the instant now, or 0.
func (h *Host) pausedFor(now time.Duration) time.Duration {
	return max(0, h.pausedUntil()-now)
}

// pausedUntil returns the instant at which the pause of the whole host ends,
// which may be in the past.
func (h *Host) pausedUntil() time.Duration {
	if until := h.paused.Load(); until != 0 {
		return time.Duration(until)
	}
	return neverPaused
}

// neverPaused is an instant before all others, small enough to sort first and
// large enough for differences not to overflow.
const neverPaused = time.Duration(math.MinInt64 / 2)

// pauseUntil moves the end of the pause forward, never back, and reports
// whether it moved.
func (h *Host) pauseUntil(until time.Duration) bool {
	for {
		paused := h.paused.Load()
		if paused != 0 && int64(until) <= paused {
			return false
		}
		if h.paused.CompareAndSwap(paused, cmp.Or(int64(until), 1)) {
			return true
		}
	}
}

// Healed reports whether h holds back no request and its breaker counts no
// failure. Transport then forgets h, including the successes in the breaker's
// window. The breaker starts counting again at the next failure.
func (h *Host) Healed(now time.Duration) bool {
	if h.debt.missing() != 0 || h.pausedFor(now) > 0 {
		return false
	}
	s := h.guards.Load()
	return s == nil || s.healed(now)
}
