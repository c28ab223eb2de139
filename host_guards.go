// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"cmp"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// guards are the breaker and the gates of a host, which few hosts need. They
// have the rules; Host locks and delegates. The lock is never held across a
// wait or an attempt.
type guards struct {
	mu      sync.Mutex
	breaker breaker
	gates   gates
}

// guard returns h's guards, made on first use.
func (h *Host) guard() *guards {
	if s := h.guards.Load(); s != nil {
		return s
	}
	h.guards.CompareAndSwap(nil, &guards{gates: gates{made: cmp.Or(h.keyed, new(atomic.Int64))}})
	return h.guards.Load()
}

// healed reports whether s says nothing any more.
func (s *guards) healed(now time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.breaker.healed(now) && s.gates.idle(now)
}

// binding reports whether forgetting s would let requests go that are held back
// now.
func (s *guards) binding(now time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.breaker.binding(now) || s.gates.any(func(g *gate) bool { return g.binding(now) })
}

// keyedGates returns how many gates of keys there are.
func (s *guards) keyedGates() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.gates.keyed)
}

// throughBreaker asks the breaker for an attempt at the instant now.
func (h *Host) throughBreaker(r *Rules, c *Call, now time.Duration, draw uint64) Decision {
	s := h.guards.Load()
	if !r.breaker || s == nil {
		return Decision{Retry: true}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.breaker.admit(&r.policy.Breaker, c, now, draw)
}

// breakerRefuses reports whether the breaker, as it stands, will let no attempt
// through at the instant at.
func (h *Host) breakerRefuses(at time.Duration) bool {
	s := h.guard()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.breaker.refuses(at)
}

// recordResult tells the breaker how an attempt ended.
func (h *Host) recordResult(r *Rules, c *Call, failed bool, now time.Duration, draw uint64) hostChange {
	if !failed && h.guards.Load() == nil {
		return 0
	}
	s := h.guard()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.breaker.record(&r.policy.Breaker, c, failed, now, draw)
}

// endRun tells the breaker, if there is one, of a success of a request that
// doesn't follow it.
func (h *Host) endRun() {
	if s := h.guards.Load(); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.breaker.endRun()
	}
}

// returnProbe gives up a probe of the breaker that said nothing.
func (h *Host) returnProbe(c *Call) {
	s := h.guard()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.breaker.returnProbe(c)
}

// throughGate asks the gate of c for a release at the instant now.
func (h *Host) throughGate(r *Rules, c *Call, now time.Duration, draw uint64) Decision {
	paused := h.pausedUntil()
	s := h.guards.Load()
	if s == nil {
		if paused <= now {
			return Decision{Retry: true}
		}
		s = h.guard()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gates.admit(&r.policy, c, now, paused, draw)
}

// atGate takes in what the outcome of an attempt says about the gate of c.
// refused says that a gate takes it for a refusal. It reports whether the host or its key was told to wait, and whether anyone is
// to be woken.
func (h *Host) atGate(c *Call, o Outcome, failed, refused bool, now time.Duration, draw uint64) (told, wakes bool) {
	s := h.guards.Load()
	if s == nil {
		if !refused {
			return false, false
		}
		s = h.guard()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch paused := h.pausedUntil(); {
	case refused:
		return s.gates.refuse(c, o.RetryAfter, now, paused, draw)
	case failed || o.Status == http.StatusTooManyRequests || o.Status == 0:
		// One that the policy doesn't retry is refused all the same, but by
		// what it was asked nobody knows.
		return false, s.gates.pass(c, now, paused)
	default:
		return false, s.gates.accept(c, now, paused)
	}
}

// leaveGate takes back what c has at its gate, and reports whether anyone is to
// be woken.
func (h *Host) leaveGate(c *Call) bool {
	s := h.guard()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gates.leave(c, h.pausedUntil())
}

// outlook returns how long c would have to wait at its gate for pause and pace,
// and why it is not to, if it isn't.
func (h *Host) outlook(r *Rules, c *Call, now time.Duration) (time.Duration, Reason) {
	s := h.guards.Load()
	if s == nil {
		return 0, ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gates.outlook(&r.policy, c, now, h.pausedUntil())
}

// Woken returns the Waiter of a call that waits at h's gate and must ask again
// now, or nil if there is none. Whoever gets a Decision with Wakes, or true from
// Return, must call it until it returns nil, and see to it that these calls ask.
func (h *Host) Woken() any {
	s := h.guards.Load()
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gates.nextWoken()
}
