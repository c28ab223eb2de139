// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

// play makes attempts of one request at h that end in the given statuses, and
// returns the last decision. A 0 is an error.
func play(h *retrip.Host, r *retrip.Rules, statuses ...int) retrip.Decision {
	var call retrip.Call
	var d retrip.Decision
	for _, status := range statuses {
		call.Attempts++
		d = h.Next(r, &call, repeatable(status), 0, drawLowest)
		if d.Retry {
			if d = h.Wake(r, &call, 0, drawLowest); !d.Retry {
				return d
			}
		}
	}
	return d
}

func TestBudget(t *testing.T) {
	type step struct {
		statuses []int // of one request's attempts
		tokens   float64
		reason   retrip.Reason // of the last decision, if it gave up
	}
	plain := step{statuses: []int{200}}
	at := func(s step, tokens float64) step { s.tokens = tokens; return s }
	tests := []struct {
		name   string
		budget retrip.Budget
		steps  []step
	}{
		{"a retry that works costs nothing", retrip.Budget{}, []step{
			{[]int{503, 200}, 5, ""}, {[]int{503, 404}, 5, ""}, {[]int{0, 200}, 5, ""},
		}},
		{"a retry that fails costs one", retrip.Budget{}, []step{
			{[]int{503, 503, 200}, 4, ""}, {[]int{503, 503, 503, 200}, 2, ""},
		}},
		{"a plain success pays back a fifth", retrip.Budget{}, []step{
			{[]int{503, 503, 200}, 4, ""}, at(plain, 4.2), at(plain, 4.4), at(plain, 4.6), at(plain, 4.8), at(plain, 5), at(plain, 5),
		}},
		{"a 404 comes from a healthy host", retrip.Budget{}, []step{
			{[]int{503, 503, 200}, 4, ""}, {[]int{404}, 4.2, ""},
		}},
		{"a success of a retry is not a plain one", retrip.Budget{}, []step{
			{[]int{503, 503, 200}, 4, ""}, {[]int{503, 200}, 4, ""},
		}},
		{"empty", retrip.Budget{}, []step{
			{[]int{503, 503, 503, 503}, 2, retrip.ReasonMaxAttempts},
			{[]int{503, 503, 503}, 0, retrip.ReasonBudgetExhausted},
			{[]int{503}, 0, retrip.ReasonBudgetExhausted},
			at(plain, .2), at(plain, .4), at(plain, .6), at(plain, .8),
			{[]int{503}, .8, retrip.ReasonBudgetExhausted},
			at(plain, 1),
			{[]int{503, 503}, 0, retrip.ReasonBudgetExhausted},
		}},
		{"another size and credit", retrip.Budget{Size: 1.5, Credit: 0.75}, []step{
			{[]int{503, 503}, .5, retrip.ReasonBudgetExhausted}, at(plain, 1.25), at(plain, 1.5),
		}},
		{"no credit", retrip.Budget{Size: 1, Credit: retrip.Off}, []step{
			{[]int{503, 200}, 1, ""}, {[]int{503, 503}, 0, retrip.ReasonBudgetExhausted}, at(plain, 0), {[]int{503}, 0, retrip.ReasonBudgetExhausted},
		}},
		{"unlimited", retrip.Unlimited, []step{
			{[]int{503, 503, 503, 503}, 0, retrip.ReasonMaxAttempts}, {[]int{503, 503, 503, 503}, 0, retrip.ReasonMaxAttempts},
			{[]int{503, 503, 503, 503}, 0, retrip.ReasonMaxAttempts}, at(plain, 0),
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var h retrip.Host
			r := rulesOf(t, retrip.Policy{Budget: tt.budget})
			for i, s := range tt.steps {
				d := play(&h, r, s.statuses...)
				assert.Equal(t, s.reason, d.Reason, "step %d", i)
				assert.Equal(t, s.tokens, h.State(r, 0).Tokens, "step %d", i)
			}
		})
	}
}

func TestBudgetState(t *testing.T) {
	var h retrip.Host
	assert.Equal(t, 5.0, h.State(rulesOf(t, retrip.Policy{}), 0).Size)
	assert.Zero(t, h.State(rulesOf(t, retrip.Policy{Budget: retrip.Unlimited}), 0).Size)
}

// Time returns nothing.
func TestBudgetIgnoresTime(t *testing.T) {
	var h retrip.Host
	drain(t, &h, 0)
	r := rulesOf(t, retrip.Policy{})
	assert.Equal(t, retrip.ReasonBudgetExhausted, fail(&h, r, 1000*time.Hour).Reason)
}

