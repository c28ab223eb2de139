// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/retrip/retrip"
)

// queuing is a request as its gate sees it.
type queuing struct {
	r     *roundTrip
	came  time.Duration
	left  time.Duration // its first attempt, or its end
	sent  bool
	spans []span2 // in which it waited, at first and after each refusal
}

type span2 struct{ from, to time.Duration }

const (
	overtakers = 16          // most later requests that pass a request
	hangs      = time.Second // after which a second probe may join one that has no result
)

// gate checks the queue of the requests to a host on behalf of a tenant. Each of them has
// a gate of its own if the policy says so.
func (c *client) gate(host string, tenant int) {
	var all []queuing
	var refused []time.Duration
	named := time.Duration(0)
	for r := range c.tripsTo(host) {
		p := r.effective()
		mine := !p.Keyed || r.id/10%2 == tenant
		for _, a := range r.arrivals {
			if a.status == http.StatusServiceUnavailable || a.ofAll() || mine && throttled(p, a.status, nil, a.word > 0) {
				refused = append(refused, a.sent)
			}
			named = max(named, a.word)
		}
		if len(p.Dialects) > 0 {
			named = 24 * time.Hour
		}
		if mine && p.Gate.Enabled == retrip.On && !r.panicked && r.end > 0 {
			all = append(all, r.queuing())
		}
	}
	for _, q := range all {
		first := slices.IndexFunc(refused, func(at time.Duration) bool { return at < q.left })
		if q.left > q.came+slack && q.sent && first < 0 && named < 24*time.Hour && !c.pausedBefore(host, q.left, tenant) {
			c.w.breaks("P23", "%v: waits at the gate of %s from %v to %v, and the host has refused nothing", q.r, host, q.came, q.left)
		}
		if q.left > q.came+9*time.Minute && !q.sent && named <= 31*time.Second {
			c.w.breaks("P23", "%v: waits at the gate of %s for %v, and nothing comes of it", q.r, host, q.left-q.came)
		}
		c.overtaken(q, all, refused, host)
	}
}

// pausedBefore reports whether anything but a 429 or 503 may have closed a gate of host.
func (c *client) pausedBefore(host string, at time.Duration, tenant int) bool {
	for r := range c.tripsTo(host) {
		if r.hostile || r.panicked || slices.ContainsFunc(r.arrivals, func(a *arrival) bool {
			return a.sent < at && a.word > 0 && (a.status != http.StatusTooManyRequests || a.ofAll() || !r.effective().Keyed || r.id/10%2 == tenant)
		}) {
			return true
		}
	}
	return false
}

// ofAll reports whether the response of a says that a limit is one of all requests.
func (a *arrival) ofAll() bool {
	return a.outage == nil && (a.step.Word == OfAll || a.step.Word == Reset)
}

// accepted reports whether the server has accepted the first attempt of q. Other outcomes
// call for another probe.
func (q *queuing) accepted() bool {
	if !q.sent || q.r.hostile || q.r.err != nil || len(q.r.arrivals) == 0 {
		return false
	}
	if slices.ContainsFunc(q.r.events, func(e event) bool { return e.hook == "Retry" && e.Attempt == 1 && e.Err != nil }) {
		return false // whatever arrived first is of a later attempt, or its answer was lost
	}
	a := q.r.arrivals[0]
	return a.status != 0 && a.status != http.StatusServiceUnavailable && !throttled(q.r.effective(), a.status, nil, a.word > 0)
}

// overtaken checks that nobody passes q but as a probe: one goes after each refusal, and
// when one hangs.
func (c *client) overtaken(q queuing, all []queuing, refused []time.Duration, host string) {
	passed := 0
	for _, s := range q.spans {
		here, since := 0, q.came // instant from which it has had its place
		if q.left <= q.came+slack {
			since = s.from
		}
		for _, other := range all {
			if other.accepted() && other.came > since && other.left > s.from+slack && other.left < s.to && other.left > other.came+slack {
				here++
			}
		}
		passed += here
		probes := 1 + int((s.to-s.from)/hangs)
		for _, at := range refused {
			if at > s.from-slack && at < s.to {
				probes++
			}
		}
		if here > probes {
			c.w.breaks("P23", "%v: %d later requests pass it at the gate of %s from %v to %v, and at most %d of them are probes", q.r, here, host, s.from, s.to, probes)
		}
	}
	if passed > overtakers {
		c.w.breaks("P23", "%v: %d later requests pass it at the gate of %s", q.r, passed, host)
	}
}

// refused reports whether e is a refusal that names a wait.
func (e event) refused() bool {
	return e.hook == "Retry" && e.FromServer && e.Err == nil && (e.Reason == retrip.ReasonThrottled || e.StatusCode == http.StatusServiceUnavailable) && cmp.Or(e.Header.Get("Retry-After"), "0") != "0"
}

// queuing returns r as its gate sees it.
func (r *roundTrip) queuing() queuing {
	q := queuing{r: r, came: r.begin, left: r.end}
	for i, e := range r.events {
		if e.hook != "Attempt" || e.at > r.end {
			continue
		}
		switch {
		case !q.sent:
			q.left, q.sent = e.at, true
			q.spans = append(q.spans, span2{r.begin, e.at})
		case i > 0 && r.events[i-1].refused():
			// Up to half of what the server named is the request's own random wait.
			from, wait := r.events[i-1].at, r.events[i-1].Wait
			q.spans = append(q.spans, span2{from, min(e.at, from+wait/3*2)}, span2{from + wait, e.at})
		}
	}
	return q
}
