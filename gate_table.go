// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"net/http"
	"sync/atomic"
	"time"
)

// gates are those of one host: its own, and one for each Call.Gate that it has
// refused. Its owner locks.
type gates struct {
	own   gate
	keyed map[string]*gate
	made  *atomic.Int64 // keyed ones of all hosts that share the bound
	epoch uint32        // the newest of all gates: no two pauses have the same
	woken []any         // Call.Waiter of those who must ask again
}

// maxKeyedGates is how many gates of keys the hosts of a Transport have
// together. Keys for which there is no room share the gate of their host.
const maxKeyedGates = 4096

// of returns the gate of c. If there is none yet, it makes one or returns nil,
// as told.
func (s *gates) of(c *Call, now time.Duration, create bool) *gate {
	g := c.gate
	if g == nil || g.dropped {
		if g = s.find(c.Gate, now, create); g == nil {
			return nil
		}
		// The number was one of another gate's.
		c.gate, c.number, c.out, c.held = g, 0, false, false
	}
	if g.shut && g.idle(now) {
		// Requests that it has released may come back: their numbers must not
		// be given again.
		*g = gate{queue: gateQueue{last: g.queue.last}}
	}
	return g
}

func (s *gates) find(key string, now time.Duration, create bool) *gate {
	if key == "" {
		return &s.own
	}
	if g := s.keyed[key]; g != nil {
		return g
	}
	if s.made.Load() >= maxKeyedGates {
		if s.sweep(now); s.made.Load() >= maxKeyedGates {
			return &s.own
		}
	}
	if !create {
		return nil
	}
	if s.keyed == nil {
		s.keyed = map[string]*gate{}
	}
	// Other hosts may be counting too: a few too many do no harm.
	s.made.Add(1)
	g := &gate{}
	s.keyed[key] = g
	return g
}

// sweep drops the keyed gates that say nothing any more.
func (s *gates) sweep(now time.Duration) {
	for key, g := range s.keyed {
		if g.idle(now) {
			s.drop(key, g)
		}
	}
}

func (s *gates) drop(key string, g *gate) {
	g.dropped = true
	delete(s.keyed, key)
	s.made.Add(-1)
}

// idle reports whether no gate says anything any more.
func (s *gates) idle(now time.Duration) bool {
	for key, g := range s.keyed {
		if !g.idle(now) {
			return false
		}
		s.drop(key, g)
	}
	return s.own.idle(now)
}

// any reports whether f holds for any gate.
func (s *gates) any(f func(*gate) bool) bool {
	for _, g := range s.keyed {
		if f(g) {
			return true
		}
	}
	return f(&s.own)
}

// settle sees to it that whoever goes next at g asks in time: it must be woken
// unless it was last told to ask no later than that. It reports whether anyone
// is to be woken.
func (s *gates) settle(g *gate, paused time.Duration) bool {
	if w := g.queue.front(g.probe == probeDue); w != nil {
		if at := g.ready(paused); w.number != g.asker || at < g.askAt {
			g.asker, g.askAt = w.number, at
			if w.who != nil {
				s.woken = append(s.woken, w.who)
			}
		}
	}
	return len(s.woken) > 0
}

// dismiss takes those out of g's queue who can't make their deadlines any more,
// or won't wait so long: they are woken to be told.
func (s *gates) dismiss(g *gate, now, paused time.Duration) {
	g.queue.keep(func(w *gateWaiter, ahead int) bool {
		if g.unfit(w, ahead, now, paused) == "" {
			return true
		}
		if w.who != nil {
			s.woken = append(s.woken, w.who)
		}
		return false
	})
}

// pausedUntil returns the instant at which the pause of the whole host ends,
// which may be over.
func (h *Host) pausedUntil() time.Duration { return time.Duration(h.paused.Load()) }

