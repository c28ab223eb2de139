// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/lend"
)

// Policy is the policy of the clients of a simulated fleet. The zero Policy is
// retrip's default.
type Policy struct {
	// Name labels the policy in results. If empty, "retrip".
	Name string

	// Retry is the policy, as a program would set it in Transport.Policy. The
	// simulator doesn't call Classify and Idempotent: all simulated requests
	// are idempotent, and all answers are statuses.
	Retry retrip.Policy

	// Hedging changes how a policy with Hedge hedges, for comparison.
	Hedging Hedging

	limit   func(clients int) limiter // another system's rule, in place of a budget
	account bool                      // the fleet's account, besides the budget
	draw    func(*source, retrip.Policy, int) time.Duration
}

// Hedging is a way to hedge requests other than Transport's.
type Hedging struct {
	// After, if not 0, is a fixed delay after which every first attempt gets a hedge,
	// without any limit.
	After time.Duration
}

// rules returns the rules of p, and its Retry with every unset field filled in.
func (p Policy) rules() (*decide.Rules, retrip.Policy, error) { return lend.Rules(p.Retry) }

func (p Policy) name() string {
	if p.Name == "" {
		return "retrip"
	}
	return p.Name
}

// limiter is a rule that limits retries besides the budget, or in place of it. One
// limiter serves all clients of a fleet and keeps state for each of them. A paid
// is the amount that a request has taken for its current attempt.
type limiter interface {
	// result records how an attempt ended.
	result(client int32, o *decide.Outcome, attempts int, paid *int32)
	// retry reports whether another attempt may follow a failed one.
	retry(client int32, o *decide.Outcome, paid *int32) bool
}

// A preset is the policy of another system, or a variant of the base policy.
type preset struct {
	Name, About string
	make        func(base retrip.Policy) Policy
}

func limited(limit func(int) limiter, attempts int) func(retrip.Policy) Policy {
	return func(base retrip.Policy) Policy {
		base.Budget, base.Breaker = retrip.Off, retrip.Breaker{Ratio: retrip.Off}
		if attempts > 0 {
			base.MaxAttempts = attempts
		}
		return Policy{Retry: base, limit: limit}
	}
}

func changed(change func(*retrip.Policy)) func(retrip.Policy) Policy {
	return func(base retrip.Policy) Policy {
		change(&base)
		return Policy{Retry: base}
	}
}

// Presets are what [Preset] knows. The quotas count in fifths of a retry.
var Presets = []preset{
	{"retrip", "the base policy as it is", changed(func(*retrip.Policy) {})},
	{"account", "the base policy, and the fleet's account, which may forbid retries", func(base retrip.Policy) Policy {
		return Policy{Retry: base, account: true}
	}},
	{"no-retries", "one attempt", changed(func(p *retrip.Policy) { p.MaxAttempts = 1 })},
	{"no-budget", "retries without a budget", changed(func(p *retrip.Policy) { p.Budget = retrip.Off })},
	{"plain-budget", "5 tokens, one a retry, back if it succeeds, 0.2 back per success: retrip's budget without its other rules", limited(newQuota(25, 5, 5), 0)},
	{"envoy", "Envoy max_retries: 3 retries at a time", limited(newEnvoy, 0)},
	{"aws-standard", "AWS SDKs, standard mode: 500 tokens, 5 a retry, 10 after a timeout; 3 attempts", limited(newQuota(500, 5, 10), 3)},
	{"grpc", "gRPC's retry throttling: 10 tokens, one a failed attempt, 0.1 back per success, no retry below half", limited(newThrottle, 0)},
	{"no-jitter", "no budget, no jitter", jittered(retrip.NoJitter)},
	{"equal", "no budget, equal jitter", jittered(retrip.EqualJitter)},
	{"full", "no budget, full jitter", jittered(retrip.FullJitter)},
	{"decorrelated", "no budget, decorrelated jitter", jittered(retrip.DecorrelatedJitter)},
	{"gaussian", "no budget, waits of a normal distribution: mean and deviation half the window, negative ones 0", gaussian},
}

// asksFirst reports whether p decides about first attempts, and about retries
// after their wait, even at a host that hasn't asked for a pause.
func asksFirst(p retrip.Policy) bool { return p.Breaker.Ratio > 0 || p.Gate.Enabled == retrip.On }

func jittered(j retrip.Jitter) func(retrip.Policy) Policy {
	return changed(func(p *retrip.Policy) { p.Budget, p.Backoff.Jitter = retrip.Off, j })
}

