// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/redact"
	"github.com/retrip/retrip/internal/syntax"
	"github.com/retrip/retrip/internal/tell"
)

// Trace is a set of hooks for the stages of a request; any may be nil. They run in
// RoundTrip's goroutine unless their comments say otherwise, for different requests
// concurrently, and must not keep or change an Event.
//
// The hooks of one request run in this order: Attempt for the first attempt; Hedge,
// if there was one; Retry and Attempt for each retry; at most one GiveUp; and Done. A
// retry whose wait is cut off has no Attempt.
type Trace struct {
	Attempt func(Event) // runs before each attempt
	Retry   func(Event) // runs after the decision to retry, before the wait
	GiveUp  func(Event) // runs when the Transport gives up although a retry might have helped
	Done    func(Event) // runs once, just before RoundTrip returns

	// Resume runs if Policy.Resume is set and the body of a response breaks, in
	// the goroutine that reads, once the Transport has continued the body or
	// can't. The hooks of the requests for the rest run before Resume.
	Resume func(Event)

	// Hedge runs after a hedge, for which Attempt doesn't run. Reason is "won" (it
	// brought the answer), "lost" or "failed", and Wait the delay before it.
	Hedge func(Event)

	// Host runs when the state of a host changes: a pause begins or grows; a
	// breaker opens, begins to probe or closes; a budget runs out, or is full again.
	// Only the Host hook of Transport.Trace runs, not that of [WithTrace].
	Host func(HostState)
}

// Event is the argument of the hooks of [Trace].
type Event struct {
	Request *http.Request // the caller's or, in hooks for the continuation of a body, the request for the rest
	Policy  string        // pattern in Transport.Hosts that the request follows, or "default"
	Attempt int           // number of the attempt that begins or, in other hooks, of the last one made; the first is 1, and 0 means none yet

	// StatusCode, Header and Err are the outcome of the last attempt. If a response came
	// too late, its body broke or GetBody then failed, all are set. Header is read-only, and
	// nil after the wait before a retry, which drops the response: Retry sees each.
	StatusCode int
	Header     http.Header
	Err        error
	Kind       string // kind of Err, as in HostState.LastError, or "canceled"; empty if Err is nil

	// Reason says why the Transport retries or gives up, and is empty in Done if it didn't
	// give up. In Resume, it is "continued" or says why the body can't be continued.
	Reason Reason

	// Wait is the planned wait before the next attempt, and FromServer says whether a
	// server asked for it. At a gate, Wait is the time for which the gate holds all
	// requests back. The gate's queue, a later pause of the host or a lack of tokens may
	// prolong the wait. After a give-up, Wait is what Error.RetryAfter is.
	Wait       time.Duration
	FromServer bool

	Sends   int           // how many connections net/http got for the request in the last attempt; 0: none, or unknown
	Elapsed time.Duration // time since RoundTrip began

	maxWait time.Duration // the policy's MaxWait if it is the reason to give up; 0 otherwise
	why     Reason        // for the log: why the last attempt that failed did, or the kind of its error if no retry can fix it; empty for none and for nothing to log
	failed  bool          // in Done: no retry can fix the outcome
	offset  int64         // in Resume, for the log: how many bytes of the representation the reader has
}

// URL returns the first KiB of e.Request's URL, without userinfo and query.
func (e Event) URL() string { return redact.URL(e.Request.URL) }

// WithTrace returns a context whose requests run the hooks of t after those of
// Transport.Trace and of an enclosing WithTrace. If t is nil, WithTrace adds no
// hooks. t must not change later.
func WithTrace(ctx context.Context, t *Trace) context.Context {
	next := &override{}
	if o := overrideOf(ctx); o != nil {
		*next = override{policy: o.policy, from: o.from, limits: o.limits}
		next.traces = append(next.traces, o.traces...)
	}
	next.traces = append(next.traces, t)
	return next.in(ctx)
}

func (t *Trace) run(stage tell.Stage, e Event) {
	if t == nil {
		return
	}
	hook := [...]func(Event){tell.AttemptBegins: t.Attempt, tell.Retries: t.Retry, tell.GivesUp: t.GiveUp,
		tell.Done: t.Done, tell.Resumes: t.Resume, tell.Hedged: t.Hedge, tell.Unread: nil}[stage]
	if hook != nil {
		hook(e)
	}
}

// owner is a Transport as its requests know it; see [tell.Owner].
type owner struct{ t *Transport }

