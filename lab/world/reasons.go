// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/fault"
)

// decisions checks that each retry was right, and each reason not to retry is true.
func (c *checker) decisions() {
	misdirected := 0
	for _, e := range c.own {
		switch e.hook {
		case "Retry":
			c.retry(e)
			if e.Err == nil && e.StatusCode == http.StatusMisdirectedRequest {
				misdirected++
			}
		case "GiveUp":
			c.giveUp(e)
		case "Done":
			if e.Reason != "" || e.Attempt == 0 {
				continue
			}
			// Whether there is another connection for a 421, nobody sees from here.
			if e.Err == nil && retryable(c.p, e.StatusCode, e.Header) && e.StatusCode != http.StatusMisdirectedRequest {
				c.breaks("P19", "%d ends the request without a reason", e.StatusCode)
			}
			if e.Err != nil && !c.ownFault() && !c.hopeless(e.Err) && !errors.Is(e.Err, errRefuses) && !c.r.hostile && c.r.call.Hints != RefusesHints {
				c.breaks("P19", "an error ends the request without a reason: %v", e.Err)
			}
		}
	}
	if misdirected > 1 || misdirected == 1 && c.r.client.plan.Wrapped {
		c.breaks("P8", "%d retries after a 421, which no other connection allows", misdirected)
	}
}

// ownFault reports whether the caller's body may be at fault.
func (c *checker) ownFault() bool {
	return c.r.call.Body == FailsRead || c.r.call.Body == FailsGet || c.r.call.Body == TooShort
}

func (c *checker) retry(e event) {
	want := retrip.ReasonError
	switch {
	case e.Err == nil && e.StatusCode < 500 && throttled(c.p, e.StatusCode, e.Header, c.word(e) > 0 || e.FromServer && e.Reason == retrip.ReasonThrottled):
		want = retrip.ReasonThrottled
	case e.Err == nil && e.StatusCode >= 500:
		want = retrip.ReasonServerError
	case e.Err == nil && e.StatusCode < 400:
		want = retrip.ReasonPending
	case e.Err == nil:
		want = retrip.ReasonStatus
	case e.Reason == retrip.ReasonTimeout || e.Reason == retrip.ReasonHiddenSends:
		want = e.Reason
	}
	if e.Reason != want {
		c.breaks("P19", "a retry after %d, %v has the reason %q", e.StatusCode, e.Err, e.Reason)
	}
	if e.Err == nil && !retryable(c.p, e.StatusCode, e.Header) {
		c.breaks("P8", "a retry after %d", e.StatusCode)
	}
	if e.StatusCode >= 400 && e.Header.Get("X-Should-Retry") == "false" && c.p.Classify != RetriesTeas && c.p.Classify != ThrottlesTeas {
		c.breaks("P8", "a retry after X-Should-Retry: false")
	}
	// retrip asks GetBody again, unless the caller goes first.
	if errors.Is(e.Err, errOwn) && (c.r.call.Body != FailsGet || !c.waited()) {
		c.breaks("P7", "a retry after the caller's own body has failed")
	}
	if c.r.call.Hints == RefusesHints && errors.Is(e.Err, errCause) {
		c.breaks("P8", "a retry after the caller's own code has refused an interim response")
	}
	if e.Err != nil && e.StatusCode == 0 && !c.r.repeatable(c.p) && !mayProve(e.Err) && (e.Sends > 0 || slices.Contains(c.r.spoiled, e.Attempt)) {
		c.breaks("P6", "a retry of what mustn't be repeated, and its error proves nothing: %v", e.Err)
	}
	if errors.Is(e.Err, fault.ErrNothing) {
		c.breaks("P5", "a retry after neither a response nor an error")
	}
	if e.Err != nil && c.hopeless(e.Err) {
		c.breaks("P8", "a retry after what no attempt can fix: %v", e.Err)
	}
	for _, a := range c.r.arrivals {
		if e.Err != nil && e.StatusCode == 0 && !c.r.repeatable(c.p) && a.processed && a.at < e.at && !unprocessed(c.p, a.status) {
			c.breaks("P6", "a retry after %v of what mustn't be repeated, and the server has processed arrival %d", e.Err, a.number)
		}
	}
	if n := len(c.r.arrivals); n > 0 && c.r.call.Body == Stream && c.attempts == len(c.r.arrivals) {
		if got := int64(c.r.arrivals[e.Attempt-1].got); got > max(0, c.p.MaxReplayBody) {
			c.breaks("P7", "a retry after the server has got %d bytes of a stream, MaxReplayBody is %d", got, c.p.MaxReplayBody)
		}
	}
	if e.Attempt >= c.p.MaxAttempts {
		c.breaks("P10", "retry %d, MaxAttempts is %d", e.Attempt, c.p.MaxAttempts)
	}
	if word := c.word(e); word > c.p.MaxWait {
		c.breaks("P9", "a retry after a response that asks for %v, MaxWait is %v", word, c.p.MaxWait)
	}
}