// gaussian returns base with waits drawn from a normal distribution.
func gaussian(base retrip.Policy) Policy {
	base.Budget, base.Backoff.Jitter = retrip.Off, retrip.NoJitter
	return Policy{Retry: base, draw: func(s *source, p retrip.Policy, retry int) time.Duration {
		ceiling := p.Backoff.Cap
		if shift := uint(retry - 1); shift < 32 && p.Backoff.Base<<shift>>shift == p.Backoff.Base {
			ceiling = min(ceiling, p.Backoff.Base<<shift)
		}
		half := float64(ceiling) / 2
		return time.Duration(max(0, float64(s.normal()*half)+half))
	}}
}

// Preset returns the policy of another system by name; see [Presets].
// Whatever that system doesn't define, such as backoff, timeouts or the number
// of attempts, comes from base. If the name is unknown, the error lists all
// names.
func Preset(name string, base retrip.Policy) (Policy, error) {
	for _, p := range Presets {
		if p.Name == name {
			policy := p.make(base)
			policy.Name = name
			return policy, nil
		}
	}
	return Policy{}, fmt.Errorf("sim: no preset %q: it must be one of %s", name, strings.Join(PresetNames(), ", "))
}

// PresetNames returns the names that [Preset] accepts.
func PresetNames() (names []string) {
	for _, p := range Presets {
		names = append(names, p.Name)
	}
	return names
}

// PurseTime returns how long a client keeps retrying while every attempt fails
// at once. The budget stops the client after a fixed number of retries, which
// belong to a few of its own requests, and in a fleet each client sends one
// request per Clients/Rate. PurseTime returns 0 for a policy without retries, and
// Never for one without a budget or with the rule of another system.
func (s Scenario) PurseTime() (time.Duration, error) {
	rules, p, err := s.rules()
	if err != nil || p.MaxAttempts < 2 {
		return 0, err
	}
	if p.Budget == retrip.Off || s.Policy.limit != nil {
		return Never, nil
	}
	var record host.Record
	retries := 0
	for before := -1; before < retries; {
		before = retries
		call := decide.Call{Attempts: 1}
		ended := decide.Event{Kind: decide.Ended, Outcome: decide.Outcome{Status: http.StatusServiceUnavailable, Repeatable: true, Replay: true}}
		var a decide.Action
		for call.Step(rules, &record, &ended, &a, 0, 0); a.Do != decide.Answer; call.Step(rules, &record, &ended, &a, 0, 0) {
			call.Attempts++
			retries++
		}
	}
	requests := float64(retries) / float64(p.MaxAttempts-1)
	return time.Duration(requests * float64(s.Fleet.Clients) / s.Arrivals.Rate * float64(time.Second)), nil
}

// envoy is the circuit breaker max_retries, 3 by default: the cluster's retries
// that are waiting or in flight.
type envoy struct {
	retries []int32
}

func newEnvoy(clients int) limiter { return &envoy{retries: make([]int32, clients)} }

func (e *envoy) result(client int32, _ *decide.Outcome, _ int, paid *int32) {
	e.retries[client] -= *paid
	*paid = 0
}

func (e *envoy) retry(client int32, _ *decide.Outcome, paid *int32) bool {
	if e.retries[client] >= 3 {
		return false
	}
	e.retries[client]++
	*paid = 1
	return true
}

// quota is the retry quota of the AWS SDKs: a retry withdraws its cost and gets
// it back if it succeeds; a success without a retry deposits 1.
type quota struct {
	tokens              []int32
	most, cost, timeout int32
}

func newQuota(most, cost, timeout int32) func(clients int) limiter {
	return func(clients int) limiter {
		return &quota{tokens: slices.Repeat([]int32{most}, clients), most: most, cost: cost, timeout: timeout}
	}
}

func (q *quota) result(client int32, o *decide.Outcome, attempts int, paid *int32) {
	if o.Well() {
		back := *paid
		if attempts == 1 {
			back = 1
		}
		q.tokens[client] = min(q.tokens[client]+back, q.most)
	}
	*paid = 0
}

func (q *quota) retry(client int32, o *decide.Outcome, paid *int32) bool {
	cost := q.cost
	if o.Timeout {
		cost = q.timeout
	}
	if q.tokens[client] < cost {
		return false
	}
	q.tokens[client] -= cost
	*paid = cost
	return true
}

// throttle is gRPC's retry throttling: a failed attempt costs a token of ten, a success pays
// back a tenth, and there is no retry below half of them. It counts in tenths.
type throttle struct{ missing []int32 }

func newThrottle(clients int) limiter { return &throttle{make([]int32, clients)} }

func (t *throttle) result(client int32, o *decide.Outcome, _ int, _ *int32) {
	missing := t.missing[client] + 10
	if o.Status == http.StatusOK {
		missing = t.missing[client] - 1
	}
	t.missing[client] = min(100, max(0, missing))
}

func (t *throttle) retry(client int32, _ *decide.Outcome, _ *int32) bool {
	return t.missing[client] < 50
}
