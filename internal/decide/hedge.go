// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"time"

	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/host"
)

// Hold is what forbids hedges to a host in trouble.
type Hold uint8

const (
	NoHold    Hold = iota
	OfTokens       // half of the tokens are missing, from the budget of the host or from the shared one
	OfPause        // the host has asked for a pause
	OfGate         // the gate of the request has learned of a refusal, and still applies it
	OfBreaker      // the breaker isn't closed
)

// HoldsHedge says what forbids a hedge to h of a request whose gate has the given name.
// A hedge is no retry, so it takes no tokens. But a host whose retries fail can't bear
// hedges, and a host that limits the rate of its requests counts them.
func (r *Rules) HoldsHedge(h *host.Record, gate string, now time.Duration) Hold {
	missing := func(tokens, size float64) bool { return tokens <= size/2 }
	switch s := r.State(h, now); {
	case s.Size > 0 && missing(s.Tokens, s.Size), s.SharedSize > 0 && missing(s.SharedTokens, s.SharedSize):
		return OfTokens
	case h.PausedFor(now) > 0:
		return OfPause
	case s.Breaker != breaker.Closed:
		return OfBreaker
	case r.Gate && !h.GateRests(gate, now):
		return OfGate
	}
	return NoHold
}
