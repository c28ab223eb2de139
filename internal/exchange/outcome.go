// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/dialect"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/replay"
	"github.com/retrip/retrip/internal/syntax"
)

// last is the last attempt and its outcome. The next attempt begins with a
// zero last, so that nothing of an earlier attempt can be taken for its own.
type last struct {
	attempt   *attempt.Attempt // nil if it wasn't derived
	race      *race            // nil if there is no hedge, whatever happens
	began     time.Duration    // instant; 0 if its duration doesn't matter
	decided   time.Duration    // instant of the decision about it; 0 before that
	sends     int              // number of sends seen
	resp      *http.Response
	err       error
	broken    *body.Prefixed // the body of resp, if it had to be whole and broke
	held      bool           // resp is in hand: neither returned nor discarded
	discarded bool           // its response has been discarded
	whole     bool           // all of the body of resp has been read
	awaits    bool           // the attempt is limited as a Read of the body is that it continues
}

// take records what the base returned.
func (l *last) take(resp *http.Response, err error) {
	switch {
	case err != nil:
		body.Dismiss(resp)
		resp, err = nil, fault.Usable(err)
	case resp == nil:
		err = fault.ErrNothing
	}
	l.resp, l.err, l.held = resp, err, resp != nil
}

// classify ends the last attempt, reduces what the base returned to what a decision needs,
// and sets event.Outcome.
func (j *journey) classify() {
	o, l := &j.event.Outcome, &j.last
	o.Idempotent = j.idempotent
	if idle := j.r.BodyIdleTimeout; idle > 0 && body.In(j.req, l.resp) {
		l.resp.Body = body.Watch(l.resp.Body, idle, errBodyIdle, l.attempt, j.r.Metrics)
	}
	if j.r.WholeBody > 0 && j.awaitsBody() {
		l.readWhole(j.r.WholeBody)
	}
	// Classify may peek at the body, so it runs within the attempt.
	if j.r.Classifies && l.resp != nil && l.broken == nil {
		o.Verdict = j.r.Asks.Classify(j.req, l.resp, nil)
		l.resp = body.Apart(l.resp, l.cutter())
	}
	came := l.resp
	if l.attempt != nil {
		l.end()
	}
	if err := l.failure(); err != nil {
		j.classifyFailure(came, err)
		return
	}
	// A response without a status is still a response.
	o.Status = cmp.Or(l.resp.StatusCode, 1)
	header := l.resp.Header
	if o.Status >= 400 && o.Verdict == decide.ByRule {
		switch j.r.Dialects.Verdict(o.Status, header) {
		case dialect.Retry:
			o.Verdict = decide.Retryable
		case dialect.Throttle:
			o.Verdict, o.OfRate = decide.Retryable, true
		case dialect.Stop:
			// The header forbids a retry but doesn't make the response a success.
			o.Forbidden = true
		}
	}
	if o.Status == http.StatusGatewayTimeout && o.Verdict == decide.ByRule && syntax.OnlyIfCached(j.req.Header) {
		o.Verdict = decide.Final
	}
	if j.r.Retryable(o) {
		o.Canceled = j.gone() != nil
		if j.r.Dialects != nil || header["Retry-After"] != nil {
			j.hear(o.Status, header)
		}
	}
}

// hear adds to the outcome the wait that a response with the status and header asks for.
func (j *journey) hear(status int, header http.Header) {
	o, now := &j.event.Outcome, time.Now()
	if j.env.Logger != nil {
		if name, lines := j.r.Dialects.Unread(header, now); name != "" {
			j.tellUnread(status, name, lines)
		}
	}
	o.RetryAfter, o.OfAll = j.r.Dialects.Wait(status, header, now), j.r.Dialects.Global(header)
}

// classifyFailure completes the outcome of an attempt that has failed with err. came is a
// response that came nevertheless, or nil.
func (j *journey) classifyFailure(came *http.Response, err error) {
	o, l := &j.event.Outcome, &j.last
	if l.race != nil && l.race.decided() {
		// The error is that the hedge was faster.
		return
	}
	if j.gone() != nil {
		o.Canceled = true
		return
	}
	o.Timeout = fault.Timeout(err)
	o.Hopeless = j.faulty()
	if l.broken == nil {
		o.Resent = errors.Is(err, attempt.ErrHiddenSends)
		o.Hopeless = o.Hopeless || l.refusedByCaller() || l.hopeless(j.req, err, j.env)
		o.Idempotent = o.Idempotent || l.neverProcessed(j.env.Inner)
	}
	if j.r.Classifies {
		o.Verdict = j.r.Asks.Classify(j.req, nil, err)
	}
	o.Hopeless = o.Hopeless && o.Verdict == decide.ByRule
	if came == nil {
		if fault.AsksForCalm(err) {
			o.Lost = http.StatusTooManyRequests
		}
		return
	}
	// What the server said about retries holds, though its body broke or it came too late.
	o.Lost = came.StatusCode
	if o.Verdict == decide.ByRule {
		said := j.r.Dialects.Verdict(o.Lost, came.Header)
		o.Forbidden, o.OfRate = said == dialect.Stop, said == dialect.Throttle
	}
	j.hear(o.Lost, came.Header)
	if l.resp == nil {
		j.forget(came)
	}
}

