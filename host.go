// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"
)

// Host is what is remembered of a host in trouble: the tokens missing from its
// budget, the pause it asked for, its breaker and its gate. The zero Host is a
// healthy one. It is safe for concurrent use and must not be copied.
//
// Transport keeps its own. A Host by itself is for asking what a policy would
// do, in a test or a simulation.
type Host struct {
	missing atomic.Int64             // micro-tokens
	paused  atomic.Int64             // instant until which the host asked to be left alone
	more    atomic.Pointer[hostSide] // nil until a breaker or a gate needs it
	keyed   *atomic.Int64            // gates of keys that all hosts of a table have; nil: this one alone
}

// hostSide is the state that few hosts need. Its lock is never held across a
// wait or an attempt.
type hostSide struct {
	mu      sync.Mutex
	breaker breaker
	gates   gates
}

// hostChange is what a decision changed about a host, for those who watch.
type hostChange uint8

const (
	hostPaused hostChange = 1 << iota
	hostOpened
	hostProbed
	hostClosed
)

// side returns the rarely needed state, made on first use.
func (h *Host) side() *hostSide {
	if s := h.more.Load(); s != nil {
		return s
	}
	h.more.CompareAndSwap(nil, &hostSide{gates: gates{made: cmp.Or(h.keyed, new(atomic.Int64))}})
	return h.more.Load()
}

// pausedFor returns how long the pause lasts from now, 0 if there is none.
func (h *Host) pausedFor(now time.Duration) time.Duration {
	return max(0, time.Duration(h.paused.Load())-now)
}

// pauseUntil moves the end of the pause forward, never back, and reports
// whether it moved.
func (h *Host) pauseUntil(until time.Duration) bool {
	for {
		paused := h.paused.Load()
		if int64(until) <= paused {
			return false
		}
		if h.paused.CompareAndSwap(paused, int64(until)) {
			return true
		}
	}
}

// Healed reports whether h remembers nothing that holds anyone back, nor any
// failure that its breaker still counts. Transport then forgets it, and with it the successes in its breaker's window, which
// counts anew from the next failure on.
func (h *Host) Healed(now time.Duration) bool {
	if h.missing.Load() != 0 || h.pausedFor(now) > 0 {
		return false
	}
	s := h.more.Load()
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.breaker.healed(now) && s.gates.idle(now)
}

// State describes h under the rules r at the instant now. Its Host and Policy
// are empty.
func (h *Host) State(r *Rules, now time.Duration) HostState {
	s := HostState{PausedFor: h.pausedFor(now), Breaker: breakerNames[breakerClosed]}
	if r.size > 0 {
		s.Tokens = max(0, float64(r.size-h.missing.Load())/microToken)
		s.Size = float64(r.size) / microToken
	}
	if side := h.more.Load(); side != nil {
		side.mu.Lock()
		defer side.mu.Unlock()
		// One that was switched off meanwhile holds nobody back.
		if b := &side.breaker; r.breaker && b.state != breakerClosed {
			s.Breaker = breakerNames[b.state]
			s.OpenFor = max(0, b.until-now)
		}
		side.gates.any(func(g *gate) bool {
			s.Waiting += g.queue.len()
			s.PausedFor = max(s.PausedFor, g.closed-now)
			return false
		})
	}
	return s
}

// HostState tells why nothing is retried to a host, or why it is left alone.
type HostState struct {
	Host      string        // host:port
	Policy    string        // the pattern in Transport.Hosts that it follows, or "default"
	Tokens    float64       // left in its budget
	Size      float64       // of its budget; 0 is unlimited
	PausedFor time.Duration // how long retries to it, and new requests of at least one key at its gate, are held back from now
	Breaker   string        // "closed", "open" or "half-open"
	OpenFor   time.Duration // how long until the breaker's next probe may go
	Waiting   int           // requests that wait at its gate, those of all keys together
}
