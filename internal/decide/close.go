// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"time"

	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/span"
)

// A connection may lead to one of many backends, and to the same one with every request: through a
// balancer of connections, as a Service of Kubernetes is. If that backend is down, the others are
// well, and a new connection finds them. Many new ones would burden a host that is overloaded.
const (
	closesEvery = time.Second // the least time between attempts that close their connections
	closesOf    = 10          // the least number of first attempts of which one does
)

// closes reports whether the attempt is the last on its connection: from the third one on, of a
// request that gets 5xx where nothing else succeeds; a probe; and where the budget allows no retry,
// now and then a first one. If it only stops the route, that one must follow others without a success.
func (c *Call) closes(r *Rules, h *host.Record, now time.Duration) bool {
	switch {
	case c.Attempts > 0:
		if c.Attempts == 1 || c.retry.reason != ServerError || h.Proven {
			return false
		}
	case c.pass.Probe:
	case !h.Debt.Spent(r.Budget) && !h.Debt.Stops(r.Budget, c.Route):
		return false
	default:
		if h.Kept++; h.Kept < closesOf {
			return false
		}
	}
	if h.Closed != 0 && span.Sub(now, h.Closed) < closesEvery {
		return false
	}
	h.Kept, h.Closed = 0, cmp.Or(now, 1)
	return true
}
