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

// tellAttempt reports the next attempt to hooks.
func (j *journey) tellAttempt() {
	j.env.Owner.Tell(j.asked, AttemptBegins, Event{Request: j.req, Policy: j.r.Name, Attempt: j.call.Attempts, Elapsed: j.env.now() - j.entered})
}

// count counts the attempt that ended in o. The reason, if not empty, says why
// it is the last attempt.
func (j *journey) count(o *decide.Outcome, reason decide.Reason) {
	if !j.reported.pending {
		// The attempt was counted when its headers arrived.
		return
	}
	j.reported.pending = false
	j.countSends()
	j.r.Metrics.Count(meter.Attempts, resultOf(o, reason), 1)
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
func (j *journey) countSends() {
	if j.last.attempt != nil {
		j.r.Metrics.Count(meter.Sends, 0, j.last.attempt.Sends()-1)
	}
}

// countRest counts what a panic has left uncounted: the attempt, by what is
// known about it, and the request as failed.
func (j *journey) countRest() {
	if j.reported.pending {
		var o decide.Outcome
		if j.last.held {
			o.Status = cmp.Or(j.last.resp.StatusCode, 1)
		}
		j.count(&o, decide.None)
	}
	if !j.reported.request {
		j.r.Metrics.Request(meter.Failed, j.reported.attempted)
		if j.r.Metrics.Timed() {
			j.took(meter.Failed)
		}
		if j.reported.attempted {
			j.record(meter.Failed, decide.None, host.Failure{Reason: uint8(decide.Error), Kind: uint8(fault.KindPanic)})
		}
	}
}

// took observes how long a request took that has ended, if metrics time requests.
func (j *journey) took(end int) {
	j.r.Metrics.Took(j.req.URL, end, j.env.now()-j.entered, j.call.Attempts)
}

// describe describes the failure of the last attempt, for people.
//
//go:noinline
func (j *journey) describe() host.Failure {
	o, err := &j.event.Outcome, j.last.failure()
	why, kind := o.Why(), fault.KindOf(err)
	switch {
	case j.faulty():
		kind = fault.KindBody
	case o.Hopeless && j.last.refusedByCaller():
		kind = fault.KindCaller
	case o.Hopeless && kind == fault.KindOther && fault.Malformed(j.req, err):
		kind = fault.KindRequest
	case o.Canceled && o.Status == 0:
		// The caller's deadline has ended the attempt.
		why, kind = decide.Timeout, fault.KindTimeout
	}
	return host.Failure{Reason: uint8(why), Kind: uint8(kind), Status: uint16(max(0, o.Received()))}
}

// record remembers a request that got no answer, for people who look at its host.
// how describes the last attempt, if the outcome of that attempt doesn't.
func (j *journey) record(end int, reason decide.Reason, how host.Failure) {
	switch {
	case j.call.Attempts == 0 && j.host == nil || j.req.URL == nil || j.req.URL.Host == "":
		// The caller had gone before the first attempt, or there is no host.
		return
	case how != (host.Failure{}):
	case j.call.Attempts > 0 && !j.r.Retryable(&j.event.Outcome):
		how = j.describe()
	default:
		how = j.how
	}
	j.how = how
	key, now := hostkey.Of(j.req.URL), j.env.now()
	if end == meter.GaveIn {
		j.env.Failures.Cancel(key, now)
	} else {
		j.env.Failures.Fail(key, how, uint32(reason), now)
	}
}

// tellRetry reports the decision to retry to hooks and log.
func (j *journey) tellRetry() {
	d := &j.decision
	e := j.describeEvent(d.reason)
	e.Wait, e.FromServer = d.wait, j.reported.fromServer
	j.env.Owner.Tell(j.asked, Retries, e)
}

// tellUnread reports a field of the last response that the policy's dialects don't
// understand to the log.
//
//go:noinline
func (j *journey) tellUnread(status int, name string, lines []string) {
	err := fmt.Errorf("%s is %.100q", name, strings.Join(lines, ", "))
	j.env.Owner.Tell(j.asked, Unread, Event{Request: j.req, Policy: j.r.Name, Attempt: j.call.Attempts, StatusCode: status, Reason: name, Err: err})
}

// tellHedge reports a hedge, sent after delay, to hooks and log.
//
//go:noinline
func (j *journey) tellHedge(result int, delay time.Duration) {
	e := j.describeEvent(decide.None)
	e.Reason, e.Wait = meter.HedgeResults[result], delay
	j.env.Owner.Tell(j.asked, Hedged, e)
}

// report reports how the exchange ended.
func (j *journey) report() {
	reason := j.decision.reason
	end := j.ending(reason)
	asked := !j.reported.request
	switch {
	case !asked:
	case j.reported.pending && end == meter.Answered:
		j.countSends()
		j.r.Metrics.Answered(j.last.resp.StatusCode)
	default:
		j.count(&j.event.Outcome, decide.None)
		j.r.Metrics.Request(end, j.reported.attempted)
	}
	j.reported.pending, j.reported.request = false, true
	if asked && j.r.Metrics.Timed() {
		j.took(end)
	}
	waits := !asked && j.bodyWaits()
	well := end == meter.Answered || end == meter.Recovered || end == meter.GaveUp && j.event.Outcome.Pending()
	switch {
	case !well:
		if !waits {
			j.record(end, reason, host.Failure{})
		}
	case asked && j.env.Failures.Knows(j.req.URL, new(host.Hash)):
		j.env.answered(j.req)
	}
	if waits {
		// The body hasn't been given up.
		reason = decide.None
	}
	if reason != decide.None {
		if j.host != nil {
			j.host.GaveUp.Store(uint32(reason))
		}
		if asked {
			j.r.Metrics.GiveUp(j.req.Context(), reason.String())
		}
	}
	// A hook may panic, so count first.
	if j.host != nil && j.host.Refilled() {
		j.changed(host.Refilled)
	}
	if !j.heard() {
		return
	}
	e := j.describeEvent(reason)
	if reason != decide.None {
		e.Wait, e.FromServer = j.decision.wait, reason == decide.WaitTooLong || reason == decide.HostPaused
		if reason == decide.WaitTooLong {
			e.MaxWait = j.r.MaxWait
		}
		j.env.Owner.Tell(j.asked, GivesUp, e)
	}
	if asked {
		e.Failed, e.Why = end == meter.Failed, j.why(end)
		j.env.Owner.Tell(j.asked, Done, e)
	}
}

// why says for the log why the last attempt that failed did.
func (j *journey) why(end int) string {
	why := decide.Reason(j.how.Reason)
	switch {
	case end == meter.Failed && j.how.Kind != 0:
		return fault.Kind(j.how.Kind).String()
	case end == meter.Recovered && j.r.Gate && why == decide.Throttled:
		// That is how a gate follows a rate limit.
		return ""
	}
	return why.String()
}

func (j *journey) ending(reason decide.Reason) int {
	switch {
	case reason == decide.Canceled:
		return meter.GaveIn
	case reason != decide.None:
		return meter.GaveUp
	case !j.good():
		return meter.Failed
	case j.how != (host.Failure{}):
		return meter.Recovered
	default:
		return meter.Answered
	}
}

// describeEvent describes the state after the last attempt.
func (j *journey) describeEvent(reason decide.Reason) Event {
	e := Event{Request: j.req, Policy: j.r.Name, Attempt: j.call.Attempts, Reason: reason.String(), Err: j.last.failure()}
	switch {
	case j.last.resp != nil:
		e.StatusCode, e.Header = j.last.resp.StatusCode, j.last.resp.Header
	case j.last.discarded:
		e.StatusCode, e.Header = j.seen.status, j.seen.header
	}
	e.Sends = j.last.sends
	if j.hooked {
		e.Elapsed = j.env.now() - j.entered
	}
	return e
}

// changed reports a change of the host's state.
func (j *journey) changed(change host.Change) {
	if change != 0 {
		j.r.Metrics.HostChanged(change)
		j.env.Owner.Changed(j.req, j.host, change, j.env.now())
	}
}

// heard reports whether there is a hook or a log.
func (j *journey) heard() bool { return j.hooked || j.env.Logger != nil }
