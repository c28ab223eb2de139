// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import "net/http"

// hedge checks that the request may have a hedge.
func (c *checker) hedge(e event) {
	p := c.p
	switch c.r.call.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
	default:
		c.breaks("P21", "a hedge of a %s", c.r.call.Method)
	}
	if p.Hedge <= 0 || p.MaxAttempts < 2 {
		c.breaks("P21", "a hedge, with Hedge %v and MaxAttempts %d", p.Hedge, p.MaxAttempts)
	}
	if c.r.call.Body != NoBody {
		c.breaks("P21", "a hedge with a body")
	}
	if e.Reason != "won" && e.Reason != "lost" && e.Reason != "failed" {
		c.breaks("P19", "a hedge with the reason %q", e.Reason)
	}
}