// Report implements [tell.Owner].
func (o owner) Report(own tell.Override, stage tell.Stage, r tell.Report) {
	e := Event{Request: r.Request, Policy: r.Policy, Attempt: r.Attempt, StatusCode: r.StatusCode, Header: r.Header, Err: r.Err, Kind: r.Kind,
		Reason: Reason(r.Reason), offset: r.Offset, Wait: r.Wait, FromServer: r.FromServer, Sends: r.Sends, Elapsed: r.Elapsed,
		maxWait: r.MaxWait, why: Reason(r.Why), failed: r.Failed}
	o.t.Trace.run(stage, e)
	if by, _ := own.(*override); by != nil {
		for _, t := range by.traces {
			t.run(stage, e)
		}
	}
	if o.t.Logger != nil {
		o.log(stage, e)
	}
}

// log writes the record of a stage, if it has one.
func (o owner) log(h tell.Stage, e Event) {
	level, message := slog.LevelDebug, "retrip: retry"
	omitted, others := 0, false
	switch h {
	case tell.Retries:
	case tell.Hedged:
		message = "retrip: hedge"
	case tell.GivesUp:
		level, message = slog.LevelInfo, "retrip: give up"
		if e.Reason == ReasonBreakerOpen && e.Attempt == 0 {
			// An open breaker refuses every request. The log already says that
			// the breaker opened.
			level = slog.LevelDebug
		}
	case tell.Resumes:
		level, message = slog.LevelInfo, "retrip: response body broke"
	case tell.Unread:
		level, message = slog.LevelInfo, "retrip: header not understood"
	default:
		if o.t.journal.Pending() {
			o.logRest(e.Request.Context(), o.t.settings.Load().Now())
		}
		switch {
		case e.Reason != "" || e.Attempt == 0 || !e.failed && (e.Attempt == 1 || e.why == ""):
			return
		case !e.failed:
			level, message = slog.LevelInfo, "retrip: recovered"
		default:
			level, message = slog.LevelInfo, "retrip: failed"
		}
		e.Reason = e.why
	}
	ctx := e.Request.Context()
	if !o.t.Logger.Enabled(ctx, level) {
		return
	}
	if level == slog.LevelInfo {
		topic := host.Topic{Host: hostkey.Of(e.Request.URL).String(), Policy: e.Policy, Record: message, Reason: string(e.Reason)}
		var say bool
		if say, omitted, others = o.t.journal.Record(topic, o.t.settings.Load().Now()); !say {
			if level = slog.LevelDebug; !o.t.Logger.Enabled(ctx, level) {
				return
			}
		}
	}
	attrs := attrsOf(h, e)
	if omitted != 0 {
		attrs = append(attrs, slog.Int("omitted", omitted))
		if others {
			attrs = append(attrs, slog.String("omitted_host", host.OtherHosts))
		}
	}
	o.t.Logger.LogAttrs(ctx, level, message, attrs...)
}

// attrsOf returns what the record of a stage says.
func attrsOf(h tell.Stage, e Event) []slog.Attr {
	attrs := make([]slog.Attr, 0, 8)
	attrs = append(attrs,
		slog.String("method", redact.Short(syntax.Method(e.Request), 32)),
		slog.String("url", e.URL()),
		slog.String("policy", e.Policy),
		slog.Int("attempt", e.Attempt),
		slog.String("reason", string(e.Reason)))
	if e.StatusCode != 0 {
		attrs = append(attrs, slog.Int("status", e.StatusCode))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.String("error", redact.Error(e.Err)))
	}
	if h == tell.Resumes {
		attrs = append(attrs, slog.Int64("offset", e.offset))
	}
	if h == tell.Retries || h == tell.Hedged || h == tell.GivesUp && e.Wait > 0 {
		attrs = append(attrs, slog.Duration("wait", e.Wait))
	}
	if e.maxWait != 0 {
		attrs = append(attrs, slog.Duration("max_wait", e.maxWait))
	}
	return attrs
}

// logRest logs what the records of requests have left unsaid.
func (o owner) logRest(ctx context.Context, now time.Duration) {
	o.t.journal.Rest(now, func(topic host.Topic, omitted int) {
		if topic.Record != "" {
			o.t.Logger.LogAttrs(ctx, slog.LevelInfo, "retrip: omitted",
				slog.String("record", topic.Record),
				slog.String("host", topic.Host),
				slog.String("policy", topic.Policy),
				slog.String("reason", topic.Reason),
				slog.Int("omitted", omitted))
			return
		}
		state := HostState{Host: topic.Host, Policy: topic.Policy}
		if known, err := o.t.HostState(topic.Host); err == nil {
			state = known
		}
		o.logHost(ctx, slog.LevelInfo, host.PauseOver, &state)
	})
}

// Unsaid implements [tell.Owner].
func (o owner) Unsaid() bool { return o.t.journal.Pending() }

// Hooked implements [tell.Override].
func (o *override) Hooked() bool { return len(o.traces) > 0 }

// Incoming implements [tell.Override].
func (o *override) Incoming(ctx context.Context) int { return o.from.Attempt(ctx) }
