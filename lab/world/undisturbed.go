// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"io"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/retrip/retrip"
)

// undisturbed reports whether nothing in the plan of the world disturbs what r's caller
// and its servers do: no fault, no outage, nobody who goes.
func (r *roundTrip) undisturbed() bool {
	if r.reading.closed >= r.begin+patience-time.Minute || r.call.Deadline > 0 || r.call.Cancel != 0 || r.client.plan.Client > 0 || r.call.Panics != NoPanic {
		return false
	}
	for _, s := range r.w.plan.Sites {
		if len(s.Conns) > 0 || len(s.Outages) > 0 {
			return false
		}
	}
	return true
}

// breaksOff checks that the body of a response to arrival a doesn't break by itself.
func (c *checker) breaksOff(a *arrival) {
	r, step := c.r, &a.step
	if err := r.reading.err; err == nil || err == io.EOF || r.call.Read == ClosesLater || c.gone() != 0 || !r.undisturbed() {
		return
	}
	if step.Cut > 0 || step.Kind != Answers || step.Early && r.call.Body != NoBody || step.Duplex && c.ownFault() || (step.Stall > 0 || step.Duplex) && c.p.BodyIdleTimeout > 0 || c.p.Resume > 0 || c.p.WholeBody > 0 && (c.p.AttemptTimeout > 0 || c.p.Deadline > 0) {
		return
	}
	c.breaks("P1", "the body breaks after %d bytes, and nothing disturbs it: %v", len(r.reading.got), r.reading.err)
}

// idle checks that no Read waits longer than the policy says.
func (c *checker) idle() {
	p := c.p
	if p.BodyIdleTimeout > 0 && p.Resume <= 0 && c.r.reading.longest > p.BodyIdleTimeout+time.Second/2+slack {
		c.breaks("P20", "a Read has waited for %v, BodyIdleTimeout is %v", c.r.reading.longest, p.BodyIdleTimeout)
	}
	if p.Resume <= 0 {
		return
	}
	var since time.Duration
	last := retrip.Reason("")
	for i, e := range c.rest {
		if e.hook == "Resume" {
			if last = e.Reason; i == 0 && !c.obstructs(string(last)) {
				c.breaks("P20", "the body isn't continued for %s, which isn't true", last)
			}
		}
		switch {
		case e.hook == "Resume":
			since = 0
		case since == 0:
			since = e.at
		case e.hook == "Attempt" && e.at > since+p.Resume+slack:
			c.breaks("P20", "a request for the rest at %v, the body broke before %v, Resume is %v", e.at, since, p.Resume)
		}
	}
	// Each body that breaks under its reader is told of.
	if err := c.r.reading.err; err != nil && err != io.EOF && c.r.call.Read != ClosesLater && p.WholeBody <= 0 && p.Classify != PeeksAtStart && (last == "" || last == "continued") {
		c.breaks("P20", "the body breaks after %d bytes with %v, and nobody is told why it isn't continued: %q", len(c.r.reading.got), err, last)
	}
}

// obstructs reports whether the response may have an obstacle to a continuation, for
// which none was asked for.
func (c *checker) obstructs(obstacle string) bool {
	r := c.r
	a := r.arrivalOf(r.resp.Header)
	if a == nil || r.hostile {
		return true
	}
	step, status := a.step, r.resp.StatusCode
	switch obstacle {
	case "method":
		return r.call.Method != http.MethodGet || r.sends != nil
	case "status":
		return status != http.StatusOK
	case "trailers":
		return step.Ends != NoTrailer
	case "unknown_length":
		return r.resp.ContentLength < 0
	case "no_validator":
		return slices.Contains([]RangeKind{WeakTag, NoTag, NoValidator}, step.Ranges) || r.resp.Header.Get("World-Version") == ""
	case "content_range":
		return status == http.StatusPartialContent || step.Ranges == PartAs200
	case "encoded", "multipart", "no_ranges", "changed":
		return false
	}
	return true
}

// guards checks what budget and breaker of the host say at an attempt or a retry.
func (c *checker) guards() {
	p, s := c.p, c.r.client
	if len(s.swaps) > 1 || s.forgot || s.plan.Fleet {
		return
	}
	for _, e := range c.own {
		h := e.host
		if h.Host == "" {
			continue
		}
		if e.hook == "Attempt" && p.breaks() && h.Breaker == retrip.BreakerOpen && h.OpenFor > 0 {
			c.breaks("P14", "attempt %d at %v, and the breaker is open for %v", e.Attempt, e.at, h.OpenFor)
		}
		if e.hook != "Retry" || p.Budget == retrip.Off || h.Size == 0 || p.Gate.Enabled == retrip.On || c.hedged || e.Reason == retrip.ReasonPending {
			continue
		}
		if unanswered(e) {
			continue // after the loss of a connection, a retry may wait for its tokens
		}
		if e.Attempt == 1 && h.Tokens > h.Size-0.49 {
			c.breaks("P14", "a retry that costs nothing: %.2f of %v tokens are left", h.Tokens, h.Size)
		}
		if row := max(2, math.Ceil(0.6*h.Size)); float64(h.FailedRetries) >= row {
			c.breaks("P14", "a retry after %d in a row have failed, with a budget of %v", h.FailedRetries, h.Size)
		}
	}
}

// bare checks a round trip of a client without hooks.
func (c *checker) bare() {
	r := c.r
	if r.end == 0 {
		c.breaks("P13", "RoundTrip hasn't returned")
		return
	}
	if gone, late := c.gone(), r.call.late(); gone > 0 && r.end > max(gone, r.begin)+late {
		c.breaks("P10", "RoundTrip returned at %v, and the caller had gone at %v", r.end, gone)
	}
	if s := c.w.siteOf(r.host + ":80"); s.refused {
		return // in a plain attempt, net/http may have sent the request before a dial failed
	}
	c.ledger()
	c.body()
}
