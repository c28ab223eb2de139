// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package incoming carries the attempt number of an incoming request in its
// context: package shed stores it, and Transports that make calls on behalf of
// that request read it.
package incoming

import (
	"context"
	"sync/atomic"
)

// Mark says that work is on behalf of an incoming request. It is safe for
// concurrent use.
type Mark struct {
	attempt    int
	cancelable bool
	over       atomic.Bool
}

type markKey struct{}

// WithAttempt returns a context for work on behalf of a request that arrived as
// its nth attempt with ctx.
func WithAttempt(ctx context.Context, n int) (context.Context, *Mark) {
	m := &Mark{attempt: n, cancelable: ctx.Done() != nil}
	return context.WithValue(ctx, markKey{}, m), m
}

// Of returns the innermost Mark of ctx, or nil if there is none.
func Of(ctx context.Context) *Mark {
	m, _ := ctx.Value(markKey{}).(*Mark)
	return m
}

// End says that the incoming request has ended. Work that goes on is not on its
// behalf.
func (m *Mark) End() { m.over.Store(true) }

// Attempt returns the number of the incoming attempt on whose behalf work with
// ctx, a context that has the Mark, is done, or 1 if there is none: the request
// has ended, or its end can't end the work. m may be nil.
func (m *Mark) Attempt(ctx context.Context) int {
	if m == nil || m.over.Load() || m.cancelable && ctx.Done() == nil {
		return 1
	}
	return m.attempt
}
