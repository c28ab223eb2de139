// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package tell

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/meter"
	"github.com/retrip/retrip/internal/redact"
)

// Owner is the Transport to which a request belongs.
type Owner interface {
	// Error returns the error that the caller sees.
	Error(*Error) error

	// Report runs the hooks for a stage of a request and writes its log record. Changed
	// does so for a change of a host, and Unsaid reports whether the log still has
	// something to say.
	Report(override Override, stage Stage, e Report)
	Changed(req *http.Request, e *host.Entry, change host.Change, now time.Duration)
	Unsaid() bool
}

// Override is what the context of a request asks for; nil if nothing.
type Override interface {
	Hooked() bool // there are hooks

	// Incoming returns the number of the incoming attempt on whose behalf the request is
	// made, or 1.
	Incoming(context.Context) int
}

// Stage is a stage of a request, at which hooks run.
type Stage uint8

const (
	AttemptBegins Stage = iota
	Retries
	GivesUp
	Done
	Resumes
	Hedged
	Unread // for the log: Reason names a field that no dialect understands
)

// Report describes a stage of a request; see retrip.Event.
type Report struct {
	Request     *http.Request
	Policy      string
	Attempt     int
	StatusCode  int
	Header      http.Header
	Err         error
	Kind        string // of Err
	Reason, Why string // Why is for the log: why the last attempt that failed did
	Failed      bool   // of Done, for the log: the outcome is failed
	Offset      int64
	Wait        time.Duration
	FromServer  bool
	Sends       int
	Elapsed     time.Duration
	MaxWait     time.Duration // the policy's MaxWait if it is the reason to give up; 0 otherwise
}

// observed reports whether there is a hook or a log.
func (t *Teller) observed() bool { return t.Hooked || t.Logger != nil }

// report reports a stage of the request, which e describes, to hooks and log.
func (t *Teller) report(stage Stage, e Report) {
	e.Request, e.Policy, e.Attempt = t.Req, t.Name, int(t.Attempts)
	t.Owner.Report(t.Override, stage, e)
}

// describe describes the state after the last attempt, whose outcome is o. The reason, if not
// empty, says why it is the last.
func (t *Teller) describe(reason decide.Reason, o *decide.Outcome, last *Shown) Report {
	e := Report{Reason: reason.String(), StatusCode: last.Status, Header: last.Header, Err: last.Err, Sends: int(last.Sends)}
	if t.Hooked {
		e.Elapsed = t.Now() - t.Entered
		switch {
		case e.Err == nil:
		case reason == decide.Canceled && o.Canceled:
			e.Kind = reason.String()
		default:
			e.Kind = fault.Kind(t.failureOf(o, e.Err, last.Blame).Kind).String()
		}
	}
	return e
}

// reportRetry must not be inlined: requests that wait would have its large stack frame.
//
//go:noinline
func (t *Teller) reportRetry(o *decide.Outcome, last *Shown) {
	e := t.describe(t.reason, o, last)
	e.Wait, e.FromServer = t.wait, t.fromServer
	t.report(Retries, e)
}

// Unread reports a field of the last response that the policy's dialects don't understand to
// the log.
//
//go:noinline
func (t *Teller) Unread(status int, name string, lines []string) {
	t.report(Unread, Report{StatusCode: status, Reason: name, Err: fmt.Errorf("%s is %.100q", name, strings.Join(lines, ", "))})
}

// Hedged reports a hedge, sent after delay, to hooks and log. last is what has come of the race.
//
//go:noinline
func (t *Teller) Hedged(result int, delay time.Duration, o *decide.Outcome, last *Shown) {
	if t.observed() {
		e := t.describe(decide.None, o, last)
		e.Reason, e.Wait = meter.HedgeResults[result], delay
		t.report(Hedged, e)
	}
}

// Resumed tells the result for a body that has ended with broken at the offset at, after so
// many attempts, and how many bytes the server needn't send again.
func (r Request) Resumed(result string, attempts int, at, spared int64, broken error) {
	r.Metrics.Resumed(result, spared)
	r.Owner.Report(r.Override, Resumes, Report{Request: r.Req, Policy: r.Name, Attempt: attempts, Reason: result, Offset: at, Err: broken, Kind: fault.KindOf(broken).String()})
}

