// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"cmp"
	"errors"
	"io"
	"math"
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// breaks reports whether p has a breaker.
func (p Policy) breaks() bool {
	return p.Breaker.Ratio != retrip.Off && (p.Breaker.Ratio != 0 || p.Breaker.MinVolume != 0 || p.Breaker.OpenFor != 0 || p.Breaker.Window != 0)
}

// opened checks that a breaker had something to open for, and that a half-open one waits
// for a probe.
func (c *checker) opened(e event, no func(string, ...any)) {
	if len(c.r.client.swaps) > 1 {
		return
	}
	failed, busy, last := false, false, time.Duration(0)
	for r := range c.r.client.tripsTo(c.r.host) {
		if r.begin > e.at {
			continue
		}
		made, fine := false, false
		for _, v := range r.events {
			made = made || v.hook == "Attempt"
			if v.at <= e.at && v.Reason != retrip.ReasonBreakerOpen {
				last = max(last, v.at)
			}
			fine = v.hook == "Done" && v.Attempt == 1 && v.Reason == "" && v.Err == nil && v.StatusCode < 400
		}
		fine = fine && r.reading.done && (r.reading.err == nil || r.reading.err == io.EOF)
		failed = failed || made && !fine
		if r != c.r {
			busy = busy || r.end == 0 || r.end >= e.at || r.resp != nil && (!r.reading.done || r.reading.closed >= e.at)
		}
	}
	if !failed {
		no("the host has never failed")
	}
	openFor := cmp.Or(c.p.Breaker.OpenFor, 5*time.Second)
	if e.host.Breaker == retrip.BreakerHalfOpen && !busy && e.at-last > openFor/2+slack {
		no("no probe is out, and the last one began %v ago at the latest, OpenFor is %v", e.at-last, openFor)
	}
}

// opens checks that the breaker of a host of which everything has failed opens when it
// must.
func (c *client) opens(host string) {
	failures, first := 0, time.Duration(-1)
	for _, v := range c.eventsOf(host) {
		r, e, p := v.r, v.r.events[v.i], v.r.effective()
		if e.hook == "Attempt" && e.host.Breaker == retrip.BreakerClosed {
			continue
		}
		judged := v.i > 0 && r.events[v.i-1].hook == "Attempt" && (e.hook == "Retry" || e.hook == "GiveUp")
		if e.hook == "Done" && e.Reason != "" || judged && (e.Err != nil || e.Reason == retrip.ReasonCanceled || e.Reason == retrip.ReasonDeadline) {
			continue // it may not count
		}
		if !judged || !p.breaks() || e.StatusCode < 400 || !retryable(p, e.StatusCode, e.Header) || r.panicked || r.hostile || e.host.Host == "" {
			return
		}
		if failures > 0 && r.events[v.i-1].at <= first {
			continue // it was in flight at the first one
		} else if failures == 0 {
			first = e.at
		}
		least := cmp.Or(p.Breaker.MinVolume, 20)
		if failures++; e.host.Breaker != retrip.BreakerClosed {
			return
		}
		if failures >= least {
			c.w.breaks("P14", "%v: the breaker of %s is closed at %v, after %d failures and no success; MinVolume is %d", r, host, e.at, failures, least)
			return
		}
	}
}

// checkProbes checks that a breaker lets a request through once the time is over for
// which it is open, as no probe is missing, and that it closes after two successes.
func (w *world) checkProbes() {
	for _, c := range w.clients {
		for _, s := range w.sites {
			resp, err := w.last(c, s, 80_000)
			if e, ok := errors.AsType[*retrip.Error](err); ok && e.Reason == retrip.ReasonBreakerOpen {
				w.breaks("P5", "t%d: the breaker of s%d refuses a request, a minute after the last one", c.number, s.number)
			}
			good := 0
			for n := 1; n < 6; n++ {
				if good++; !drop(resp) {
					good = 0
				}
				h, err := c.retrip.HostState(s.host() + ":" + s.port())
				must(err)
				if h.Breaker == retrip.BreakerClosed {
					break
				}
				if good >= 2 {
					w.breaks("P14", "t%d: the breaker of s%d is %v after %d good responses", c.number, s.number, h.Breaker, good)
					break
				}
				time.Sleep(15 * time.Second)
				resp, _ = w.last(c, s, 80_000+100*n)
			}
		}
	}
}

