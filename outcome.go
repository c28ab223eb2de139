// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"cmp"
	"errors"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/attempt"
)

// classify reduces what the base returned to what a decision needs, and sets
// x.outcome.
func (x *exchange) classify() {
	o := &x.outcome
	*o = Outcome{Idempotent: x.idempotent}
	classify := x.r.policy.Classify
	x.enclose()
	x.readWhole()
	// Classify may peek at the body, so it runs within the attempt.
	if classify != nil && x.resp != nil && x.torn == nil {
		o.Verdict = classify(x.req, x.resp, nil)
	}
	came := x.resp
	x.settle()
	if err := x.failure(); err != nil {
		if x.gone() != nil {
			o.Canceled = true
			return
		}
		o.Timeout = isTimeout(err)
		o.Hopeless = x.faulty()
		if x.torn == nil {
			o.Resent = errors.Is(err, attempt.ErrHiddenSends)
			o.Hopeless = o.Hopeless || hopeless(x.req, err) || x.refusedByCaller()
			o.Idempotent = o.Idempotent || x.neverProcessed()
		}
		if classify != nil {
			o.Verdict = classify(x.req, nil, err)
		}
		o.Hopeless = o.Hopeless && o.Verdict == ByRule
		if came != nil {
			x.heed(came)
			if x.resp == nil {
				x.forget(came)
			}
		}
	} else {
		// A response without a status is still a response.
		o.Status = cmp.Or(x.resp.StatusCode, 1)
	}
	if o.Status >= 400 && o.Verdict == ByRule {
		if o.Verdict = x.r.verdict(o.Status, x.resp.Header); o.Verdict == Final {
			// The header forbids a retry but doesn't make the response a success.
			o.Verdict, o.Forbidden = ByRule, true
		}
	}
	if o.Status != 0 && x.r.retryable(*o) {
		o.Canceled = x.gone() != nil
		if x.r.dialects != nil || x.resp.Header["Retry-After"] != nil {
			o.RetryAfter = x.r.serverWord(o.Status, x.resp.Header, time.Now())
		}
	}
}

// heed records what the server said about retries in a response whose body
// broke or that came too late. What the server said holds nevertheless.
func (x *exchange) heed(resp *http.Response) {
	o := &x.outcome
	o.lost = resp.StatusCode
	o.Forbidden = o.Verdict == ByRule && x.r.verdict(resp.StatusCode, resp.Header) == Final
	o.RetryAfter = x.r.serverWord(resp.StatusCode, resp.Header, time.Now())
}

// faulty reports whether the caller's own body caused the failure.
func (x *exchange) faulty() bool {
	return x.payload.faulty() || x.attempt != nil && x.attempt.AtFault()
}

// neverProcessed reports whether the error of the attempt proves that no server
// has processed the request.
func (x *exchange) neverProcessed() bool {
	a := x.attempt
	if a == nil {
		// There is no record of what the base did before the error.
		return neverProcessed(x.err, 0, false)
	}
	if wraps(x.err, errAttemptTimeout) || wraps(x.err, errDeadline) {
		return a.NeverSent()
	}
	return neverProcessed(x.err, a.Processable(), a.Sent())
}

// refusedByCaller reports whether the caller's own code has refused the server.
func (x *exchange) refusedByCaller() bool {
	if x.attempt == nil {
		return false
	}
	err := x.attempt.HandshakeError()
	return err != nil && errors.Is(x.err, err) && refusedByCaller(err)
}
