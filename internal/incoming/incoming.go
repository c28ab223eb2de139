// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package incoming carries the number of the attempt by which a request came
// into a server, by its context, from package shed to the Transports that make
// calls on its behalf.
package incoming

import "context"

type attemptKey struct{}

// WithAttempt returns a context for what is done on behalf of a request that
// came in as its nth attempt.
func WithAttempt(ctx context.Context, n int) context.Context {
	return context.WithValue(ctx, attemptKey{}, n)
}

// Attempt returns the number that WithAttempt has put into ctx, 1 if none.
func Attempt(ctx context.Context) int {
	if n, ok := ctx.Value(attemptKey{}).(int); ok {
		return n
	}
	return 1
}
