// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package budget_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

func TestMain(m *testing.M) { testenv.RareGC(m) }

// outcomes maps the words of a script to outcomes, where AttemptTimeout is a second.
var outcomes = map[string]decide.Outcome{
	"ok":      play.Took(http.StatusOK, 700*time.Millisecond),
	"slow":    play.Took(http.StatusOK, 701*time.Millisecond),
	"404":     play.Took(http.StatusNotFound, 0),
	"slow404": play.Took(http.StatusNotFound, 999*time.Millisecond),
	"503":     play.Took(http.StatusServiceUnavailable, 0),
	"429":     play.Took(http.StatusTooManyRequests, 0),
	"error":   play.Took(0, 0),
	"timeout": {Timeout: true, Repeatable: true, Replay: true, Took: time.Second},
	"final":   {Status: http.StatusServiceUnavailable, Verdict: decide.Final},
	"POST503": {Status: http.StatusServiceUnavailable, Replay: true},
	"POSTout": {Timeout: true, Replay: true, Took: time.Second},
	"resent":  {Resent: true},
	"gone":    {Canceled: true},
	"nohost":  {Hopeless: true},
	"wrong":   {Verdict: decide.Final},
}

// perform makes the attempts of one request at h, which end as the words of script
// say, and returns the last decision.
func perform(t testing.TB, h *host.Record, r play.Judge, script string) play.Decision {
	t.Helper()
	var call decide.Call
	var d play.Decision
	for i, word := range strings.Fields(script) {
		o, ok := outcomes[word]
		require.True(t, ok, word)
		require.True(t, i == 0 || d.Retry, "%q ends before %q: %v", script, word, d.Reason)
		call.Attempts++
		h.Lock()
		h.Full = -time.Minute // the trouble isn't young, so that no retry bides
		h.Unlock()
		d = r.Next(h, &call, o, 0, play.Lowest)
		if d.Retry {
			if d = r.Wake(h, &call, 0, play.Lowest); !d.Retry {
				return d
			}
		}
	}
	r.Return(h, &call) // nothing, unless there must be a retry
	return d
}

