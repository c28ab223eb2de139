// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

// timeoutOfTests is the AttemptTimeout of the policies in these tests.
const timeoutOfTests = time.Second

// outcomes maps the words of a script to outcomes.
var outcomes = map[string]retrip.Outcome{
	"ok":      took(http.StatusOK, 700*time.Millisecond),
	"slow":    took(http.StatusOK, 701*time.Millisecond),
	"404":     took(http.StatusNotFound, 0),
	"slow404": took(http.StatusNotFound, 999*time.Millisecond),
	"503":     took(http.StatusServiceUnavailable, 0),
	"429":     took(http.StatusTooManyRequests, 0),
	"error":   took(0, 0),
	"timeout": {Timeout: true, Idempotent: true, Replay: true, Took: time.Second},
	"final":   {Status: http.StatusServiceUnavailable, Verdict: retrip.Final},
	"POST503": {Status: http.StatusServiceUnavailable, Replay: true},
	"POSTout": {Timeout: true, Replay: true, Took: time.Second},
	"gone":    {Canceled: true},
	"nohost":  {Hopeless: true},
}

// play makes the attempts of one request at h, which end as the words of script
// say, and returns the last decision.
func play(t testing.TB, h *retrip.Host, r *retrip.Rules, script string) retrip.Decision {
	t.Helper()
	var call retrip.Call
	var d retrip.Decision
	for i, word := range strings.Fields(script) {
		o, ok := outcomes[word]
		require.True(t, ok, word)
		require.True(t, i == 0 || d.Retry, "%q ends before %q: %v", script, word, d.Reason)
		call.Attempts++
		d = h.Next(r, &call, o, 0, drawLowest)
		if d.Retry {
			if d = h.Wake(r, &call, 0, drawLowest); !d.Retry {
				return d
			}
		}
	}
	if d.Retry {
		h.Return(r, &call)
	}
	return d
}

