// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"iter"
	"strings"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/span"
)

// Table are the gates of one host: its own, and one for each key that the
// host has refused, or has made wait with all others. Their owner must lock them.
type Table struct {
	own   gate
	keyed map[string]*gate
	Made  *atomic.Int64 // number of keyed gates of all hosts that share the bound; set before any use with a key
	epoch uint32        // the newest epoch of all gates: no two pauses have the same
	woken []any         // Who of the requests that must ask again
}

// MostKeys is the maximum number of gates of keys for all hosts of a
// Transport together. Further keys share the gate of their host.
const MostKeys = 4096

// of returns the gate of c, or nil if there is none yet.
func (s *Table) of(c *Ticket, key string, now time.Duration) *gate {
	g := c.gate
	if g == nil || g.dropped {
		if g = s.find(key); g == nil {
			return nil
		}
		// The number belonged to another gate.
		c.gate, c.number, c.Out, c.Waited = g, 0, false, false
	}
	if g.begun && g.idle(now) {
		// Requests that the gate has released may come back, so it must not
		// give their numbers again.
		*g = gate{queue: queue{last: g.queue.last}}
	}
	return g
}

// made is of, but makes the gate if there is none yet.
func (s *Table) made(c *Ticket, key string, now time.Duration) *gate {
	if (c.gate == nil || c.gate.dropped) && s.find(key) == nil {
		if s.keyed == nil {
			s.keyed = map[string]*gate{}
		}
		// Other hosts may add gates concurrently: a few too many do no harm.
		s.Made.Add(1)
		s.keyed[strings.Clone(key)] = &gate{} // it may be part of something longer
	}
	return s.of(c, key, now)
}

// find returns the gate of key, or nil if there is none but could be one.
func (s *Table) find(key string) *gate {
	if g := s.keyed[key]; g != nil {
		return g
	}
	if key == "" || s.Full() {
		return &s.own
	}
	return nil
}

// Full reports whether keys without a gate must share that of their host. It needs
// no lock.
func (s *Table) Full() bool { return s.Made.Load() >= MostKeys }

// Sweep drops the keyed gates that have no state worth keeping.
func (s *Table) Sweep(now time.Duration) {
	for key, g := range s.keyed {
		if g.idle(now) {
			s.drop(key, g)
		}
	}
}

// Clear drops all keyed gates.
func (s *Table) Clear() {
	for key, g := range s.keyed {
		s.drop(key, g)
	}
}

func (s *Table) drop(key string, g *gate) {
	g.dropped = true
	delete(s.keyed, key)
	s.Made.Add(-1)
}

// Trim drops gates of keys that have no state worth keeping, until it meets one that
// has: Idle then has less to do.
func (s *Table) Trim(now time.Duration) {
	for key, g := range s.keyed {
		if !g.idle(now) {
			return
		}
		s.drop(key, g)
	}
}

// Idle reports whether no gate has state worth keeping.
func (s *Table) Idle(now time.Duration) bool {
	for g := range s.all() {
		if !g.idle(now) {
			return false
		}
	}
	return true
}

// IdleFor reports whether neither the gate of key nor that of the host has state worth
// keeping.
func (s *Table) IdleFor(key string, now time.Duration) bool {
	g := s.keyed[key]
	return (g == nil || g.idle(now)) && s.own.idle(now)
}

// Binding reports whether forgetting s would let requests through that it holds back
// now.
func (s *Table) Binding(now time.Duration) bool {
	for g := range s.all() {
		if g.queue.len() > 0 || g.begun && g.closedUntil > now {
			return true
		}
	}
	return false
}

// Waiting returns how many requests wait, and how much longer a gate stays closed.
func (s *Table) Waiting(now time.Duration) (waiting int, closed time.Duration) {
	for g := range s.all() {
		waiting += g.queue.len()
		if g.begun {
			closed = max(closed, span.Sub(g.closedUntil, now))
		}
	}
	return waiting, closed
}

// all yields every gate.
func (s *Table) all() iter.Seq[*gate] {
	return func(yield func(*gate) bool) {
		for _, g := range s.keyed {
			if !yield(g) {
				return
			}
		}
		yield(&s.own)
	}
}

