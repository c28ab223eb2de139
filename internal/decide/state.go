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
	PausedFor     time.Duration
	Breaker       breaker.State
	OpenFor       time.Duration
	Waiting       int
}

// State describes h under r at the instant now.
func (r *Rules) State(h *host.Record, now time.Duration) State {
	var s State
	if r.Budget.Size > 0 {
		owed := h.Debt.Load()
		s.Tokens = max(0, float64(r.Budget.Size-owed.Missing)/budget.Token)
		s.FailedRetries = int(owed.Row)
		s.Size = float64(r.Budget.Size) / budget.Token
	}
	t := h.Troubles(now)
	// A breaker that has been switched off holds nothing back.
	if r.Breaker != nil {
		s.Breaker, s.OpenFor = t.Breaker, t.OpenFor
	}
	s.Waiting, s.PausedFor = t.Waiting, max(h.PausedFor(now), t.Closed)
	return s
}
