// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/account"
)

// What a zero field of Transport.Policy inherits.
const (
	defaultMaxAttempts   = 4
	defaultBackoffBase   = 100 * time.Millisecond
	defaultBackoffCap    = 10 * time.Second
	defaultThrottleBase  = time.Second
	defaultMaxWait       = 30 * time.Second
	defaultMaxReplayBody = 64 << 10
	defaultMaxSends      = 10
	defaultBudgetSize    = 5
	defaultBudgetCredit  = 0.2
)

// over returns p with its unset fields taken from base.
func (p Policy) over(base Policy) Policy {
	inherit(&p.MaxAttempts, base.MaxAttempts)
	inherit(&p.Backoff.Base, base.Backoff.Base)
	inherit(&p.Backoff.Cap, base.Backoff.Cap)
	inherit(&p.Backoff.ThrottleBase, base.Backoff.ThrottleBase)
	inherit(&p.Backoff.Jitter, base.Backoff.Jitter)
	inherit(&p.Deadline, base.Deadline)
	inherit(&p.AttemptTimeout, base.AttemptTimeout)
	inherit(&p.MaxWait, base.MaxWait)
	inherit(&p.WholeBody, base.WholeBody)
	inherit(&p.BodyIdle, base.BodyIdle)
	inherit(&p.Resume, base.Resume)
	inherit(&p.MaxReplayBody, base.MaxReplayBody)
	inherit(&p.MaxSends, base.MaxSends)
	inheritSlice(&p.RetryOn, base.RetryOn)
	inheritSlice(&p.FailOn, base.FailOn)
	inheritSlice(&p.Unprocessed, base.Unprocessed)
	inheritSlice(&p.IdempotentMethods, base.IdempotentMethods)
	inherit(&p.IdempotencyKey, base.IdempotencyKey)
	inheritSlice(&p.Dialects, base.Dialects)
	inherit(&p.RetryHeader, base.RetryHeader)
	inherit(&p.Budget.Size, base.Budget.Size)
	inherit(&p.Budget.Credit, base.Budget.Credit)
	inherit(&p.Budget.Shared, base.Budget.Shared)
	inherit(&p.FleetBudget, base.FleetBudget)
	inherit(&p.Breaker.Ratio, base.Breaker.Ratio)
	inherit(&p.Breaker.Window, base.Breaker.Window)
	inherit(&p.Breaker.MinVolume, base.Breaker.MinVolume)
	inherit(&p.Breaker.OpenFor, base.Breaker.OpenFor)
	inherit(&p.Breaker.Probes, base.Breaker.Probes)
	inherit(&p.Gate, base.Gate)
	if p.GateKey == nil {
		p.GateKey = base.GateKey
	}
	if p.Classify == nil {
		p.Classify = base.Classify
	}
	if p.Idempotent == nil {
		p.Idempotent = base.Idempotent
	}
	return p
}

func inherit[T comparable](field *T, base T) {
	var zero T
	if *field == zero {
		*field = base
	}
}

func inheritSlice[T any](field *[]T, base []T) {
	if *field == nil {
		*field = base
	}
}

// defaults is what Transport.Policy inherits from. MaxSends stays 0, because
// its default depends on the attempt.
var defaults = Policy{
	MaxAttempts:   defaultMaxAttempts,
	Backoff:       Backoff{Base: defaultBackoffBase, Cap: defaultBackoffCap, ThrottleBase: defaultThrottleBase, Jitter: FullJitter},
	MaxWait:       defaultMaxWait,
	MaxReplayBody: defaultMaxReplayBody,
	Budget:        Budget{Size: defaultBudgetSize, Credit: defaultBudgetCredit},
	FleetBudget:   account.DefaultSize,
}

// WithPolicy returns a context whose requests follow p. Fields that p leaves
// unset inherit from the policy of an enclosing WithPolicy, and then from the
// policy of the host.
//
// Budgets, breakers and gates belong to the host, so p may only switch them
// off, with Unlimited, Breaker{Ratio: Off} and Gate: Off. A request with Gate:
// Off doesn't wait at the gate. RoundTrip returns an error if p is invalid.
// WithPolicy and the context it returns are safe for concurrent use, but the
// slices in p must not be changed after the call.
func WithPolicy(ctx context.Context, p Policy) context.Context {
	next := &override{policy: &p}
	if o := overrideOf(ctx); o != nil {
		next.traces = o.traces
		if o.policy != nil {
			p = p.over(*o.policy)
		}
	}
	return next.in(ctx)
}

// override holds what a context sets for its requests. The policy and the
// traces share one context value, so that a request which has neither needs one
// lookup.
type override struct {
	policy *Policy
	traces []*Trace
}

type overrideKey struct{}

// overridden becomes true, for good, when the first context sets anything.
// Until then no request has to search its context, which takes longer the
// deeper the context is nested.
var overridden atomic.Bool

func (o *override) in(ctx context.Context) context.Context {
	overridden.Store(true)
	return context.WithValue(ctx, overrideKey{}, o)
}

// overrideOf returns what ctx sets, or nil if it sets nothing.
func overrideOf(ctx context.Context) *override {
	if !overridden.Load() {
		return nil
	}
	o, _ := ctx.Value(overrideKey{}).(*override)
	return o
}
