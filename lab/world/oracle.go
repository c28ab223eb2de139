// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"fmt"
	"strings"
	"time"
)

// slack is how late something may be that happens at once.
const slack = 10 * time.Millisecond

// clientGrace is how long RoundTrip may wait, when a deadline has passed, to learn whether it
// was the Timeout of an http.Client.
const clientGrace = 5 * time.Millisecond

// check checks each round trip, once all callers have their results.
func (w *world) check() {
	for _, r := range w.order {
		c := &checker{w: w, r: r, p: r.effective()}
		r.mu.Lock()
		c.check()
		r.mu.Unlock()
	}
	w.checkPauses()
	w.checkHosts()
	w.charges()
	if text := w.logs.buf.String(); strings.Contains(text, hush) {
		at := strings.Index(text, hush)
		w.breaks("P19", "a log record has a secret: %s", text[max(0, at-200):min(len(text), at+40)])
	}
}

// checkHosts checks what each client has done to each host.
func (w *world) checkHosts() {
	for _, c := range w.clients {
		if len(c.swaps) > 1 || c.forgot || c.plan.Bare {
			continue
		}
		for _, s := range w.sites {
			c.opens(s.host())
			if !c.plan.Fleet {
				c.debts(s.host())
				c.parts(s.host())
			}
			for tenant := range 2 {
				c.gate(s.host(), tenant)
			}
		}
	}
}

// checker checks one round trip.
type checker struct {
	w        *world
	r        *roundTrip
	p        Policy
	attempts int // of the RoundTrip
	hedged   bool
	own      []event // of the RoundTrip, until Done
	rest     []event // of the continuations of its body
}

func (c *checker) breaks(promise, format string, args ...any) {
	c.w.breaks(promise, "%v (%s to s%d): %s", c.r, c.r.call.Method, c.r.call.Site, fmt.Sprintf(format, args...))
}

func (c *checker) check() {
	if c.r.client.plan.Bare {
		c.bare()
		return
	}
	if c.r.panicked {
		if c.r.call.Panics == NoPanic && !c.r.hostile {
			c.breaks("P5", "RoundTrip panicked")
		}
		for _, e := range c.r.events {
			if e.hook == "Attempt" || e.hook == "Hedge" {
				c.attempts++
			}
		}
		c.ledger()
		return
	}
	c.order()
	c.times()
	c.decisions()
	c.result()
	c.ledger()
	c.body()
	c.idle()
	c.uploaded()
	c.transparent()
	c.headers()
	c.guards()
	c.left()
	c.fleet()
}

// order checks that the hooks ran in their order.
func (c *checker) order() {
	r := c.r
	if r.end == 0 {
		c.breaks("P13", "RoundTrip hasn't returned")
		return
	}
	gaveUp, before := 0, ""
	for i, e := range r.events {
		ok := false
		switch e.hook {
		case "Attempt":
			c.attempts++
			ok = e.Attempt == c.attempts && (before == "" && c.attempts == 1 || before == "Retry" && c.attempts > 1)
		case "Hedge":
			c.attempts++
			c.hedged = true
			ok = before == "Attempt" && c.attempts == 2 && e.Attempt == 2
			c.hedge(e)
		case "Retry":
			ok = (before == "Attempt" || before == "Hedge") && e.Attempt == c.attempts && e.Reason != ""
		case "GiveUp":
			gaveUp++
			ok = gaveUp == 1 && e.Reason != ""
		case "Done":
			c.own, c.rest = r.events[:i+1], r.events[i+1:]
			ok = e.Attempt == c.attempts && (gaveUp == 1) == (e.Reason != "") && (gaveUp == 0 || r.events[i-1].Reason == e.Reason)
			if e.at > r.end || r.end-e.at > slack {
				c.breaks("P19", "Done ran at %v, and RoundTrip returned at %v", e.at, r.end)
			}
		}
		if !ok {
			c.breaks("P19", "the hook %s of attempt %d with reason %q after %q", e.hook, e.Attempt, e.Reason, before)
		}
		if e.hook == "Done" {
			return
		}
		before = e.hook
	}
	c.breaks("P19", "Done never ran")
}