// giveUp checks that the reason of a give-up is true.
func (c *checker) giveUp(e event) {
	r, p := c.r, c.p
	swapped := len(r.client.swaps) > 1
	no := func(format string, args ...any) {
		c.breaks("P19", "gave up for %s after attempt %d: %s", e.Reason, e.Attempt, fmt.Sprintf(format, args...))
	}
	low := func(tokens, size float64) bool { return size > 0 && tokens < 0.7+0.2*size+0.01 }
	switch e.Reason {
	case retrip.ReasonMaxAttempts:
		if e.Attempt != p.MaxAttempts {
			no("MaxAttempts is %d", p.MaxAttempts)
		}
	case retrip.ReasonNotIdempotent:
		if r.repeatable(p) || e.Err == nil && unprocessed(p, e.StatusCode) {
			no("it may be repeated")
		}
	case retrip.ReasonBodyNotReplayable:
		if r.call.Body == FailsRead && errors.Is(e.Err, errOwn) {
			no("the failure of the caller's own body is none that a retry may help")
		}
		switch r.call.Body {
		case OwnGet, Rewinds:
			// retrip may not wait for a Read that takes longer, or for long before a deadline.
			if end := c.deadline(); r.call.Drip < 20*time.Millisecond && (end == 0 || e.at+slack < end) {
				no("its body can be replayed")
			}
		case NoBody, Bytes, Section:
			no("its body can be replayed")
		case Stream:
			if int64(r.call.Size) <= p.MaxReplayBody {
				no("its body of %d bytes can be replayed, MaxReplayBody is %d", r.call.Size, p.MaxReplayBody)
			}
		}
	case retrip.ReasonWaitTooLong:
		word := c.word(e)
		if c.hedged {
			// What either server said holds.
			for _, a := range r.arrivals {
				word = max(word, a.word)
			}
		}
		if word <= p.MaxWait && len(p.Dialects) == 0 && p.Gate.Enabled != retrip.On {
			no("the server asked for %v, MaxWait is %v", word, p.MaxWait)
		}
	case retrip.ReasonHostPaused:
		if !r.paused() && p.Gate.Enabled != retrip.On && len(p.Dialects) == 0 {
			no("the host has never asked for a pause")
		}
	case retrip.ReasonDeadline:
		c.tooLate(e, no)
	case retrip.ReasonCanceled:
		if gone := c.gone(); gone == 0 || gone > e.at {
			no("the caller hasn't gone")
		}
	case retrip.ReasonBreakerOpen:
		if (p.Breaker.Ratio == 0 && p.Breaker.MinVolume == 0 && p.Breaker.OpenFor == 0 || p.Breaker.Ratio == retrip.Off) || e.host.Breaker == retrip.BreakerClosed && !swapped {
			no("the breaker is %v", e.host.Breaker)
		}
		c.opened(e, no)
	case retrip.ReasonBudgetExhausted:
		if p.Budget == retrip.Off {
			no("the budget is unlimited")
		}
		// If the tokens have come back, the attempts that were skipped meanwhile were the last.
		if s := e.host; !swapped && !low(s.Tokens, s.Size) && !c.skips(e) {
			no("%.2f of %v tokens are left", s.Tokens, s.Size)
		}
	case retrip.ReasonRetriesFailing:
		if s := e.host; !swapped && float64(s.FailedRetries) < 0.4*s.Size-1 && s.StoppedRoutes == "" {
			no("%d retries have failed, of %v, and no route is stopped", s.FailedRetries, s.Size)
		}
	case retrip.ReasonFleetBudget:
		if !r.client.plan.Fleet || p.FleetBudget == retrip.Off {
			no("it takes no part in a fleet")
		}
	case retrip.ReasonHiddenSends:
		if e.Sends <= 1 {
			no("net/http has sent it %d times", e.Sends)
		}
	case retrip.ReasonRetryForbidden:
		if e.Header.Get("X-Should-Retry") != "false" && !c.hedged {
			no("the server didn't forbid it")
		}
	default:
		no("no such reason")
	}
}

// tooLate checks a give-up for the deadline.
func (c *checker) tooLate(e event, no func(string, ...any)) {
	deadline := c.deadline()
	switch {
	case deadline == 0:
		no("there is no deadline")
	case c.hedged || e.Attempt == 0 || c.p.Gate.Enabled == retrip.On || c.r.paused() || len(c.p.Dialects) > 0:
	case e.Err == nil || deadline > e.at:
		least, b := c.word(e), c.p.Backoff
		if least == 0 && b.Jitter != retrip.FullJitter {
			least = max(b.Base, b.ThrottleBase) << min(e.Attempt, 10)
		}
		_, hi := c.p.window(e)
		if _, room := c.room(e); deadline-e.at > least+room+slack && (c.cuts(e) < 2 || deadline-e.at > hi+room+slack) {
			no("%v are left, and %v suffice", deadline-e.at, least+room)
		}
	}
}
