// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"cmp"
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
	ended     bool // the request is counted, or it isn't the caller's

	fromServer bool // a server asked for the wait before the next retry
}

// tellAttempt reports the next attempt to hooks.
func (x *exchange) tellAttempt() {
	x.env.Owner.Tell(x.asked, AttemptBegins, Event{Request: x.req, Policy: x.r.Name, Attempt: x.call.Attempts, Elapsed: x.env.now() - x.hooked})
}

// sending counts the next attempt if it is a retry. count counts its result.
func (x *exchange) sending() {
	if x.call.Attempts > 1 {
		x.r.Metrics.Retry(x.req.Context(), x.decision.reason.String(), x.decision.wait, x.told.fromServer)
	}
	x.told.attempted, x.told.pending = true, true
}

// count counts the attempt that ended in o. The reason, if not empty, says why
// it is the last attempt.
func (x *exchange) count(o *decide.Outcome, reason decide.Reason) {
	if !x.told.pending {
		// The attempt was counted when its headers arrived.
		return
	}
	x.countSends()
	x.told.pending = false
	x.r.Metrics.Attempt(resultOf(o, reason))
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
func (x *exchange) countSends() {
	if x.last.attempt != nil {
		x.r.Metrics.HiddenSends(x.last.attempt.Sends() - 1)
	}
}

// answered reports whether the first attempt has got the final response. report
// then counts the attempt and the request at once.
func (x *exchange) answered() bool {
	return x.call.Attempts == 1 && x.event.Outcome.Status != 0 && x.decision.do == decide.Answer && x.decision.reason == decide.None
}

// countRest counts what a panic has left uncounted: the attempt, by what is
// known about it, and the request as failed.
func (x *exchange) countRest() {
	if x.told.pending {
		var o decide.Outcome
		if x.last.held {
			o.Status = cmp.Or(x.last.resp.StatusCode, 1)
		}
		x.count(&o, decide.None)
	}
	if !x.told.ended {
		x.r.Metrics.Request(meter.Failed, x.told.attempted)
		x.took(meter.Failed)
		if x.told.attempted {
			x.record(meter.Failed, decide.None, host.FailureOf(uint8(decide.Error), uint8(fault.KindPanic), 0))
		}
	}
}

// took observes how long a request took that has ended.
func (x *exchange) took(end int) {
	if x.r.Metrics.Timed() {
		x.r.Metrics.Took(x.req.URL, end, x.env.now()-x.hooked, x.call.Attempts)
	}
}

// describe describes the failure of the last attempt, for people.
//
//go:noinline
func (x *exchange) describe() host.Failure {
	o := &x.event.Outcome
	why, kind := o.Why(), fault.KindOf(x.last.failure())
	switch {
	case x.faulty():
		kind = fault.KindBody
	case o.Hopeless && x.last.refusedByCaller():
		kind = fault.KindCaller
	case o.Hopeless && kind == fault.KindOther && fault.Malformed(x.req, x.last.failure()):
		kind = fault.KindRequest
	case o.Canceled && o.Status == 0:
		// The caller's deadline has ended the attempt.
		why, kind = decide.Timeout, fault.KindTimeout
	}
	return host.FailureOf(uint8(why), uint8(kind), o.Received())
}

// record remembers a request that got no answer, for people who look at its host.
// how describes the last attempt, if the outcome of that attempt doesn't.
func (x *exchange) record(end int, reason decide.Reason, how host.Failure) {
	switch {
	case end == meter.Answered || end == meter.Recovered:
		return
	case x.call.Attempts == 0 && x.host == nil || x.req.URL == nil || x.req.URL.Host == "":
		// The caller had gone before the first attempt, or there is no host.
		return
	case how != 0:
	case x.call.Attempts > 0 && !x.r.Retryable(&x.event.Outcome):
		how = x.describe()
	default:
		how = x.how
	}
	x.how = how
	key, now := hostkey.Of(x.req.URL), x.env.now()
	if end == meter.GaveIn {
		x.env.Failures.Cancel(key, now)
	} else {
		x.env.Failures.Fail(key, how, uint32(reason), now)
	}
}

// announce reports the decision to retry.
func (x *exchange) announce() {
	if x.heard() {
		x.tellRetry()
	}
}

// tellRetry reports the decision to retry to hooks and log.
func (x *exchange) tellRetry() {
	d := &x.decision
	e := x.describeEvent(d.reason)
	e.Wait, e.FromServer = d.wait, x.told.fromServer
	x.env.Owner.Tell(x.asked, Retries, e)
}

// tellHedge reports a hedge, sent after delay, to hooks and log.
//
//go:noinline
func (x *exchange) tellHedge(result int, delay time.Duration) {
	e := x.describeEvent(decide.None)
	e.Reason, e.Wait = meter.HedgeResults[result], delay
	x.env.Owner.Tell(x.asked, Hedged, e)
}

// report reports how the exchange ended.
func (x *exchange) report() {
	reason := x.decision.reason
	answered, asked := x.told.pending, !x.told.ended
	if asked {
		x.told.ended = true
		if answered {
			x.told.pending = false
			x.countSends()
			x.r.Metrics.Answered(x.last.resp.StatusCode)
		} else {
			x.r.Metrics.Request(x.ending(reason), x.told.attempted)
		}
		x.took(x.ending(reason))
	}
	waits := !asked && x.bodyWaits()
	if !answered && !waits {
		x.record(x.ending(reason), reason, 0)
	}
	if waits {
		// The body hasn't been given up.
		reason = decide.None
	}
	if reason != decide.None {
		if x.host != nil {
			x.host.GaveUp.Store(uint32(reason))
		}
		if asked {
			x.r.Metrics.GiveUp(x.req.Context(), reason.String())
		}
	}
	// A hook may panic, so count first.
	if x.host != nil && x.host.Refilled() {
		x.changed(host.Refilled)
	}
	if !x.heard() {
		return
	}
	e := x.describeEvent(reason)
	if reason != decide.None {
		if reason == decide.WaitTooLong {
			e.MaxWait = x.r.MaxWait
		}
		x.env.Owner.Tell(x.asked, GivesUp, e)
	}
	if asked {
		e.Why = x.why(e.Err)
		x.env.Owner.Tell(x.asked, Done, e)
	}
}

// why says for the log why the last attempt that failed did. err is the error of the
// request, if no retry can fix it.
func (x *exchange) why(err error) string {
	why, kind, _ := x.how.Parts()
	switch {
	case err != nil && kind != 0:
		return fault.Kind(kind).String()
	case x.r.Gate && decide.Reason(why) == decide.Throttled:
		// That is how a gate follows a rate limit.
		return ""
	}
	return decide.Reason(why).String()
}

func (x *exchange) ending(reason decide.Reason) int {
	switch {
	case reason == decide.Canceled:
		return meter.GaveIn
	case reason != decide.None:
		return meter.GaveUp
	case x.last.failure() != nil:
		return meter.Failed
	case x.call.Attempts > 1 && !(x.call.Hedged && x.call.Attempts == 2):
		return meter.Recovered
	default:
		return meter.Answered
	}
}

// describeEvent describes the state after the last attempt.
func (x *exchange) describeEvent(reason decide.Reason) Event {
	e := Event{Request: x.req, Policy: x.r.Name, Attempt: x.call.Attempts, Reason: reason.String(), Err: x.last.failure()}
	switch {
	case x.last.resp != nil:
		e.StatusCode, e.Header = x.last.resp.StatusCode, x.last.resp.Header
	case x.last.discarded:
		e.StatusCode, e.Header = x.seen.status, x.seen.header
	}
	e.Sends = x.last.sends
	if x.isHooked() {
		e.Elapsed = x.env.now() - x.hooked
	}
	return e
}

// changed reports a change of the host's state.
func (x *exchange) changed(change host.Change) {
	if change != 0 {
		x.r.Metrics.HostChanged(change)
		x.env.Owner.Changed(x.req, x.host, change, x.env.now())
	}
}

// isHooked reports whether there are hooks.
func (x *exchange) isHooked() bool { return x.env.Traced || x.asked != nil && x.asked.Hooked() }

// heard reports whether there is a hook or a log.
func (x *exchange) heard() bool { return x.isHooked() || x.env.Logger != nil }
