// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package incoming carries the attempt number of an incoming request in its
// context: package shed stores it, and Transports that make calls on behalf of
// that request read it.
package incoming

import "context"

type attemptKey struct{}

// WithAttempt returns a context for work on behalf of a request that arrived as
// its nth attempt.
func WithAttempt(ctx context.Context, n int) context.Context {
	return context.WithValue(ctx, attemptKey{}, n)
}

// Attempt returns the number that WithAttempt has stored in ctx, or 1 if there
// is none.
func Attempt(ctx context.Context) int {
	if n, ok := ctx.Value(attemptKey{}).(int); ok {
		return n
	}
	return 1
}