// drop reads a response to its end and reports whether it is good.
func drop(resp *http.Response) bool {
	if resp == nil {
		return false
	}
	_, err := io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return err == nil && resp.StatusCode == http.StatusOK
}

// unanswered reports whether e says of an attempt that it got no response, not the whole of a good
// one, or a 421: its retry may wait for its tokens.
func unanswered(e event) bool { return e.Err != nil && e.StatusCode < 400 || e.StatusCode == 421 }

// debts checks that no retry to host takes tokens that aren't there: the first one of a
// request costs half a token.
func (c *client) debts(host string) {
	const cost, most, pays = 0.5, 0.7, 0.2
	before := math.Inf(1) // no more tokens than these were there
	var at time.Duration  // at this instant; decisions of one instant may be told in another order
	well := true          // nothing has failed yet
	for _, v := range c.eventsOf(host) {
		r, e := v.r, v.r.events[v.i]
		p := r.effective()
		if r.panicked || r.hostile || p.Gate.Enabled == retrip.On || p.Resume > 0 || e.hook == "Hedge" {
			return
		}
		if e.hook == "Retry" && e.Attempt == 1 && e.Reason != retrip.ReasonPending && p.Budget != retrip.Off && !unanswered(e) && e.at > at && before < cost-1e-6 {
			c.w.breaks("P14", "%v: a retry at %v, when no more than %.2f tokens of %s were left", r, e.at, before, host)
		}
		if e.hook == "Retry" && e.Reason == retrip.ReasonPending && well && e.host.Tokens < e.host.Size {
			c.w.breaks("P14", "%v: an answer that is pending costs tokens: %.2f of %v of %s are left", r, e.host.Tokens, e.host.Size, host)
		}
		well = well && e.Err == nil && e.StatusCode < 400
		at = e.at
		switch {
		case e.hook == "Done" && e.Attempt == 1 && e.Reason == "":
			before += pays
		case e.hook == "Done" || e.hook == "GiveUp":
			before += most * float64(max(1, e.Attempt-1)) // of a retry that was not made, or of all that come back
		case e.host.Host == "" || e.host.Size == 0:
			before = math.Inf(1)
		default:
			before = e.host.Tokens
		}
	}
}

// parts checks that the retries of a route of host that fails wait for its successes.
func (c *client) parts(host string) {
	type route struct {
		method string
		part   int
	}
	type row struct{ failed, good int }
	rows := map[route]*row{}
	events := c.eventsOf(host)
	of := func(v place) *row {
		at := route{v.r.call.Method, v.r.call.Part}
		if rows[at] == nil {
			rows[at] = &row{}
		}
		return rows[at]
	}
	plain := func(e event) bool {
		return e.hook == "Done" && e.Attempt == 1 && e.Reason == "" && e.Err == nil && e.StatusCode < 500 && e.StatusCode != http.StatusTooManyRequests
	}
	fails := func(e event) bool {
		return e.hook == "GiveUp" && e.Attempt > 1 && e.StatusCode >= 500 && (e.Reason == retrip.ReasonMaxAttempts || e.Reason == retrip.ReasonBudgetExhausted)
	}
	for i, v := range events {
		r, e := v.r, v.r.events[v.i]
		p := r.effective()
		if r.panicked || r.hostile || p.Gate.Enabled == retrip.On || p.Resume > 0 || p.Budget == retrip.Off || e.hook == "Hedge" || len(rows) > 8 {
			return
		}
		t := of(v)
		switch {
		case plain(e):
			if t.good++; t.good >= 255 {
				*t = row{}
			}
		case fails(e):
			t.failed++
		case e.hook == "Done" && e.Attempt > 1 && e.StatusCode < 500:
			*t = row{}
		case e.hook == "Retry" && e.StatusCode >= 500:
			failed, good := t.failed, t.good
			for j, w := range events { // of one instant; they may be told in another order
				switch other := w.r.events[w.i]; {
				case other.at != e.at || of(w) != t:
				case j < i && fails(other):
					failed--
				case j > i && plain(other):
					good++
				}
			}
			if most := max(2, math.Ceil(p.Budget)); float64(failed) >= most && good < 2 {
				c.w.breaks("P14", "%v: a retry at %v, after %d requests of the route have failed and %d succeeded", r, e.at, failed, good)
			}
			t.good = 0
		}
	}
}

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
