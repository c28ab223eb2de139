// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/replay"
)

const (
	// muchProgress is the number of bytes of a body after which the count of
	// attempts starts again.
	muchProgress = 1 << 20

	// barrenMost is the number of continuations in a row that may yield no byte.
	barrenMost = 3
)

// download is a response body that must make progress, or that is continued
// when it breaks. It is a single allocation.
type download struct {
	body.Stream
	cut cutter // ends a stalled Read of the response's own body

	t        *Transport
	s        *settings
	r        *Rules
	req      *http.Request // the caller's
	http2    bool          // the response came over HTTP/2
	whole    representation
	refusal  Reason // why the body can't be continued; empty if it can
	attempts int    // attempts of the request so far
	mark     int64  // offset at which the count of attempts started
	last     int64  // offset at which the last continuation began
	barren   int    // continuations in a row that yielded no byte
	skipped  int64  // bytes discarded
	restarts int    // whole representations among the continuations
}

// cutter ends the Read of a stalled body.
type cutter struct {
	attempt *attempt.Attempt
	metrics *policyMetrics
	cut     atomic.Bool
}

// Cut implements [body.Cutter].
func (c *cutter) Cut() {
	if c.cut.CompareAndSwap(false, true) {
		c.metrics.stalled()
		c.attempt.Cut()
	}
}

// enclose wraps the body of the response in a download, if the policy needs
// one.
func (x *exchange) enclose() {
	p := &x.r.policy
	switch {
	case p.BodyIdle <= 0 && p.Resume != On || !hasBody(x.resp):
		return
	case x.continues:
		x.encloseRest()
		return
	}
	d := &download{t: x.t, s: x.s, r: x.r, req: x.req, http2: x.resp.ProtoMajor > 1}
	d.cut.attempt, d.cut.metrics = x.attempt, x.r.metrics
	d.Init(body.Part{Body: x.resp.Body, Cut: &d.cut})
	if p.BodyIdle > 0 {
		d.MustProgress(p.BodyIdle, errBodyIdle)
	}
	x.resp.Body = d
	x.download = d
}

// encloseRest is enclose for a response that continues a body. The stream that
// gets the body watches it already, but Classify may read the body before that.
func (x *exchange) encloseRest() {
	x.cut = &cutter{attempt: x.attempt, metrics: x.r.metrics}
	if p := &x.r.policy; p.BodyIdle > 0 && p.Classify != nil {
		s := &body.Stream{}
		s.Init(body.Part{Body: x.resp.Body, Cut: x.cut})
		s.MustProgress(p.BodyIdle, errBodyIdle)
		x.resp.Body = s
	}
}

// handOver prepares the body of the response for its reader.
func (x *exchange) handOver() {
	d := x.download
	if d == nil || x.r.policy.Resume != On {
		return
	}
	d.attempts = x.call.Attempts
	end := int64(-1)
	if d.whole, d.refusal = represented(x.req, x.resp); d.refusal == "" {
		end = d.whole.last + 1
	}
	d.mark = d.whole.first
	d.Resumable(x.req.Context(), d, d.whole.first, end)
	if ahead := body.PrefixedOf(x.resp.Body); ahead != nil && x.torn == nil {
		// Classify has peeked at the body. If it saw an error, so did d, which
		// decides whether to continue the body.
		ahead.SetErr(nil)
	}
}

// Continue implements [body.Source]. It requests the rest of the representation
// from the offset at, after the part before it ended with the error broken.
func (d *download) Continue(ctx context.Context, at int64, broken error) (body.Part, error) {
	if d.barren++; at != d.last {
		d.barren = 1
	}
	d.last = at
	switch {
	case ctx.Err() != nil:
		// The body broke because the caller has gone.
		return d.end(reasonGone(context.Cause(ctx)), at, broken, broken)
	case d.refusal != "":
		return d.end(d.refusal, at, broken, broken)
	case d.barren > barrenMost:
		return d.end(refusedProgress, at, broken, broken)
	case at-d.mark >= muchProgress:
		d.mark, d.attempts = at, 1
	}

	// Continue as the exchange of a request whose last attempt has just failed.
	req := d.req.WithContext(ctx)
	req.Header = d.whole.ask(req.Header, at)
	x := exchange{t: d.t, s: d.s, r: d.r, req: req}
	x.init(replay.None, overrideOf(ctx))
	x.continues = true
	x.first(nil, nil, broken, max(1, d.s.now()))
	x.call.Attempts, x.told, x.doubt.http2 = d.attempts, tally{}, d.http2
	resp, err := x.run()
	d.attempts = x.call.Attempts
	if err != nil {
		if !errors.Is(err, broken) {
			err = errors.Join(broken, err)
		}
		return d.end(cmp.Or(x.decision.Reason, refusedError), at, broken, err)
	}
	var land landing
	refusal := x.decision.Reason
	if refusal == "" {
		land, refusal = d.land(resp, at)
	}
	if refusal != "" {
		if !body.Wraps(resp.Body, d) {
			body.Dismiss(resp)
		}
		return d.end(refusal, at, broken,
			errors.Join(broken, fmt.Errorf("retrip: the response body can't be continued at byte %d: %s, in a response with status %d", at, refusal, resp.StatusCode)))
	}
	d.r.metrics.resumed(resumeContinued, max(0, at-d.whole.first-land.skip))
	told := false
	defer func() {
		if !told {
			body.Dismiss(resp)
		}
	}()
	d.tell(resumeContinued, at, broken)
	told = true
	return body.Part{Body: resp.Body, Cut: x.cut, Skip: land.skip, Until: land.until}, nil
}

// land checks that resp continues the representation at the given offset. It
// returns where the continuation begins and ends, or the reason why it is
// refused.
func (d *download) land(resp *http.Response, at int64) (landing, Reason) {
	l, refusal := d.whole.accept(resp, at)
	if refusal != "" {
		return l, refusal
	}
	if l.whole {
		d.restarts++
	}
	d.skipped += l.skip
	switch {
	case !hasBody(resp) || body.Wraps(resp.Body, d):
		// If Base returns the same response twice, the body would read itself.
		return l, refusedContentRange
	case d.restarts > 1:
		return l, refusedRanges
	case d.skipped > d.whole.last-d.whole.first+1:
		return l, refusedCost
	}
	return l, ""
}

// end reports why the Transport doesn't continue the body, which has ended with
// broken. It returns err for the reader.
func (d *download) end(why Reason, at int64, broken, err error) (body.Part, error) {
	d.r.metrics.resumed(why, 0)
	d.tell(why, at, broken)
	return body.Part{}, err
}

// tell reports the result for a body that has ended with broken to hooks and
// log.
func (d *download) tell(result Reason, at int64, broken error) {
	w := watcher{d.t, overrideOf(d.req.Context())}
	w.run(hookResume, Event{Request: d.req, Policy: d.r.name, Attempt: d.attempts, Reason: result, Offset: at, Err: broken})
}

// Dispose implements [body.Source].
func (d *download) Dispose(b io.ReadCloser) { body.Dismiss(&http.Response{Body: b}) }