// wakeNext makes sure that the next call at g asks in time: it wakes the call
// unless the call was last told to ask by that time. It reports whether any
// call must be woken.
func (s *Table) wakeNext(g *gate, pausedUntil time.Duration) bool {
	if w := g.queue.front(g.probe == probeDue); w != nil {
		if at := g.ready(pausedUntil); w.number != g.asker || at < g.asksAt {
			g.asker, g.asksAt = w.number, at
			if w.who != nil {
				s.woken = append(s.woken, w.who)
			}
		}
	}
	return len(s.woken) > 0
}

// dismiss removes the calls from g's queue that would miss their deadlines or
// that don't wait that long. It wakes them, so that they learn about it.
func (s *Table) dismiss(g *gate, now, pausedUntil time.Duration) {
	g.queue.keep(func(w *waiter, ahead int) bool {
		if g.mustNotWait(w, ahead, now, pausedUntil) == 0 {
			return true
		}
		if w.who != nil {
			s.woken = append(s.woken, w.who)
		}
		return false
	})
}

// Admit asks for a release of c at the instant now, from a host that is paused
// until pausedUntil, which may be in the past.
func (s *Table) Admit(c *Ticket, q *Request, now, pausedUntil time.Duration, draw uint64) Answer {
	g := s.of(c, q.Key, now)
	if pausedUntil > now {
		g = s.made(c, q.Key, now)
	}
	if g == nil {
		return Answer{}
	}
	if !g.begun && pausedUntil > now {
		// The server paused the host for another key, or for requests whose
		// policy has no gate. The calls that wait for the end of the pause
		// must not all go at that instant.
		s.epoch++
		left := span.Sub(pausedUntil, now)
		g.begin(left, now)
		g.close(left, now, s.epoch, draw)
		g.retryAfterUntil = pausedUntil
	}
	d := g.admit(c, q, now, pausedUntil)
	if d.Refusal != 0 {
		g.leave(c)
	}
	d.Wakes = s.wakeNext(g, pausedUntil)
	return d
}

// Refuse records that the server refused c with a Retry-After, or 0 if it named none.
// It reports whether requests must wait for longer than the server had said before, if only until
// the gate opens by its own rule, and whether any call must be woken.
func (s *Table) Refuse(c *Ticket, key string, retryAfter, now, pausedUntil time.Duration, draw uint64) (longer, wakes bool) {
	g := s.made(c, key, now)
	before := g.retryAfterUntil
	if !g.begun {
		before = now
	}
	if g.refuse(c, retryAfter, now, s.epoch+1, draw) {
		s.dismiss(g, now, pausedUntil)
	}
	s.epoch = max(s.epoch, g.epoch)
	return g.retryAfterUntil > before, s.wakeNext(g, pausedUntil)
}

// Pass records any other outcome of c: that the server accepted it, or nothing that the
// gate can learn from. It reports whether any call must be woken.
func (s *Table) Pass(c *Ticket, key string, accepted bool, now, pausedUntil time.Duration) (wakes bool) {
	g := s.of(c, key, now)
	if g == nil {
		return false
	}
	if accepted {
		g.accept(c, now)
	} else {
		g.leave(c)
	}
	return s.wakeNext(g, pausedUntil)
}

// Leave gives up what c has at its gate, which it must have been at, and reports whether
// any call must be woken.
func (s *Table) Leave(c *Ticket, pausedUntil time.Duration) (wakes bool) {
	c.gate.leave(c)
	return s.wakeNext(c.gate, pausedUntil)
}

// Outlook returns how long the pause and the pace of its gate would make c
// wait, and why c must not wait there.
func (s *Table) Outlook(c *Ticket, q *Request, now, pausedUntil time.Duration) (time.Duration, Refusal) {
	g := s.of(c, q.Key, now)
	if g == nil || !g.begun {
		return 0, 0
	}
	w := waiter{until: q.until(g.took), patience: q.Patience}
	var ahead int
	if c.number != 0 {
		ahead = g.queue.ahead(c.number)
	} else {
		ahead = g.queue.len()
	}
	return max(0, span.Sub(g.opens(pausedUntil), now)), g.mustNotWait(&w, ahead, now, pausedUntil)
}

// NextWoken returns the Who of a request that must ask again now, or nil if
// there is none.
func (s *Table) NextWoken() any {
	n := len(s.woken)
	if n == 0 {
		return nil
	}
	who := s.woken[n-1]
	s.woken[n-1] = nil
	s.woken = s.woken[:n-1]
	return who
}
