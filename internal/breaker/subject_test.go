// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package breaker_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
)

// subject is what behaves like the model.
type subject interface {
	admit(a *modelAttempt, now time.Duration, draw uint64) (allowed bool, change breaker.Change)
	answered(a *modelAttempt, failed bool, now time.Duration, draw uint64) breaker.Change
	taughtNothing(a *modelAttempt, why decide.Outcome, now time.Duration, draw uint64)
	giveBack(a *modelAttempt)
	trouble(now time.Duration) (state breaker.State, openFor time.Duration)
	healed(now time.Duration) bool
}

// alone is a breaker by itself.
type alone struct {
	breaker.Breaker
	rule *breaker.Rule
}

func (b *alone) admit(a *modelAttempt, now time.Duration, draw uint64) (bool, breaker.Change) {
	return b.Admit(b.rule, &a.pass, now, draw)
}

func (b *alone) answered(a *modelAttempt, failed bool, now time.Duration, draw uint64) breaker.Change {
	return b.Record(b.rule, &a.pass, failed, now, draw)
}

func (b *alone) taughtNothing(a *modelAttempt, _ decide.Outcome, _ time.Duration, _ uint64) {
	b.giveBack(a)
}

func (b *alone) giveBack(a *modelAttempt) {
	if a.pass.Probe {
		b.ReturnProbe(&a.pass)
	}
}

func (b *alone) trouble(now time.Duration) (breaker.State, time.Duration) {
	return b.State, b.OpenFor(now)
}

func (b *alone) healed(now time.Duration) bool { return b.Healed(now) }

// atHost is the breaker of a host, as decisions use it.
type atHost struct {
	host.Record
	t     *testing.T
	rules play.Judge
}

// change returns the change of the breaker that a decision reports.
func (h *atHost) change(d play.Decision) breaker.Change {
	switch d.Change {
	case 0:
		return breaker.Same
	case host.Opened:
		return breaker.Opened
	case host.Probed:
		return breaker.Probing
	case host.Closed:
		return breaker.Shut
	}
	h.t.Fatalf("not a change of the breaker: %+v", d)
	return breaker.Same
}

func (h *atHost) admit(a *modelAttempt, now time.Duration, draw uint64) (bool, breaker.Change) {
	d := h.rules.First(&h.Record, &a.call, now, draw)
	if !d.Retry && d.Reason != decide.BreakerOpen {
		h.t.Fatalf("not refused by the breaker: %+v", d)
	}
	a.call.Attempts = 1
	return d.Retry, h.change(d)
}

func (h *atHost) answered(a *modelAttempt, failed bool, now time.Duration, draw uint64) breaker.Change {
	status := http.StatusOK
	if failed {
		status = http.StatusServiceUnavailable
	}
	return h.change(h.rules.Next(&h.Record, &a.call, play.Repeatable(status), now, draw))
}

func (h *atHost) taughtNothing(a *modelAttempt, why decide.Outcome, now time.Duration, draw uint64) {
	h.rules.Next(&h.Record, &a.call, why, now, draw)
}

func (h *atHost) giveBack(a *modelAttempt) { h.rules.Return(&h.Record, &a.call) }

func (h *atHost) trouble(now time.Duration) (breaker.State, time.Duration) {
	s := h.rules.State(&h.Record, now)
	return s.Breaker, s.OpenFor
}

func (h *atHost) healed(now time.Duration) bool { return h.Healed(now) }
