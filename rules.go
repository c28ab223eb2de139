// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/account"
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
	exchange.Config
	path   string // of the policy, in errors
	policy Policy // every field resolved
}

func init() {
	lend.Compile = func(policy any) (*decide.Rules, any, error) {
		r, own := &rules{path: "Policy"}, policy.(Policy)
		if err := r.resolve(&own, &defaults); err != nil {
			return nil, nil, err
		}
		return &r.Config.Rules, r.policy, nil
	}
}

// defaults is what Transport.Policy inherits from.
var defaults = Policy{
	MaxAttempts:   4,
	Backoff:       Backoff{Base: 100 * time.Millisecond, Cap: 10 * time.Second, ThrottleBase: time.Second, Jitter: FullJitter},
	MaxWait:       30 * time.Second,
	MaxReplayBody: 64 << 10,
	Budget:        5,
	FleetBudget:   account.DefaultSize,
}

// resolve makes r, which has a path, the rules of own, whose unset fields inherit from
// base.
func (r *rules) resolve(own, base *Policy) error {
	r.policy = *base
	p := &r.policy
	if err := p.set(own, r.path); err != nil {
		return err
	}
	if b := &p.Breaker; *b != (Breaker{}) && b.Ratio != Off {
		b.Ratio, b.Window = cmp.Or(b.Ratio, 0.8), cmp.Or(b.Window, 10*time.Second)
		b.MinVolume, b.OpenFor = cmp.Or(b.MinVolume, 20), cmp.Or(b.OpenFor, 5*time.Second)
		r.Breaker = &breaker.Rule{Ratio: b.Ratio, Window: b.Window, MinVolume: b.MinVolume, OpenFor: b.OpenFor, Probes: breaker.Probes}
	}
	r.MaxAttempts, r.MaxWait, r.Gated = p.MaxAttempts, p.MaxWait, p.Gate.Enabled == On
	r.Backoff = backoff.Rule{Base: p.Backoff.Base, Cap: p.Backoff.Cap, ThrottleBase: p.Backoff.ThrottleBase, Jitter: backoff.Jitter(p.Backoff.Jitter)}
	r.AttemptTimeout, r.Deadline, r.BodyIdleTimeout, r.Resume = p.AttemptTimeout, p.Deadline, p.BodyIdleTimeout, p.Resume
	r.WholeBody, r.MaxReplayBody = p.WholeBody, p.MaxReplayBody
	r.Program, r.Classifies, r.GeneratesKeys = r, p.Classify != nil, p.IdempotencyKey == On
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
	if r.Budget.Size > 0 && p.AttemptTimeout > 0 {
		r.Timed = true
		r.Slow = max(1, time.Duration(budget.SlowShare*float64(p.AttemptTimeout)))
	}
	if p.Hedge > 0 && p.MaxAttempts > 1 {
		r.Hedge.Share, r.Timed = p.Hedge, true
	}
	r.Derives = p.AttemptTimeout > 0 || p.Deadline > 0 || p.BodyIdleTimeout > 0
	asks := r.Classifies || r.GeneratesKeys || p.Idempotent != nil
	r.Plain = !r.Derives && !asks && r.Hedge.Share == 0 && p.WholeBody <= 0 && p.Resume <= 0 && r.Breaker == nil && !r.Gated
	return r.conflict()
}

// override returns the rules of a request with the context ctx, in which o sets a policy.
func (r *rules) override(ctx context.Context, o *override) (*rules, error) {
	own, base := &rules{path: "WithPolicy"}, &r.policy
	own.Name, own.Metrics = r.Name, r.Metrics
	p := o.policy
	if !o.limits && o.from.Attempt(ctx) > 1 {
		// A call on behalf of an incoming retry gets one attempt, unless the program
		// says otherwise.
		single := *p
		single.MaxAttempts = 1
		p = &single
	}
	errs := []error{own.resolve(p, base)}
	ofHost := func(field string, value any, only string) {
		errs = append(errs, fmt.Errorf("retrip: WithPolicy.%s is %+v: its state belongs to the host, so WithPolicy accepts only %s", field, value, only))
	}
	if p.Breaker != (Breaker{}) && p.Breaker != (Breaker{Ratio: Off}) {
		ofHost("Breaker", p.Breaker, "Breaker{Ratio: Off}")
	}
	if p.Budget != 0 && p.Budget != Off {
		ofHost("Budget", p.Budget, "Off")
	}
	if p.FleetBudget != 0 && p.FleetBudget != Off {
		ofHost("FleetBudget", p.FleetBudget, "Off")
	}
	if p.Gate.Enabled == On && base.Gate.Enabled != On {
		ofHost("Gate.Enabled", p.Gate.Enabled, "Off")
	}
	return own, errors.Join(errs...)
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

// The methods below are what r asks of the program; see [exchange.Program].

// GateKey names the gate at which req waits. It stays bounded, and different
// ones stay different.
func (r *rules) GateKey(req *http.Request) string {
	if r.policy.Gate.Key == nil {
		return ""
	}
	const most = 256
	name := r.policy.Gate.Key(req)
	if len(name) > most {
		hash := sha256.Sum256([]byte(name))
		name = name[:most-len(hash)] + string(hash[:])
	}
	return name
}

// Classify returns the verdict of Policy.Classify, which must not be nil.
func (r *rules) Classify(req *http.Request, resp *http.Response, err error) decide.Verdict {
	return decide.Verdict(r.policy.Classify(req, resp, err))
}
