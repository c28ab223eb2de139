// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/retrip/retrip"
)

// result checks what RoundTrip has returned.
func (c *checker) result() {
	r := c.r
	if len(c.own) == 0 {
		return
	}
	done := c.own[len(c.own)-1]
	if r.resp != nil {
		if a := r.arrivalOf(r.resp.Header); a != nil && a.status != r.resp.StatusCode {
			c.breaks("P1", "status %d, the server sent %d", r.resp.StatusCode, a.status)
		}
		if done.StatusCode != r.resp.StatusCode {
			c.breaks("P19", "status %d, the hook Done got %d", r.resp.StatusCode, done.StatusCode)
		}
		return
	}
	if done.Err == nil && done.StatusCode != 0 && !c.waited() {
		c.breaks("P3", "a response with status %d became the error %v", done.StatusCode, r.err)
	}
	var e *retrip.Error
	is := errors.As(r.err, &e)
	switch {
	case r.dead != nil:
		if r.err != r.dead || c.attempts > 0 {
			c.breaks("P3", "the context had ended, and the error after %d attempts is %v", c.attempts, r.err)
		}
	case c.attempts > 1 && !is:
		c.breaks("P3", "the error after %d attempts is %v", c.attempts, r.err)
	}
	if is {
		if e.Attempts != c.attempts {
			c.breaks("P3", "Error.Attempts is %d, %d were made", e.Attempts, c.attempts)
		}
		if e.Reason != done.Reason {
			c.breaks("P19", "Error.Reason is %q, Done had %q", e.Reason, done.Reason)
		}
		if strings.Contains(e.Error(), hush) {
			c.breaks("P17", "the error shows a secret: %v", e)
		}
		status := 0
		for _, v := range c.own {
			if v.hook == "Retry" && v.StatusCode != 0 {
				status = v.StatusCode
			}
		}
		if status == 0 {
			status = c.lost()
		}
		if status != 0 && e.StatusCode == 0 {
			c.breaks("P17", "Error.StatusCode is 0, after a %d", status)
		}
	}
	for _, v := range c.own {
		if v.hook == "Retry" && v.Err != nil && !errors.Is(r.err, v.Err) {
			c.breaks("P17", "the error hides that of attempt %d, %v: %v", v.Attempt, v.Err, r.err)
		}
	}
	if r.dead == nil && r.legacy == 0 && done.Reason == retrip.ReasonCanceled && c.attempts > 0 && !errors.Is(r.err, r.cause) {
		c.breaks("P17", "the error hides the cause %v: %v", r.cause, r.err)
	}
}

// waited reports whether the round trip ended in a wait.
func (c *checker) waited() bool {
	last := ""
	for _, e := range c.own {
		if e.hook != "GiveUp" && e.hook != "Done" {
			last = e.hook
		}
	}
	return last == "Retry"
}

// lost returns the status of a response of which only the body came too late, or 0.
func (c *checker) lost() int {
	if len(c.r.arrivals) != c.attempts || c.hedged || c.r.hostile || c.r.call.Drip > 0 || !c.r.undisturbed() {
		return 0
	}
	late := slack
	if c.r.client.plan.Fleet {
		late += storeMost
	}
	for i, e := range c.own {
		if i == 0 || c.own[i-1].hook != "Attempt" || e.Err == nil || e.Attempt > len(c.r.arrivals) {
			continue
		}
		a := c.r.arrivals[e.Attempt-1]
		if a.at < c.own[i-1].at {
			// net/http sent an earlier attempt twice, and this one not at all.
			continue
		}
		if a.status >= 200 && a.step.Kind == Answers && !a.step.Early && e.at > a.sent+4*c.w.sites[a.site].plan.Latency+late {
			return a.status
		}
	}
	return 0
}

// ledger checks what the servers got.
func (c *checker) ledger() {
	r, p := c.r, c.p
	repeatable := r.repeatable(p)
	// net/http may repeat these by itself.
	itself := slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodOptions}, r.call.Method) || r.call.Key
	for i, a := range r.arrivals {
		if a.wrong {
			c.breaks("P7", "arrival %d had a wrong body: %d bytes of %d, whole: %v", a.number, a.got, len(r.sends), a.whole)
		}
		if i == 0 || repeatable || itself {
			continue
		}
		if last := r.arrivals[i-1]; !unprocessed(p, last.status) {
			c.breaks("P6", "arrival %d of what mustn't be repeated, after %d", a.number, last.status)
		}
	}
	if len(r.arrivals) > 0 {
		for _, a := range r.arrivals {
			if a.key != r.arrivals[0].key {
				c.breaks("P6", "arrival %d has another Idempotency-Key: %s, %s", a.number, r.arrivals[0].key, a.key)
			}
		}
	}
	// Sends over dead connections of a pool of HTTP/1 don't count, and the one beyond the
	// bound may arrive.
	const most = 10 + 1
	for _, e := range c.own {
		if c.w.plan.H2C && !r.client.plan.Wrapped && e.Sends > most {
			c.breaks("P18", "net/http has sent attempt %d %d times", e.Attempt, e.Sends)
		}
	}
	if c.attempts > 0 && c.w.plan.H2C && len(c.rest) == 0 && len(r.arrivals) > c.attempts*most {
		c.breaks("P18", "%d arrivals of %d attempts", len(r.arrivals), c.attempts)
	}
}

// body checks what the caller has read.
func (c *checker) body() {
	r := c.r
	if r.resp == nil || !r.reading.done {
		return
	}
	h := r.resp.Header
	a := r.arrivalOf(h)
	if a == nil || h.Get("World-Status") == "" {
		return
	}
	want := content(a.step.Length, "answer", r.id, a.number)
	if v := h.Get("World-Version"); v != "" {
		want = r.file(version(r.script, a.number))
		var first, last int
		if k, _ := fmt.Sscanf(h.Get("Content-Range"), "bytes %d-%d/", &first, &last); k == 2 && a.step.Ranges != WrongRange {
			want = want[min(first, len(want)):min(last+1, len(want))]
		} else if k == 2 {
			return
		}
	}
	if r.call.Method == http.MethodHead || r.resp.StatusCode == http.StatusNotModified {
		want = nil
	}
	c.breaksOff(a)
	got := r.reading
	if !bytes.HasPrefix(want, got.got) {
		at := 0
		for at < len(want) && at < len(got.got) && want[at] == got.got[at] {
			at++
		}
		c.breaks("P20", "the body differs from byte %d on: %d bytes of %d", at, len(got.got), len(want))
	} else if got.err == io.EOF && len(got.got) != len(want) {
		c.breaks("P20", "the body ends silently after %d bytes of %d", len(got.got), len(want))
	}
}
