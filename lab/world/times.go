// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"net/http"
	"slices"
	"time"

	"github.com/retrip/retrip"
)

// deadline returns the earliest deadline of the request, or 0.
func (c *checker) deadline() time.Duration {
	if c.p.Deadline > 0 {
		return earlier(c.r.deadline, c.r.begin+c.p.Deadline)
	}
	return c.r.deadline
}

// gone returns when the caller went, or 0.
func (c *checker) gone() time.Duration { return earlier(c.r.over, c.r.legacy) }

// earlier returns the earlier of two instants, of which 0 is none.
func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// word returns the wait that the response of an event names, by the ledger.
func (c *checker) word(e event) time.Duration {
	if a := c.r.arrivalOf(e.Header); a != nil {
		return a.saidTo(c.p)
	}
	return 0
}

// late returns how late RoundTrip may return: it waits for a Read of the request's body, and
// net/http's HTTP/2 for one more, to see the end.
func (c *Call) late() time.Duration { return slack + 2*c.Drip }

// times checks that nothing happens too early or too late.
func (c *checker) times() {
	deadline, gone := c.deadline(), c.gone()
	late := c.r.call.late()
	if c.r.client.plan.Fleet {
		late += storeMost
	}
	var began time.Duration
	for i, e := range c.own {
		switch e.hook {
		case "Attempt":
			began = e.at
			if deadline > 0 && e.at > deadline {
				c.breaks("P10", "attempt %d began at %v, after the deadline at %v", e.Attempt, e.at, deadline)
			}
			if gone > 0 && e.at > gone {
				c.breaks("P10", "attempt %d began at %v, and the caller had gone at %v", e.Attempt, e.at, gone)
			}
			if i > 0 && c.own[i-1].hook == "Retry" {
				c.wait(c.own[i-1], e.at, late)
			}
		case "Retry", "GiveUp", "Done":
			if e.hook == "Retry" {
				c.backoff(e)
				c.spread(e)
			}
			if began > 0 && c.p.AttemptTimeout > 0 && i > 0 && c.own[i-1].hook == "Attempt" && e.at-began > c.p.AttemptTimeout+late {
				c.breaks("P11", "attempt %d took %v, AttemptTimeout is %v", e.Attempt, e.at-began, c.p.AttemptTimeout)
			}
		}
	}
	atOnce := c.r.call.late()
	if c.waited() {
		// Nothing of Base's is left but a body that is discarded.
		atOnce = time.Millisecond + 2*c.r.call.Drip
		if c.r.client.plan.Client > 0 && !c.r.call.Direct {
			atOnce += clientGrace
		}
	}
	if gone > 0 && c.r.end > max(gone, c.r.begin)+atOnce {
		c.breaks("P10", "RoundTrip returned at %v, and the caller had gone at %v", c.r.end, gone)
	}
	if c.p.Deadline > 0 && c.r.end > c.r.begin+c.p.Deadline+c.r.call.late() {
		c.breaks("P11", "RoundTrip took %v, Deadline is %v", c.r.end-c.r.begin, c.p.Deadline)
	}
}

// wait checks the wait before a retry that began at the instant at.
func (c *checker) wait(retry event, at, late time.Duration) {
	if c.r.client.forgot {
		return // what the host asked for is forgotten too
	}
	waited := at - retry.at
	if word := c.word(retry); word > waited && !(c.r.client.plan.Fleet && word-waited < 100*time.Millisecond) {
		c.breaks("P9", "attempt %d began %v after a response that asks for %v", retry.Attempt+1, waited, word)
	}
	if waited < retry.Wait-late && c.p.Gate.Enabled != retrip.On {
		c.breaks("P10", "attempt %d began after %v, the wait was %v", retry.Attempt+1, waited, retry.Wait)
	}
	// After an error, a retry may wait on for its tokens, when a connection has broken.
	bides := unanswered(retry) && c.p.Budget != retrip.Off
	if c.p.Gate.Enabled != retrip.On && !c.r.paused() && !bides && waited > max(retry.Wait, 50*time.Millisecond)+late {
		c.breaks("P12", "attempt %d began after %v, the wait was %v", retry.Attempt+1, waited, retry.Wait)
	}
	// Neither a server's own wait nor a pause of the host is longer than MaxWait, but for the
	// random time that is added.
	if most := c.p.MaxWait + max(c.p.MaxWait/2, c.p.Backoff.Cap); c.p.Gate.Enabled != retrip.On && waited > max(most, 50*time.Millisecond)+late {
		c.breaks("P9", "attempt %d began after %v, MaxWait is %v", retry.Attempt+1, waited, c.p.MaxWait)
	}
	if deadline := c.deadline(); deadline > 0 && retry.at+retry.Wait > deadline {
		c.breaks("P10", "a wait of %v at %v, the deadline is %v", retry.Wait, retry.at, deadline)
	}
}

