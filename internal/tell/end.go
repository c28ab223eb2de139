// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package tell

import (
	"context"
	"errors"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/meter"
)

// Done tells that the request to h, if it is in trouble, ends: with o, the outcome of the last
// attempt, or because of the last step. If the request is for the rest of a body, waits says that the body may ask again.
func (t *Teller) Done(h *host.Entry, o *decide.Outcome, last *Shown, waits bool) {
	reason, end, own := t.reason, t.ending(o), !t.counted
	switch {
	case !own:
	case t.pending && end == meter.Answered:
		t.Metrics.Count(meter.Sends, 0, int(last.Sends)-1)
		t.Metrics.CountAnswered(last.Status)
	default:
		t.count(o, decide.None, int(last.Sends))
		t.Metrics.Request(end, t.attempted)
	}
	t.pending, t.counted = false, true
	if own {
		t.timeRequest(end)
	}
	well := end == meter.Answered || end == meter.Recovered || end == meter.GaveUp && o.Pending()
	switch {
	case !well:
		if waits || !t.hasHost(h) {
			break
		}
		if t.Attempts > 0 && !t.Retryable(o) {
			t.Failed(o, last.Err, last.Blame)
		}
		t.remember(end, reason, t.failure)
	case own && t.Failures.Knows(t.Req.URL, new(host.Position)):
		t.RecordAnswer()
	}
	if waits {
		// The body hasn't been given up.
		reason = decide.None
	}
	if reason != decide.None {
		if h != nil {
			h.GaveUp.Store(uint32(reason))
		}
		if own {
			t.Metrics.GiveUp(t.Req.Context(), reason.String())
		}
	}
	if h != nil && h.Refilled() {
		t.Changed(h, host.Refilled)
	}
	if !t.observed() {
		return
	}
	e := t.describe(reason, o, last)
	if reason != decide.None {
		e.Wait, e.FromServer = t.wait, reason == decide.WaitTooLong || reason == decide.HostPaused
		if reason == decide.WaitTooLong {
			e.MaxWait = t.MaxWait
		}
		t.report(GivesUp, e)
	}
	if own {
		e.Failed, e.Why = end == meter.Failed, t.why(end)
		t.report(Done, e)
	}
}

// ending returns the outcome of the request for metrics.
func (t *Teller) ending(o *decide.Outcome) int {
	switch {
	case t.reason == decide.Canceled:
		return meter.GaveIn
	case t.reason != decide.None:
		return meter.GaveUp
	case !o.Well() || t.Retryable(o):
		return meter.Failed
	case t.failure != (host.Failure{}):
		return meter.Recovered
	}
	return meter.Answered
}

// why says for the log why the last attempt that failed did.
func (t *Teller) why(end int) string {
	why := decide.Reason(t.failure.Reason)
	switch {
	case end == meter.Failed && t.failure.Kind != 0:
		return fault.Kind(t.failure.Kind).String()
	case end == meter.Recovered && t.Gated && why == decide.Throttled:
		// That is how a gate follows a rate limit.
		return ""
	}
	return why.String()
}

// Fail is Done for a request that ends in an error, which it returns. cause is an error that
// isn't the outcome of an attempt, and gone says why the caller has gone; both may be nil.
func (t *Teller) Fail(h *host.Entry, o *decide.Outcome, last *Shown, cause, gone error, waits bool) error {
	switch {
	case t.do == decide.Answer:
		if last.Err != nil { // else the response has been discarded
			t.Add(last.Err)
		}
		if cause != nil {
			break
		}
		var alone bool
		if cause, alone = t.blame(o, last, gone); alone {
			t.Done(h, o, last, waits)
			return bare(last.Err)
		}
	case t.Attempts == 0 && h == nil && cause != nil:
		// The caller went before the first attempt, and gets what net/http returns then.
		last.Err = context.Cause(t.Req.Context())
		switch {
		case last.Err != nil && t.Req.Context().Done() != nil:
		case t.reason == decide.Deadline:
			last.Err = cause
		default:
			last.Err = fault.ErrRequestCanceled
		}
		t.Done(h, o, last, waits)
		return last.Err
	}
	if cause != nil {
		last.Err = cause
		t.Add(cause)
	}
	t.keep(last.Status)
	t.Done(h, o, last, waits)
	return t.Owner.Error(&Error{Attempts: int(t.Attempts), Reason: t.reason, StatusCode: t.status, RetryAfter: t.wait, Errs: t.errs, Last: last.Err})
}

// blame returns what to add to the error of the last attempt if that doesn't say why the caller
// has gone, and whether the caller gets that error alone.
func (t *Teller) blame(o *decide.Outcome, last *Shown, gone error) (cause error, alone bool) {
	alone = len(t.errs) == 1 && t.Attempts == 1
	if !o.Canceled || !t.hides(last.Err, gone) {
		return nil, alone
	}
	canceled := fault.Canceled(last.Err)
	wrong := !canceled && errors.Is(last.Err, context.Canceled) // it blames the caller, though its time was up
	if !alone || wrong || !errors.Is(gone, context.DeadlineExceeded) || context.Cause(t.Req.Context()) != t.Req.Context().Err() {
		if errors.Is(gone, last.Err) {
			// gone already wraps the error.
			t.errs[len(t.errs)-1], last.Err = gone, gone
			return nil, false
		}
		return gone, false
	}
	if canceled {
		last.Err = context.DeadlineExceeded
	}
	return nil, true
}

// hides reports whether err, the last, doesn't say why the caller has gone. After
// Request.Cancel, the base's error is returned alone if it is the only one.
func (t *Teller) hides(err, gone error) bool {
	ctx := t.Req.Context()
	if ctx.Err() == nil {
		return gone != nil && (len(t.errs) > 1 || !errors.Is(gone, context.Canceled))
	}
	return !(errors.Is(err, ctx.Err()) && errors.Is(err, context.Cause(ctx)))
}
