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

	"github.com/retrip/retrip/internal/backoff"
	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/dialect"
	"github.com/retrip/retrip/internal/exchange"
	"github.com/retrip/retrip/internal/lend"
)

// rules is what a Policy amounts to for the requests that follow it. It is
// immutable.
type rules struct {
	exchange.Rules
	policy Policy // every field resolved
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
		return &r.Rules.Rules, r.policy, nil
	}
}

// resolve makes the rules of p over base. It checks only what depends on both p
// and base; check does the rest.
func (p Policy) resolve(base Policy) (*rules, error) {
	p = p.over(base)
	p.Breaker = p.Breaker.orDefault()
	r := &rules{policy: p}
	r.MaxAttempts, r.MaxWait, r.Gate = p.MaxAttempts, p.MaxWait, p.Gate.Enabled == On
	r.Backoff = backoff.Rule{Base: p.Backoff.Base, Cap: p.Backoff.Cap, ThrottleBase: p.Backoff.ThrottleBase, Jitter: backoff.Jitter(p.Backoff.Jitter)}
	r.AttemptTimeout, r.Deadline, r.BodyIdleTimeout, r.Resume = p.AttemptTimeout, p.Deadline, p.BodyIdleTimeout, p.Resume
	r.WholeBody, r.MaxReplayBody = p.WholeBody, p.MaxReplayBody
	r.Asks, r.Classifies, r.GeneratesKeys = r, p.Classify != nil, p.IdempotencyKey == On
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
		r.Fleet = max(0, p.FleetBudget)
	}
	for _, name := range p.Dialects {
		r.Dialects = append(r.Dialects, dialect.ByName[name])
	}
	if !strings.EqualFold(p.RetryHeader, noRetryHeader) {
		r.RetryHeader = http.CanonicalHeaderKey(p.RetryHeader)
	}
	if p.Breaker.Ratio > 0 {
		r.Breaker = &breaker.Rule{Ratio: p.Breaker.Ratio, Window: p.Breaker.Window, MinVolume: p.Breaker.MinVolume, OpenFor: p.Breaker.OpenFor, Probes: breaker.Probes}
	}
	if r.Budget.Size > 0 && p.AttemptTimeout > 0 {
		r.Timed = true
		r.Slow = max(1, time.Duration(budget.SlowShare*float64(p.AttemptTimeout)))
	}
	if p.Hedge > 0 && p.MaxAttempts > 1 {
		r.Hedge.Share, r.Timed = p.Hedge, true
	}
	r.Derives = p.AttemptTimeout > 0 || p.Deadline > 0 || p.BodyIdleTimeout > 0
	asks := r.Classifies || r.GeneratesKeys || p.Idempotent != nil
	r.Plain = !r.Derives && !asks && r.Hedge.Share == 0 && p.WholeBody <= 0 && p.Resume <= 0 && r.Breaker == nil && !r.Gate
	return r, p.checkTogether()
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
	own.Name, own.Metrics = r.Name, r.Metrics
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

// The methods below are what r asks of the program; see [exchange.Questions].

// GateName returns the name of the gate at which req waits.
func (r *rules) GateName(req *http.Request) string {
	if r.policy.Gate.Key == nil {
		return ""
	}
	return r.policy.Gate.Key(req)
}

// Classify returns the verdict of Policy.Classify, which must not be nil.
func (r *rules) Classify(req *http.Request, resp *http.Response, err error) decide.Verdict {
	return decide.Verdict(r.policy.Classify(req, resp, err))
}
