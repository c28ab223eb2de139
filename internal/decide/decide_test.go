// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/lend"
	"github.com/retrip/retrip/internal/play"
)

// The decisions after one attempt at a healthy host.
//
//retrip:promise P6 P8 P10 P19
func TestStep_Ended(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	tests := []struct {
		name    string
		policy  retrip.Policy
		call    decide.Call // Attempts of 0 stands for 1
		outcome decide.Outcome
		lo, hi  time.Duration // bounds of the wait, if there is one
		reason  decide.Reason
		retry   bool
	}{
		// Accepted.
		{name: "200", outcome: play.Repeatable(200)},
		{name: "101", outcome: play.Repeatable(101)},
		{name: "302", outcome: play.Repeatable(302)},
		{name: "400", outcome: play.Repeatable(400)},
		{name: "401", outcome: play.Repeatable(401)},
		{name: "404", outcome: play.Repeatable(404)},
		{name: "409", outcome: play.Repeatable(409)},
		{name: "499", outcome: play.Repeatable(499)},
		{name: "600", outcome: play.Repeatable(600)},
		{name: "999", outcome: play.Repeatable(999)},
		{name: "hopeless error", outcome: decide.Outcome{Hopeless: true, Idempotent: true, Replay: true}},
		{name: "Retry-After on a 404 means nothing", outcome: decide.Outcome{Status: 404, RetryAfter: s, Idempotent: true, Replay: true}},

		// Retried.
		{name: "500", outcome: play.Repeatable(500), retry: true, reason: decide.ServerError, hi: 100 * ms},
		{name: "503", outcome: play.Repeatable(503), retry: true, reason: decide.ServerError, hi: 100 * ms},
		{name: "599", outcome: play.Repeatable(599), retry: true, reason: decide.ServerError, hi: 100 * ms},
		{name: "429", outcome: play.Repeatable(429), retry: true, reason: decide.Throttled, hi: s},
		{name: "error", outcome: play.Repeatable(0), retry: true, reason: decide.Error, hi: 100 * ms},
		{name: "timeout", outcome: decide.Outcome{Timeout: true, Idempotent: true, Replay: true}, retry: true, reason: decide.Timeout, hi: 100 * ms},
		{name: "hidden sends", outcome: decide.Outcome{Resent: true, Idempotent: true, Replay: true}, retry: true, reason: decide.HiddenSends, hi: 100 * ms},
		{name: "third attempt", call: decide.Call{Attempts: 3}, outcome: play.Repeatable(503), retry: true, reason: decide.ServerError, hi: 400 * ms},

		// Statuses that a policy changes.
		{name: "RetryOn 404", policy: retrip.Policy{RetryOn: []int{404}}, outcome: play.Repeatable(404), retry: true, reason: decide.Status, hi: 100 * ms},
		{name: "RetryOn 499", policy: retrip.Policy{RetryOn: []int{499}}, outcome: play.Repeatable(499), retry: true, reason: decide.Status, hi: 100 * ms},
		{name: "FailOn 501", policy: retrip.Policy{FailOn: []int{501}}, outcome: play.Repeatable(501)},
		{name: "FailOn 429", policy: retrip.Policy{FailOn: []int{429}}, outcome: play.Repeatable(429)},
		{name: "FailOn 501 leaves 502", policy: retrip.Policy{FailOn: []int{501}}, outcome: play.Repeatable(502), retry: true, reason: decide.ServerError, hi: 100 * ms},
		{name: "Unprocessed 429, not idempotent", policy: retrip.Policy{Unprocessed: []int{429}}, outcome: decide.Outcome{Status: 429, Replay: true}, retry: true, reason: decide.Throttled, hi: s},
		{name: "Unprocessed 409, not idempotent", policy: retrip.Policy{Unprocessed: []int{409}}, outcome: decide.Outcome{Status: 409, Replay: true}, retry: true, reason: decide.Status, hi: 100 * ms},
		{name: "Unprocessed 429 says nothing of 503", policy: retrip.Policy{Unprocessed: []int{429}}, outcome: decide.Outcome{Status: 503, Replay: true}, reason: decide.NotIdempotent},

		// Verdicts of Classify.
		{name: "Retryable 200", outcome: decide.Outcome{Status: 200, Verdict: decide.Retryable, Idempotent: true, Replay: true}, retry: true, reason: decide.Pending, hi: 100 * ms},
		{name: "Retryable 200, not idempotent", outcome: decide.Outcome{Status: 200, Verdict: decide.Retryable, Replay: true}, reason: decide.NotIdempotent},
		{name: "unprocessed 200, not idempotent", outcome: decide.Outcome{Status: 200, Verdict: decide.Unprocessed, Replay: true}, retry: true, reason: decide.Pending, hi: 100 * ms},
		{name: "unprocessed error, not idempotent", outcome: decide.Outcome{Verdict: decide.Unprocessed, Replay: true}, retry: true, reason: decide.Error, hi: 100 * ms},
		{name: "Final 503", outcome: decide.Outcome{Status: 503, Verdict: decide.Final, Idempotent: true, Replay: true}},
		{name: "Final error", outcome: decide.Outcome{Verdict: decide.Final, Idempotent: true, Replay: true}},

		// Given up.
		{name: "canceled", outcome: decide.Outcome{Canceled: true, Idempotent: true, Replay: true}, reason: decide.Canceled},
		{name: "canceled before the deadline", call: decide.Call{Deadline: 1}, outcome: decide.Outcome{Canceled: true}, reason: decide.Canceled},
		{name: "canceled by the deadline", call: decide.Call{Deadline: -1}, outcome: decide.Outcome{Canceled: true}, reason: decide.Deadline},
		{name: "hidden sends, attempts used up", call: decide.Call{Attempts: 4}, outcome: decide.Outcome{Resent: true, Idempotent: true, Replay: true}, reason: decide.HiddenSends},
		{name: "hidden sends, not idempotent", outcome: decide.Outcome{Resent: true, Replay: true}, reason: decide.HiddenSends},
		{name: "hidden sends, body not replayable", outcome: decide.Outcome{Resent: true, Idempotent: true}, reason: decide.BodyNotReplayable},
		{name: "attempts used up", call: decide.Call{Attempts: 4}, outcome: play.Repeatable(503), reason: decide.MaxAttempts},
		{name: "more than used up", call: decide.Call{Attempts: 5}, outcome: play.Repeatable(503), reason: decide.MaxAttempts},
		{name: "one attempt only", policy: retrip.Policy{MaxAttempts: 1}, outcome: play.Repeatable(503), reason: decide.MaxAttempts},
		{name: "not idempotent", outcome: decide.Outcome{Status: 503, Replay: true}, reason: decide.NotIdempotent},
		{name: "body not replayable", outcome: decide.Outcome{Status: 503, Idempotent: true}, reason: decide.BodyNotReplayable},

		// Waits that the server asks for.
		{name: "Retry-After: 1 on 503", outcome: decide.Outcome{Status: 503, RetryAfter: s, Idempotent: true, Replay: true}, retry: true, reason: decide.ServerError, lo: s, hi: 1500 * ms},
		{name: "Retry-After: 1 on 429", outcome: decide.Outcome{Status: 429, RetryAfter: s, Idempotent: true, Replay: true}, retry: true, reason: decide.Throttled, lo: s, hi: 1500 * ms},
		{name: "Retry-After: 1 on 502", outcome: decide.Outcome{Status: 502, RetryAfter: s, Idempotent: true, Replay: true}, retry: true, reason: decide.ServerError, lo: s, hi: 1500 * ms},
		{name: "as long as MaxWait", outcome: decide.Outcome{Status: 503, RetryAfter: 30 * s, Idempotent: true, Replay: true}, retry: true, reason: decide.ServerError, lo: 30 * s, hi: 45 * s},
		{name: "longer than MaxWait", outcome: decide.Outcome{Status: 503, RetryAfter: 30*s + 1, Idempotent: true, Replay: true}, reason: decide.WaitTooLong, lo: 30*s + 1, hi: 30*s + 1},
		{name: "484289 hours", outcome: decide.Outcome{Status: 429, RetryAfter: 484289 * time.Hour, Idempotent: true, Replay: true}, reason: decide.WaitTooLong, lo: 484289 * time.Hour, hi: 484289 * time.Hour},
		{name: "for ever", outcome: decide.Outcome{Status: 503, RetryAfter: math.MaxInt64, Idempotent: true, Replay: true}, reason: decide.WaitTooLong, lo: math.MaxInt64, hi: math.MaxInt64},

		// Deadlines. All attempts end at the instant 0.
		{name: "the wait gets a third of what is left", call: decide.Call{Deadline: 60 * ms}, outcome: play.Repeatable(503), retry: true, reason: decide.ServerError, hi: 20 * ms},
		{name: "the attempt to come takes as long as the last", call: decide.Call{Deadline: 60 * ms}, outcome: decide.Outcome{Status: 503, Took: 30 * ms, Idempotent: true, Replay: true}, retry: true, reason: decide.ServerError, hi: 10 * ms},
		{name: "no room for an attempt", call: decide.Call{Deadline: 60 * ms}, outcome: decide.Outcome{Status: 503, Took: 60*ms + 1, Idempotent: true, Replay: true}, reason: decide.Deadline},
		{name: "just room for an attempt", call: decide.Call{Deadline: 60 * ms}, outcome: decide.Outcome{Status: 503, Took: 60 * ms, Idempotent: true, Replay: true}, retry: true, reason: decide.ServerError},
		{name: "room enough", call: decide.Call{Deadline: 10 * s}, outcome: decide.Outcome{Status: 503, Took: s, Idempotent: true, Replay: true}, retry: true, reason: decide.ServerError, hi: 100 * ms},
		{name: "without a deadline the duration means nothing", outcome: decide.Outcome{Status: 503, Took: time.Hour, Idempotent: true, Replay: true}, retry: true, reason: decide.ServerError, hi: 100 * ms},
		{name: "lo never moves", call: decide.Call{Deadline: 1150 * ms}, outcome: decide.Outcome{Status: 503, RetryAfter: s, Idempotent: true, Replay: true}, retry: true, reason: decide.ServerError, lo: s, hi: 1050 * ms},
		{name: "the server's word doesn't fit", call: decide.Call{Deadline: 600 * ms}, outcome: decide.Outcome{Status: 503, RetryAfter: 2 * s, Idempotent: true, Replay: true}, reason: decide.Deadline},
		{name: "an unjittered wait doesn't fit", policy: retrip.Policy{Backoff: retrip.Backoff{Base: 2 * s, Jitter: retrip.NoJitter}}, call: decide.Call{Deadline: 600 * ms}, outcome: play.Repeatable(503), reason: decide.Deadline},
		{name: "an unjittered wait just fits", policy: retrip.Policy{Backoff: retrip.Backoff{Base: 2 * s, Jitter: retrip.NoJitter}}, call: decide.Call{Deadline: 2 * s}, outcome: play.Repeatable(503), retry: true, reason: decide.ServerError, lo: 2 * s, hi: 2 * s},
		{name: "equal jitter keeps its lower half", policy: retrip.Policy{Backoff: retrip.Backoff{Base: 2 * s, Jitter: retrip.EqualJitter}}, call: decide.Call{Deadline: 999 * ms}, outcome: play.Repeatable(503), reason: decide.Deadline},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := play.Rules(t, tt.policy)
			next := func(draw uint64) play.Decision {
				call := tt.call
				return r.Next(new(host.Record), &call, tt.outcome, 0, draw)
			}
			lowest, highest := next(play.Lowest), next(play.Highest)
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
//
//retrip:promise P19
func TestNext_Order(t *testing.T) {
	const now = time.Hour
	type situation struct {
		host    host.Record
		call    decide.Call
		outcome decide.Outcome
	}
	opener := play.Rules(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: 1, MinVolume: 1, OpenFor: time.Hour}, Budget: retrip.Off})
	order := []struct {
		name   string
		reason decide.Reason
		apply  func(*testing.T, *situation)
	}{
		{"canceled", decide.Canceled, func(_ *testing.T, s *situation) { s.outcome.Canceled = true }},
		{"accepted", decide.None, func(_ *testing.T, s *situation) { s.outcome.Status = 200 }},
		{"hopeless", decide.None, func(_ *testing.T, s *situation) { s.outcome.Hopeless = true }},
		{"forbidden", decide.RetryForbidden, func(_ *testing.T, s *situation) { s.outcome.Forbidden = true }},
		{"hidden sends", decide.HiddenSends, func(_ *testing.T, s *situation) { s.outcome.Resent = true }},
		{"attempts used up", decide.MaxAttempts, func(_ *testing.T, s *situation) { s.call.Attempts = 4 }},
		{"not idempotent", decide.NotIdempotent, func(_ *testing.T, s *situation) { s.outcome.Idempotent = false }},
		{"body not replayable", decide.BodyNotReplayable, func(_ *testing.T, s *situation) { s.outcome.Replay = false }},
		{"wait too long", decide.WaitTooLong, func(_ *testing.T, s *situation) { s.outcome.RetryAfter = time.Minute }},
		{"host paused", decide.HostPaused, func(t *testing.T, s *situation) { play.Pause(t, &s.host, 50*time.Second, now-time.Second) }},
		{"deadline", decide.Deadline, func(_ *testing.T, s *situation) { s.call.Deadline, s.outcome.Took = now+time.Second, 20*time.Second }},
		{"breaker open", decide.BreakerOpen, func(_ *testing.T, s *situation) { play.Fail(&s.host, opener, now-time.Second) }},
		{"budget exhausted", decide.BudgetExhausted, func(t *testing.T, s *situation) { play.Drain(t, &s.host, now-time.Second) }},
		{"nothing", decide.Error, func(*testing.T, *situation) {}},
	}
	r := play.Rules(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: 1}})
	for i, first := range order {
		t.Run(first.name, func(t *testing.T) {
			s := situation{call: decide.Call{Attempts: 1}, outcome: play.Repeatable(0)}
			// An open breaker lets nobody take a token, and a pause changes the
			// time of a token, so apply the last reason first.
			for j := len(order) - 1; j >= i; j-- {
				order[j].apply(t, &s)
			}
			d := r.Next(&s.host, &s.call, s.outcome, now, play.Lowest)
			assert.Equal(t, first.reason, d.Reason)
			assert.Equal(t, first.name == "nothing", d.Retry)
			back := map[decide.Reason]time.Duration{decide.WaitTooLong: time.Minute, decide.HostPaused: 49 * time.Second, decide.BreakerOpen: r.State(&s.host, now).OpenFor}
			assert.Equal(t, back[d.Reason], d.Wait)
		})
	}
}

