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

// guards are the breaker and the gates of a host, which few hosts need. breaker
// and gates implement the rules; Host locks and delegates. No goroutine holds
// the lock during a wait or an attempt.
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

// healed reports whether s has no state worth keeping.
func (s *guards) healed(now time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.breaker.healed(now) && s.gates.idle(now)
}

// binding reports whether forgetting s would let requests through that it holds
// back now.
func (s *guards) binding(now time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.breaker.binding(now) || s.gates.any(func(g *gate) bool { return g.binding(now) })
}

// keyedGates returns the number of gates of keys.
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

// breakerRefuses reports whether the breaker, in its current state, allows no
// attempt at the instant at.
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

// endRun tells the breaker, if there is one, about a success of a request that
// doesn't follow it.
func (h *Host) endRun() {
	if s := h.guards.Load(); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.breaker.endRun()
	}
}

// returnProbe frees the place of a probe that had no result.
func (h *Host) returnProbe(c *Call) {
	s := h.guard()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.breaker.returnProbe(c)
}

// throughGate asks the gate of c to release c at the instant now.
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

// atGate tells the gate of c about the outcome of an attempt. refused says that
// the outcome is a refusal in the eyes of a gate. atGate reports whether the
// server told the host or its key to wait, and whether any call must be woken.
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
		// A 429 that the policy doesn't retry is a refusal too, but not one
		// that the gate can learn from.
		return false, s.gates.pass(c, now, paused)
	default:
		return false, s.gates.accept(c, now, paused)
	}
}

// leaveGate gives up what c has at its gate, and reports whether any call must
// be woken.
func (h *Host) leaveGate(c *Call) bool {
	s := h.guard()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gates.leave(c, h.pausedUntil())
}

// outlook returns how long the pause and the pace of its gate would make c
// wait, and the reason if c must not wait there.
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
// now, or nil if there is none. After a Decision with Wakes, or a Return that
// reports true, the caller must call Woken until it returns nil, and make each
// returned call ask again.
func (h *Host) Woken() any {
	s := h.guards.Load()
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gates.nextWoken()
}
