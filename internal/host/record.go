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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/gate"
	"github.com/retrip/retrip/internal/span"
)

// Record is what is known of a host in trouble. The zero Record is that of a host
// without trouble. It must not be copied.
//
// Its lock guards all fields but table, and makes each decision one step; paused may be
// read without it. No goroutine holds the lock during a wait or an attempt.
type Record struct {
	sync.Mutex
	Debt    budget.Debt   // what is missing from its budget
	Full    time.Duration // instant at which no token was missing for the last time
	Proven  bool          // something has succeeded since then
	Charged bool          // a retry has been charged to the fleet's account, and nothing has succeeded since
	Kept    uint          // first attempts without a retry since a connection was last closed, or a success while others have retries
	Closed  time.Duration // instant of that; 0: it never was
	Guards  *Guards       // nil until a breaker or a gate needs it

	routes *[budget.Routes]string // what StopRoute was told of those of Debt; nil until it was told of one

	paused     atomic.Int64  // instant at which the pause ends that the host asked for; 0: it never did
	doubtSince time.Duration // instant of the last word that left the whole host in doubt
	proof      proof         // what good answers say about the pause
	table      *Table        // counts the gates of keys of all its hosts; nil: this host counts its own
}

// Guards are the breaker and the gates of a host, which few hosts need.
type Guards struct {
	Breaker breaker.Breaker
	Gates   gate.Table
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

// BreakerChanges maps a change of the breaker to that of its host.
var BreakerChanges = [...]Change{breaker.Same: 0, breaker.Opened: Opened, breaker.Probing: Probed, breaker.Shut: Closed}

// StoppedRoutes returns the routes whose retries wait for successes, of those that StopRoute
// knows. The caller must hold the lock.
func (h *Record) StoppedRoutes(r budget.Rule) string {
	var list []string
	for i := range h.Debt.Routes {
		if route := &h.Debt.Routes[i]; route.Told && route.WaitsFor(r) > 0 {
			list = append(list, h.routes[i])
		}
	}
	return strings.Join(list, ", ")
}

// Guard returns the guards of h, made on first use. The caller must hold the lock.
func (h *Record) Guard() *Guards {
	if h.Guards == nil {
		h.Guards = &Guards{}
		if h.Guards.Gates.Made = new(atomic.Int64); h.table != nil {
			h.Guards.Gates.Made = &h.table.keyed
		}
	}
	return h.Guards
}

// MakeRoom drops gates of keys that have no state worth keeping, at whichever host, if
// there is no place for another. The caller must not hold the lock.
func (h *Record) MakeRoom(now time.Duration) {
	if h.table == nil {
		h.sweepGates(now)
	} else if h.table.keyed.Load() >= gate.MostKeys {
		h.table.sweepGates(now)
	}
}

// sweepGates drops the gates of keys of h that have no state worth keeping, if there is
// no place for another.
func (h *Record) sweepGates(now time.Duration) {
	h.Lock()
	defer h.Unlock()
	if h.Guards != nil && h.Guards.Gates.Full() {
		h.Guards.Gates.Sweep(now)
	}
}

// PausedUntil returns the instant at which the pause of the whole host ends, which may be
// in the past. It needs no lock.
func (h *Record) PausedUntil() time.Duration {
	if until := h.paused.Load(); until != 0 {
		return time.Duration(until)
	}
	return math.MinInt64
}

// PausedFor returns the rest of the pause at the instant now, or 0. It needs no lock.
func (h *Record) PausedFor(now time.Duration) time.Duration {
	return max(0, span.Sub(h.PausedUntil(), now))
}

// PauseUntil moves the end of the pause forward, never back. The caller must hold the lock.
func (h *Record) PauseUntil(until time.Duration) {
	if paused := h.paused.Load(); paused == 0 || int64(until) > paused {
		h.paused.Store(cmp.Or(int64(until), 1))
	}
}

// proof is what good answers say about the pause of a host (stories/pause_lifted.txt).
type proof uint8

const (
	doubt  proof = iota // none has come: the pause may be that of the whole host
	before              // some came before the last word, and after the one before it
	since               // some have come since the last word
)

// RecordRetryAfter records at the instant now a word that pauses the host. The caller must hold the
// lock.
func (h *Record) RecordRetryAfter(now time.Duration) {
	if h.proof == since && h.PausedFor(now) > 0 {
		h.proof = before
		return
	}
	h.doubtSince, h.proof = now, doubt
}

// RecordAnswer records a good answer to an attempt that began at the instant began. The caller
// must hold the lock.
func (h *Record) RecordAnswer(began time.Duration) {
	if h.paused.Load() != 0 && began >= h.doubtSince {
		h.proof = since
	}
}

// DoubtedFor returns how much longer the pause holds back requests that have been told no wait,
// or have waited for as long as they were told: not at all while the host also gives good
// answers. The caller must hold the lock.
func (h *Record) DoubtedFor(now time.Duration) time.Duration {
	if h.proof != doubt {
		return 0
	}
	return h.PausedFor(now)
}

// Healed reports whether h holds back no request, its breaker counts no failure, and
// nothing else in h is worth keeping.
func (h *Record) Healed(now time.Duration) bool {
	h.Lock()
	defer h.Unlock()
	return h.healed(now)
}

func (h *Record) healed(now time.Duration) bool { return h.PausedFor(now) == 0 && h.Whole(now) }

// Whole reports whether h has healed but for its pause. The caller must hold the lock.
func (h *Record) Whole(now time.Duration) bool {
	return h.Debt.Clear() && (h.Guards == nil || h.Guards.Breaker.Healed(now) && h.Guards.Gates.Idle(now))
}

// binding reports whether forgetting h would let requests through that it holds back now.
func (h *Record) binding(now time.Duration) bool {
	return h.PausedFor(now) > 0 || h.Guards != nil && (h.Guards.Breaker.Binding(now) || h.Guards.Gates.Binding(now))
}

// NextWoken returns the Who of a request that waits at a gate and must ask again now, or
// nil if there is none.
func (h *Record) NextWoken() any {
	h.Lock()
	defer h.Unlock()
	if h.Guards == nil {
		return nil
	}
	return h.Guards.Gates.NextWoken()
}