// good reports whether the outcome of the attempt is an answer that no other attempt
// should replace.
func (j *journey) good() bool {
	o := &j.event.Outcome
	return o.Well() && !j.r.Retryable(o)
}

// awaitsBody reports whether the body of the response must arrive within the attempt. One
// that is retried anyway needn't, nor one that the server produces over time, nor one that
// continues a body, whose reader watches and continues it.
func (j *journey) awaitsBody() bool {
	if j.rest != nil || !body.In(j.req, j.last.resp) {
		return false
	}
	resp, a := j.last.resp, j.last.attempt
	produced := syntax.IsStream(resp.Header) || a != nil && !a.BodySent()
	return !produced && !j.r.Retry.Has(resp.StatusCode)
}

// readWhole reads the body of the response ahead, up to limit bytes.
func (l *last) readWhole(limit int64) {
	ahead := body.Ahead(l.resp.Body, limit, l.resp.ContentLength)
	l.resp.Body = ahead
	switch err := ahead.Err(); err {
	case nil:
	case io.EOF:
		l.whole = true
	default:
		ahead.SetErr(fault.Usable(err))
		l.broken = ahead
	}
}

// cutter returns the context of the attempt, or nil if it wasn't derived.
func (l *last) cutter() body.Cutter {
	if l.attempt == nil {
		return nil
	}
	return l.attempt
}

// end ends the attempt, whose outcome is known.
func (l *last) end() {
	switch a := l.attempt; {
	case l.broken != nil:
		_, err := a.End(nil, l.broken.Err())
		l.broken.SetErr(err)
	case l.whole:
		a.Finish(l.resp)
	default:
		l.resp, l.err = a.End(l.resp, l.err)
		l.held = l.resp != nil
	}
}

// failure returns the error of the attempt, if it failed: that of the base, or
// that of a response body that had to be whole.
func (l *last) failure() error {
	if l.broken != nil {
		return brokenError{l.broken.Err()}
	}
	return l.err
}

// brokenError is the error of a body that broke within its attempt.
type brokenError struct{ error }

func (e brokenError) Error() string { return fmt.Sprintf("response body: %v", e.error) }
func (e brokenError) Unwrap() error { return e.error }

// faulty reports whether the caller's own body caused the failure.
func (j *journey) faulty() bool {
	p := &j.payload
	return p.kind == replay.Unfit || p.once != nil && p.once.AtFault() || p.copies != nil && p.copies.AtFault()
}

// neverProcessed reports whether the error of the attempt proves that no server
// has processed the request.
func (l *last) neverProcessed(inner func(error) (fault.Inner, bool)) bool {
	a := l.attempt
	if a == nil {
		// There is no record of what the base did before the error.
		return fault.NeverProcessed(l.err, 0, false, inner)
	}
	return a.NeverSent() || fault.NeverProcessed(l.err, a.Processable(), a.Sent(), inner)
}

// hopeless reports whether err, with which the attempt has failed, says that no attempt can
// succeed. Another protocol says that where it is the first to arrive over a connection: to
// the server or, if the attempt got none, to a proxy. Later, it may be the rest of a response.
func (l *last) hopeless(req *http.Request, err error, env *Env) bool {
	if a := l.attempt; a != nil && fault.NotHTTP(err) {
		if sends := a.Sends(); sends > 0 || isNetHTTP(env.Base) {
			return sends == 0 || a.Fresh()
		}
	}
	return fault.Hopeless(req, err, env.Inner)
}

// unsent reports whether the error of the attempt proves that nothing was sent: there
// was no connection to send over.
func (l *last) unsent(inner func(error) (fault.Inner, bool)) bool {
	a := l.attempt
	if l.err == nil {
		return false
	}
	return a != nil && a.NeverSent() || (a == nil || a.Sends() == 0) && fault.Unsent(l.err, inner)
}

// refusedByCaller reports whether the caller's own code has refused the server,
// or an interim response.
func (l *last) refusedByCaller() bool {
	if l.attempt == nil {
		return false
	}
	if l.attempt.InterimRefused() {
		return true
	}
	err := l.attempt.HandshakeError(l.err)
	return err != nil && fault.RefusedByCaller(err)
}

// finish ends the exchange, and returns the results of RoundTrip.
func (x *exchange) finish(do decide.Deed) (resp *http.Response, err error) {
	switch {
	case do == decide.Answer && x.last.resp != nil:
		x.report()
		x.last.held = false
		resp = x.last.resp
		if once := x.payload.once; once != nil && once.Seal(how(x.env.Base, resp)) {
			// The end of resp is also that of a request body that the base may still read.
			body.EndWith(resp, once, true, new(body.Releasing))
		}
	case do == decide.Answer:
		err = x.failed()
	case x.call.Attempts == 0 && x.host == nil && x.cause != nil:
		err = x.goneBefore()
	default:
		err = x.fail(x.cause)
	}
	if err != nil {
		x.awaitClient()
	}
	x.done = true
	return resp, err
}

