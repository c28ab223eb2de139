// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/replay"
)

const (
	// muchProgress is how many bytes of a body make up for an attempt.
	muchProgress = 1 << 20

	// barrenMost is after how many continuations in a row that brought no byte a
	// body is given up.
	barrenMost = 3
)

// download is the body of a response that has to make progress, or that is
// continued when it breaks. It is one allocation.
type download struct {
	body.Stream
	t        *Transport
	s        *settings
	r        *Rules
	req      *http.Request
	traces   []*Trace
	http2    bool
	whole    representation
	refusal  string // why it can't be continued; empty if it can
	attempts int    // of the request so far
	mark     int64  // offset where they began to be counted
	last     int64  // offset where the last continuation began; -1 before the first
	barren   int    // continuations in a row that brought nothing
	skipped  int64  // bytes thrown away
	restarts int    // whole representations among the continuations
}

// enclose makes the body of the response a download, if the policy has a use
// for one.
func (x *exchange) enclose() {
	p := &x.r.policy
	if p.BodyIdle <= 0 && p.Resume != On || x.continues || !hasBody(x.resp) {
		return
	}
	d := &download{t: x.t, s: x.s, r: x.r, req: x.req, traces: x.watch.asked, http2: x.resp.ProtoMajor > 1, last: -1}
	part := body.Part{Body: x.resp.Body}
	if x.attempt != nil {
		part.Cut = x.attempt
	}
	d.Init(part)
	if p.BodyIdle > 0 {
		d.MustProgress(p.BodyIdle, errBodyIdle)
	}
	x.resp.Body = d
	x.download = d
}

// handOver makes the response ready for its reader.
func (x *exchange) handOver() {
	d := x.download
	if d == nil || x.r.policy.Resume != On {
		return
	}
	d.attempts = x.call.Attempts
	if d.whole, d.refusal = represented(x.req, x.resp); d.refusal != "" {
		d.Resumable(x.ctx, d, 0, -1)
		return
	}
	d.mark = d.whole.first
	d.Resumable(x.ctx, d, d.whole.first, d.whole.last+1)
}

// Continue implements [body.Source]: it asks for the rest of the
// representation, from the given offset on, after the part before has ended with
// broken.
func (d *download) Continue(ctx context.Context, at int64, broken error) (body.Part, error) {
	if d.refusal != "" {
		return d.refuse(d.refusal, broken, nil)
	}
	if d.barren++; at != d.last {
		d.barren = 1
	}
	d.last = at
	if d.barren > barrenMost {
		return d.refuse("no_progress", broken, nil)
	}
	if at-d.mark >= muchProgress {
		d.mark, d.attempts = at, 1
	}

	req := d.req.WithContext(ctx)
	req.Header = d.whole.ask(req.Header, at)
	var x exchange
	x.init(d.t, d.s, d.r, req, replay.None, overrideOf(ctx))
	x.continues = true
	x.doubt.http2 = d.http2
	x.first(nil, broken, max(1, d.s.now()))
	x.call.Attempts, x.told = d.attempts, tally{}
	resp, err := x.run()
	d.attempts = x.call.Attempts
	if err != nil {
		if !errors.Is(err, broken) {
			err = errors.Join(broken, err)
		}
		return body.Part{}, err
	}
	return d.accept(resp, at, broken, x.attempt)
}

// accept checks that resp, the answer to a, continues the representation at the
// given offset.
func (d *download) accept(resp *http.Response, at int64, broken error, a *attempt.Attempt) (body.Part, error) {
	land, refusal := d.whole.accept(resp, at)
	if land.whole {
		d.restarts++
	}
	d.skipped += land.skip
	switch {
	case refusal != "":
	case d.restarts > 1:
		refusal = "no_ranges"
	case d.skipped > d.whole.last-d.whole.first+1:
		refusal = "too_much"
	case !hasBody(resp):
		refusal = "content_range"
	}
	if refusal != "" {
		body.Dismiss(resp)
		return d.refuse(refusal, broken, fmt.Errorf("retrip: the response body can't be continued at byte %d: %s, %s", at, refusal, resp.Status))
	}
	part := body.Part{Body: resp.Body, Skip: land.skip, Until: land.until}
	if a != nil {
		part.Cut = a
	}
	return part, nil
}

// refuse tells why the body isn't continued, and returns the error for its
// reader: broken, joined with what the server's answer was worth.
func (d *download) refuse(refusal string, broken, why error) (body.Part, error) {
	if why != nil {
		broken = errors.Join(broken, why)
	}
	return body.Part{}, broken
}

// Dispose implements [body.Source].
func (d *download) Dispose(b io.ReadCloser) { body.Dismiss(&http.Response{Body: b}) }
