// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"math"
	"time"

	"github.com/retrip/retrip"
)

// debts checks that no retry to host takes tokens that aren't there: the first one of a
// request costs half a token.
func (c *client) debts(host string) {
	const cost, most, pays = 0.5, 0.7, 0.2
	before := math.Inf(1) // no more tokens than these were there
	var at time.Duration  // at this instant; decisions of one instant may be told in another order
	for _, v := range c.eventsOf(host) {
		r, e := v.r, v.r.events[v.i]
		p := r.effective()
		if r.panicked || r.hostile || p.Gate.Enabled == retrip.On || p.Resume > 0 || e.hook == "Hedge" {
			return
		}
		if e.hook == "Retry" && e.Attempt == 1 && p.Budget != retrip.Off && e.at > at && before < cost-1e-6 {
			c.w.breaks("P14", "%v: a retry at %v, when no more than %.2f tokens of %s were left", r, e.at, before, host)
		}
		at = e.at
		switch {
		case e.hook == "Done" && e.Attempt == 1 && e.Reason == "":
			before += pays
		case e.hook == "Done" || e.hook == "GiveUp":
			before += most // of a retry that was not made, or has succeeded
		case e.host.Host == "" || e.host.Size == 0:
			before = math.Inf(1)
		default:
			before = e.host.Tokens
		}
	}
}