//retrip:promise P9
func TestNext_HostPaused(t *testing.T) {
	const s = time.Second
	tests := []struct {
		name     string
		pause    time.Duration
		own      time.Duration // Retry-After of the attempt
		deadline time.Duration
		reason   decide.Reason
		lo, hi   time.Duration
	}{
		{name: "waited for", pause: 10 * s, reason: decide.ServerError, lo: 10 * s, hi: 15 * s},
		{name: "own word is longer", pause: 10 * s, own: 20 * s, reason: decide.ServerError, lo: 20 * s, hi: 30 * s},
		{name: "own word is shorter", pause: 10 * s, own: 2 * s, reason: decide.ServerError, lo: 10 * s, hi: 15 * s},
		{name: "fits the deadline", pause: 10 * s, deadline: 13 * s, reason: decide.ServerError, lo: 10 * s, hi: 11 * s},
		{name: "doesn't fit the deadline", pause: 10 * s, deadline: 10*s - 1, reason: decide.HostPaused, lo: 10 * s, hi: 10 * s},
		{name: "own word doesn't fit either", pause: 10 * s, own: 20 * s, deadline: 5 * s, reason: decide.Deadline},
		{name: "fits the deadline to the nanosecond", pause: 10 * s, deadline: 10 * s, reason: decide.ServerError, lo: 10 * s, hi: 10 * s},
		{name: "as long as MaxWait", pause: 30 * s, reason: decide.ServerError, lo: 30 * s, hi: 45 * s},
		{name: "longer than MaxWait", pause: 30*s + 1, reason: decide.HostPaused, lo: 30*s + 1, hi: 30*s + 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := play.Rules(t, retrip.Policy{})
			next := func(draw uint64) play.Decision {
				var h host.Record
				play.Pause(t, &h, tt.pause, 0)
				o := play.Repeatable(502)
				o.RetryAfter = tt.own
				return r.Next(&h, &decide.Call{Attempts: 1, Deadline: tt.deadline}, o, 0, draw)
			}
			lowest, highest := next(play.Lowest), next(play.Highest)
			assert.Equal(t, tt.reason, lowest.Reason)
			assert.Equal(t, tt.lo, lowest.Wait)
			assert.Equal(t, tt.hi, highest.Wait)
		})
	}
}

