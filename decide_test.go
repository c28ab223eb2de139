// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
)

// The decisions after one attempt at a healthy host.
func TestNext(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	tests := []struct {
		name    string
		policy  retrip.Policy
		call    retrip.Call // Attempts of 0 stands for 1
		outcome retrip.Outcome
		lo, hi  time.Duration // bounds of the wait, if there is one
		reason  retrip.Reason
		retry   bool
	}{
		// Accepted.
		{name: "200", outcome: repeatable(200)},
		{name: "101", outcome: repeatable(101)},
		{name: "302", outcome: repeatable(302)},
		{name: "400", outcome: repeatable(400)},
		{name: "401", outcome: repeatable(401)},
		{name: "404", outcome: repeatable(404)},
		{name: "409", outcome: repeatable(409)},
		{name: "499", outcome: repeatable(499)},
		{name: "600", outcome: repeatable(600)},
		{name: "999", outcome: repeatable(999)},
		{name: "hopeless error", outcome: retrip.Outcome{Hopeless: true, Idempotent: true, Replay: true}},
		{name: "Retry-After on a 404 means nothing", outcome: retrip.Outcome{Status: 404, RetryAfter: s, Idempotent: true, Replay: true}},

		// Retried.
		{name: "500", outcome: repeatable(500), retry: true, reason: retrip.ReasonServerError, hi: 100 * ms},
		{name: "503", outcome: repeatable(503), retry: true, reason: retrip.ReasonServerError, hi: 100 * ms},
		{name: "599", outcome: repeatable(599), retry: true, reason: retrip.ReasonServerError, hi: 100 * ms},
		{name: "429", outcome: repeatable(429), retry: true, reason: retrip.ReasonThrottled, hi: s},
		{name: "error", outcome: repeatable(0), retry: true, reason: retrip.ReasonError, hi: 100 * ms},
		{name: "timeout", outcome: retrip.Outcome{Timeout: true, Idempotent: true, Replay: true}, retry: true, reason: retrip.ReasonTimeout, hi: 100 * ms},
		{name: "hidden sends", outcome: retrip.Outcome{Resent: true, Idempotent: true, Replay: true}, retry: true, reason: retrip.ReasonHiddenSends, hi: 100 * ms},
		{name: "third attempt", call: retrip.Call{Attempts: 3}, outcome: repeatable(503), retry: true, reason: retrip.ReasonServerError, hi: 400 * ms},

		// Statuses that a policy changes.
		{name: "RetryOn 404", policy: retrip.Policy{RetryOn: []int{404}}, outcome: repeatable(404), retry: true, reason: retrip.ReasonStatus, hi: 100 * ms},
		{name: "FailOn 501", policy: retrip.Policy{FailOn: []int{501}}, outcome: repeatable(501)},
		{name: "FailOn 429", policy: retrip.Policy{FailOn: []int{429}}, outcome: repeatable(429)},
		{name: "FailOn 501 leaves 502", policy: retrip.Policy{FailOn: []int{501}}, outcome: repeatable(502), retry: true, reason: retrip.ReasonServerError, hi: 100 * ms},
		{name: "Unprocessed 429, not idempotent", policy: retrip.Policy{Unprocessed: []int{429}}, outcome: retrip.Outcome{Status: 429, Replay: true}, retry: true, reason: retrip.ReasonThrottled, hi: s},
		{name: "Unprocessed 409, not idempotent", policy: retrip.Policy{Unprocessed: []int{409}}, outcome: retrip.Outcome{Status: 409, Replay: true}, retry: true, reason: retrip.ReasonStatus, hi: 100 * ms},
		{name: "Unprocessed 429 says nothing of 503", policy: retrip.Policy{Unprocessed: []int{429}}, outcome: retrip.Outcome{Status: 503, Replay: true}, reason: retrip.ReasonNotIdempotent},

		// Verdicts of Classify.
		{name: "Retryable 200", outcome: retrip.Outcome{Status: 200, Verdict: retrip.Retryable, Idempotent: true, Replay: true}, retry: true, reason: retrip.ReasonStatus, hi: 100 * ms},
		{name: "Retryable 200, not idempotent", outcome: retrip.Outcome{Status: 200, Verdict: retrip.Retryable, Replay: true}, reason: retrip.ReasonNotIdempotent},
		{name: "NotProcessed 200, not idempotent", outcome: retrip.Outcome{Status: 200, Verdict: retrip.NotProcessed, Replay: true}, retry: true, reason: retrip.ReasonStatus, hi: 100 * ms},
		{name: "NotProcessed error, not idempotent", outcome: retrip.Outcome{Verdict: retrip.NotProcessed, Replay: true}, retry: true, reason: retrip.ReasonError, hi: 100 * ms},
		{name: "Final 503", outcome: retrip.Outcome{Status: 503, Verdict: retrip.Final, Idempotent: true, Replay: true}},
		{name: "Final error", outcome: retrip.Outcome{Verdict: retrip.Final, Idempotent: true, Replay: true}},

		// Given up.
		{name: "canceled", outcome: retrip.Outcome{Canceled: true, Idempotent: true, Replay: true}, reason: retrip.ReasonCanceled},
		{name: "canceled before the deadline", call: retrip.Call{Deadline: 1}, outcome: retrip.Outcome{Canceled: true}, reason: retrip.ReasonCanceled},
		{name: "hidden sends, attempts used up", call: retrip.Call{Attempts: 4}, outcome: retrip.Outcome{Resent: true, Idempotent: true, Replay: true}, reason: retrip.ReasonHiddenSends},
		{name: "hidden sends, not idempotent", outcome: retrip.Outcome{Resent: true, Replay: true}, reason: retrip.ReasonHiddenSends},
		{name: "hidden sends, body not replayable", outcome: retrip.Outcome{Resent: true, Idempotent: true}, reason: retrip.ReasonBodyNotReplayable},
		{name: "attempts used up", call: retrip.Call{Attempts: 4}, outcome: repeatable(503), reason: retrip.ReasonMaxAttempts},
		{name: "more than used up", call: retrip.Call{Attempts: 5}, outcome: repeatable(503), reason: retrip.ReasonMaxAttempts},
		{name: "one attempt only", policy: retrip.Policy{MaxAttempts: 1}, outcome: repeatable(503), reason: retrip.ReasonMaxAttempts},
		{name: "not idempotent", outcome: retrip.Outcome{Status: 503, Replay: true}, reason: retrip.ReasonNotIdempotent},
		{name: "body not replayable", outcome: retrip.Outcome{Status: 503, Idempotent: true}, reason: retrip.ReasonBodyNotReplayable},

		// Waits that the server asks for.
		{name: "Retry-After: 1 on 503", outcome: retrip.Outcome{Status: 503, RetryAfter: s, Idempotent: true, Replay: true}, retry: true, reason: retrip.ReasonServerError, lo: s, hi: 1500 * ms},
		{name: "Retry-After: 1 on 429", outcome: retrip.Outcome{Status: 429, RetryAfter: s, Idempotent: true, Replay: true}, retry: true, reason: retrip.ReasonThrottled, lo: s, hi: 1500 * ms},
		{name: "Retry-After: 1 on 502", outcome: retrip.Outcome{Status: 502, RetryAfter: s, Idempotent: true, Replay: true}, retry: true, reason: retrip.ReasonServerError, lo: s, hi: 1500 * ms},
		{name: "as long as MaxWait", outcome: retrip.Outcome{Status: 503, RetryAfter: 30 * s, Idempotent: true, Replay: true}, retry: true, reason: retrip.ReasonServerError, lo: 30 * s, hi: 45 * s},
		{name: "longer than MaxWait", outcome: retrip.Outcome{Status: 503, RetryAfter: 30*s + 1, Idempotent: true, Replay: true}, reason: retrip.ReasonWaitTooLong},
		{name: "484289 hours", outcome: retrip.Outcome{Status: 429, RetryAfter: 484289 * time.Hour, Idempotent: true, Replay: true}, reason: retrip.ReasonWaitTooLong},
		{name: "for ever", outcome: retrip.Outcome{Status: 503, RetryAfter: forever, Idempotent: true, Replay: true}, reason: retrip.ReasonWaitTooLong},

		// Deadlines. All attempts end at the instant 0.
		{name: "hi is cut", call: retrip.Call{Deadline: 60 * ms}, outcome: repeatable(503), retry: true, reason: retrip.ReasonServerError, hi: 60 * ms},
		{name: "the attempt to come takes as long as the last", call: retrip.Call{Deadline: 60 * ms}, outcome: retrip.Outcome{Status: 503, Took: 25 * ms, Idempotent: true, Replay: true}, retry: true, reason: retrip.ReasonServerError, hi: 35 * ms},
		{name: "no room for an attempt", call: retrip.Call{Deadline: 60 * ms}, outcome: retrip.Outcome{Status: 503, Took: 60*ms + 1, Idempotent: true, Replay: true}, reason: retrip.ReasonDeadline},
		{name: "just room for an attempt", call: retrip.Call{Deadline: 60 * ms}, outcome: retrip.Outcome{Status: 503, Took: 60 * ms, Idempotent: true, Replay: true}, retry: true, reason: retrip.ReasonServerError},
		{name: "room enough", call: retrip.Call{Deadline: 10 * s}, outcome: retrip.Outcome{Status: 503, Took: s, Idempotent: true, Replay: true}, retry: true, reason: retrip.ReasonServerError, hi: 100 * ms},
		{name: "without a deadline the duration means nothing", outcome: retrip.Outcome{Status: 503, Took: time.Hour, Idempotent: true, Replay: true}, retry: true, reason: retrip.ReasonServerError, hi: 100 * ms},
		{name: "lo never moves", call: retrip.Call{Deadline: 1100 * ms}, outcome: retrip.Outcome{Status: 503, RetryAfter: s, Idempotent: true, Replay: true}, retry: true, reason: retrip.ReasonServerError, lo: s, hi: 1100 * ms},
		{name: "the server's word doesn't fit", call: retrip.Call{Deadline: 600 * ms}, outcome: retrip.Outcome{Status: 503, RetryAfter: 2 * s, Idempotent: true, Replay: true}, reason: retrip.ReasonDeadline},
		{name: "an unjittered wait doesn't fit", policy: retrip.Policy{Backoff: retrip.Backoff{Base: 2 * s, Jitter: retrip.NoJitter}}, call: retrip.Call{Deadline: 600 * ms}, outcome: repeatable(503), reason: retrip.ReasonDeadline},
		{name: "an unjittered wait just fits", policy: retrip.Policy{Backoff: retrip.Backoff{Base: 2 * s, Jitter: retrip.NoJitter}}, call: retrip.Call{Deadline: 2 * s}, outcome: repeatable(503), retry: true, reason: retrip.ReasonServerError, lo: 2 * s, hi: 2 * s},
		{name: "equal jitter keeps its lower half", policy: retrip.Policy{Backoff: retrip.Backoff{Base: 2 * s, Jitter: retrip.EqualJitter}}, call: retrip.Call{Deadline: 999 * ms}, outcome: repeatable(503), reason: retrip.ReasonDeadline},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := rulesOf(t, tt.policy)
			next := func(draw uint64) retrip.Decision {
				call := tt.call
				return new(retrip.Host).Next(r, &call, tt.outcome, 0, draw)
			}
			lowest, highest := next(drawLowest), next(drawHighest)
			assert.Equal(t, tt.reason, lowest.Reason)
			assert.Equal(t, tt.reason, highest.Reason)
			assert.Equal(t, tt.retry, lowest.Retry)
			assert.Equal(t, tt.retry, highest.Retry)
			assert.Equal(t, tt.lo, lowest.Wait)
			assert.Equal(t, tt.hi, highest.Wait)
		})
	}
}

