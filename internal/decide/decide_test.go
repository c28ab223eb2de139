// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/lend"
	"github.com/retrip/retrip/internal/play"
)

// The decisions after one attempt at a healthy host. The stories tell more of them.
//
//retrip:promise P6 P8 P10 P19
func TestStep_Ended(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	for _, tt := range []struct {
		name    string
		policy  retrip.Policy
		call    decide.Call // Attempts of 0 stands for 1
		outcome decide.Outcome
		lo, hi  time.Duration // bounds of the wait, if there is one
		reason  decide.Reason
		retry   bool
	}{
		{name: "hopeless error", outcome: decide.Outcome{Hopeless: true, Repeatable: true, Replay: true}},
		{name: "Retry-After on a 404 means nothing", outcome: decide.Outcome{Status: 404, RetryAfter: s, Repeatable: true, Replay: true}},
		{name: "429", outcome: play.Repeatable(429), retry: true, reason: decide.Throttled, hi: s},
		{name: "error", outcome: play.Repeatable(0), retry: true, reason: decide.Error, hi: 100 * ms},
		{name: "timeout", outcome: decide.Outcome{Timeout: true, Repeatable: true, Replay: true}, retry: true, reason: decide.Timeout, hi: 100 * ms},
		{name: "third attempt", call: decide.Call{Attempts: 3}, outcome: play.Repeatable(503), retry: true, reason: decide.ServerError, hi: 400 * ms},

		{name: "Unprocessed 429, not idempotent", policy: retrip.Policy{Unprocessed: []int{429}}, outcome: decide.Outcome{Status: 429, Replay: true}, retry: true, reason: decide.Throttled, hi: s},
		{name: "Unprocessed 409, not idempotent", policy: retrip.Policy{Unprocessed: []int{409}}, outcome: decide.Outcome{Status: 409, Replay: true}, retry: true, reason: decide.Status, hi: 100 * ms},
		{name: "Unprocessed 429 says nothing of 503", policy: retrip.Policy{Unprocessed: []int{429}}, outcome: decide.Outcome{Status: 503, Replay: true}, reason: decide.NotIdempotent},
		{name: "Retryable 200, not idempotent", outcome: decide.Outcome{Status: 200, Verdict: decide.Retryable, Replay: true}, reason: decide.NotIdempotent},
		{name: "unprocessed 200, not idempotent", outcome: decide.Outcome{Status: 200, Verdict: decide.Unprocessed, Replay: true}, retry: true, reason: decide.Pending, hi: 100 * ms},
		{name: "unprocessed error, not idempotent", outcome: decide.Outcome{Verdict: decide.Unprocessed, Replay: true}, retry: true, reason: decide.Error, hi: 100 * ms},
		{name: "Final error", outcome: decide.Outcome{Verdict: decide.Final, Repeatable: true, Replay: true}},

		{name: "canceled before the deadline", call: decide.Call{Deadline: 1}, outcome: decide.Outcome{Canceled: true}, reason: decide.Canceled},
		{name: "canceled by the deadline", call: decide.Call{Deadline: -1}, outcome: decide.Outcome{Canceled: true}, reason: decide.Deadline},
		{name: "hidden sends, attempts used up", call: decide.Call{Attempts: 4}, outcome: decide.Outcome{Resent: true, Repeatable: true, Replay: true}, reason: decide.HiddenSends},
		{name: "hidden sends, not idempotent", outcome: decide.Outcome{Resent: true, Replay: true}, reason: decide.HiddenSends},
		{name: "hidden sends, body not replayable", outcome: decide.Outcome{Resent: true, Repeatable: true}, reason: decide.BodyNotReplayable},
		{name: "more than used up", call: decide.Call{Attempts: 5}, outcome: play.Repeatable(503), reason: decide.MaxAttempts},
		{name: "body not replayable", outcome: decide.Outcome{Status: 503, Repeatable: true}, reason: decide.BodyNotReplayable},

		{name: "as long as MaxWait", outcome: decide.Outcome{Status: 503, RetryAfter: 30 * s, Repeatable: true, Replay: true}, retry: true, reason: decide.ServerError, lo: 30 * s, hi: 45 * s},
		{name: "longer than MaxWait", outcome: decide.Outcome{Status: 503, RetryAfter: 30*s + 1, Repeatable: true, Replay: true}, reason: decide.WaitTooLong, lo: 30*s + 1, hi: 30*s + 1},
		{name: "484289 hours", outcome: decide.Outcome{Status: 429, RetryAfter: 484289 * time.Hour, Repeatable: true, Replay: true}, reason: decide.WaitTooLong, lo: 484289 * time.Hour, hi: 484289 * time.Hour},
		{name: "for ever", outcome: decide.Outcome{Status: 503, RetryAfter: math.MaxInt64, Repeatable: true, Replay: true}, reason: decide.WaitTooLong, lo: math.MaxInt64, hi: math.MaxInt64},

		// Deadlines. All attempts end at the instant 0.
		{name: "the wait gets a third of what is left", call: decide.Call{Deadline: 60 * ms}, outcome: play.Repeatable(503), retry: true, reason: decide.ServerError, hi: 20 * ms},
		{name: "no room for an attempt", call: decide.Call{Deadline: 60 * ms}, outcome: decide.Outcome{Status: 503, Took: 60*ms + 1, Repeatable: true, Replay: true}, reason: decide.Deadline},
		{name: "just room for an attempt", call: decide.Call{Deadline: 60 * ms}, outcome: decide.Outcome{Status: 503, Took: 60 * ms, Repeatable: true, Replay: true}, retry: true, reason: decide.ServerError},
		{name: "without a deadline the duration means nothing", outcome: decide.Outcome{Status: 503, Took: time.Hour, Repeatable: true, Replay: true}, retry: true, reason: decide.ServerError, hi: 100 * ms},
		{name: "lo never moves", call: decide.Call{Deadline: 1150 * ms}, outcome: decide.Outcome{Status: 503, RetryAfter: s, Repeatable: true, Replay: true}, retry: true, reason: decide.ServerError, lo: s, hi: 1050 * ms},
		{name: "an unjittered wait just fits", policy: retrip.Policy{Backoff: retrip.Backoff{Base: 2 * s, Jitter: retrip.NoJitter}}, call: decide.Call{Deadline: 2 * s}, outcome: play.Repeatable(503), retry: true, reason: decide.ServerError, lo: 2 * s, hi: 2 * s},
		{name: "equal jitter keeps its lower half", policy: retrip.Policy{Backoff: retrip.Backoff{Base: 2 * s, Jitter: retrip.EqualJitter}}, call: decide.Call{Deadline: 999 * ms}, outcome: play.Repeatable(503), reason: decide.Deadline},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := play.Rules(t, tt.policy)
			for draw, wait := range map[uint64]time.Duration{play.Lowest: tt.lo, play.Highest: tt.hi} {
				call := tt.call
				d := r.Next(new(host.Record), &call, tt.outcome, 0, draw)
				assert.Equal(t, tt.reason, d.Reason)
				assert.Equal(t, tt.retry, d.Retry)
				assert.Equal(t, wait, d.Wait)
			}
		})
	}
	r := play.Rules(t, retrip.Policy{RetryOn: []int{405, 498}, FailOn: []int{429, 501}})
	for reason, statuses := range map[decide.Reason][]int{
		decide.None:        {101, 200, 302, 400, 401, 404, 409, 499, 600, 999, 429, 501},
		decide.ServerError: {500, 502, 503, 599},
		decide.Status:      {405, 498},
	} {
		for _, status := range statuses {
			d := r.Next(new(host.Record), new(decide.Call), play.Repeatable(status), 0, play.Highest)
			assert.Equal(t, reason, d.Reason, "%d", status)
			assert.Equal(t, reason != decide.None, d.Retry, "%d", status)
		}
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
		{"not idempotent", decide.NotIdempotent, func(_ *testing.T, s *situation) { s.outcome.Repeatable = false }},
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

// A retry that was skipped is no attempt: the first attempt doesn't count for the time that
// an attempt needs once a retry was made.
func TestStep_BidesNearADeadline(t *testing.T) {
	r := play.Rules(t, retrip.Policy{Budget: 1})
	var h host.Record
	lost := play.Repeatable(0)
	lost.Took = 90 * time.Millisecond
	var others [2]decide.Call // take all tokens
	for i := range others {
		assert.True(t, r.Next(&h, &others[i], lost, 0, play.Highest).Retry)
	}
	c := decide.Call{Deadline: time.Second}
	assert.True(t, r.Next(&h, &c, lost, 0, play.Highest).Retry)
	assert.Positive(t, r.Wake(&h, &c, 100*time.Millisecond, play.Highest).Wait, "it bides")
	for i := range others {
		others[i].Attempts = 2
		r.Next(&h, &others[i], play.Repeatable(http.StatusOK), 200*time.Millisecond, play.Highest)
	}
	assert.Zero(t, r.Wake(&h, &c, 300*time.Millisecond, play.Highest).Wait, "it is sent")
	c.Attempts, lost.Took = 2, time.Millisecond
	assert.True(t, r.Next(&h, &c, lost, 950*time.Millisecond, play.Highest).Retry)
}

// An attempt that doesn't count says what it would say of the host if it counted, and
// takes nothing: no token, no step of the backoff, no attempt. Hedges then stop.
func TestObey(t *testing.T) {
	const word = 7 * time.Second
	for _, tt := range []struct {
		status   int
		word     time.Duration
		verdict  decide.Verdict
		without  bool // is a refusal without a gate
		withGate bool
	}{
		{status: 503, word: word, without: true, withGate: true},
		{status: 503},
		{status: 429, word: word, withGate: true},
		{status: 429, withGate: true},
		{status: 500, word: word},
		{status: 200},
		{status: 503, word: word, verdict: decide.Final},
		{status: 200, word: word, verdict: decide.Retryable},
	} {
		for _, gate := range []retrip.Switch{retrip.Off, retrip.On} {
			r := play.Rules(t, retrip.Policy{Gate: retrip.Gate{Enabled: gate}})
			o := play.Repeatable(tt.status)
			o.RetryAfter, o.Verdict = tt.word, tt.verdict
			want := tt.without
			if gate == retrip.On {
				want = tt.withGate
			}
			assert.Equal(t, want, r.Refused(&o), "%+v, gate %v", tt, gate)
			if !want {
				continue
			}
			var h, counted host.Record
			r.Next(&counted, &decide.Call{Attempts: 4}, o, 0, play.Lowest)
			call := &decide.Call{Attempts: 1}
			change, _ := r.Obey(&h, call, &o, 0, play.Lowest)
			assert.Equal(t, tt.word > 0, change == host.Paused)
			assert.Equal(t, counted.PausedFor(0), h.PausedFor(0))
			assert.Equal(t, r.State(&host.Record{}, 0).Tokens, r.State(&h, 0).Tokens)
			assert.Equal(t, 1, call.Attempts)
			if tt.word > 0 || gate == retrip.On {
				assert.NotEqual(t, decide.NoHold, r.HoldsHedge(&h, "", time.Millisecond), "%+v, gate %v", tt, gate)
			}
		}
	}
}

// A record that stands for many hosts has only a budget.
func TestRules_ForOthers(t *testing.T) {
	r := play.Rules(t, retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, Breaker: retrip.Breaker{Ratio: 0.01, MinVolume: 1}})
	others := r.ForOthers()
	var h host.Record
	for _, status := range []int{429, 503} {
		o := play.Repeatable(status)
		o.RetryAfter = 10 * time.Second
		d := others.Next(&h, &decide.Call{Attempts: 1}, o, 0, 0)
		assert.True(t, d.Retry)
		assert.GreaterOrEqual(t, d.Wait, 10*time.Second, "it binds the request itself")
	}
	assert.Equal(t, decide.State{Tokens: 4, Size: 5, Breaker: breaker.Closed}, others.State(&h, 0))
	assert.Equal(t, play.Decision{Retry: true}, others.First(&h, &decide.Call{}, 0, 0))
	assert.True(t, r.Gated && r.Breaker != nil, "the original is unchanged")
}

