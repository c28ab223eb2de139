// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/backoff"
	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/span"
)

// Rules is what a policy amounts to for decisions. Nothing in it is inherited any
// more. It must not change while it is in use.
type Rules struct {
	MaxAttempts int
	MaxWait     time.Duration
	Backoff     backoff.Rule
	Retry       Statuses // to retry
	Unprocessed Statuses // by which the server says that it hasn't processed the request
	Budget      budget.Rule
	Slow        time.Duration // a success that takes longer is slow for the budget; 0: none is
	Breaker     *breaker.Rule // nil: off
	Gated       bool          // it has gates
	others      bool          // see ForOthers
}

// ForOthers returns r for a record that stands for many hosts, which has only a
// budget.
func (r *Rules) ForOthers() *Rules {
	o := *r
	o.Breaker, o.Gated, o.others = nil, false, true
	return &o
}

// Retryable reports whether o is a failure that another attempt may fix.
func (r *Rules) Retryable(o *Outcome) bool {
	switch {
	case o.Canceled || o.Hopeless || o.Verdict == Final:
		return false
	case o.Verdict != ByRule:
		return true
	default:
		return o.Status == 0 || r.Retry.Has(o.Status)
	}
}

// repeatable reports whether a request that ended in o may be repeated without
// unwanted effects.
func (r *Rules) repeatable(o *Outcome) bool {
	return o.Repeatable || o.Verdict >= Unprocessed || r.Unprocessed.Has(o.Status)
}

// pauses reports whether the wait that o names pauses the whole host: it holds back retries of
// all requests or, at a gate, all attempts. That of another refusal applies to one key or
// tenant, and only a gate obeys it for other requests.
func (r *Rules) pauses(o *Outcome) bool {
	return !r.others && (o.Received() == http.StatusServiceUnavailable || o.OfAll && o.throttled())
}

// slow reports whether the success o took long enough to count as slow.
func (r *Rules) slow(o *Outcome) bool { return r.Slow > 0 && o.Took > r.Slow && o.Took < patient }

// LongestWaits returns the sum of the longest waits between the attempts of one
// request, if no server asks for more, not even with a bare 429.
func (r *Rules) LongestWaits() time.Duration {
	var sum, previous time.Duration
	for retry := 1; retry < r.MaxAttempts; retry++ {
		_, hi := r.Backoff.Window(retry, previous)
		if hi == previous {
			// The waits have reached the cap, or there is no backoff: every
			// further wait is the same.
			return span.Add(sum, span.Mul(hi, r.MaxAttempts-retry))
		}
		sum, previous = span.Add(sum, hi), hi
	}
	return sum
}

// Statuses is a set of statuses from 400 to 599.
type Statuses [4]uint64

// Add adds status, which must be 400 to 599.
func (s *Statuses) Add(status int) { s[(status-400)/64] |= 1 << ((status - 400) % 64) }

// Remove removes status, which must be 400 to 599.
func (s *Statuses) Remove(status int) { s[(status-400)/64] &^= 1 << ((status - 400) % 64) }

// Has reports whether s holds status, which may be any number.
func (s *Statuses) Has(status int) bool {
	i := uint(status - 400)
	return i < 200 && s[i/64]&(1<<(i%64)) != 0
}

// State is what a host holds back at one instant, and why. retrip.HostState
// describes the fields.
type State struct {
	Tokens, Size  float64
	FailedRetries int
	StoppedRoutes string
	PausedFor     time.Duration
	Breaker       breaker.State
	OpenFor       time.Duration
	Waiting       int
}

// State describes h under r at the instant now.
func (r *Rules) State(h *host.Record, now time.Duration) State {
	h.Lock()
	defer h.Unlock()
	s := State{PausedFor: r.pausedFor(h, now)}
	if r.Budget.Size > 0 {
		s.Tokens = max(0, float64(r.Budget.Size-h.Debt.Missing)/budget.Token)
		s.FailedRetries, s.StoppedRoutes = int(h.Debt.Row), h.StoppedRoutes(r.Budget)
		s.Size = float64(r.Budget.Size) / budget.Token
	}
	if h.Guards == nil {
		return s
	}
	// A breaker that has been switched off holds nothing back.
	if r.Breaker != nil {
		s.Breaker, s.OpenFor = h.Guards.Breaker.State, h.Guards.Breaker.OpenFor(now)
	}
	waiting, closed := h.Guards.Gates.Waiting(now)
	if s.Waiting = waiting; r.Gated { // so does a gate
		s.PausedFor = max(s.PausedFor, closed)
	}
	return s
}