// spread checks the wait before a retry after a response that asks for one: it is a little
// longer, and no other has the same length.
func (c *checker) spread(retry event) {
	word := c.word(retry)
	if word <= 0 || c.p.Gate.Enabled == retrip.On || c.r.client.plan.Fleet || c.hedged {
		return
	}
	if word == retry.Wait && c.deadline() == 0 {
		c.breaks("P9", "a wait of exactly %v", word)
	}
	longest := word
	if len(c.p.Dialects) > 0 {
		longest = max(longest, time.Minute)
	}
	for r := range c.r.client.tripsTo(c.r.host) {
		for _, a := range r.arrivals {
			if a.sent <= retry.at {
				longest = max(longest, a.word)
			}
		}
	}
	if most := longest + max(longest/2, c.p.Backoff.Cap); retry.Wait > most {
		c.breaks("P9", "a wait of %v, and no server has asked for more than %v", retry.Wait, longest)
	}
}

// backoff checks a wait for which nobody but the policy has a wish.
func (c *checker) backoff(retry event) {
	if c.p.Gate.Enabled == retrip.On || c.hedged || c.word(retry) > 0 || c.r.paused() {
		return
	}
	if c.r.client.plan.Fleet {
		return // what it takes to ask the store is part of the wait
	}
	if c.skips(retry) {
		return // a retry that is skipped for want of tokens counts as one, too
	}
	lo, hi := c.p.window(retry)
	if room, _ := c.room(retry); c.deadline() > 0 {
		left := c.deadline() - retry.at - room + slack
		if lo > left {
			c.breaks("P10", "a wait of %v at %v, before an attempt that may take %v, and the deadline is %v", retry.Wait, retry.at, room, c.deadline())
		} else if hi > left {
			if hi = lo + (left-lo)/3; c.p.Backoff.Jitter == retrip.DecorrelatedJitter {
				hi = left // the window depends on the last wait, and may have fitted
			}
		}
	}
	if retry.Wait < lo || retry.Wait > hi {
		c.breaks("P10", "a wait of %v before retry %d, the backoff is %v to %v", retry.Wait, retry.Attempt, lo, hi)
	}
}

// room returns how long the attempt after e, which tells of the end of another, is expected
// to take, at least and at most: as long as the slowest retry, or as the first attempt if
// there is no retry. What hung may predict nothing.
func (c *checker) room(e event) (least, most time.Duration) {
	var began time.Duration
	for i, a := range c.own {
		switch {
		case a.hook == "Attempt":
			began = a.at
		case a.hook == "Retry" || a.hook == "GiveUp" && i > 0 && c.own[i-1].hook == "Attempt":
			took := a.at - began
			if a.Attempt <= 2 {
				least, most = 0, 0
			}
			most = max(most, took)
			if a.Err != nil && took >= time.Second/2 {
				took /= 10
			}
			least = max(least, took)
		}
		if a.hook == e.hook && a.Attempt == e.Attempt {
			break
		}
	}
	return least, most
}

// skips reports whether a retry before that of e may have been skipped: it waited on.
func (c *checker) skips(e event) bool {
	for i, a := range c.own[:len(c.own)-1] {
		if next := c.own[i+1]; a.hook == "Retry" && unanswered(a) && a.Attempt < e.Attempt && next.hook == "Attempt" && next.at-a.at > a.Wait {
			return c.p.Budget != retrip.Off
		}
	}
	return false
}

// cuts returns how many waits before e the deadline may have cut.
func (c *checker) cuts(e event) (n int) {
	for _, a := range c.own {
		if a.hook != "Retry" || a.Attempt >= e.Attempt {
			continue
		}
		_, hi := c.p.window(a)
		if _, room := c.room(a); hi+room+slack > c.deadline()-a.at {
			n++
		}
	}
	return n
}