//retrip:promise P14
func TestBudget(t *testing.T) {
	type step struct {
		script string // outcomes of the attempts of one request
		tokens float64
		failed int           // failed retries in a row
		reason decide.Reason // reason of the last decision, if it gave up
	}
	const (
		none      = decide.None
		exhausted = decide.BudgetExhausted
		failing   = decide.RetriesFailing
		most      = decide.MaxAttempts
		post      = decide.NotIdempotent
	)
	tests := []struct {
		name   string
		budget float64
		steps  []step
	}{
		{"a request's first failed retry costs a half, and its further ones nothing", 0, []step{
			{"503 503 ok", 4.5, 0, none}, {"503 error error ok", 4, 0, none}, {"503 503 503 503", 3.5, 1, most},
		}},
		{"while attempts time out each costs 0.7", 0, []step{
			{"timeout 503 ok", 4.3, 0, none}, {"503 503 503 ok", 2.9, 0, none}, {"timeout timeout ok", 2.2, 0, none},
		}},
		{"a timeout is forgotten after ten successes", 100, []step{
			{"503 503 ok", 99.5, 0, none}, {"503 503 ok", 99, 0, none}, {"503 503 ok", 98.5, 0, none}, {"503 503 ok", 98, 0, none}, {"503 503 ok", 97.5, 0, none},
			{"timeout timeout ok", 96.8, 0, none}, // the first success
			{"ok", 97, 0, none}, {"ok", 97.2, 0, none}, {"ok", 97.4, 0, none}, {"ok", 97.6, 0, none}, {"ok", 97.8, 0, none},
			{"ok", 98, 0, none}, {"ok", 98.2, 0, none}, {"503 503 ok", 97.5, 0, none}, {"503 503 ok", 96.8, 0, none}, {"503 503 ok", 96.3, 0, none},
		}},
		{"empty", 1, []step{
			{"503 503 503 503", .5, 1, most}, {"503 503", 0, 2, failing}, {"ok", .2, 0, none},
			{"503", .2, 0, exhausted}, {"ok", .4, 0, none}, {"timeout", .4, 0, exhausted}, {"ok", .6, 0, none}, {"timeout", .6, 0, exhausted},
		}},
		{"after three failed retries in a row, of three requests, none", 0, []step{
			{"503 503 503 503", 4.5, 1, most}, {"503 503 503 503", 4, 2, most}, {"503 503", 3.5, 3, failing}, {"error", 3.5, 3, failing},
			{"404", 3.7, 0, none}, {"503 ok", 3.7, 0, none},
		}},
		{"after two, none after a timeout", 0, []step{
			{"timeout timeout timeout", 3.6, 2, failing}, {"timeout", 3.6, 2, failing}, {"503 503", 2.9, 3, failing},
			{"slow", .9, 0, none}, {"timeout", .9, 0, exhausted}, {"503 ok", .9, 0, none},
		}},
		{"a retry after a timeout leaves a fifth", 0, []step{
			{"timeout timeout ok", 4.3, 0, none}, {"timeout timeout ok", 3.6, 0, none}, {"timeout timeout ok", 2.9, 0, none}, {"timeout timeout ok", 2.2, 0, none},
			{"timeout timeout", 1.5, 1, exhausted}, {"503 503 503", .1, 3, failing},
		}},
		{"a larger size allows more in a row", 10, []step{
			{"timeout timeout timeout timeout", 7.9, 3, most}, {"timeout timeout", 7.2, 4, failing}, {"503 503 503", 5.8, 6, failing},
		}},
		{"first attempts aren't in the row", 0, []step{
			{"503 503 503 503", 4.5, 1, most}, {"POST503", 4.5, 1, post}, {"POSTout", 4.5, 1, post}, {"503 503 503", 3.1, 3, failing},
		}},
		{"a success of anything ends the row", 0, []step{
			{"503 503 503 503", 4.5, 1, most}, {"503 ok", 4.5, 0, none},
			{"503 503 503 503", 4, 1, most}, {"slow404", 4.2, 0, none},
		}},
		{"after five failures a retry waits for successes", 0, []step{
			{"503 503 503 503", 4.5, 1, most}, {"ok", 4.7, 0, none}, {"503 503 503 503", 4.2, 1, most}, {"ok", 4.4, 0, none},
			{"503 503 503 503", 3.9, 1, most}, {"ok", 4.1, 0, none}, {"503 503 503 503", 3.6, 1, most}, {"ok", 3.8, 0, none},
			{"503 503 503 503", 3.3, 1, most},
			{"503", 3.3, 1, failing}, {"ok", 3.5, 0, none}, {"503", 3.5, 0, failing}, {"404", 3.7, 0, none},
			{"503 503", 3.2, 1, failing}, // only one
			{"ok", 3.4, 0, none}, {"ok", 3.6, 0, none}, {"ok", 3.8, 0, none}, {"ok", 4, 0, none}, {"ok", 4.2, 0, none}, {"ok", 4.4, 0, none}, {"ok", 4.6, 0, none},
			{"503", 4.6, 0, failing}, {"ok", 4.8, 0, none}, // eight
			{"503 ok", 4.8, 0, none}, // which ends it
			{"503 503 503 503", 4.3, 1, most}, {"503 503 503 503", 3.8, 2, most},
		}},
		{"what says nothing about the host changes nothing", 0, []step{
			{"503 503 503 503", 4.5, 1, most}, {"gone", 4.5, 1, decide.Canceled}, {"nohost", 4.5, 1, none}, {"wrong", 4.5, 1, none},
		}},
		{"a retry's tokens are spent or back", 0, []step{
			{"503 nohost", 5, 0, none}, {"503", 5, 0, none},
			{"503 gone", 4.5, 0, decide.Canceled}, {"503 wrong", 4, 0, none}, {"503 final", 3.5, 0, none}, {"503 resent", 3, 1, decide.HiddenSends}, {"503 POST503", 2.5, 2, post},
		}},
		{"while attempts time out a slow success takes two", 0, []step{
			{"timeout timeout ok", 4.3, 0, none}, {"slow", 2.3, 0, none}, {"slow404", .3, 0, none}, {"slow", 0, 0, none},
			{"ok", .2, 0, none}, {"ok", .4, 0, none}, {"slow", 0, 0, none},
		}},
		{"and that of a retry gets nothing back", 0, []step{
			{"timeout slow", 4.3, 0, none}, {"503 ok", 4.3, 0, none}, {"timeout timeout slow", 2.9, 0, none},
		}},
		{"a host in no trouble may be slow", 0, []step{
			{"slow", 5, 0, none}, {"POSTout", 5, 0, post}, {"slow", 5, 0, none}, {"503 slow", 5, 0, none},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var h host.Record
			r := play.Rules(t, retrip.Policy{Budget: tt.budget, AttemptTimeout: time.Second})
			for i, s := range tt.steps {
				d := perform(t, &h, r, s.script)
				state := r.State(&h, 0)
				assert.Equal(t, s.reason, d.Reason, "step %d: %s", i, s.script)
				assert.InDelta(t, s.tokens, state.Tokens, 1e-9, "step %d: %s", i, s.script)
				assert.Equal(t, s.failed, state.FailedRetries, "step %d: %s", i, s.script)
			}
		})
	}
}

