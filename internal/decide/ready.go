// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"time"

	"github.com/retrip/retrip/internal/host"
)

// readyIn returns how long it takes until the host may take what it can't take now, for a
// reason to give up after e, or 0 if nobody knows. The reason is h's, so h isn't nil.
func (c *Call) readyIn(h *host.Record, e *Event, reason Reason, now time.Duration) time.Duration {
	switch reason {
	case BreakerOpen:
		return h.Guards.Breaker.OpenFor(now)
	case WaitTooLong, HostPaused:
		wait := max(h.PausedFor(now), c.ticket.RetryAfterLeft(now))
		if e.Kind == Ended {
			wait = max(wait, e.Outcome.RetryAfter)
		}
		return wait
	}
	return 0
}
