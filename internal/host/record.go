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
	Charged bool          // a retry has been charged to the fleet's account, and nothing has succeeded since
	Guards  *Guards       // nil until a breaker or a gate needs it

	routes *[budget.Routes]string // what StopRoute was told of those of Debt; nil until it was told of one

	paused     atomic.Int64  // instant at which the pause ends that the host asked for; 0: it never did
	doubtSince time.Duration // instant of the word that began the doubt about the whole host
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
func (s *Record) StoppedRoutes(r budget.Rule) string {
	var list []string
	for i := range s.Debt.Routes {
		if route := &s.Debt.Routes[i]; route.Told && route.Held(r) > 0 {
			list = append(list, s.routes[i])
		}
	}
	return strings.Join(list, ", ")
}

// Guard returns the guards of s, made on first use. The caller must hold the lock.
func (s *Record) Guard() *Guards {
	if s.Guards == nil {
		s.Guards = &Guards{}
		if s.Guards.Gates.Made = new(atomic.Int64); s.table != nil {
			s.Guards.Gates.Made = &s.table.keyed
		}
	}
	return s.Guards
}

// MakeRoom drops gates of keys that have no state worth keeping, at whichever host, if
// there is no place for another. The caller must not hold the lock.
func (s *Record) MakeRoom(now time.Duration) {
	if s.table == nil {
		s.sweepGates(now)
	} else if s.table.keyed.Load() >= gate.MostKeys {
		s.table.sweepGates(now)
	}
}

// sweepGates drops the gates of keys of s that have no state worth keeping, if there is
// no place for another.
func (s *Record) sweepGates(now time.Duration) {
	s.Lock()
	defer s.Unlock()
	if s.Guards != nil && s.Guards.Gates.Full() {
		s.Guards.Gates.Sweep(now)
	}
}

// PausedUntil returns the instant at which the pause of the whole host ends, which may be
// in the past. It needs no lock.
func (s *Record) PausedUntil() time.Duration {
	if until := s.paused.Load(); until != 0 {
		return time.Duration(until)
	}
	return math.MinInt64
}

// PausedFor returns the rest of the pause at the instant now, or 0. It needs no lock.
func (s *Record) PausedFor(now time.Duration) time.Duration {
	return max(0, span.Sub(s.PausedUntil(), now))
}

// PauseUntil moves the end of the pause forward, never back. The caller must hold the lock.
func (s *Record) PauseUntil(until time.Duration) {
	if paused := s.paused.Load(); paused == 0 || int64(until) > paused {
		s.paused.Store(cmp.Or(int64(until), 1))
	}
}

// proof is what good answers say about the pause of a host.
type proof uint8

const (
	doubt  proof = iota // none has come: the pause may be that of the whole host
	before              // some came before the last word, and after the one before it
	since               // some have come since the last word
)

// Told records at the instant now a word that pauses the host. The caller must hold the
// lock.
func (s *Record) Told(now time.Duration) {
	if s.proof == since && s.PausedFor(now) > 0 {
		s.proof = before
		return
	}
	s.doubtSince, s.proof = now, doubt
}

// Answered records a good answer to an attempt that began at the instant began. The caller
// must hold the lock.
func (s *Record) Answered(began time.Duration) {
	if s.paused.Load() != 0 && began >= s.doubtSince {
		s.proof = since
	}
}

// DoubtedFor returns how much longer the pause holds back requests to which the host has
// not named a wait: not at all while it also gives good answers. The caller must hold the
// lock.
func (s *Record) DoubtedFor(now time.Duration) time.Duration {
	if s.proof != doubt {
		return 0
	}
	return s.PausedFor(now)
}

// Healed reports whether s holds back no request, its breaker counts no failure, and
// nothing else in s is worth keeping.
func (s *Record) Healed(now time.Duration) bool {
	s.Lock()
	defer s.Unlock()
	return s.healed(now)
}

func (s *Record) healed(now time.Duration) bool { return s.PausedFor(now) == 0 && s.Whole(now) }

// Whole reports whether s has healed but for its pause. The caller must hold the lock.
func (s *Record) Whole(now time.Duration) bool {
	return s.Debt.Clear() && (s.Guards == nil || s.Guards.Breaker.Healed(now) && s.Guards.Gates.Idle(now))
}

// binding reports whether forgetting s would let requests through that it holds back now.
func (s *Record) binding(now time.Duration) bool {
	return s.PausedFor(now) > 0 || s.Guards != nil && (s.Guards.Breaker.Binding(now) || s.Guards.Gates.Binding(now))
}

// Woken returns the Who of a request that waits at a gate and must ask again now, or
// nil if there is none.
func (s *Record) Woken() any {
	s.Lock()
	defer s.Unlock()
	if s.Guards == nil {
		return nil
	}
	return s.Guards.Gates.NextWoken()
}
