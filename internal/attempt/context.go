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

// Code that derives a context from that of an attempt must find a context of the standard
// library behind it, or an AfterFunc: else package context starts a goroutine. It finds an
// AfterFunc only in a itself. net/http derives its context from a itself, and an AfterFunc
// costs half of what a context does. Another base may first add a value.

// child is a context of the standard library behind that of an attempt.
type child struct {
	context.Context
	end context.CancelCauseFunc
}

// derives reports whether the base derives its contexts from a itself.
func (a *Attempt) derives() bool { return a.watch&(OwnConns|WatchHandshake) == OwnConns }

// behind returns the context behind a, created on first use.
func (a *Attempt) behind() *child {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.child == nil {
		parent := a.parent
		if a.cause != nil {
			// An end after the attempt's end is not its cause.
			parent = context.WithoutCancel(parent)
		}
		a.child = &child{}
		a.child.Context, a.child.end = context.WithCancelCause(parent)
		if a.cause != nil {
			a.child.end(a.cause)
		}
	}
	return a.child
}

// cancel ends a.
func (a *Attempt) cancel(cause error) {
	a.mu.Lock()
	if a.cause == nil && a.above() == nil {
		a.cause = cmp.Or(cause, context.Canceled)
	}
	after := a.finish(cmp.Or(a.cause, context.Cause(a.parent)))
	a.mu.Unlock()
	if after != nil {
		after()
	}
}

// follow ends a because parent has ended.
func (a *Attempt) follow() {
	a.mu.Lock()
	after := a.finish(context.Cause(a.parent))
	a.mu.Unlock()
	if after != nil {
		after()
	}
}

// finish ends child for the cause, unless parent has, closes done, and returns what to call
// then. Who learns from done that a has ended looks for the cause in child. a must be locked, and
// have ended.
func (a *Attempt) finish(cause error) (after func()) {
	if a.child != nil {
		a.child.end(cause)
	}
	if a.done == nil || a.finished() {
		return nil
	}
	close(a.done)
	if a.unfollow != nil {
		a.unfollow()
	}
	after, a.after = a.after, nil
	return after
}

// finished reports whether done, which must not be nil, is closed.
func (a *Attempt) finished() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// above returns the error of parent, if it has ended. Without Done, it never does.
func (a *Attempt) above() error {
	if err := a.parent.Err(); err != nil && a.parent.Done() != nil {
		return err
	}
	return nil
}

// over reports whether a has ended.
func (a *Attempt) over() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cause != nil || a.above() != nil
}

// Cut implements [body.Cutter].
func (a *Attempt) Cut() { a.cancel(nil) }

// Deadline implements [context.Context]. It returns the caller's deadline.
func (a *Attempt) Deadline() (time.Time, bool) { return a.parent.Deadline() }

// Done implements [context.Context].
func (a *Attempt) Done() <-chan struct{} {
	if !a.derives() {
		return a.behind().Done()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done == nil {
		a.done = make(chan struct{})
		switch {
		case a.cause != nil || a.above() != nil:
			close(a.done)
		case a.parent.Done() != nil:
			a.unfollow = context.AfterFunc(a.parent, a.follow)
		}
	}
	return a.done
}

// Err implements [context.Context].
func (a *Attempt) Err() error {
	if !a.derives() {
		return a.behind().Err()
	}
	a.mu.Lock()
	cause := a.cause
	a.mu.Unlock()
	if cause != nil {
		return context.Canceled
	}
	err := a.above()
	if err != nil {
		a.follow() // Done says the same
	}
	return err
}

// AfterFunc is what package context looks for in a parent. What it passes takes no time, so
// the first f is called before what ends a goes on. Others get a context of their own.
func (a *Attempt) AfterFunc(f func()) (stop func() bool) {
	a.Done() // from here on, a follows its parent
	a.mu.Lock()
	first := a.derives() && !a.taken && !a.finished()
	if first {
		a.taken, a.after = true, f
	}
	a.mu.Unlock()
	if !first {
		return context.AfterFunc(a.behind(), f)
	}
	return a.forget
}

// forget makes the end of a call nothing. It reports whether it would have.
func (a *Attempt) forget() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	had := a.after != nil
	a.after = nil
	return had
}

// Value implements [context.Context]. It replaces [httptrace.WithClientTrace]
// without another context.
func (a *Attempt) Value(key any) any {
	switch key {
	case traceKey:
		return &a.hooked().ClientTrace
	case attemptKey{}:
		return a
	}
	switch {
	case a.watch&WatchHandshake != 0:
		return a.hooked().handshakes.ctx.Value(key)
	case !a.derives() || key == cancelKey && a.Err() != nil:
		// With this key, package context finds its own contexts, and their causes.
		return a.behind().Value(key)
	case key == cancelKey:
		return nil
	}
	return a.parent.Value(key)
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
	if key == cancelKey || key == (attemptKey{}) {
		return c.Context.Value(key)
	}
	return c.values.Value(key)
}