func TestBudget(t *testing.T) {
	type step struct {
		script string // outcomes of the attempts of one request
		tokens float64
		failed int           // failed retries in a row
		reason retrip.Reason // reason of the last decision, if it gave up
	}
	const (
		exhausted = retrip.ReasonBudgetExhausted
		most      = retrip.ReasonMaxAttempts
		post      = retrip.ReasonNotIdempotent
	)
	tests := []struct {
		name   string
		budget retrip.Budget
		steps  []step
	}{
		{"a retry that works costs nothing", retrip.Budget{}, []step{
			{"503 ok", 5, 0, ""}, {"503 404", 5, 0, ""}, {"error ok", 5, 0, ""}, {"timeout ok", 5, 0, ""},
		}},
		{"a retry that fails costs a half", retrip.Budget{}, []step{
			{"503 503 ok", 4.5, 0, ""}, {"503 error error ok", 3.5, 0, ""},
		}},
		{"after a timeout three quarters", retrip.Budget{}, []step{
			{"timeout 503 ok", 4.25, 0, ""}, {"503 timeout ok", 3.75, 0, ""}, {"timeout timeout ok", 3, 0, ""},
		}},
		{"a plain success pays back a fifth", retrip.Budget{}, []step{
			{"503 503 ok", 4.5, 0, ""}, {"ok", 4.7, 0, ""}, {"ok", 4.9, 0, ""}, {"ok", 5, 0, ""}, {"ok", 5, 0, ""},
		}},
		{"a 404 comes from a healthy host", retrip.Budget{}, []step{
			{"503 503 ok", 4.5, 0, ""}, {"404", 4.7, 0, ""},
		}},
		{"a success of a retry is not a plain one", retrip.Budget{}, []step{
			{"503 503 ok", 4.5, 0, ""}, {"503 ok", 4.5, 0, ""},
		}},
		{"empty", retrip.Budget{Size: 1.5, Credit: 0.25}, []step{
			{"503 503 503 503", 0, 3, most}, {"503", 0, 3, exhausted},
			{"ok", .25, 0, ""}, {"503", .25, 0, exhausted}, {"ok", .5, 0, ""}, {"timeout", .5, 0, exhausted},
			{"503 503", 0, 1, exhausted},
		}},
		{"no credit", retrip.Budget{Size: 1, Credit: retrip.Off}, []step{
			{"timeout ok", 1, 0, ""}, {"timeout 503", .25, 1, exhausted}, {"ok", .25, 0, ""}, {"503", .25, 0, exhausted},
		}},
		{"four failed retries in a row are the last", retrip.Budget{}, []step{
			{"503 503 503 503", 3.5, 3, most}, {"503 503", 3, 4, exhausted}, {"503", 3, 4, exhausted}, {"error", 3, 4, exhausted},
			{"404", 3.2, 0, ""}, {"503 ok", 3.2, 0, ""},
		}},
		{"a timeout counts two", retrip.Budget{}, []step{
			{"timeout timeout timeout", 3.5, 4, exhausted}, {"timeout", 3.5, 4, exhausted}, {"503", 3.5, 4, exhausted},
			{"ok", 3.7, 0, ""}, {"503 503 timeout 503", 1.95, 4, most}, {"503", 1.95, 4, exhausted},
			{"slow", 2.15, 0, ""},
		}},
		{"first attempts aren't in the row", retrip.Budget{}, []step{
			{"503 503 503 503", 3.5, 3, most}, {"POST503", 3.5, 3, post}, {"POSTout", 3.5, 3, post}, {"503 503", 3, 4, exhausted},
		}},
		{"a success of anything ends the row", retrip.Budget{Size: 10}, []step{
			{"503 503 503 503", 8.5, 3, most}, {"503 ok", 8.5, 0, ""},
			{"503 503 503 503", 7, 3, most}, {"final", 7.2, 0, ""},
			{"503 503 503 503", 5.7, 3, most}, {"slow404", 5.9, 0, ""},
		}},
		{"what says nothing about the host changes nothing", retrip.Budget{}, []step{
			{"503 503 503 503", 3.5, 3, most}, {"gone", 3.5, 3, retrip.ReasonCanceled}, {"nohost", 3.5, 3, ""},
			{"503 gone", 3, 3, retrip.ReasonCanceled},
			{"503 503", 2.5, 4, exhausted}, {"gone", 2.5, 4, retrip.ReasonCanceled}, {"nohost", 2.5, 4, ""}, {"503", 2.5, 4, exhausted},
		}},
		{"while attempts time out a slow success takes two", retrip.Budget{}, []step{
			{"timeout timeout ok", 4.25, 0, ""}, {"slow", 2.25, 0, ""}, {"slow404", .25, 0, ""}, {"slow", 0, 0, ""},
			{"ok", .2, 0, ""}, {"ok", .4, 0, ""}, {"slow", 0, 0, ""},
		}},
		{"and that of a retry gets nothing back", retrip.Budget{}, []step{
			{"timeout slow", 4.25, 0, ""}, {"503 ok", 4.25, 0, ""}, {"timeout timeout slow", 2.75, 0, ""},
		}},
		{"once something fails otherwise it does as others", retrip.Budget{}, []step{
			{"timeout timeout ok", 4.25, 0, ""}, {"POST503", 4.25, 0, post}, {"slow", 4.45, 0, ""},
			{"POSTout", 4.45, 0, post}, {"slow", 2.45, 0, ""}, {"503 slow", 2.45, 0, ""},
		}},
		{"a host in no trouble may be slow", retrip.Budget{}, []step{
			{"slow", 5, 0, ""}, {"POSTout", 5, 0, post}, {"slow", 5, 0, ""}, {"503 slow", 5, 0, ""},
		}},
		{"unlimited", retrip.Unlimited, []step{
			{"503 503 503 503", 0, 0, most}, {"timeout timeout timeout timeout", 0, 0, most},
			{"timeout timeout timeout timeout", 0, 0, most}, {"slow", 0, 0, ""},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var h retrip.Host
			r := rulesOf(t, retrip.Policy{Budget: tt.budget, AttemptTimeout: timeoutOfTests})
			for i, s := range tt.steps {
				d := play(t, &h, r, s.script)
				state := h.State(r, 0)
				assert.Equal(t, s.reason, d.Reason, "step %d: %s", i, s.script)
				assert.Equal(t, s.tokens, state.Tokens, "step %d: %s", i, s.script)
				assert.Equal(t, s.failed, state.FailedRetries, "step %d: %s", i, s.script)
			}
		})
	}
}

// Without an AttemptTimeout nothing is slow, however long it takes.
func TestBudget_SlowWithoutTimeout(t *testing.T) {
	var h retrip.Host
	r := rulesOf(t, retrip.Policy{})
	play(t, &h, r, "timeout timeout ok")
	h.Next(r, &retrip.Call{Attempts: 1}, took(http.StatusOK, time.Hour), 0, 0)
	assert.Equal(t, 4.45, h.State(r, 0).Tokens)
}