// Whatever an attempt came to, its token is taken or back, never both.
func TestBudgetOfRetry(t *testing.T) {
	tests := []struct {
		name    string
		outcome retrip.Outcome
		tokens  float64
	}{
		{"success", repeatable(200), 5},
		{"answer", repeatable(404), 5},
		{"Final answer", retrip.Outcome{Status: 503, Verdict: retrip.Final}, 5},
		{"failure", repeatable(503), 3}, // with the next retry's
		{"failure that isn't repeated", retrip.Outcome{Status: 503, Replay: true}, 4},
		{"canceled", retrip.Outcome{Canceled: true}, 4},
		{"hidden sends", retrip.Outcome{Resent: true}, 4},
		{"hopeless", retrip.Outcome{Hopeless: true}, 5},
		{"Final error", retrip.Outcome{Verdict: retrip.Final}, 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var h retrip.Host
			r := rulesOf(t, retrip.Policy{})
			call := retrip.Call{Attempts: 1}
			require.True(t, h.Next(r, &call, repeatable(503), 0, 0).Retry)
			require.Equal(t, 4.0, h.State(r, 0).Tokens, "taken at the decision")
			call.Attempts++
			again := h.Next(r, &call, tt.outcome, 0, 0).Retry
			assert.Equal(t, tt.tokens, h.State(r, 0).Tokens)
			if !again {
				h.Return(r, &call)
				assert.Equal(t, tt.tokens, h.State(r, 0).Tokens, "nothing is left to return")
			}
		})
	}
}

func TestReturn(t *testing.T) {
	var h retrip.Host
	r := rulesOf(t, retrip.Policy{})
	var call retrip.Call
	h.Return(r, &call)
	require.True(t, h.Next(r, &call, repeatable(503), 0, 0).Retry)
	assert.Equal(t, 4.0, h.State(r, 0).Tokens)
	h.Return(r, &call)
	h.Return(r, &call)
	assert.Equal(t, 5.0, h.State(r, 0).Tokens)
}

// A first attempt that says nothing of the host pays nothing back.
func TestBudgetNoCreditForNothing(t *testing.T) {
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

// Two policies may share a host; the smaller purse counts what the larger has
// spent.
func TestBudgetOfTwoPolicies(t *testing.T) {
	var h retrip.Host
	large, small := rulesOf(t, retrip.Policy{Budget: retrip.Budget{Size: 100}}), rulesOf(t, retrip.Policy{})
	for range 10 {
		require.True(t, fail(&h, large, 0).Retry)
	}
	assert.Zero(t, h.State(small, 0).Tokens)
	assert.Equal(t, retrip.ReasonBudgetExhausted, fail(&h, small, 0).Reason)
	assert.Equal(t, 90.0, h.State(large, 0).Tokens)
	unlimited := rulesOf(t, retrip.Policy{Budget: retrip.Unlimited})
	assert.True(t, fail(&h, unlimited, 0).Retry)
	assert.Equal(t, 90.0, h.State(large, 0).Tokens, "what is not paid for is not missing")
	play(&h, unlimited, 503, 404)
	play(&h, rulesOf(t, retrip.Policy{Budget: retrip.Unlimited, Gate: retrip.On}), 503, 200)
	assert.Equal(t, 90.0, h.State(large, 0).Tokens, "nor does it come back")
}

// No token is lost or made under contention.
func TestBudgetContention(t *testing.T) {
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

	run(func() { play(&h, r, 503, 200) })
	assert.Equal(t, float64(size), h.State(r, 0).Tokens, "all came back")

	var granted atomic.Int64
	run(func() {
		if fail(&h, r, 0).Retry {
			granted.Add(1)
		}
	})
	assert.EqualValues(t, size, granted.Load())
	assert.Zero(t, h.State(r, 0).Tokens)

	var plain atomic.Int64
	run(func() {
		if n := plain.Add(1); n <= 4321 {
			play(&h, r, 200)
		}
	})
	assert.InDelta(t, 4321*0.2, h.State(r, 0).Tokens, 1e-9)

	run(func() { play(&h, r, 200) })
	assert.Equal(t, float64(size), h.State(r, 0).Tokens, "never above Size")
}

// During an outage a client makes exactly as many retries as it has tokens.
func TestBudgetOutage(t *testing.T) {
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
	assert.Equal(t, 1005, attempts)
}

// The success rates of independent failures (docs/retry-storms.md, "What a
// budget costs"), and how many attempts they take.
func TestBudgetIndependentFailures(t *testing.T) {
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
		{retrip.Budget{}, .20, 99.72, .5, 1.26},
		{retrip.Budget{}, .30, 95.41, .5, 1.41},
		{retrip.Budget{}, .45, 68.85, 2, 1.3},
		{retrip.Budget{}, .60, 45.62, 2, 1.2},
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

// independentFailures has 100 clients make requests to hosts that fail an
// attempt with probability p, and returns the percentage that succeed and the
// attempts per request. Each client makes the given number of requests per
// second, for 100 seconds.
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

func newWorld(seed uint64) *world { return &world{random: rand.New(rand.NewPCG(seed, 0))} }
