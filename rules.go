// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/backoff"
	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/dialect"
	"github.com/retrip/retrip/internal/hedge"
	"github.com/retrip/retrip/internal/lend"
	"github.com/retrip/retrip/internal/meter"
	"github.com/retrip/retrip/internal/turns"
)

// rules is what a Policy amounts to for the requests that follow it. It is
// immutable.
type rules struct {
	decide.Rules
	policy      Policy  // every field resolved
	timed       bool    // the duration of attempts matters
	fleet       float64 // size of the fleet's account; 0 if the policy takes no part in it
	dialects    []dialect.Dialect
	hedge       hedge.Rule    // no hedges if its Share is 0
	plain       bool          // a first attempt may need nothing but Base
	derives     bool          // every attempt needs a request and context of its own
	retryHeader string        // in canonical form; empty: none
	name        string        // the pattern in Transport.Hosts, or "default"
	metrics     *meter.Policy // nil counts nothing
}

func init() {
	lend.Compile = func(policy any) (*decide.Rules, any, error) {
		p := policy.(Policy)
		if err := p.check("Policy"); err != nil {
			return nil, nil, err
		}
		r, err := p.resolve(defaults)
		if err != nil {
			return nil, nil, fmt.Errorf("retrip: Policy.%w", err)
		}
		return &r.Rules, r.policy, nil
	}
}

// resolve makes the rules of p over base. It checks only what depends on both p
// and base; check does the rest.
func (p Policy) resolve(base Policy) (*rules, error) {
	p = p.over(base)
	p.Breaker = p.Breaker.orDefault()
	r := &rules{policy: p, Rules: decide.Rules{MaxAttempts: p.MaxAttempts, MaxWait: p.MaxWait, Gate: p.Gate.Enabled == On,
		Backoff: backoff.Rule{Base: p.Backoff.Base, Cap: p.Backoff.Cap, ThrottleBase: p.Backoff.ThrottleBase, Jitter: backoff.Jitter(p.Backoff.Jitter)}}}
	for status := http.StatusInternalServerError; status < 600; status++ {
		r.Retry.Add(status)
	}
	r.Retry.Add(http.StatusTooManyRequests)
	for _, status := range p.RetryOn {
		r.Retry.Add(status)
	}
	for _, status := range p.Unprocessed {
		r.Retry.Add(status)
		r.Unprocessed.Add(status)
	}
	for _, status := range p.FailOn {
		r.Retry.Remove(status)
	}
	if p.Budget != Off {
		r.Budget = budget.Rule{Size: budget.Micro(p.Budget), Credit: budget.Credit}
		// Without a budget, a process whose own network is dead would spend what
		// everyone has.
		r.fleet = max(0, p.FleetBudget)
	}
	for _, name := range p.Dialects {
		r.dialects = append(r.dialects, dialect.ByName[name])
	}
	if !strings.EqualFold(p.RetryHeader, noRetryHeader) {
		r.retryHeader = http.CanonicalHeaderKey(p.RetryHeader)
	}
	if p.Breaker.Ratio > 0 {
		r.Breaker = &breaker.Rule{Ratio: p.Breaker.Ratio, Window: p.Breaker.Window, MinVolume: p.Breaker.MinVolume, OpenFor: p.Breaker.OpenFor, Probes: breaker.Probes}
	}
	if r.Budget.Size > 0 && p.AttemptTimeout > 0 {
		r.timed = true
		r.Slow = max(1, time.Duration(budget.SlowShare*float64(p.AttemptTimeout)))
	}
	if p.Hedge > 0 && p.MaxAttempts > 1 {
		r.hedge.Share, r.timed = p.Hedge, true
	}
	r.derives = p.AttemptTimeout > 0 || p.Deadline > 0 || p.BodyIdleTimeout > 0
	asks := p.Classify != nil || p.Idempotent != nil || p.IdempotencyKey == On
	r.plain = !r.derives && !asks && r.hedge.Share == 0 && p.WholeBody <= 0 && p.Resume <= 0 && r.Breaker == nil && !r.Gate
	return r, p.checkTogether()
}

// turns returns the rule for the turns of bodies that wait.
func (r *rules) turns() turns.Rule {
	p := &r.policy
	return turns.Rule{
		Cap:  max(1, min(max(turns.CapLeast, p.Backoff.Cap), p.Resume/4)),
		Slow: time.Duration(turns.SlowShare * float64(max(0, p.AttemptTimeout))),
	}
}

// orDefault returns b with the defaults of its unset fields, if b is on.
func (b Breaker) orDefault() Breaker {
	if b != (Breaker{}) && b.Ratio != Off {
		inherit(&b.Ratio, defaultBreaker.Ratio)
		inherit(&b.Window, defaultBreaker.Window)
		inherit(&b.MinVolume, defaultBreaker.MinVolume)
		inherit(&b.OpenFor, defaultBreaker.OpenFor)
	}
	return b
}

// override returns the rules of a request whose context sets p.
func (r *rules) override(p Policy) (*rules, error) {
	errs := []error{p.check("WithPolicy")}
	if b, off := p.Breaker, (Breaker{Ratio: Off}); b != (Breaker{}) && b != off {
		errs = append(errs, fmt.Errorf("retrip: WithPolicy.Breaker is %+v: its state belongs to the host, so WithPolicy accepts only Breaker{Ratio: Off}", b))
	}
	if p.Budget != 0 && p.Budget != Off {
		errs = append(errs, fmt.Errorf("retrip: WithPolicy.Budget is %v: its state belongs to the host, so WithPolicy accepts only Off", p.Budget))
	}
	if p.FleetBudget != 0 && p.FleetBudget != Off {
		errs = append(errs, fmt.Errorf("retrip: WithPolicy.FleetBudget is %v: its state belongs to the host, so WithPolicy accepts only Off", p.FleetBudget))
	}
	if p.Gate.Enabled == On && r.policy.Gate.Enabled != On {
		errs = append(errs, errors.New("retrip: WithPolicy.Gate.Enabled is on: its state belongs to the host, so WithPolicy accepts only Off"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	own, err := p.resolve(r.policy)
	if err != nil {
		return nil, fmt.Errorf("retrip: WithPolicy.%w", err)
	}
	own.name, own.metrics = r.name, r.metrics
	return own, nil
}

// clone returns p with slices of its own.
func (p Policy) clone() Policy {
	p.RetryOn = slices.Clone(p.RetryOn)
	p.FailOn = slices.Clone(p.FailOn)
	p.Unprocessed = slices.Clone(p.Unprocessed)
	p.IdempotentMethods = slices.Clone(p.IdempotentMethods)
	p.Dialects = slices.Clone(p.Dialects)
	return p
}

// begin returns an attempt that has a request of its own.
func (r *rules) begin(req *http.Request, idempotent bool, watch attempt.Watch) *attempt.Attempt {
	if !idempotent {
		watch |= attempt.WatchSend
	}
	return attempt.Begin(req, watch)
}

// limit bounds a by AttemptTimeout and, if left isn't 0, by a deadline which ends
// after left with the error late. clock is as in [alarm.Set].
func (r *rules) limit(a *attempt.Attempt, clock time.Time, left time.Duration, late error) {
	limit, tooLate := r.policy.AttemptTimeout, error(errAttemptTimeout)
	if left > 0 && (limit <= 0 || left < limit) {
		limit, tooLate = left, late
	}
	if limit > 0 {
		a.Limit(clock, limit, tooLate)
	}
}