//retrip:promise P16
func TestDecide_AllocatesNothing(t *testing.T) {
	for name, p := range map[string]retrip.Policy{
		"defaults": {},
		"all": {Breaker: retrip.Breaker{Ratio: 0.9, MinVolume: 1000}, Gate: retrip.Gate{Enabled: retrip.On},
			RetryOn: []int{404}, Unprocessed: []int{429}, Backoff: retrip.Backoff{Jitter: retrip.DecorrelatedJitter}},
	} {
		t.Run(name, func(t *testing.T) {
			var h host.Record
			r := play.Rules(t, p)
			refused := play.Repeatable(429)
			refused.RetryAfter = time.Millisecond
			now, draw := time.Duration(0), uint64(1)
			// State of the host, such as the window of its breaker, is
			// allocated once.
			r.Next(&h, &decide.Call{Attempts: 1}, refused, now, draw)
			decisions := 0
			ask := func(call *decide.Call) play.Decision {
				if call.Attempts == 0 {
					return r.First(&h, call, now, draw)
				}
				return r.Wake(&h, call, now, draw)
			}
			allocs := testing.AllocsPerRun(1000, func() {
				call := decide.Call{Deadline: now + time.Minute}
				for _, o := range []decide.Outcome{play.Repeatable(503), play.Repeatable(0), refused, play.Repeatable(200)} {
					for d := ask(&call); d.Retry && d.Wait > 0; d = ask(&call) {
						now += d.Wait
						decisions++
					}
					call.Attempts++
					now += time.Millisecond
					draw = draw*6364136223846793005 + 1442695040888963407
					now += r.Next(&h, &call, o, now, draw).Wait
					decisions++
				}
				r.Return(&h, &call)
			})
			assert.Zero(t, allocs)
			assert.Greater(t, decisions, 4000)
		})
	}
}

