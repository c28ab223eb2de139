// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"cmp"
	"math"
	"sync/atomic"
	"time"
)

// Host is what is remembered of a host in trouble: what is missing from its
// budget, the pause it asked for, its breaker and its gate. The zero Host is a
// healthy one. It is safe for concurrent use and must not be copied.
//
// Transport keeps its own. A Host by itself is for asking what a policy would
// do, in a test or a simulation.
type Host struct {
	debt   debt                   // of its budget
	paused atomic.Int64           // instant until which the host asked to be left alone
	guards atomic.Pointer[guards] // nil until a breaker or a gate needs it
	keyed  *atomic.Int64          // gates of keys that all hosts of a table have; nil: this one alone
}

// hostChange is what a decision changed about a host, for those who watch.
type hostChange uint8

const (
	hostPaused hostChange = 1 << iota
	hostOpened
	hostProbed
	hostClosed
	hostEmptied
	hostRefilled
)

// pausedFor returns how long the pause lasts from now, 0 if there is none.
func (h *Host) pausedFor(now time.Duration) time.Duration {
	return max(0, h.pausedUntil()-now)
}

// pausedUntil returns the instant at which the pause of the whole host ends,
// which may be over.
func (h *Host) pausedUntil() time.Duration {
	if until := h.paused.Load(); until != 0 {
		return time.Duration(until)
	}
	return neverPaused
}

// neverPaused is an instant before all others, far enough from the first for
// differences.
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

// Healed reports whether h remembers nothing that holds anyone back, nor any
// failure that its breaker still counts. Transport then forgets it, and with it
// the successes in its breaker's window, which counts anew from the next
// failure on.
func (h *Host) Healed(now time.Duration) bool {
	if h.debt.missing() != 0 || h.pausedFor(now) > 0 {
		return false
	}
	s := h.guards.Load()
	return s == nil || s.healed(now)
}
