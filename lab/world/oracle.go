// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// slack is how late something may be that happens at once.
const slack = 10 * time.Millisecond

// effective returns the policy that r followed, with the library's defaults.
func (r *roundTrip) effective() Policy {
	layers := []Policy{r.policies.Default, {Policy: retrip.Policy{
		MaxAttempts: 4, Backoff: retrip.Backoff{Base: 100 * time.Millisecond, Cap: 10 * time.Second, ThrottleBase: time.Second, Jitter: retrip.FullJitter},
		MaxWait: 30 * time.Second, MaxReplayBody: 64 << 10, Budget: retrip.Budget{Size: 5}, FleetBudget: 175,
	}}}
	for _, pattern := range []string{"*.test", r.host} {
		if p, ok := r.policies.Hosts[pattern]; ok {
			layers = slices.Insert(layers, 0, p)
			if pattern == r.host && len(layers) == 4 {
				layers = slices.Delete(layers, 1, 2) // only the most specific pattern counts
			}
		}
	}
	if r.call.Policy != nil {
		layers = slices.Insert(layers, 0, *r.call.Policy)
	}
	if r.call.Behalf {
		// What the caller has set is for other work than what came in.
		layers = slices.Insert(layers, 0, Policy{Policy: retrip.Policy{MaxAttempts: 1}})
	}
	p := layers[0]
	for _, under := range layers[1:] {
		inherit(reflect.ValueOf(&p).Elem(), reflect.ValueOf(under))
	}
	return p
}

func inherit(v, base reflect.Value) {
	switch {
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			inherit(v.Field(i), base.Field(i))
		}
	case v.IsZero():
		v.Set(base)
	}
}

// repeatable reports whether r may be sent again after any outcome.
func (r *roundTrip) repeatable(p Policy) bool {
	switch p.Idempotent {
	case NeverIdempotent:
		return p.IdempotencyKey == retrip.On && !r.call.Key
	case ByHeader:
		return r.call.Safe || p.IdempotencyKey == retrip.On && !r.call.Key
	}
	switch r.call.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete, "QUERY":
		return true
	}
	return r.call.Key || p.IdempotencyKey == retrip.On || slices.Contains(p.IdempotentMethods, r.call.Method)
}

// retryable reports whether a response is one that the policy retries.
func retryable(p Policy, status int, h http.Header) bool {
	switch p.Classify {
	case RetriesTeas:
		if status == http.StatusTeapot {
			return true
		}
	case FinalTeas:
		if status == http.StatusTeapot || h.Get("World-Final") != "" {
			return false
		}
	}
	if status >= 400 && h.Get("X-Should-Retry") == "true" && slices.ContainsFunc(p.Dialects, func(name string) bool {
		return slices.Contains([]string{"should-retry", "anthropic", "openai", "stripe"}, name)
	}) {
		return true
	}
	switch {
	case slices.Contains(p.Unprocessed, status), slices.Contains(p.RetryOn, status):
		return true
	case slices.Contains(p.FailOn, status):
		return false
	}
	return status >= 500 || status == http.StatusTooManyRequests
}

