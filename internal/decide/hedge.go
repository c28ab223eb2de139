// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"time"

	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/gate"
	"github.com/retrip/retrip/internal/host"
)

// Hold is what forbids hedges to a host in trouble.
type Hold uint8

const (
	NoHold    Hold = iota
	OfTokens       // half of the tokens are missing
	OfPause        // the host has asked for a pause
	OfGate         // the gate of the request has learned of a refusal, and still applies it
	OfBreaker      // the breaker isn't closed
)

// HoldsHedge says what forbids a hedge to h of a request whose gate has the given name.
// A hedge is no retry, so it takes no tokens. But a host whose retries fail can't bear
// hedges, and a host that limits the rate of its requests counts them.
func (r *Rules) HoldsHedge(h *host.Record, gate string, now time.Duration) Hold {
	h.Lock()
	defer h.Unlock()
	switch {
	case r.Budget.Size > 0 && 2*h.Debt.Missing >= r.Budget.Size:
		return OfTokens
	case h.PausedFor(now) > 0:
		return OfPause
	case h.Guards == nil:
		return NoHold
	case r.Breaker != nil && h.Guards.Breaker.State != breaker.Closed:
		return OfBreaker
	case r.Gated && !h.Guards.Gates.IdleFor(gate, now):
		return OfGate
	}
	return NoHold
}

// Refused reports whether o is a refusal that holds back requests other than its own.
// Without a gate, that is a 503 with a Retry-After.
func (r *Rules) Refused(o *Outcome) bool {
	return o.throttled() && (r.Gated || r.pauses(o)) && r.Retryable(o)
}

// Obey records the refusal o (see [Rules.Refused]), the outcome of an attempt of c that
// doesn't count: another one beside it does, or may. If o is recorded again, it must be
// Obeyed, so that its word counts as one. Obey reports whether any call waiting at the
// gate must be woken.
func (r *Rules) Obey(h *host.Record, c *Call, o *Outcome, now time.Duration, draw uint64) (change host.Change, wakes bool) {
	c.lock(r, h, now)
	defer h.Unlock()
	change = r.pause(h, o, now)
	if !r.Gated {
		return change, false
	}
	var ticket gate.Ticket // no gate has released the attempt
	longer, wakes := c.refuse(&ticket, h, o, now, draw)
	return change | longer, wakes
}
