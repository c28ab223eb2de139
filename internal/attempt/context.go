// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// behind returns a context of the standard library, created on first use. Code
// that derives a context from a, as net/http does, finds that context and needs
// no goroutine.
func (a *Attempt) behind() context.Context {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ctx == nil {
		parent := a.parent
		if a.cause != nil {
			// An end after the attempt's end is not its cause.
			parent = context.WithoutCancel(parent)
		}
		a.ctx, a.stop = context.WithCancelCause(parent)
		if a.cause != nil {
			a.stop(a.cause)
		}
	}
	return a.ctx
}

// cancel ends a.
func (a *Attempt) cancel(cause error) {
	a.mu.Lock()
	stop := a.stop
	if stop == nil && a.cause == nil {
		a.cause = cmp.Or(cause, context.Canceled)
	}
	a.mu.Unlock()
	if stop != nil {
		stop(cause)
	}
}

// Cut implements [body.Cutter].
func (a *Attempt) Cut() { a.cancel(nil) }

// Deadline implements [context.Context]. It returns the caller's deadline.
func (a *Attempt) Deadline() (time.Time, bool) { return a.parent.Deadline() }

// Done implements [context.Context].
func (a *Attempt) Done() <-chan struct{} { return a.behind().Done() }

// Err implements [context.Context].
func (a *Attempt) Err() error { return a.behind().Err() }

// Value implements [context.Context]. It replaces [httptrace.WithClientTrace]
// without another context.
func (a *Attempt) Value(key any) any {
	switch key {
	case traceKey():
		return &a.hooked().ClientTrace
	case attemptKey{}:
		return a
	}
	if a.watch&WatchHandshake != 0 {
		return a.hooked().handshakes.ctx.Value(key)
	}
	// The key may be the one with which package context finds its own contexts.
	return a.behind().Value(key)
}

// Format implements [fmt.Formatter]. Logs may print the context of a request,
// and must not show the request's headers.
func (a *Attempt) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, "retrip.attempt") }

// GiveBack replaces req in resp by the caller's request, and a context that a
// would end by the caller's context.
func (a *Attempt) GiveBack(resp *http.Response, req, callers *http.Request) {
	switch r := resp.Request; {
	case r == req:
		resp.Request = callers
	case r != nil && r.Context().Value(attemptKey{}) == a:
		resp.Request = r.WithContext(outlived{a.parent, r.Context()})
	}
}

// attemptKey is the key under which the context of an attempt returns the
// attempt.
type attemptKey struct{}

// outlived is a context that a base derived from an attempt's context, without
// the end of the attempt. It ends when the caller's context ends, for the same
// cause.
type outlived struct {
	context.Context                 // the caller's
	values          context.Context // the base's
}

func (c outlived) Value(key any) any {
	if key == cancelKey() || key == (attemptKey{}) {
		return c.Context.Value(key)
	}
	return c.values.Value(key)
}
