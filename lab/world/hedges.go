// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"net/http"
	"slices"
	"time"

	"github.com/retrip/retrip"
)

// hedge checks that the request may have a hedge.
func (c *checker) hedge(e event) {
	p := c.p
	switch c.r.call.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, "QUERY":
	default:
		if p.HedgeWrites != retrip.On || !c.r.repeatable(p) {
			c.breaks("P21", "a hedge of a %s", c.r.call.Method)
		}
	}
	if p.Hedge <= 0 || p.MaxAttempts < 2 {
		c.breaks("P21", "a hedge, with Hedge %v and MaxAttempts %d", p.Hedge, p.MaxAttempts)
	}
	if b := c.r.call.Body; b != NoBody && b != Bytes && b != OwnGet {
		c.breaks("P21", "a hedge with a body that has no GetBody")
	}
	if e.Reason != "won" && e.Reason != "lost" && e.Reason != "failed" {
		c.breaks("P19", "a hedge with the reason %q", e.Reason)
	}
	c.readers(e)
}

// readers checks that the hedge got a body only once that of the first attempt was sent.
func (c *checker) readers(e event) {
	if c.r.hop > 0 || len(c.r.bodies) == 0 || c.r.call.Body != OwnGet {
		return
	}
	first, began := c.r.bodies[0], c.r.begin
	c.w.mu.Lock()
	all := slices.Clone(c.w.uploads)
	c.w.mu.Unlock()
	for _, u := range all {
		if ended := first.ended.Load(); u.id == first.id && u.copied && u.at > began && u.at <= e.at && (ended == 0 || ended > int64(u.at)+1) {
			c.breaks("P21", "somebody got a second body at %v, and the first attempt read its own until %v", u.at, time.Duration(ended))
		}
	}
}