// If several reasons apply to an attempt, the first in the order of decisions
// counts.
func TestNext_Order(t *testing.T) {
	const now = time.Hour
	type situation struct {
		host    retrip.Host
		call    retrip.Call
		outcome retrip.Outcome
	}
	opener := rulesOf(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: 1, MinVolume: 1, OpenFor: time.Hour}, Budget: retrip.Unlimited})
	order := []struct {
		name   string
		reason retrip.Reason
		apply  func(*testing.T, *situation)
	}{
		{"canceled", retrip.ReasonCanceled, func(_ *testing.T, s *situation) { s.outcome.Canceled = true }},
		{"accepted", "", func(_ *testing.T, s *situation) { s.outcome.Status = 200 }},
		{"hopeless", "", func(_ *testing.T, s *situation) { s.outcome.Hopeless = true }},
		{"forbidden", retrip.ReasonRetryForbidden, func(_ *testing.T, s *situation) { s.outcome.Forbidden = true }},
		{"hidden sends", retrip.ReasonHiddenSends, func(_ *testing.T, s *situation) { s.outcome.Resent = true }},
		{"attempts used up", retrip.ReasonMaxAttempts, func(_ *testing.T, s *situation) { s.call.Attempts = 4 }},
		{"not idempotent", retrip.ReasonNotIdempotent, func(_ *testing.T, s *situation) { s.outcome.Idempotent = false }},
		{"body not replayable", retrip.ReasonBodyNotReplayable, func(_ *testing.T, s *situation) { s.outcome.Replay = false }},
		{"wait too long", retrip.ReasonWaitTooLong, func(_ *testing.T, s *situation) { s.outcome.RetryAfter = time.Minute }},
		{"host paused", retrip.ReasonHostPaused, func(t *testing.T, s *situation) { pause(t, &s.host, 50*time.Second, now-time.Second) }},
		{"deadline", retrip.ReasonDeadline, func(_ *testing.T, s *situation) { s.call.Deadline, s.outcome.Took = now+time.Second, 2*time.Second }},
		{"breaker open", retrip.ReasonBreakerOpen, func(_ *testing.T, s *situation) { fail(&s.host, opener, now-time.Second) }},
		{"budget exhausted", retrip.ReasonBudgetExhausted, func(t *testing.T, s *situation) { drain(t, &s.host, now-time.Second) }},
		{"nothing", retrip.ReasonError, func(*testing.T, *situation) {}},
	}
	r := rulesOf(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: 1}})
	for i, first := range order {
		t.Run(first.name, func(t *testing.T) {
			s := situation{call: retrip.Call{Attempts: 1}, outcome: repeatable(0)}
			// An open breaker lets nobody take a token, and a pause changes the
			// time of a token, so apply the last reason first.
			for j := len(order) - 1; j >= i; j-- {
				order[j].apply(t, &s)
			}
			d := s.host.Next(r, &s.call, s.outcome, now, drawLowest)
			assert.Equal(t, first.reason, d.Reason)
			assert.Equal(t, first.name == "nothing", d.Retry)
			assert.Zero(t, d.Wait)
		})
	}
}