func TestBudget_State(t *testing.T) {
	var h retrip.Host
	assert.Equal(t, 5.0, h.State(rulesOf(t, retrip.Policy{}), 0).Size)
	assert.Zero(t, h.State(rulesOf(t, retrip.Policy{Budget: retrip.Unlimited}), 0).Size)
}

// Tokens don't come back with time.
func TestBudget_IgnoresTime(t *testing.T) {
	var h retrip.Host
	drain(t, &h, 0)
	r := rulesOf(t, retrip.Policy{})
	assert.Equal(t, retrip.ReasonBudgetExhausted, fail(&h, r, 1000*time.Hour).Reason)
}

// Whatever the outcome of an attempt, its token is either spent or back, never
// both.
func TestBudget_OfRetry(t *testing.T) {
	tests := []struct {
		name    string
		outcome retrip.Outcome
		tokens  float64
	}{
		{"success", repeatable(200), 5},
		{"answer", repeatable(404), 5},
		{"Final answer", retrip.Outcome{Status: 503, Verdict: retrip.Final}, 5},
		{"failure", repeatable(503), 4}, // with that of the next retry
		{"failure that isn't repeated", retrip.Outcome{Status: 503, Replay: true}, 4.5},
		{"canceled", retrip.Outcome{Canceled: true}, 4.5},
		{"hidden sends", retrip.Outcome{Resent: true}, 4.5},
		{"hopeless", retrip.Outcome{Hopeless: true}, 5},
		{"Final error", retrip.Outcome{Verdict: retrip.Final}, 4.5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var h retrip.Host
			r := rulesOf(t, retrip.Policy{})
			call := retrip.Call{Attempts: 1}
			require.True(t, h.Next(r, &call, repeatable(503), 0, 0).Retry)
			require.Equal(t, 4.5, h.State(r, 0).Tokens, "taken at the decision")
			call.Attempts++
			again := h.Next(r, &call, tt.outcome, 0, 0).Retry
			assert.Equal(t, tt.tokens, h.State(r, 0).Tokens)
			if !again {
				h.Return(r, &call)
				assert.Equal(t, tt.tokens, h.State(r, 0).Tokens, "there is nothing left to return")
			}
		})
	}
}

// A first attempt that says nothing about the host pays nothing.
func TestBudget_NoCreditForNothing(t *testing.T) {
	for name, o := range map[string]retrip.Outcome{
		"canceled":    {Canceled: true},
		"hopeless":    {Hopeless: true},
		"Final error": {Verdict: retrip.Final},
	} {
		t.Run(name, func(t *testing.T) {
			var h retrip.Host
			drain(t, &h, 0)
			r := rulesOf(t, retrip.Policy{})
			h.Next(r, &retrip.Call{Attempts: 1}, o, 0, 0)
			assert.Zero(t, h.State(r, 0).Tokens)
		})
	}
}

// Two policies may share a host. The smaller budget counts what the larger one
// has spent.
func TestBudget_OfTwoPolicies(t *testing.T) {
	var h retrip.Host
	large, small := rulesOf(t, retrip.Policy{Budget: retrip.Budget{Size: 100}}), rulesOf(t, retrip.Policy{})
	for range 10 {
		require.True(t, fail(&h, large, 0).Retry)
	}
	assert.Zero(t, h.State(small, 0).Tokens)
	assert.Equal(t, retrip.ReasonBudgetExhausted, fail(&h, small, 0).Reason)
	assert.Equal(t, 95.0, h.State(large, 0).Tokens)
	unlimited := rulesOf(t, retrip.Policy{Budget: retrip.Unlimited})
	assert.True(t, fail(&h, unlimited, 0).Retry)
	assert.Equal(t, 95.0, h.State(large, 0).Tokens, "a retry that cost nothing leaves no token missing")
	play(t, &h, unlimited, "503 404")
	play(t, &h, rulesOf(t, retrip.Policy{Budget: retrip.Unlimited, Gate: retrip.On}), "503 ok")
	assert.Equal(t, 95.0, h.State(large, 0).Tokens, "it doesn't come back either")
}

