// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"time"

	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/host"
)

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
	s.Waiting, s.PausedFor = waiting, max(s.PausedFor, closed)
	return s
}
