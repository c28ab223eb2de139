// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import "time"

// What an exchange tells metrics, hooks and log.

// count counts the attempt that ended in o.
func (x *exchange) count(o Outcome) {
	m := x.r.metrics
	switch {
	case o.Status != 0:
		m.attempt(resultOf(o.Status))
	case o.Timeout:
		m.attempt(resultTimeout)
	default:
		m.attempt(resultError)
	}
	if x.attempt != nil {
		m.hiddenSends(x.attempt.Sends() - 1)
	}
}

// announce tells that another attempt has been decided on.
func (x *exchange) announce(d Decision, o Outcome) {
	fromServer := d.Wait > 0 && (o.RetryAfter > 0 || x.host.pausedFor(x.s.now()) > 0)
	x.r.metrics.retry(d.Reason, d.Wait, fromServer)
	e := x.event(d.Reason)
	e.Wait, e.FromServer = d.Wait, fromServer
	x.watch.run(hookRetry, e)
}

// report tells how the exchange ended.
func (x *exchange) report(reason Reason) {
	x.r.metrics.request(x.ending(reason))
	e := x.event(reason)
	if reason != "" {
		if x.host != nil {
			x.host.gaveUp.store(reason)
		}
		x.r.metrics.giveUp(reason)
		if reason == ReasonWaitTooLong {
			e.maxWait = x.r.policy.MaxWait
		}
		x.watch.run(hookGiveUp, e)
	}
	x.watch.run(hookDone, e)
}

func (x *exchange) ending(reason Reason) int {
	switch {
	case reason == ReasonCanceled:
		return outcomeCanceled
	case reason != "":
		return outcomeGaveUp
	case x.err != nil:
		return outcomeFailed
	case x.call.Attempts > 1:
		return outcomeRecovered
	default:
		return outcomeSuccess
	}
}

// event describes the state after the last attempt.
func (x *exchange) event(reason Reason) Event {
	e := Event{Request: x.req, Policy: x.r.name, Attempt: x.call.Attempts, Reason: reason, Err: x.err}
	if x.resp != nil {
		e.StatusCode, e.Header = x.resp.StatusCode, x.resp.Header
	}
	if x.attempt != nil {
		e.Sends = x.attempt.Sends()
	}
	if x.watch.hooked() {
		e.Elapsed = time.Since(x.watch.began)
	}
	return e
}

// changed tells of a change of the host's state.
func (x *exchange) changed(change hostChange) {
	if change == 0 {
		return
	}
	x.r.metrics.hostChanged(change)
	if x.watch.logger != nil || x.t.Trace != nil && x.t.Trace.Host != nil {
		x.watch.host(x.ctx, x.s.state(x.host, keyOf(x.req.URL), x.s.now()))
	}
}