// A caller's own deadline has its own reason.
func TestNext_CanceledByDeadline(t *testing.T) {
	r := rulesOf(t, retrip.Policy{})
	d := new(retrip.Host).Next(r, &retrip.Call{Deadline: 5}, retrip.Outcome{Canceled: true}, 5, 0)
	assert.Equal(t, retrip.Decision{Reason: retrip.ReasonDeadline}, d)
}

func TestNext_HostPaused(t *testing.T) {
	const s = time.Second
	tests := []struct {
		name     string
		pause    time.Duration
		own      time.Duration // Retry-After of the attempt
		deadline time.Duration
		reason   retrip.Reason
		lo, hi   time.Duration
	}{
		{name: "waited for", pause: 10 * s, reason: retrip.ReasonServerError, lo: 10 * s, hi: 15 * s},
		{name: "own word is longer", pause: 10 * s, own: 20 * s, reason: retrip.ReasonServerError, lo: 20 * s, hi: 30 * s},
		{name: "own word is shorter", pause: 10 * s, own: 2 * s, reason: retrip.ReasonServerError, lo: 10 * s, hi: 15 * s},
		{name: "fits the deadline", pause: 10 * s, deadline: 12 * s, reason: retrip.ReasonServerError, lo: 10 * s, hi: 12 * s},
		{name: "doesn't fit the deadline", pause: 10 * s, deadline: 10*s - 1, reason: retrip.ReasonHostPaused},
		{name: "own word doesn't fit either", pause: 10 * s, own: 20 * s, deadline: 5 * s, reason: retrip.ReasonDeadline},
		{name: "longer than MaxWait", pause: 31 * s, reason: retrip.ReasonHostPaused},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := rulesOf(t, retrip.Policy{})
			next := func(draw uint64) retrip.Decision {
				var h retrip.Host
				pause(t, &h, tt.pause, 0)
				o := repeatable(502)
				o.RetryAfter = tt.own
				return h.Next(r, &retrip.Call{Attempts: 1, Deadline: tt.deadline}, o, 0, draw)
			}
			lowest, highest := next(drawLowest), next(drawHighest)
			assert.Equal(t, tt.reason, lowest.Reason)
			assert.Equal(t, tt.lo, lowest.Wait)
			assert.Equal(t, tt.hi, highest.Wait)
		})
	}
}

