// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/gate"
)

// guards are the breaker and the gates of a host, which few hosts need. Packages
// breaker and gate have the rules; Record locks and delegates. No goroutine holds
// the lock during a wait or an attempt.
type guards struct {
	mu      sync.Mutex
	breaker breaker.Breaker
	gates   gate.Table
}

// guard returns s's guards, made on first use.
func (s *Record) guard() *guards {
	if g := s.guards.Load(); g != nil {
		return g
	}
	made := new(atomic.Int64)
	if s.table != nil {
		made = &s.table.keyed
	}
	s.guards.CompareAndSwap(nil, &guards{gates: gate.Table{Made: made}})
	return s.guards.Load()
}

// makeRoom drops gates of keys that have no state worth keeping, at whichever host,
// if there is no place for the gate of another key.
func (s *Record) makeRoom(g *guards, key string, now time.Duration) {
	switch {
	case key == "" || !g.gates.Full():
	case s.table != nil:
		s.table.sweepGates(now)
	default:
		g.sweep(now)
	}
}

func (g *guards) sweep(now time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gates.Sweep(now)
}

// healed reports whether g has no state worth keeping.
func (g *guards) healed(now time.Duration, idle func(*gate.Table, time.Duration) bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.breaker.Healed(now) && idle(&g.gates, now)
}

// binding reports whether forgetting g would let requests through that it holds
// back now.
func (g *guards) binding(now time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.breaker.Binding(now) || g.gates.Binding(now)
}

// clear drops the gates of keys.
func (g *guards) clear() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gates.Clear()
}

// Troubles is what an operator wants to know of the guards of a host.
type Troubles struct {
	Breaker breaker.State
	OpenFor time.Duration // time until the breaker allows the next probe
	Waiting int           // requests at the gates
	Closed  time.Duration // how much longer a gate stays closed
}

// Troubles describes the guards of s.
func (s *Record) Troubles(now time.Duration) (t Troubles) {
	g := s.guards.Load()
	if g == nil {
		return t
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	t.Breaker, t.OpenFor = g.breaker.Trouble(now)
	g.gates.Look(now, func(waiting int, closed time.Duration) {
		t.Waiting += waiting
		t.Closed = max(t.Closed, closed)
	})
	return t
}

// breakerChanges maps a change of the breaker to that of its host.
var breakerChanges = [...]Change{breaker.Same: 0, breaker.Opened: Opened, breaker.Probing: Probed, breaker.Shut: Closed}

// ThroughBreaker asks the breaker for an attempt at the instant now.
func (s *Record) ThroughBreaker(rule *breaker.Rule, p *breaker.Pass, now time.Duration, draw uint64) (allowed bool, change Change) {
	g := s.guards.Load()
	if g == nil {
		return true, 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	allowed, changed := g.breaker.Admit(rule, p, now, draw)
	return allowed, breakerChanges[changed]
}

// BreakerRefuses reports whether the breaker, in its current state, allows no
// attempt at the instant at.
func (s *Record) BreakerRefuses(at time.Duration) bool {
	g := s.guard()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.breaker.Refuses(at)
}

// RecordResult tells the breaker how an attempt ended.
func (s *Record) RecordResult(rule *breaker.Rule, p *breaker.Pass, failed bool, now time.Duration, draw uint64) Change {
	if !failed && s.guards.Load() == nil {
		return 0
	}
	g := s.guard()
	g.mu.Lock()
	defer g.mu.Unlock()
	return breakerChanges[g.breaker.Record(rule, p, failed, now, draw)]
}

// EndRun tells the breaker, if there is one, about a success of a request that
// doesn't follow it.
func (s *Record) EndRun() {
	if g := s.guards.Load(); g != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.breaker.EndRun()
	}
}

// ReturnProbe frees the place of a probe that had no result.
func (s *Record) ReturnProbe(p *breaker.Pass) {
	g := s.guard()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.breaker.ReturnProbe(p)
}

// ThroughGate asks the gate of a request to release it at the instant now.
func (s *Record) ThroughGate(t *gate.Ticket, q *gate.Request, now time.Duration, draw uint64) gate.Answer {
	paused := s.pausedUntil()
	g := s.guards.Load()
	if g == nil {
		if paused <= now {
			return gate.Answer{}
		}
		g = s.guard()
	}
	s.makeRoom(g, q.Key, now)
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gates.Admit(t, q, now, paused, draw)
}

// RefusedAt tells the gate of a request that the server refused it and asked for the
// wait word, or named none. It reports whether the server told the host or its key to
// wait, and whether any request must be woken.
func (s *Record) RefusedAt(t *gate.Ticket, key string, word, now time.Duration, draw uint64) (told, wakes bool) {
	g := s.guard()
	s.makeRoom(g, key, now)
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gates.Refuse(t, key, word, now, s.pausedUntil(), draw)
}

// PassedAt tells the gate of a request about any other outcome: that the server
// accepted it, or nothing that the gate can learn from. It reports whether any request
// must be woken.
func (s *Record) PassedAt(t *gate.Ticket, key string, accepted bool, now time.Duration) (wakes bool) {
	g := s.guards.Load()
	if g == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if accepted {
		return g.gates.Accept(t, key, now, s.pausedUntil())
	}
	return g.gates.Pass(t, key, now, s.pausedUntil())
}

// LeaveGate gives up what a request has at its gate, and reports whether any request
// must be woken.
func (s *Record) LeaveGate(t *gate.Ticket) (wakes bool) {
	g := s.guard()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gates.Leave(t, s.pausedUntil())
}

// GateRests reports whether the gate of a request, and that of the host, have nothing
// to apply.
func (s *Record) GateRests(key string, now time.Duration) bool {
	g := s.guards.Load()
	if g == nil {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gates.RestsFor(key, now)
}

// Outlook returns how long the pause and the pace of its gate would make a request
// wait, and why it must not wait there.
func (s *Record) Outlook(t *gate.Ticket, q *gate.Request, now time.Duration) (time.Duration, gate.Refusal) {
	g := s.guards.Load()
	if g == nil {
		return 0, 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gates.Outlook(t, q, now, s.pausedUntil())
}

// Woken returns the Who of a request that waits at a gate and must ask again now, or
// nil if there is none.
func (s *Record) Woken() any {
	g := s.guards.Load()
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gates.NextWoken()
}
