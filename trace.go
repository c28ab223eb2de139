// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"log/slog"
	"net/http"
	"time"
)

// Trace is a set of hooks that run at the stages of a request, as those of
// [net/http/httptrace.ClientTrace] do within one attempt. Any hook may be nil.
// They run in the goroutine of RoundTrip and must not keep or change what they
// are given; they must be safe for concurrent use by different requests.
//
// For one request the order is: Attempt, then either Retry and Attempt again,
// or at most one GiveUp, and Done at the very end.
type Trace struct {
	// Attempt runs before an attempt is made.
	Attempt func(Event)

	// Retry runs when another attempt has been decided on, before the wait.
	Retry func(Event)

	// GiveUp runs when no further attempt is made although it would have been
	// useful.
	GiveUp func(Event)

	// Done runs once, when RoundTrip is about to return.
	Done func(Event)

	// Resume runs when the body of a response has broken under its reader, in the
	// goroutine that reads, where Policy.Resume is on: once it is continued, or
	// when it can't be. The reader's Attempt, Retry and GiveUp run before it, for
	// the requests that try to continue the body.
	Resume func(Event)

	// Host runs when the state of a host has changed: a pause that began or
	// grew, a breaker that opened, began to probe or closed, a budget that has
	// run out, so that a request got no retry, or that is full again after it
	// had. A budget that runs out is told once, until it is full again or the
	// host has been forgotten after an hour without a failure. Host only runs for
	// Transport.Trace.
	Host func(HostState)
}

// Event is what a hook of [Trace] is told.
type Event struct {
	// Request is the caller's; where it continues a body, that for the rest.
	Request *http.Request

	// Policy is the name of the policy followed: the pattern in
	// Transport.Hosts, or "default".
	Policy string

	// Attempt is the number of the attempt that begins, or of the last one
	// made; 1 is the first, 0 is none yet.
	Attempt int

	// StatusCode, Header and Err are the outcome of the last attempt. Header
	// must not be changed.
	StatusCode int
	Header     http.Header
	Err        error

	// Reason is why it is retried or given up; for Done, why it was given up,
	// empty if it was not; for Resume, "continued" or a word for why not.
	Reason Reason

	// Offset is, for Resume, how many bytes of the representation the reader has.
	Offset int64

	// Wait is how long the wait before the next attempt is going to be, and
	// FromServer whether a server asked for it. At a gate it is how long nobody
	// may go; the wait for those who came before comes on top.
	Wait       time.Duration
	FromServer bool

	// Sends is how often net/http has sent the request within the last
	// attempt; 0 if that is not known.
	Sends int

	// Elapsed is the time since RoundTrip began.
	Elapsed time.Duration

	maxWait time.Duration // of the policy, where it is why the request was given up; else 0
}

// WithTrace returns a context whose requests run the hooks of t, after those
// of an enclosing WithTrace and of Transport.Trace. If t is nil, it adds none.
// t must not be changed afterwards.
func WithTrace(ctx context.Context, t *Trace) context.Context {
	next := &override{}
	if o := overrideOf(ctx); o != nil {
		next.policy = o.policy
		next.traces = append(next.traces, o.traces...)
	}
	next.traces = append(next.traces, t)
	return next.in(ctx)
}

// watcher runs the hooks of one request and writes its log records.
type watcher struct {
	own    *Trace   // of the Transport
	asked  []*Trace // of the context
	logger *slog.Logger
	began  time.Time
}

// hooked reports whether there is any hook to run.
func (w *watcher) hooked() bool { return w.own != nil || len(w.asked) > 0 }

type hook uint8

const (
	hookAttempt hook = iota
	hookRetry
	hookGiveUp
	hookDone
	hookResume
)

func (t *Trace) hook(h hook) func(Event) {
	switch {
	case t == nil:
		return nil
	case h == hookAttempt:
		return t.Attempt
	case h == hookRetry:
		return t.Retry
	case h == hookGiveUp:
		return t.GiveUp
	case h == hookResume:
		return t.Resume
	default:
		return t.Done
	}
}

func (w *watcher) run(h hook, e Event) {
	if w.hooked() {
		if f := w.own.hook(h); f != nil {
			f(e)
		}
		for _, t := range w.asked {
			if f := t.hook(h); f != nil {
				f(e)
			}
		}
	}
	if w.logger != nil {
		w.log(h, e)
	}
}

func (w *watcher) log(h hook, e Event) {
	level, message := slog.LevelDebug, "retrip: retry"
	switch h {
	case hookRetry:
	case hookGiveUp:
		level, message = slog.LevelInfo, "retrip: give up"
		if e.Reason == ReasonBreakerOpen && e.Attempt == 0 {
			// The breaker refuses every request to come; that it opened is in the
			// log.
			level = slog.LevelDebug
		}
	case hookResume:
		level, message = slog.LevelInfo, "retrip: response body broke"
	default:
		return
	}
	ctx := e.Request.Context()
	if !w.logger.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 8)
	attrs = append(attrs,
		slog.String("method", method(e.Request)),
		slog.String("url", redact(e.Request.URL)),
		slog.String("policy", e.Policy),
		slog.Int("attempt", e.Attempt),
		slog.String("reason", string(e.Reason)))
	if e.StatusCode != 0 {
		attrs = append(attrs, slog.Int("status", e.StatusCode))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.String("error", errorText(e.Err)))
	}
	if h == hookResume {
		attrs = append(attrs, slog.Int64("offset", e.Offset))
	}
	if h == hookRetry {
		attrs = append(attrs, slog.Duration("wait", e.Wait))
	}
	if e.maxWait != 0 {
		attrs = append(attrs, slog.Duration("max_wait", e.maxWait))
	}
	w.logger.LogAttrs(ctx, level, message, attrs...)
}

// host runs the hook for what has changed about a host, and logs it.
func (w *watcher) host(ctx context.Context, s HostState, change hostChange, news *hostNews, now time.Duration) {
	if w.logger != nil {
		for i, name := range hostChangeNames {
			if bit := hostChange(1) << i; change&bit != 0 {
				w.logger.LogAttrs(ctx, news.level(bit, now, s.PausedFor), "retrip: host",
					slog.String("host", s.Host),
					slog.String("change", name),
					slog.String("policy", s.Policy),
					slog.String("breaker", s.Breaker),
					slog.Duration("open_for", s.OpenFor),
					slog.Duration("paused_for", s.PausedFor),
					slog.Float64("tokens", s.Tokens))
			}
		}
	}
	if w.own != nil && w.own.Host != nil {
		w.own.Host(s)
	}
}
