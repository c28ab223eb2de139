// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/caller"
	"github.com/retrip/retrip/internal/chance"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/dialect"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/syntax"
	"github.com/retrip/retrip/internal/tell"
)

// last is the last attempt and its outcome. The next attempt begins with a
// zero last, so that nothing of an earlier attempt can be taken for its own.
type last struct {
	attempt *attempt.Attempt // nil if it wasn't derived
	race    *race            // nil if there is no hedge, whatever happens
	began   time.Duration    // instant; 0 if its duration doesn't matter
	decided time.Duration    // instant of the decision about it; 0 before that
	resp    *http.Response
	err     error
	broken  *body.Prefixed // the body of resp, if it had to be whole and broke
	inHand  bool           // resp is in hand: neither returned nor discarded
	whole   bool           // all of the body of resp has been read
	awaits  bool           // the attempt is limited as a Read of the body is that it continues
	kept    tell.Kept      // for show
	lost    http.Header    // of a response that came too late, for show
}

// show returns what hooks, the log and errors show of the attempt.
func (l *last) show() tell.Shown {
	s := tell.Shown{Kept: l.kept, Header: l.lost, Err: l.failure()}
	if l.resp != nil {
		s.Status, s.Header = l.resp.StatusCode, l.resp.Header
	}
	return s
}

// forget drops the response, but for its status, and returns it: the caller must discard it.
func (l *last) forget() *http.Response {
	resp := l.resp
	l.kept.Status = resp.StatusCode
	l.resp, l.inHand = nil, false
	return resp
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
	l.resp, l.err, l.inHand = resp, err, resp != nil
}

// classify ends the last attempt, reduces what the base returned to what a decision needs,
// and sets event.Outcome.
func (x *journey) classify() {
	o, l := &x.event.Outcome, &x.last
	o.Repeatable = x.idempotent
	if idle := x.cfg.BodyIdleTimeout; idle > 0 && body.In(x.req, l.resp) {
		l.resp.Body = body.Watch(l.resp.Body, idle, errBodyIdle, l.attempt, x.cfg.Metrics)
	}
	if x.cfg.WholeBody > 0 && x.awaitsBody() {
		l.readWhole(x.cfg.WholeBody)
	}
	// Classify may peek at the body, so it runs within the attempt.
	if x.cfg.Classifies && l.resp != nil && l.broken == nil {
		o.Verdict = x.cfg.Program.Classify(x.req, l.resp, nil)
		l.resp = body.Apart(l.resp, l.cutter())
	}
	came := l.resp
	if l.attempt != nil {
		l.endAttempt()
	}
	if err := l.failure(); err != nil {
		x.classifyFailure(came, err)
		return
	}
	// A response without a status is still a response.
	o.Status = cmp.Or(l.resp.StatusCode, 1)
	header := l.resp.Header
	if o.Status >= 400 && o.Verdict == decide.ByRule {
		switch x.cfg.Dialects.Advice(o.Status, header) {
		case dialect.Retry:
			o.Verdict = decide.Retryable
		case dialect.Throttle:
			o.Verdict, o.OfRate = decide.Retryable, true
		case dialect.Stop:
			// The header forbids a retry but doesn't make the response a success.
			o.Forbidden = true
		}
	}
	if o.Status == http.StatusGatewayTimeout && o.Verdict == decide.ByRule && syntax.OnlyIfCached(x.req.Header) {
		o.Verdict = decide.Final
	}
	if x.cfg.Retryable(o) {
		o.Canceled = caller.Gone(x.req) != nil
		if x.cfg.Dialects != nil || header["Retry-After"] != nil {
			x.readRetryAfter(o.Status, header)
		}
	}
}