// Only a 503 applies to the whole host. Its Retry-After counts up to MaxWait,
// and a pause is never shortened.
func TestNext_Pauses(t *testing.T) {
	const s = time.Second
	var h retrip.Host
	r := rulesOf(t, retrip.Policy{Budget: retrip.Unlimited})
	steps := []struct {
		now    time.Duration
		status int
		word   time.Duration
		want   time.Duration // rest of the pause
	}{
		{0, 429, 5 * s, 0},
		{0, 502, 5 * s, 0},
		{0, 0, 5 * s, 0},
		{0, 404, 5 * s, 0},
		{0, 503, 0, 0},
		{0, 503, 5 * s, 5 * s},
		{1 * s, 503, 2 * s, 4 * s},
		{1 * s, 503, 6 * s, 6 * s},
		{2 * s, 503, time.Hour, 30 * s},
		{31 * s, 200, 0, 1 * s},
		{33 * s, 200, 0, 0},
	}
	for i, step := range steps {
		o := repeatable(step.status)
		o.RetryAfter = step.word
		h.Next(r, &retrip.Call{Attempts: 1}, o, step.now, drawLowest)
		assert.Equal(t, step.want, h.State(r, step.now).PausedFor, "step %d", i)
	}
}

// A 503 whose request isn't retried still pauses the host.
func TestNext_PausesWithoutRetry(t *testing.T) {
	var h retrip.Host
	r := rulesOf(t, retrip.Policy{})
	d := h.Next(r, &retrip.Call{Attempts: 1}, retrip.Outcome{Status: 503, RetryAfter: time.Second}, 0, 0)
	assert.Equal(t, retrip.ReasonNotIdempotent, d.Reason)
	assert.Equal(t, time.Second, h.State(r, 0).PausedFor)
}