// check checks each round trip, once all callers have their results.
func (w *world) check() {
	for _, r := range w.order {
		c := &checker{w: w, r: r, p: r.effective()}
		r.mu.Lock()
		c.check()
		r.mu.Unlock()
	}
	w.checkPauses()
	w.checkOrders()
	w.charges()
	if text := w.logs.buf.String(); strings.Contains(text, hush) {
		at := strings.Index(text, hush)
		w.breaks("P19", "a log record has a secret: %s", text[max(0, at-200):min(len(text), at+40)])
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
	c.guards()
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
}

// deadline returns the earliest deadline of the request, or 0.
func (c *checker) deadline() time.Duration {
	d := c.r.deadline
	if c.p.Deadline > 0 {
		if own := c.r.begin + c.p.Deadline; d == 0 || own < d {
			d = own
		}
	}
	return d
}

// gone returns when the caller went, or 0.
func (c *checker) gone() time.Duration {
	gone := c.r.over
	if l := c.r.legacy; l != 0 && (gone == 0 || l < gone) {
		gone = l
	}
	return gone
}

// word returns the wait that the response of an event names, by the ledger.
func (c *checker) word(e event) time.Duration {
	n, _ := strconv.Atoi(e.Header.Get("World-Arrival"))
	if n < 1 || n > len(c.r.arrivals) {
		return 0
	}
	return c.r.arrivals[n-1].word
}

// times checks that nothing happens too early or too late.
func (c *checker) times() {
	deadline, gone := c.deadline(), c.gone()
	late := slack + c.r.call.Drip
	if c.r.client.plan.Fleet {
		late += 100 * time.Millisecond
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
			if began > 0 && c.p.AttemptTimeout > 0 && i > 0 && c.own[i-1].hook == "Attempt" && e.at-began > c.p.AttemptTimeout+late {
				c.breaks("P11", "attempt %d took %v, AttemptTimeout is %v", e.Attempt, e.at-began, c.p.AttemptTimeout)
			}
		}
	}
	if gone > 0 && c.r.end > gone+slack+c.r.call.Drip && c.r.end > c.r.begin+slack+c.r.call.Drip {
		c.breaks("P10", "RoundTrip returned at %v, and the caller had gone at %v", c.r.end, gone)
	}
	if c.p.Deadline > 0 && c.r.end > c.r.begin+c.p.Deadline+slack+c.r.call.Drip {
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
	if c.p.Gate.Enabled != retrip.On && !c.w.paused(c.r.client, c.r.host) && waited > max(retry.Wait, 50*time.Millisecond)+late {
		c.breaks("P12", "attempt %d began after %v, the wait was %v", retry.Attempt+1, waited, retry.Wait)
	}
	if deadline := c.deadline(); deadline > 0 && retry.at+retry.Wait > deadline {
		c.breaks("P10", "a wait of %v at %v, the deadline is %v", retry.Wait, retry.at, deadline)
	}
}

// decisions checks that each retry was right, and each reason not to retry is true.
func (c *checker) decisions() {
	for _, e := range c.own {
		switch e.hook {
		case "Retry":
			c.retry(e)
		case "GiveUp":
			c.giveUp(e)
		case "Done":
			if e.Reason != "" || e.Attempt == 0 {
				continue
			}
			if e.Err == nil && retryable(c.p, e.StatusCode, e.Header) {
				c.breaks("P19", "%d ends the request without a reason", e.StatusCode)
			}
			if e.Err != nil && !c.ownFault() && !c.r.hostile && c.r.call.Hints != RefusesHints {
				c.breaks("P19", "an error ends the request without a reason: %v", e.Err)
			}
		}
	}
}

// ownFault reports whether the caller's body may be at fault.
func (c *checker) ownFault() bool {
	return c.r.call.Body == FailsRead || c.r.call.Body == FailsGet || c.r.call.Body == TooShort
}

func (c *checker) retry(e event) {
	want := retrip.ReasonError
	switch {
	case e.Err == nil && e.StatusCode == http.StatusTooManyRequests:
		want = retrip.ReasonThrottled
	case e.Err == nil && e.StatusCode >= 500:
		want = retrip.ReasonServerError
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
	if e.StatusCode != 0 && e.Header.Get("X-Should-Retry") == "false" && c.p.Classify != RetriesTeas {
		c.breaks("P8", "a retry after X-Should-Retry: false")
	}
	if errors.Is(e.Err, errOwn) {
		c.breaks("P7", "a retry after the caller's own body has failed")
	}
	if c.r.call.Hints == RefusesHints && errors.Is(e.Err, errCause) {
		c.breaks("P8", "a retry after the caller's own code has refused an interim response")
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
		if r.repeatable(p) {
			no("it may be repeated")
		}
	case retrip.ReasonBodyNotReplayable:
		if r.call.Body == FailsRead && errors.Is(e.Err, errOwn) {
			no("the failure of the caller's own body is none that a retry may help")
		}
		switch r.call.Body {
		case NoBody, Bytes, Section, OwnGet:
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
		if !c.w.paused(r.client, r.host) && p.Gate.Enabled != retrip.On && len(p.Dialects) == 0 {
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
		if p.Budget.Size == retrip.Off && (p.Budget.Shared == retrip.Off || p.Budget.Shared == 0) {
			no("the budget is unlimited")
		}
		if s := e.host; !swapped && !low(s.Tokens, s.Size) && !low(s.SharedTokens, s.SharedSize) {
			no("%.2f of %v tokens are left", s.Tokens, s.Size)
		}
	case retrip.ReasonRetriesFailing:
		if s := e.host; !swapped && float64(s.FailedRetries) < 0.4*s.Size-1 {
			no("%d retries have failed, of %v", s.FailedRetries, s.Size)
		}
	case retrip.ReasonFleetBudget:
		if !r.client.plan.Fleet || p.FleetBudget == retrip.Off {
			no("it takes no part in a fleet")
		}
	case retrip.ReasonByHand:
		if len(r.client.orders) == 0 {
			no("nobody has forbidden anything")
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

// opened checks that a breaker had something to open for, and that a half-open one waits
// for a probe.
func (c *checker) opened(e event, no func(string, ...any)) {
	if len(c.r.client.swaps) > 1 {
		return
	}
	failed, busy, last := false, false, time.Duration(0)
	for _, r := range c.w.order {
		if r.client != c.r.client || r.host != c.r.host || r.begin > e.at {
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

// tooLate checks a give-up for the deadline.
func (c *checker) tooLate(e event, no func(string, ...any)) {
	deadline := c.deadline()
	switch {
	case deadline == 0:
		no("there is no deadline")
	case c.hedged || e.Attempt == 0 || c.p.Gate.Enabled == retrip.On || c.w.paused(c.r.client, c.r.host) || len(c.p.Dialects) > 0:
	case e.Err == nil || deadline > e.at:
		var began time.Duration
		for _, a := range c.own {
			if a.hook == "Attempt" {
				began = a.at
			}
		}
		least, b := c.word(e), c.p.Backoff
		if least == 0 && b.Jitter != retrip.FullJitter {
			least = max(b.Base, b.ThrottleBase) << min(e.Attempt, 10)
		}
		if need := least + e.at - began + slack; deadline-e.at > need {
			no("%v are left, and %v suffice", deadline-e.at, need)
		}
	}
}

// result checks what RoundTrip has returned.
func (c *checker) result() {
	r := c.r
	if len(c.own) == 0 {
		return
	}
	done := c.own[len(c.own)-1]
	if r.resp != nil {
		if n, _ := strconv.Atoi(r.resp.Header.Get("World-Arrival")); n >= 1 && n <= len(r.arrivals) && r.arrivals[n-1].status != r.resp.StatusCode {
			c.breaks("P1", "status %d, the server sent %d", r.resp.StatusCode, r.arrivals[n-1].status)
		}
		if done.StatusCode != r.resp.StatusCode {
			c.breaks("P19", "status %d, the hook Done got %d", r.resp.StatusCode, done.StatusCode)
		}
		return
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
		if last := r.arrivals[i-1]; !slices.Contains(p.Unprocessed, last.status) {
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
	if most := c.attempts * (p.MaxSends + 1); p.MaxSends > 0 && c.attempts > 0 && c.w.plan.H2C && len(c.rest) == 0 && len(r.arrivals) > most {
		c.breaks("P18", "%d arrivals of %d attempts, MaxSends is %d", len(r.arrivals), c.attempts, p.MaxSends)
	}
}

// body checks what the caller has read.
func (c *checker) body() {
	r := c.r
	if r.resp == nil || !r.reading.done {
		return
	}
	h := r.resp.Header
	n, _ := strconv.Atoi(h.Get("World-Arrival"))
	if n < 1 || n > len(r.arrivals) || h.Get("World-Status") == "" {
		return
	}
	want := content(r.arrivals[n-1].step.Length, "answer", r.id, n)
	if v := h.Get("World-Version"); v != "" {
		version, _ := strconv.Atoi(v)
		_, length := version2(r.script, version)
		want = r.file(version, length)
		var first, last int
		if k, _ := fmt.Sscanf(h.Get("Content-Range"), "bytes %d-%d/", &first, &last); k == 2 && r.arrivals[n-1].step.Ranges != WrongRange {
			want = want[min(first, len(want)):min(last+1, len(want))]
		} else if k == 2 {
			return
		}
	}
	if r.call.Method == http.MethodHead || r.resp.StatusCode == http.StatusNotModified {
		want = nil
	}
	c.breaksOff(r.arrivals[n-1])
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

// version2 returns the length of a version of the file.
func version2(script []Step, version int) (int, int) {
	v, length := 0, 0
	if len(script) > 0 {
		length = script[0].Length
	}
	for i := 1; i < len(script) && v < version; i++ {
		if script[i].Bump {
			v, length = v+1, script[i].Length
		}
	}
	return v, length
}

// paused reports whether a host has ever asked a client for a pause.
func (w *world) paused(c *client, host string) bool {
	for _, r := range w.order {
		if r.client != c || r.host != host {
			continue
		}
		for _, a := range r.arrivals {
			if a.word > 0 && a.status >= 400 {
				return true
			}
		}
		if len(r.effective().Dialects) > 0 {
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
			if e.hook != "Retry" && e.hook != "GiveUp" || e.StatusCode != http.StatusServiceUnavailable || e.Err != nil || e.Reason == retrip.ReasonCanceled || !retryable(p, e.StatusCode, e.Header) {
				continue
			}
			n, _ := strconv.Atoi(e.Header.Get("World-Arrival"))
			if n < 1 || n > len(r.arrivals) {
				continue
			}
			if r.client.forgot {
				continue
			}
			until := e.at + min(r.arrivals[n-1].word, p.MaxWait)
			for _, other := range w.order {
				if other.client != r.client || other.host != r.host {
					continue
				}
				q := other.effective()
				for _, v := range other.events {
					if v.hook == "Attempt" && v.at > e.at && v.at < until-100*time.Millisecond && (v.Attempt > 1 || p.Gate.Enabled == retrip.On && q.Gate.Enabled == retrip.On && !p.Keyed) {
						w.breaks("P9", "%v: attempt %d at %v, and %v asked all to wait from %v to %v", other, v.Attempt, v.at, r, e.at, until)
					}
				}
			}
		}
	}
}

// checkOrders checks that nobody does what is forbidden by hand.
func (w *world) checkOrders() {
	for _, r := range w.order {
		for _, o := range r.client.orders {
			for _, e := range r.events {
				if e.hook == "Attempt" && e.at > o.from && e.at < o.until && (o.host == r.host || o.host == "" && e.Attempt > 1) {
					w.breaks("P19", "%v: attempt %d at %v, forbidden by hand from %v to %v", r, e.Attempt, e.at, o.from, o.until)
				}
			}
		}
	}
}

// plausible checks the state of a host.
func (w *world) plausible(c *client, s retrip.HostState) {
	if s.Tokens < -1e-6 || s.Size > 0 && s.Tokens > s.Size+1e-6 || s.SharedTokens < -1e-6 || s.SharedSize > 0 && s.SharedTokens > s.SharedSize+1e-6 || s.PausedFor < 0 || s.Waiting < 0 || s.FailedRetries < 0 {
		w.breaks("P15", "t%d: the state of %s is impossible: %+v", c.number, s.Host, s)
	}
}

// solvent checks that the budget of a host misses no more than its retries have cost:
// a retry that was not made gives its tokens back.
func (w *world) solvent(c *client, s retrip.HostState) {
	if len(c.swaps) > 1 || s.Host == "others" || c.plan.Bare {
		return
	}
	here, everywhere := 0.0, c.cost
	for _, r := range w.order {
		if r.client != c {
			continue
		}
		cost := 0.0
		if r.effective().AttemptTimeout > 0 {
			cost = 2 // of a slow success
		}
		for _, e := range r.events {
			if e.hook == "Hedge" || e.hook == "Attempt" && (e.Attempt > 1 || e.at > r.end) {
				cost += 0.7
			}
		}
		everywhere += cost
		if strings.HasPrefix(s.Host, r.host) {
			here += cost
		}
	}
	const tiny = 1e-4
	if missing := s.Size - s.Tokens; strings.HasPrefix(s.Host, "s") && missing > here+tiny {
		w.breaks("P10", "t%d: %s misses %.2f tokens, its retries have cost %.2f at most", c.number, s.Host, missing, here)
	}
	if missing := s.SharedSize - s.SharedTokens; missing > everywhere+tiny {
		w.breaks("P10", "t%d: the shared budget misses %.2f tokens, all retries have cost %.2f at most", c.number, missing, everywhere)
	}
}

// checkQuiet checks what must hold once no request is in flight.
func (w *world) checkQuiet(t *testing.T) {
	swapped := false
	for _, c := range w.clients {
		swapped = swapped || len(c.swaps) > 1
		for _, s := range c.retrip.HostStates() {
			w.plausible(c, s)
			w.solvent(c, s)
			if s.Waiting != 0 {
				w.breaks("P23", "t%d: %d requests wait at the gate of %s, and none is in flight", c.number, s.Waiting, s.Host)
			}
		}
	}
	for i, m := range w.metrics {
		made, gaveUp, bare := 0, map[string]float64{}, false
		for _, c := range w.clients {
			if c.plan.Metrics == i {
				made += c.strangers
				bare = bare || c.plan.Bare
				for reason, n := range c.strange {
					gaveUp[reason] += n
				}
			}
		}
		for _, r := range w.order {
			if r.client.plan.Metrics != i {
				continue
			}
			made++
			for _, e := range r.events {
				if e.hook == "GiveUp" {
					gaveUp[string(e.Reason)]++
				}
				if e.hook == "Done" {
					break
				}
			}
		}
		var requests float64
		counted := map[string]float64{}
		for policy, s := range play.Gather(t, m) {
			w.identities(policy, s)
			requests += s["requests_total"]
			for name, n := range s {
				if reason, ok := strings.CutPrefix(name, "give_ups_total "); ok {
					counted[reason] += n
				}
			}
		}
		if swapped || bare {
			continue // series may have gone with their policies
		}
		if requests != float64(made) {
			w.breaks("P19", "%d requests, the metrics say %v", made, requests)
		}
		for reason, n := range counted {
			if gaveUp[reason] != n {
				w.breaks("P19", "%v give-ups for %s, the metrics say %v", gaveUp[reason], reason, n)
			}
		}
	}
}

// identities checks the identities of docs/metrics.md.
func (w *world) identities(policy string, s play.Sums) {
	for _, x := range []struct {
		text string
		a, b float64
	}{
		{"attempts = requests - unattempted + retries + hedges", s["attempts_total"], s["requests_total"] - s["unattempted_requests_total"] + s["retries_total"] + s["hedges_total"]},
		{"give-ups = requests that gave up or were canceled", s["give_ups_total"], s["requests_total gave_up"] + s["requests_total canceled"]},
		{"canceled give-ups = canceled requests", s["give_ups_total canceled"], s["requests_total canceled"]},
		{"retries = waits", s["retries_total"], s["wait_seconds"]},
	} {
		if x.a != x.b {
			w.breaks("P19", "the metrics of %s don't add up: %s: %v, %v", policy, x.text, x.a, x.b)
		}
	}
}

// last makes a request that should get a response at once.
func (w *world) last(c *client, s *site, id int) (*http.Response, error) {
	of := &callOf{id: id + c.number*10 + s.number, call: &Call{Method: http.MethodGet, Site: s.number}}
	ctx := context.WithValue(context.Background(), callKey{}, of)
	ctx = retrip.WithPolicy(ctx, retrip.Policy{MaxAttempts: 1, Deadline: time.Hour, AttemptTimeout: time.Hour})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.scheme()+"://"+s.host()+"/last", nil)
	must(err)
	return c.http.Transport.RoundTrip(req)
}

// checkProbes checks that a breaker lets a request through once the time is over for
// which it is open: no probe is missing.
func (w *world) checkProbes() {
	for _, c := range w.clients {
		for _, s := range w.sites {
			resp, err := w.last(c, s, 80_000)
			if e, ok := errors.AsType[*retrip.Error](err); ok && e.Reason == retrip.ReasonBreakerOpen {
				w.breaks("P5", "t%d: the breaker of s%d refuses a request, a minute after the last one", c.number, s.number)
			}
			if resp != nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}
	}
}

// checkCalm checks that a day after the last trouble, nothing of it is left.
func (w *world) checkCalm(t *testing.T) {
	for _, c := range w.clients {
		for _, s := range c.retrip.HostStates() {
			w.breaks("P15", "t%d: %s still has a state after 26 hours: %v", c.number, s.Host, s)
		}
		for _, s := range w.sites {
			began := w.now()
			resp, err := w.last(c, s, 90_000)
			if err != nil {
				w.breaks("P14", "t%d: the last request to s%d fails: %v", c.number, s.number, err)
				continue
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if took := w.now() - began; resp.StatusCode != http.StatusOK || took > 20*s.plan.Latency+time.Second {
				w.breaks("P14", "t%d: the last request to s%d gets %d after %v", c.number, s.number, resp.StatusCode, took)
			}
		}
	}
	synctest.Wait()
	_ = t
}