// readRetryAfter adds to the outcome the wait that a response with the status and header asks for.
func (x *journey) readRetryAfter(status int, header http.Header) {
	o, now := &x.event.Outcome, time.Now()
	if x.env.Logger != nil {
		if name, lines := x.cfg.Dialects.Unread(header, now); name != "" {
			x.tell.Unread(status, name, lines)
		}
	}
	o.RetryAfter, o.OfAll = x.cfg.Dialects.Wait(status, header, now), x.cfg.Dialects.Global(header)
}

// classifyFailure completes the outcome of an attempt that has failed with err. came is a
// response that came nevertheless, or nil.
func (x *journey) classifyFailure(came *http.Response, err error) {
	o, l := &x.event.Outcome, &x.last
	if l.race != nil && l.race.decided() {
		// The error is that the hedge was faster.
		return
	}
	if x.payload.AtFault() {
		l.kept.Blame = fault.KindBody
	}
	if caller.Gone(x.req) != nil {
		o.Canceled = true
		return
	}
	o.Timeout = fault.Timeout(err)
	o.Hopeless = l.kept.Blame == fault.KindBody
	if l.broken == nil {
		o.Resent = errors.Is(err, attempt.ErrHiddenSends)
		if !o.Hopeless && l.refusedByCaller() {
			o.Hopeless, l.kept.Blame = true, fault.KindCaller
		}
		o.Hopeless = o.Hopeless || l.hopeless(x.req, err, x.env)
		o.Repeatable = o.Repeatable || l.neverProcessed(x.env.Inner)
	}
	if x.cfg.Classifies {
		o.Verdict = x.cfg.Program.Classify(x.req, nil, err)
	}
	o.Hopeless = o.Hopeless && o.Verdict == decide.ByRule
	if came == nil {
		if fault.AsksForCalm(err) {
			o.LostStatus = http.StatusTooManyRequests
		}
		return
	}
	// What the server said about retries holds, though its body broke or it came too late.
	o.LostStatus = came.StatusCode
	if o.Verdict == decide.ByRule {
		said := x.cfg.Dialects.Advice(o.LostStatus, came.Header)
		o.Forbidden, o.OfRate = said == dialect.Stop, said == dialect.Throttle
	}
	x.readRetryAfter(o.LostStatus, came.Header)
	if l.resp == nil {
		l.kept.Status, l.lost = came.StatusCode, came.Header
	}
}

// good reports whether the outcome of the attempt is an answer that no other attempt
// should replace.
func (x *journey) good() bool {
	o := &x.event.Outcome
	return o.Well() && !x.cfg.Retryable(o)
}

// awaitsBody reports whether the body of the response must arrive within the attempt. One
// that is retried anyway needn't, nor one that the server produces over time, nor one that
// continues a body, whose reader watches and continues it.
func (x *journey) awaitsBody() bool {
	if x.ofBody || !body.In(x.req, x.last.resp) {
		return false
	}
	resp, a := x.last.resp, x.last.attempt
	produced := syntax.IsStream(resp.Header) || a != nil && !a.BodySent()
	return !produced && !x.cfg.Retry.Has(resp.StatusCode)
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

// endAttempt ends the attempt, whose outcome is known.
func (l *last) endAttempt() {
	switch a := l.attempt; {
	case l.broken != nil:
		_, err := a.End(nil, l.broken.Err())
		l.broken.SetErr(err)
	case l.whole:
		a.Finish(l.resp)
	default:
		l.resp, l.err = a.End(l.resp, l.err)
		l.inHand = l.resp != nil
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

// obey makes the host obey what a server has said in o, the outcome of an attempt that
// doesn't count. Nothing else in o counts for the host.
func (x *journey) obey(o *decide.Outcome) {
	if !x.cfg.Refused(o) {
		return
	}
	if x.host == nil {
		x.pin()
	}
	h := &x.host.Record
	change, wakes := x.rules.Obey(h, &x.call, o, x.env.Now(), chance.Draw())
	if wakes {
		wakeOthers(h)
	}
	if change != 0 {
		x.tell.Changed(x.host, change)
	}
}
