// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"sync/atomic"
)

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