func BenchmarkNext(b *testing.B) {
	r := play.Rules(b, retrip.Policy{Budget: retrip.Off})
	var h host.Record
	b.ReportAllocs()
	for b.Loop() {
		call := decide.Call{Attempts: 1}
		r.Next(&h, &call, play.Repeatable(503), time.Second, 1<<63)
	}
}

// A 503 with Retry-After: 5 at attempt 3 with 2 seconds left: what happens?
func ExampleCall_Step() {
	rules, _, err := lend.Rules(retrip.Policy{})
	if err != nil {
		fmt.Println(err)
		return
	}
	var healthy host.Record
	ended := decide.Event{Kind: decide.Ended, Outcome: decide.Outcome{Status: 503, RetryAfter: 5 * time.Second, Idempotent: true, Replay: true}}
	var a decide.Action

	call := decide.Call{Attempts: 3, Deadline: 2 * time.Second}
	call.Step(rules, &healthy, &ended, &a, 0, rand.Uint64())
	fmt.Printf("2 s left: answer %t, %s\n", a.Do == decide.Answer, a.Reason)

	call = decide.Call{Attempts: 3, Deadline: 6 * time.Second}
	call.Step(rules, &healthy, &ended, &a, 0, rand.Uint64())
	fmt.Printf("6 s left: sleep %t, %s, for 5 to 6 s: %t\n", a.Do == decide.Sleep, a.Reason, 5*time.Second <= a.Wait && a.Wait <= 6*time.Second)

	// Output:
	// 2 s left: answer true, deadline
	// 6 s left: sleep true, server_error, for 5 to 6 s: true
}