// throughGate asks for a release at the instant now.
func (h *Host) throughGate(r *Rules, c *Call, now time.Duration, draw uint64) Decision {
	paused := h.pausedUntil()
	s := h.more.Load()
	if s == nil {
		if paused <= now {
			return Decision{Retry: true}
		}
		s = h.side()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gates.of(c, now, paused > now)
	if g == nil {
		return Decision{Retry: true}
	}
	if !g.shut && paused > now {
		// Another key, or requests that follow a policy without a gate, were
		// told. Those who wait for its end must not all go in that instant.
		s.gates.epoch++
		g.begin(paused-now, now)
		g.close(paused-now, now, s.gates.epoch, draw)
		g.told = paused
	}
	d := g.ask(&r.policy, c, now, paused)
	if !d.Retry {
		g.leave(c)
	}
	d.Wakes = s.gates.settle(g, paused)
	return d
}

// atGate takes in what the outcome of an attempt says about the gate of c. It
// reports whether the host or its key was told to wait, and whether anyone is
// to be woken.
func (h *Host) atGate(r *Rules, c *Call, o Outcome, failed bool, now time.Duration, draw uint64) (told, wakes bool) {
	refused := failed && r.refused(o)
	s := h.more.Load()
	if s == nil {
		if !refused {
			return false, false
		}
		s = h.side()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gates.of(c, now, refused)
	if g == nil {
		return false, false
	}
	paused := h.pausedUntil()
	switch {
	case refused:
		before := g.told
		if g.refuse(c, o.RetryAfter, now, s.gates.epoch+1, draw) {
			s.gates.dismiss(g, now, paused)
		}
		s.gates.epoch = max(s.gates.epoch, g.epoch)
		told = g.told > before
	case failed || o.Status == http.StatusTooManyRequests || o.Status == 0:
		// One that the policy doesn't retry is refused all the same, but by
		// what it was asked nobody knows.
		g.leave(c)
	default:
		g.accept(c, now)
	}
	return told, s.gates.settle(g, paused)
}

// leaveGate takes back what c has at its gate, and reports whether anyone is to
// be woken.
func (h *Host) leaveGate(c *Call) bool {
	s := h.side()
	s.mu.Lock()
	defer s.mu.Unlock()
	c.gate.leave(c)
	return s.gates.settle(c.gate, h.pausedUntil())
}

// outlook returns how long c would have to wait at its gate for pause and pace,
// and why it is not to, if it isn't.
func (h *Host) outlook(r *Rules, c *Call, now time.Duration) (time.Duration, Reason) {
	s := h.more.Load()
	if s == nil {
		return 0, ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gates.of(c, now, false)
	if g == nil || !g.shut {
		return 0, ""
	}
	paused := h.pausedUntil()
	w := gateWaiter{until: c.until(g.took), patience: r.policy.MaxWait}
	ahead := 0
	if c.number != 0 {
		ahead = g.queue.ahead(c.number)
	} else {
		ahead = g.queue.len()
	}
	return max(0, g.opens(paused)-now), g.unfit(&w, ahead, now, paused)
}

// Woken returns the Waiter of a call that waits at h's gate and must ask again
// now, or nil if there is none. Whoever gets a Decision with Wakes, or true from
// Return, must call it until it returns nil, and see to it that these calls ask.
func (h *Host) Woken() any {
	s := h.more.Load()
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.gates.woken)
	if n == 0 {
		return nil
	}
	who := s.gates.woken[n-1]
	s.gates.woken[n-1] = nil
	s.gates.woken = s.gates.woken[:n-1]
	return who
}

// refused reports whether o is a refusal that a gate takes for one: what it
// asks for, or its pace, is for all requests to come.
func (r *Rules) refused(o Outcome) bool {
	return o.Status == http.StatusTooManyRequests || o.Status == http.StatusServiceUnavailable && o.RetryAfter > 0
}

// until returns the instant by which an attempt must begin to leave room for
// itself before the deadline, if it takes as long as the last one, or as usual.
func (c *Call) until(usual time.Duration) time.Duration {
	if c.Deadline == 0 {
		return noLimit
	}
	return c.Deadline - max(c.took, usual)
}