// Two policies may share a host. The smaller budget counts what the larger one
// has spent.
func TestBudget_OfTwoPolicies(t *testing.T) {
	var h host.Record
	large, small := play.Rules(t, retrip.Policy{Budget: 100}), play.Rules(t, retrip.Policy{})
	for range 10 {
		require.True(t, play.Fail(&h, large, 0).Retry)
	}
	assert.Zero(t, small.State(&h, 0).Tokens)
	assert.Equal(t, decide.BudgetExhausted, play.Fail(&h, small, 0).Reason)
	assert.Equal(t, decide.BudgetExhausted, play.Fail(&h, small, 1000*time.Hour).Reason, "tokens don't come back with time")
	assert.Equal(t, 5.0, small.State(&h, 0).Size)
	assert.Equal(t, 95.0, large.State(&h, 0).Tokens)
	unlimited := play.Rules(t, retrip.Policy{Budget: retrip.Off})
	assert.Zero(t, unlimited.State(&h, 0).Size)
	assert.True(t, play.Fail(&h, unlimited, 0).Retry)
	assert.Equal(t, 95.0, large.State(&h, 0).Tokens, "a retry that cost nothing leaves no token missing")
	perform(t, &h, unlimited, "503 404")
	perform(t, &h, play.Rules(t, retrip.Policy{Budget: retrip.Off, Gate: retrip.Gate{Enabled: retrip.On}}), "503 ok")
	assert.Equal(t, 95.0, large.State(&h, 0).Tokens, "it doesn't come back either")
}

// A retry that fails after successes have filled the budget again leaves no trace.
//
//retrip:promise P14
func TestDebt_FilledBeforeTheFailure(t *testing.T) {
	r := budget.Rule{Size: 5 * budget.Token, Credit: budget.Credit}
	var d budget.Debt
	_, refusal := d.Pay(r, budget.Failure{})
	require.Zero(t, refusal)
	for range 2 {
		d.Succeed(r, 0, true, false, false, 0)
	}
	d.Fail(r, budget.Failure{}, true, budget.RetryCost)
	assert.Equal(t, budget.Debt{Missing: budget.RetryCost - 2*budget.Credit, Row: 1}, d, "tokens are missing, so it counts")
	d = budget.Debt{}
	d.Pay(r, budget.Failure{})
	for range 3 {
		d.Succeed(r, 0, true, false, false, 0)
	}
	d.Fail(r, budget.Failure{}, true, budget.RetryCost)
	assert.Zero(t, d)
	for range 3 {
		_, refusal := d.Pay(r, budget.Failure{})
		assert.Zero(t, refusal)
	}
}

// A budget that shrinks misses at most its new size, and an unlimited one nothing, also after
// requests that began before.
//
//retrip:promise P14
func TestBudget_SetPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sized := func(b float64) retrip.Policy {
			return retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: time.Second, Jitter: retrip.NoJitter}, Budget: b}
		}
		base := play.Base(play.Reply(503))
		tr := &retrip.Transport{Base: base, Policy: sized(100)}
		get := func() { testenv.Drop(t, tr, play.Request(t, http.MethodGet, nil)) }
		for range 20 {
			get()
		}
		require.NoError(t, tr.SetPolicies(sized(0), nil))
		assert.Zero(t, play.Must(tr.HostState("example.com:80")).Tokens)
		made := base.Attempts()
		get()
		assert.Equal(t, made+1, base.Attempts(), "no token is left")

		require.NoError(t, tr.SetPolicies(sized(100), nil))
		var underWay sync.WaitGroup
		for range 20 {
			underWay.Go(get)
		}
		synctest.Wait()
		require.NoError(t, tr.SetPolicies(sized(retrip.Off), nil))
		assert.Empty(t, play.Held(tr))
		underWay.Wait()
		assert.Empty(t, play.Held(tr))
		assert.Equal(t, made+41, base.Attempts())
	})
}

// The success rates with independent failures (docs/retry-storms.md, "What a
// budget costs"), and the attempts they take.
//
//retrip:promise P14
func TestBudget_IndependentFailures(t *testing.T) {
	testenv.OneGoroutine(t)
	testenv.Slow(t)
	for i, tt := range []struct {
		budget float64
		p      float64
		want   float64 // % of requests that succeed
		within float64
		most   float64 // attempts per request
	}{
		{0, .30, 99.16, .2, 1.43},
		{0, .01, 100.00, .5, 1.011},
		{0, .10, 99.99, .5, 1.12},
		{0, 1, 0, 0, 1.01},
		{0, .20, 99.83, .1, 1.26},
		{0, .60, 62, 2, 1.6},
		{retrip.Off, .10, 99.99, .5, 1.12},
		{0, .45, 94.3, 1, 1.75},
		{retrip.Off, .30, 99.20, .5, 1.43},
		{retrip.Off, 1, 0, 0, 4},
	} {
		if i%3 != 0 && !testenv.Tables() {
			continue // 70 000 requests each
		}
		t.Run(fmt.Sprintf("size %v/%v%%", tt.budget, 100*tt.p), func(t *testing.T) {
			success, attempts := play.IndependentFailures(play.Rules(t, retrip.Policy{Budget: tt.budget}), tt.p, 7)
			t.Logf("%.2f %% succeed at %.3f attempts", success, attempts)
			assert.InDelta(t, tt.want, success, tt.within)
			assert.LessOrEqual(t, attempts, tt.most)
			assert.GreaterOrEqual(t, attempts, 1.0)
		})
	}
}