func TestDecide_AllocatesNothing(t *testing.T) {
	for name, p := range map[string]retrip.Policy{
		"defaults": {},
		"all": {Breaker: retrip.Breaker{Ratio: 0.9, MinVolume: 1000}, Gate: retrip.On,
			RetryOn: []int{404}, Unprocessed: []int{429}, Backoff: retrip.Backoff{Jitter: retrip.DecorrelatedJitter}},
	} {
		t.Run(name, func(t *testing.T) {
			var h retrip.Host
			r := rulesOf(t, p)
			refused := repeatable(429)
			refused.RetryAfter = time.Millisecond
			now, draw := time.Duration(0), uint64(1)
			// State of the host, such as the window of its breaker, is
			// allocated once.
			h.Next(r, &retrip.Call{Attempts: 1}, refused, now, draw)
			decisions := 0
			ask := func(call *retrip.Call) retrip.Decision {
				if call.Attempts == 0 {
					return h.First(r, call, now, draw)
				}
				return h.Wake(r, call, now, draw)
			}
			allocs := testing.AllocsPerRun(1000, func() {
				call := retrip.Call{Deadline: now + time.Minute}
				for _, o := range []retrip.Outcome{repeatable(503), repeatable(0), refused, repeatable(200)} {
					for d := ask(&call); d.Retry && d.Wait > 0; d = ask(&call) {
						now += d.Wait
						decisions++
					}
					call.Attempts++
					now += time.Millisecond
					draw = draw*6364136223846793005 + 1442695040888963407
					now += h.Next(r, &call, o, now, draw).Wait
					decisions++
				}
				h.Return(r, &call)
			})
			assert.Zero(t, allocs)
			assert.Greater(t, decisions, 4000)
		})
	}
}