// Each reason has the word of the exported one of its name.
func TestReason_Words(t *testing.T) {
	want := [decide.Reasons]retrip.Reason{
		decide.ServerError: retrip.ReasonServerError, decide.Throttled: retrip.ReasonThrottled, decide.Status: retrip.ReasonStatus, decide.Pending: retrip.ReasonPending,
		decide.Timeout: retrip.ReasonTimeout, decide.Error: retrip.ReasonError,
		decide.MaxAttempts: retrip.ReasonMaxAttempts, decide.NotIdempotent: retrip.ReasonNotIdempotent, decide.BodyNotReplayable: retrip.ReasonBodyNotReplayable,
		decide.RetryForbidden: retrip.ReasonRetryForbidden, decide.WaitTooLong: retrip.ReasonWaitTooLong, decide.HostPaused: retrip.ReasonHostPaused,
		decide.Deadline: retrip.ReasonDeadline, decide.BreakerOpen: retrip.ReasonBreakerOpen, decide.BudgetExhausted: retrip.ReasonBudgetExhausted, decide.RetriesFailing: retrip.ReasonRetriesFailing,
		decide.FleetBudget: retrip.ReasonFleetBudget, decide.HiddenSends: retrip.ReasonHiddenSends, decide.Canceled: retrip.ReasonCanceled,
	}
	for r := range decide.Reasons {
		assert.EqualValues(t, want[r], r.String())
		assert.Equal(t, r == decide.None, r.String() == "")
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
	ended := decide.Event{Kind: decide.Ended, Outcome: decide.Outcome{Status: 503, RetryAfter: 5 * time.Second, Repeatable: true, Replay: true}}
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