// No token is lost or created under contention.
func TestBudget_Contention(t *testing.T) {
	const goroutines, each, size = 64, 500, 1000
	var h retrip.Host
	r := rulesOf(t, retrip.Policy{Budget: retrip.Budget{Size: size, Credit: 0.2}})
	run := func(f func()) {
		var wg sync.WaitGroup
		for range goroutines {
			wg.Go(func() {
				for range each {
					f()
				}
			})
		}
		wg.Wait()
	}

	run(func() { play(t, &h, r, "503 ok") })
	assert.Equal(t, float64(size), h.State(r, 0).Tokens, "all came back")

	var granted atomic.Int64
	run(func() {
		if fail(&h, r, 0).Retry {
			granted.Add(1)
		}
	})
	assert.EqualValues(t, 2*size, granted.Load())
	assert.Zero(t, h.State(r, 0).Tokens)

	var plain atomic.Int64
	run(func() {
		if n := plain.Add(1); n <= 4321 {
			play(t, &h, r, "ok")
		}
	})
	assert.InDelta(t, 4321*0.2, h.State(r, 0).Tokens, 1e-9)

	run(func() { play(t, &h, r, "ok") })
	assert.Equal(t, float64(size), h.State(r, 0).Tokens, "never above Size")
}

// In an outage, a client makes exactly four retries, one after the other.
func TestBudget_Outage(t *testing.T) {
	var h retrip.Host
	r := rulesOf(t, retrip.Policy{})
	attempts := 0
	for range 1000 {
		call := retrip.Call{}
		for again := true; again; attempts++ {
			call.Attempts++
			again = h.Next(r, &call, repeatable(0), 0, 0).Retry
		}
	}
	assert.Equal(t, 1004, attempts)
}

// The success rates with independent failures (docs/retry-storms.md, "What a
// budget costs"), and the attempts they take.
func TestBudget_IndependentFailures(t *testing.T) {
	testenv.OneGoroutine(t)
	testenv.Slow(t)
	tests := []struct {
		budget retrip.Budget
		p      float64
		want   float64 // % of requests that succeed
		within float64
		most   float64 // attempts per request
	}{
		{retrip.Budget{}, .01, 100.00, .5, 1.011},
		{retrip.Budget{}, .05, 100.00, .5, 1.06},
		{retrip.Budget{}, .10, 99.99, .5, 1.12},
		{retrip.Budget{}, .20, 99.83, .1, 1.26},
		{retrip.Budget{}, .30, 99.13, .2, 1.43},
		{retrip.Budget{}, .45, 82.5, 2, 1.6},
		{retrip.Budget{}, .60, 51, 2, 1.4},
		{retrip.Budget{}, 1, 0, 0, 1.01},
		{retrip.Unlimited, .10, 99.99, .5, 1.12},
		{retrip.Unlimited, .30, 99.20, .5, 1.43},
		{retrip.Unlimited, 1, 0, 0, 4},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("size %v/%v%%", tt.budget.Size, 100*tt.p), func(t *testing.T) {
			success, attempts := independentFailures(rulesOf(t, retrip.Policy{Budget: tt.budget}), tt.p, 7)
			t.Logf("%.2f %% succeed at %.3f attempts", success, attempts)
			assert.InDelta(t, tt.want, success, tt.within)
			assert.LessOrEqual(t, attempts, tt.most)
			assert.GreaterOrEqual(t, attempts, 1.0)
		})
	}
}

// independentFailures lets 100 clients make requests to hosts that fail an
// attempt with probability p. It returns the percentage of requests that
// succeed and the attempts per request. Each client makes the given number of
// requests per second, for 100 seconds.
func independentFailures(r *retrip.Rules, p, perSecond float64) (success, attempts float64) {
	const clients, horizon = 100, 100 * time.Second
	w := newWorld(1)
	var requests, good, sent int
	for range clients {
		h := new(retrip.Host)
		var arrive func()
		arrive = func() {
			requests++
			w.request(h, r, func() retrip.Outcome {
				sent++
				if w.random.Float64() < p {
					return took(http.StatusServiceUnavailable, 5*time.Millisecond)
				}
				return took(http.StatusOK, 5*time.Millisecond)
			}, func(o retrip.Outcome, _ retrip.Reason) {
				if o.Status == http.StatusOK {
					good++
				}
			})
			if next := w.now + time.Duration(w.random.ExpFloat64()/perSecond*float64(time.Second)); next < horizon {
				w.at(next, arrive)
			}
		}
		w.at(time.Duration(w.random.ExpFloat64()/perSecond*float64(time.Second)), arrive)
	}
	w.run(math.MaxInt64)
	return 100 * float64(good) / float64(requests), float64(sent) / float64(requests)
}

func took(status int, d time.Duration) retrip.Outcome {
	o := repeatable(status)
	o.Took = d
	return o
}
