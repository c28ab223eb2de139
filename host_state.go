// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import "time"

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

// State describes h under the rules r at the instant now. Its Host and Policy
// are empty.
func (h *Host) State(r *Rules, now time.Duration) HostState {
	s := HostState{PausedFor: h.pausedFor(now), Breaker: breakerNames[breakerClosed]}
	if r.size > 0 {
		s.Tokens = max(0, float64(r.size-h.missing.Load())/microToken)
		s.Size = float64(r.size) / microToken
	}
	if guards := h.guards.Load(); guards != nil {
		guards.mu.Lock()
		defer guards.mu.Unlock()
		// One that was switched off meanwhile holds nobody back.
		if b := &guards.breaker; r.breaker && b.state != breakerClosed {
			s.Breaker = breakerNames[b.state]
			s.OpenFor = max(0, b.until-now)
		}
		guards.gates.any(func(g *gate) bool {
			s.Waiting += g.queue.len()
			s.PausedFor = max(s.PausedFor, g.closed-now)
			return false
		})
	}
	return s
}