// how returns how an attempt with base has ended for its body. net/http passes a body that
// it has closed on to another connection only over HTTP/2, and reads it no more after a
// refusal. Another base may.
func how(base http.RoundTripper, resp *http.Response) replay.End {
	if isNetHTTP(base) && (resp.ProtoMajor == 1 || resp.StatusCode >= 300) {
		return replay.Refused
	}
	return replay.Answered
}

// failed ends the exchange with the error of its last attempt.
func (j *journey) failed() error {
	if j.last.err != nil { // else the response has been discarded
		j.meet(j.last.err)
	}
	if j.cause != nil {
		return j.fail(j.cause)
	}
	single := len(j.met) == 1 && j.call.Attempts == 1
	if gone := j.gone(); j.event.Outcome.Canceled && j.hides(gone) {
		canceled := fault.Canceled(j.last.err)
		blames := !canceled && errors.Is(j.last.err, context.Canceled) // the caller, though its time was up
		if !single || blames || !errors.Is(gone, context.DeadlineExceeded) || context.Cause(j.req.Context()) != j.req.Context().Err() {
			if errors.Is(gone, j.last.err) {
				// gone already wraps the error.
				j.met[len(j.met)-1], j.last.err = gone, gone
				return j.fail(nil)
			}
			return j.fail(gone)
		}
		if canceled {
			j.last.err = context.DeadlineExceeded
		}
	}
	if !single {
		return j.fail(nil)
	}
	j.report()
	if e, ok := j.last.err.(fault.NilPointer); ok {
		return e.Err
	}
	if isLong(j.last.err) {
		return longError{j.last.err}
	}
	return j.last.err
}

// goneBefore ends the exchange for a caller that went before the first attempt,
// with the error that net/http returns in that case.
func (j *journey) goneBefore() error {
	j.last.err = context.Cause(j.req.Context())
	switch {
	case j.last.err != nil && j.req.Context().Done() != nil:
	case j.decision.reason == decide.Deadline:
		j.last.err = j.cause
	default:
		j.last.err = fault.ErrRequestCanceled
	}
	j.report()
	return j.last.err
}

// hides reports whether the last error doesn't say why the caller has gone.
// After Request.Cancel, the base's error is returned alone if it is the only
// one.
func (j *journey) hides(gone error) bool {
	if j.req.Context().Err() == nil {
		return gone != nil && (len(j.met) > 1 || !errors.Is(gone, context.Canceled))
	}
	return !(errors.Is(j.last.err, j.req.Context().Err()) && errors.Is(j.last.err, context.Cause(j.req.Context())))
}

// fail ends the exchange with an *Error. If err isn't nil, it is the last error
// in it.
func (j *journey) fail(err error) error {
	if err != nil {
		j.last.err = err
		j.meet(err)
	}
	j.report()
	return j.env.Owner.Error(&Error{Attempts: j.call.Attempts, Reason: j.decision.reason, StatusCode: j.seen.status, Header: j.seen.header, RetryAfter: j.decision.wait, Errs: j.met, Last: j.last.err})
}

// cleanUp releases everything that the exchange holds.
func (x *exchange) cleanUp() {
	defer x.closeBodies()
	// Release first what other requests depend on: closing a body may panic.
	if !x.done {
		// Give back what an attempt that has panicked has taken.
		x.step(decide.Gone)
		x.countRest()
	}
	if x.host != nil {
		// If the policies have been replaced meanwhile, the exchange may have spent more
		// tokens than the new budget holds.
		x.env.Owner.Fit(x.host, x.env)
		now := x.last.decided
		if now == 0 {
			now = x.env.now()
		}
		x.env.Hosts.Unpin(x.host, now)
	}
	if x.done {
		return
	}
	if x.last.attempt != nil {
		x.last.attempt.Abandon()
	}
	if x.last.held {
		body.Dismiss(x.last.resp)
	}
}

// awaitClient waits until http.Client knows that its Timeout has passed. The
// client signals its Timeout with the deadline of the context and with
// Request.Cancel, and names the Timeout in the error only if it has closed
// Request.Cancel.
func (p *place) awaitClient() {
	canceled := legacyCancel(p.req)
	if canceled == nil || p.req.Context().Err() != context.DeadlineExceeded {
		return
	}
	timer := time.NewTimer(clientGrace)
	defer timer.Stop()
	select {
	case <-canceled:
	case <-timer.C:
		// The deadline was the caller's own.
	}
}

// clientGrace is how far apart the two signals may be.
const clientGrace = 5 * time.Millisecond