// logFleet logs that the store is away or back, if that is news.
func (t *Teller) logFleet() {
	if t.Logger == nil {
		return
	}
	host, news, away := t.Fleet.News()
	switch {
	case !news:
	case host != "":
		t.Logger.LogAttrs(t.Req.Context(), slog.LevelWarn, "retrip: the fleet's store is away for a host, whose budget decides alone", slog.String("host", host), slog.String("error", redact.Error(away)))
	case away != nil:
		t.Logger.LogAttrs(t.Req.Context(), slog.LevelWarn, "retrip: the fleet's store is away, budgets decide alone", slog.String("error", redact.Error(away)))
	default:
		t.Logger.LogAttrs(t.Req.Context(), slog.LevelInfo, "retrip: the fleet's store is back")
	}
}

// count counts the attempt that ended in o. The reason, if not empty, says why
// it is the last attempt.
func (t *Teller) count(o *decide.Outcome, reason decide.Reason, sends int) {
	if !t.pending {
		// The attempt was counted when its headers arrived.
		return
	}
	t.pending = false
	t.Metrics.Count(meter.Sends, 0, sends-1)
	t.Metrics.Count(meter.Attempts, ResultOf(o, reason), 1)
}

// ResultOf returns the result of an attempt that ended in o. The reason, if not
// empty, says why there is no other.
func ResultOf(o *decide.Outcome, reason decide.Reason) int {
	switch {
	case o.Status != 0:
		return meter.ResultOf(o.Status)
	case o.Timeout || o.Canceled && reason == decide.Deadline:
		return meter.Timeout
	case o.Canceled:
		return meter.Canceled
	}
	return meter.Error
}

// Panicked tells that the request has ended in a panic. It counts what is uncounted: the
// attempt, by the status of the response in hand, if not 0, and the request as failed.
func (t *Teller) Panicked(h *host.Entry, status, sends int) {
	t.count(&decide.Outcome{Status: status}, decide.None, sends)
	if t.counted {
		return
	}
	t.Metrics.Request(meter.Failed, t.attempted)
	t.timeRequest(meter.Failed)
	if t.attempted && t.hasHost(h) {
		t.remember(meter.Failed, decide.None, host.Failure{Reason: uint8(decide.Error), Kind: uint8(fault.KindPanic)})
	}
}

// timeRequest observes how long a request took that has ended, if metrics time requests.
func (t *Teller) timeRequest(end int) {
	if t.Metrics.Timed() {
		t.Metrics.Took(t.Req.URL, end, t.Now()-t.Entered, int(t.Attempts))
	}
}

// Failed describes for people how the last attempt failed, with err: blame says whether the
// caller's own code did.
func (t *Teller) Failed(o *decide.Outcome, err error, blame fault.Kind) host.Failure {
	t.failure = t.failureOf(o, err, blame)
	return t.failure
}

//go:noinline
func (t *Teller) failureOf(o *decide.Outcome, err error, blame fault.Kind) host.Failure {
	why, kind := o.Why(), fault.KindOf(err)
	switch {
	case blame == fault.KindBody, o.Hopeless && blame == fault.KindCaller:
		kind = blame
	case o.Hopeless && kind == fault.KindOther && fault.Malformed(t.Req, err):
		kind = fault.KindRequest
	case o.Canceled && o.Status == 0:
		// The caller's deadline has ended the attempt.
		why, kind = decide.Timeout, fault.KindTimeout
	}
	return host.Failure{Reason: uint8(why), Kind: uint8(kind), Status: uint16(max(0, o.Received())), Wait: o.RetryAfter}
}

// hasHost reports whether there is a host to remember: the caller hadn't gone before the first
// attempt.
func (t *Teller) hasHost(h *host.Entry) bool {
	return (t.Attempts > 0 || h != nil) && t.Req.URL != nil && t.Req.URL.Host != ""
}

// remember remembers a request that got no answer, for people who look at its host. how is how
// its last attempt failed.
func (t *Teller) remember(end int, reason decide.Reason, how host.Failure) {
	switch key, now := hostkey.Of(t.Req.URL), t.Now(); end {
	case meter.GaveIn:
		t.Failures.Cancel(key, now)
	default:
		t.Failures.Fail(key, how, uint32(reason), now)
	}
}

// RecordAnswer remembers that the host of r, at which others failed, has answered it.
func (r Request) RecordAnswer() { r.Failures.Answer(hostkey.Of(r.Req.URL), r.Now) }
