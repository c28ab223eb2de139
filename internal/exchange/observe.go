// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/meter"
)

// This file reports what an exchange does to metrics, hooks and the log.
// Reports that need a large stack frame have functions of their own, so that
// the frame isn't part of the stack of every waiting request.

// tally is what an exchange has reported to its metrics and what is still to be
// reported.
type tally struct {
	attempted bool // an attempt was made
	pending   bool // the last attempt is not counted yet
	request   bool // the request is counted, or it isn't the caller's

	fromServer bool // a server asked for the wait before the next retry
}

// reportAttempt reports the next attempt to hooks.
func (x *journey) reportAttempt() {
	x.env.Owner.Report(x.override, AttemptBegins, Report{Request: x.req, Policy: x.cfg.Name, Attempt: x.call.Attempts, Elapsed: x.env.now() - x.entered})
}

// count counts the attempt that ended in o. The reason, if not empty, says why
// it is the last attempt.
func (x *journey) count(o *decide.Outcome, reason decide.Reason) {
	if !x.reported.pending {
		// The attempt was counted when its headers arrived.
		return
	}
	x.reported.pending = false
	x.countSends()
	x.cfg.Metrics.Count(meter.Attempts, resultOf(o, reason), 1)
}

// resultOf returns the result of an attempt that ended in o. The reason, if not
// empty, says why there is no other.
func resultOf(o *decide.Outcome, reason decide.Reason) int {
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

// countSends counts what net/http has sent by itself within the attempt.
func (x *journey) countSends() {
	if x.last.attempt != nil {
		x.cfg.Metrics.Count(meter.Sends, 0, x.last.attempt.Sends()-1)
	}
}

// countRest counts what a panic has left uncounted: the attempt, by what is
// known about it, and the request as failed.
func (x *journey) countRest() {
	if x.reported.pending {
		var o decide.Outcome
		if x.last.inHand {
			o.Status = cmp.Or(x.last.resp.StatusCode, 1)
		}
		x.count(&o, decide.None)
	}
	if !x.reported.request {
		x.cfg.Metrics.Request(meter.Failed, x.reported.attempted)
		if x.cfg.Metrics.Timed() {
			x.timeRequest(meter.Failed)
		}
		if x.reported.attempted {
			x.recordFailure(meter.Failed, decide.None, host.Failure{Reason: uint8(decide.Error), Kind: uint8(fault.KindPanic)})
		}
	}
}

// timeRequest observes how long a request took that has ended, if metrics time requests.
func (x *journey) timeRequest(end int) {
	x.cfg.Metrics.Took(x.req.URL, end, x.env.now()-x.entered, x.call.Attempts)
}

// describeFailure describes the failure of the last attempt, for people.
//
//go:noinline
func (x *journey) describeFailure() host.Failure {
	o, err := &x.event.Outcome, x.last.failure()
	why, kind := o.Why(), fault.KindOf(err)
	switch {
	case x.faulty():
		kind = fault.KindBody
	case o.Hopeless && x.last.refusedByCaller():
		kind = fault.KindCaller
	case o.Hopeless && kind == fault.KindOther && fault.Malformed(x.req, err):
		kind = fault.KindRequest
	case o.Canceled && o.Status == 0:
		// The caller's deadline has ended the attempt.
		why, kind = decide.Timeout, fault.KindTimeout
	}
	return host.Failure{Reason: uint8(why), Kind: uint8(kind), Status: uint16(max(0, o.Received())), Wait: o.RetryAfter}
}

// kindOf returns the word for err, the error of the last attempt, which may be nil. The
// reason, if not empty, says why it is the last.
func (x *journey) kindOf(err error, reason decide.Reason) string {
	switch {
	case err == nil:
		return ""
	case reason == decide.Canceled && x.event.Outcome.Canceled:
		return reason.String()
	}
	return fault.Kind(x.describeFailure().Kind).String()
}

// recordFailure remembers a request that got no answer, for people who look at its host.
// how describes the last attempt, if the outcome of that attempt doesn't.
func (x *journey) recordFailure(end int, reason decide.Reason, how host.Failure) {
	switch {
	case x.call.Attempts == 0 && x.host == nil || x.req.URL == nil || x.req.URL.Host == "":
		// The caller had gone before the first attempt, or there is no host.
		return
	case how != (host.Failure{}):
	case x.call.Attempts > 0 && !x.cfg.Retryable(&x.event.Outcome):
		how = x.describeFailure()
	default:
		how = x.failure
	}
	x.failure = how
	key, now := hostkey.Of(x.req.URL), x.env.now()
	if end == meter.GaveIn {
		x.env.Failures.Cancel(key, now)
	} else {
		x.env.Failures.Fail(key, how, uint32(reason), now)
	}
}

// reportRetry reports the decision to retry to hooks and log.
func (x *journey) reportRetry() {
	d := &x.decision
	e := x.newReport(d.reason)
	e.Wait, e.FromServer = d.wait, x.reported.fromServer
	x.env.Owner.Report(x.override, Retries, e)
}

// reportUnread reports a field of the last response that the policy's dialects don't
// understand to the log.
//
//go:noinline
func (x *journey) reportUnread(status int, name string, lines []string) {
	err := fmt.Errorf("%s is %.100q", name, strings.Join(lines, ", "))
	x.env.Owner.Report(x.override, Unread, Report{Request: x.req, Policy: x.cfg.Name, Attempt: x.call.Attempts, StatusCode: status, Reason: name, Err: err})
}

// reportHedge reports a hedge, sent after delay, to hooks and log.
//
//go:noinline
func (x *journey) reportHedge(result int, delay time.Duration) {
	e := x.newReport(decide.None)
	e.Reason, e.Wait = meter.HedgeResults[result], delay
	x.env.Owner.Report(x.override, Hedged, e)
}

// reportEnd reports how the exchange ended.
func (x *journey) reportEnd() {
	reason := x.decision.reason
	end := x.ending(reason)
	own := !x.reported.request
	switch {
	case !own:
	case x.reported.pending && end == meter.Answered:
		x.countSends()
		x.cfg.Metrics.CountAnswered(x.last.resp.StatusCode)
	default:
		x.count(&x.event.Outcome, decide.None)
		x.cfg.Metrics.Request(end, x.reported.attempted)
	}
	x.reported.pending, x.reported.request = false, true
	if own && x.cfg.Metrics.Timed() {
		x.timeRequest(end)
	}
	waits := !own && x.bodyWaits()
	well := end == meter.Answered || end == meter.Recovered || end == meter.GaveUp && x.event.Outcome.Pending()
	switch {
	case !well:
		if !waits {
			x.recordFailure(end, reason, host.Failure{})
		}
	case own && x.env.Failures.Knows(x.req.URL, new(host.Place)):
		x.env.recordAnswer(x.req)
	}
	if waits {
		// The body hasn't been given up.
		reason = decide.None
	}
	if reason != decide.None {
		if x.host != nil {
			x.host.GaveUp.Store(uint32(reason))
		}
		if own {
			x.cfg.Metrics.GiveUp(x.req.Context(), reason.String())
		}
	}
	// A hook may panic, so count first.
	if x.host != nil && x.host.Refilled() {
		x.changed(host.Refilled)
	}
	if !x.observed() {
		return
	}
	e := x.newReport(reason)
	if reason != decide.None {
		e.Wait, e.FromServer = x.decision.wait, reason == decide.WaitTooLong || reason == decide.HostPaused
		if reason == decide.WaitTooLong {
			e.MaxWait = x.cfg.MaxWait
		}
		x.env.Owner.Report(x.override, GivesUp, e)
	}
	if own {
		e.Failed, e.Why = end == meter.Failed, x.why(end)
		x.env.Owner.Report(x.override, Done, e)
	}
}

// why says for the log why the last attempt that failed did.
func (x *journey) why(end int) string {
	why := decide.Reason(x.failure.Reason)
	switch {
	case end == meter.Failed && x.failure.Kind != 0:
		return fault.Kind(x.failure.Kind).String()
	case end == meter.Recovered && x.cfg.Gate && why == decide.Throttled:
		// That is how a gate follows a rate limit.
		return ""
	}
	return why.String()
}

func (x *journey) ending(reason decide.Reason) int {
	switch {
	case reason == decide.Canceled:
		return meter.GaveIn
	case reason != decide.None:
		return meter.GaveUp
	case !x.good():
		return meter.Failed
	case x.failure != (host.Failure{}):
		return meter.Recovered
	default:
		return meter.Answered
	}
}

// newReport describes the state after the last attempt.
func (x *journey) newReport(reason decide.Reason) Report {
	e := Report{Request: x.req, Policy: x.cfg.Name, Attempt: x.call.Attempts, Reason: reason.String(), Err: x.last.failure()}
	switch {
	case x.last.resp != nil:
		e.StatusCode, e.Header = x.last.resp.StatusCode, x.last.resp.Header
	case x.last.discarded:
		e.StatusCode, e.Header = x.excerpt.status, x.excerpt.header
	}
	e.Sends = x.last.sends
	if x.hooked {
		e.Elapsed = x.env.now() - x.entered
		e.Kind = x.kindOf(e.Err, reason)
	}
	return e
}

// changed reports a change of the host's state.
func (x *journey) changed(change host.Change) {
	if change != 0 {
		x.cfg.Metrics.HostChanged(change)
		x.env.Owner.Changed(x.req, x.host, change, x.env.now())
	}
}

// observed reports whether there is a hook or a log.
func (x *journey) observed() bool { return x.hooked || x.env.Logger != nil }