// What a retry costs comes back at the end if the answer before it was no failure of the
// host. A request whose body breaks after that gets nothing back twice.
func TestStep_AsksAgain(t *testing.T) {
	const none, half, late = 0, budget.RetryCost, budget.Token * 7 / 10
	r := play.Rules(t, retrip.Policy{MaxAttempts: 5})
	for _, tt := range []struct {
		statuses []int
		owes     int64 // after each of them
		at       int64 // the end
	}{
		{[]int{200}, none, none},
		{[]int{302}, none, none},
		{[]int{409}, half, none},
		{[]int{400, 425, 409}, half, none},
		{[]int{499}, half, none},
		{[]int{408, 409}, 2 * late, late},
		{[]int{429, 409}, half, half},
		{[]int{503, 409}, half, half},
		{[]int{503, 202}, half, none},
		{[]int{409, 503}, half, none},
		{[]int{409, 202, 409}, 2 * half, none},
	} {
		var h host.Record
		c := decide.Call{Account: 100}
		step := func(e decide.Event) (a decide.Action) {
			c.Step(r.Rules, &h, &e, &a, time.Hour, play.Lowest)
			return a
		}
		step(decide.Event{})
		charged := 0.0
		end := func(status int, verdict decide.Verdict) decide.Action {
			o := play.Repeatable(status)
			o.Verdict = verdict
			a := step(decide.Event{Kind: decide.Ended, Outcome: o})
			charged += a.Tokens
			return a
		}
		for _, status := range tt.statuses {
			a := end(status, decide.Retryable)
			if a.Do == decide.Ask {
				a = step(decide.Event{Kind: decide.Heard, Known: true, Level: 100})
			}
			require.Equal(t, decide.Sleep, a.Do, "%v", tt.statuses)
			charged += step(decide.Event{Kind: decide.Due}).Tokens
		}
		assert.Equal(t, tt.owes, h.Debt.Missing, "%v", tt.statuses)
		end(200, decide.ByRule)
		assert.Equal(t, tt.at, h.Debt.Missing, "%v", tt.statuses)
		account := charged
		paid, _ := h.Debt.Pay(r.Budget, budget.Failure{})
		end(200, decide.ByRule)
		assert.Equal(t, tt.at+int64(paid), h.Debt.Missing, "%v", tt.statuses)
		assert.Equal(t, account, charged, "%v", tt.statuses)
	}
}

// However often a request asks again, what comes back at the end is no negative number.
func TestStep_AsksAgainForDays(t *testing.T) {
	r := play.Rules(t, retrip.Policy{MaxAttempts: 1_000_000, Budget: 1_000_000})
	var h host.Record
	c := decide.Call{Attempts: 1, Account: 100}
	end := func(status int, verdict decide.Verdict) (a decide.Action) {
		o := play.Repeatable(status)
		o.Verdict = verdict
		c.Step(r.Rules, &h, &decide.Event{Kind: decide.Ended, Outcome: o}, &a, time.Hour, play.Lowest)
		return a
	}
	for range 4000 {
		h.Debt.Recent, h.Charged = 10, false // other requests time out, and succeed
		require.Equal(t, decide.Ask, end(409, decide.Retryable).Do)
		for _, e := range []decide.Event{{Kind: decide.Heard, Known: true, Level: 100}, {Kind: decide.Due}} {
			var a decide.Action
			c.Step(r.Rules, &h, &e, &a, time.Hour, play.Lowest)
		}
	}
	owed := h.Debt.Missing
	a := end(200, decide.ByRule)
	assert.Less(t, h.Debt.Missing, owed)
	assert.Greater(t, a.Tokens, 200.0)
}