// paused reports whether the host has ever asked the client for a pause.
func (r *roundTrip) paused() bool {
	for r := range r.client.tripsTo(r.host) {
		if len(r.effective().Dialects) > 0 || slices.ContainsFunc(r.arrivals, func(a *arrival) bool { return a.word > 0 && a.status >= 400 }) {
			return true
		}
	}
	return false
}

// checkPauses checks that nobody disturbs a host that has asked all to wait.
func (w *world) checkPauses() {
	for _, r := range w.order {
		p := r.effective()
		for i, e := range r.events {
			// A give-up at the end of a wait tells of the response before it.
			if e.hook == "GiveUp" && (i == 0 || r.events[i-1].hook != "Attempt" && r.events[i-1].hook != "Hedge") {
				continue
			}
			gate, names := p.Gate.Enabled == retrip.On, e.Header.Get("Retry-After") != ""
			global := e.StatusCode == http.StatusTooManyRequests && e.Header.Get("X-Ratelimit-Global") == "true" && slices.Contains(p.Dialects, "discord")
			all := global || e.StatusCode == http.StatusServiceUnavailable
			if !all && !(gate && throttled(p, e.StatusCode, e.Header, names)) {
				continue
			}
			if e.hook != "Retry" && e.hook != "GiveUp" || e.Err != nil || !retryable(p, e.StatusCode, e.Header) {
				continue
			}
			a := r.arrivalOf(e.Header)
			if a == nil || r.client.forgot {
				continue
			}
			if !gate && a.word > p.MaxWait {
				continue
			}
			until, decided := e.at+min(a.word, p.MaxWait), e.at
			if r.client.plan.Fleet {
				decided += storeMost // a wait is announced once the store has answered
			}
			for other := range r.client.tripsTo(r.host) {
				q := other.effective()
				// A gate of a key is held by the refusals of that key.
				held := gate && q.Gate.Enabled == retrip.On && (global || p.Keyed == q.Keyed && (!p.Keyed || r.id/10%2 == other.id/10%2))
				for i, v := range other.events {
					if left := until - v.at; v.hook == "Retry" && v.at > decided && left > q.MaxWait+slack && q.Gate.Enabled != retrip.On && all && !other.lifted(i+1, v.at) {
						w.breaks("P9", "%v: waits at %v for a pause that lasts %v more, MaxWait is %v", other, v.at, left, q.MaxWait)
					}
					if v.hook == "Attempt" && v.at > e.at && v.at < until-100*time.Millisecond && (held || v.Attempt > 1 && all && !other.lifted(i, v.at)) {
						w.breaks("P9", "%v: attempt %d at %v, and %v asked all to wait from %v to %v", other, v.Attempt, v.at, r, e.at, until)
					}
				}
			}
		}
	}
}

// lifted reports whether a pause without a gate may not hold back the attempt of r that is
// its event i, at the instant at: the time is over that the server has told r to wait, if any,
// and it has answered well since the last word but one.
func (r *roundTrip) lifted(i int, at time.Duration) bool {
	for _, e := range slices.Backward(r.events[:i]) {
		if e.hook == "Retry" {
			if a := r.arrivalOf(e.Header); e.Err == nil && e.StatusCode == http.StatusServiceUnavailable && a != nil && a.word > 0 && at < e.at+a.word-100*time.Millisecond {
				return false
			}
			break
		}
	}
	var words []time.Duration
	told := map[*arrival]bool{}
	well := time.Duration(-1)
	for other := range r.client.tripsTo(r.host) {
		for _, e := range other.events {
			switch a := other.arrivalOf(e.Header); {
			case e.at >= at || e.Err != nil || e.StatusCode == 0:
			case e.StatusCode == http.StatusServiceUnavailable && a != nil && a.word > 0 && a.word <= other.effective().MaxWait:
				if !told[a] { // a give-up tells of it again
					told[a] = true
					words = append(words, e.at)
				}
			case e.StatusCode < 500 && e.StatusCode != http.StatusTooManyRequests:
				well = max(well, e.at)
			}
		}
	}
	slices.Sort(words)
	if n := len(words); n > 1 {
		return well >= words[n-2]
	}
	return well >= 0
}