func BenchmarkNext(b *testing.B) {
	r := rulesOf(b, retrip.Policy{Budget: retrip.Unlimited})
	var h retrip.Host
	b.ReportAllocs()
	for b.Loop() {
		call := retrip.Call{Attempts: 1}
		h.Next(r, &call, repeatable(503), time.Second, 1<<63)
	}
}

// A 503 with Retry-After: 5 at attempt 3 with 2 seconds left: what happens?
func ExampleHost_Next() {
	rules, err := retrip.Policy{}.Rules()
	if err != nil {
		fmt.Println(err)
		return
	}
	var healthy retrip.Host
	outcome := retrip.Outcome{Status: 503, RetryAfter: 5 * time.Second, Idempotent: true, Replay: true}

	call := retrip.Call{Attempts: 3, Deadline: 2 * time.Second}
	d := healthy.Next(rules, &call, outcome, 0, rand.Uint64())
	fmt.Printf("2 s left: retry %t, %s\n", d.Retry, d.Reason)

	call = retrip.Call{Attempts: 3, Deadline: 6 * time.Second}
	d = healthy.Next(rules, &call, outcome, 0, rand.Uint64())
	fmt.Printf("6 s left: retry %t, %s, after 5 to 6 s: %t\n", d.Retry, d.Reason, 5*time.Second <= d.Wait && d.Wait <= 6*time.Second)

	// Output:
	// 2 s left: retry false, deadline
	// 6 s left: retry true, server_error, after 5 to 6 s: true
}

// A wait that fits the deadline or MaxWait to the nanosecond begins.
func TestNext_PauseThatJustFits(t *testing.T) {
	const now, word = time.Minute, 10 * time.Second
	for _, tt := range []struct {
		name    string
		policy  retrip.Policy
		call    retrip.Call
		retries bool
	}{
		{"deadline", retrip.Policy{}, retrip.Call{Attempts: 1, Deadline: now + word}, true},
		{"a nanosecond before the deadline", retrip.Policy{}, retrip.Call{Attempts: 1, Deadline: now + word - 1}, false},
		{"MaxWait", retrip.Policy{MaxWait: word}, retrip.Call{Attempts: 1}, true},
		{"a nanosecond more than MaxWait", retrip.Policy{MaxWait: word - 1}, retrip.Call{Attempts: 1}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var h retrip.Host
			pause(t, &h, word, now)
			d := h.Next(rulesOf(t, tt.policy), &tt.call, repeatable(http.StatusInternalServerError), now, drawLowest)
			assert.Equal(t, tt.retries, d.Retry)
			if !tt.retries {
				assert.Equal(t, retrip.ReasonHostPaused, d.Reason)
			}
		})
	}
}

func TestNext_ReasonOf499(t *testing.T) {
	var h retrip.Host
	d := h.Next(rulesOf(t, retrip.Policy{RetryOn: []int{499}}), &retrip.Call{Attempts: 1}, repeatable(499), 0, drawLowest)
	assert.Equal(t, retrip.ReasonStatus, d.Reason)
}
