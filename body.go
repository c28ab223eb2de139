// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/meter"
	"github.com/retrip/retrip/internal/replay"
	"github.com/retrip/retrip/internal/resume"
)

// resumeContinued is the result for a body that was continued. If it can't be, the
// result is a [resume.Refusal] or the Reason why the request for the rest was given up.
const resumeContinued Reason = "continued"

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
	whole    resume.Representation
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
	metrics *meter.Policy
	cut     atomic.Bool
}

// Cut implements [body.Cutter].
func (c *cutter) Cut() {
	if c.cut.CompareAndSwap(false, true) {
		c.metrics.Stalled()
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
	whole, refusal := resume.Of(x.req, x.resp)
	if d.whole, d.refusal = whole, Reason(refusal); refusal == "" {
		end = d.whole.Last + 1
	}
	d.mark = d.whole.First
	d.Resumable(x.req.Context(), d, d.whole.First, end)
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
		return d.end(resume.RefusedProgress, at, broken, broken)
	case at-d.mark >= muchProgress:
		d.mark, d.attempts = at, 1
	}

	// Continue as the exchange of a request whose last attempt has just failed.
	req := d.req.WithContext(ctx)
	req.Header = d.whole.Ask(req.Header, at)
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
		return d.end(cmp.Or(x.decision.Reason, resume.RefusedError), at, broken, err)
	}
	var land resume.Landing
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
	d.r.metrics.Resumed(string(resumeContinued), max(0, at-d.whole.First-land.Skip))
	told := false
	defer func() {
		if !told {
			body.Dismiss(resp)
		}
	}()
	d.tell(resumeContinued, at, broken)
	told = true
	return body.Part{Body: resp.Body, Cut: x.cut, Skip: land.Skip, Until: land.Until}, nil
}

// land checks that resp continues the representation at the given offset. It
// returns where the continuation begins and ends, or the reason why it is
// refused.
func (d *download) land(resp *http.Response, at int64) (resume.Landing, Reason) {
	l, refusal := d.whole.Accept(resp, at)
	if refusal != "" {
		return l, Reason(refusal)
	}
	if l.Whole {
		d.restarts++
	}
	d.skipped += l.Skip
	switch {
	case !hasBody(resp) || body.Wraps(resp.Body, d):
		// If Base returns the same response twice, the body would read itself.
		return l, resume.RefusedContentRange
	case d.restarts > 1:
		return l, resume.RefusedRanges
	case d.skipped > d.whole.Last-d.whole.First+1:
		return l, resume.RefusedCost
	}
	return l, ""
}

// end reports why the Transport doesn't continue the body, which has ended with
// broken. It returns err for the reader.
func (d *download) end(why Reason, at int64, broken, err error) (body.Part, error) {
	d.r.metrics.Resumed(string(why), 0)
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

// Peek returns the first n bytes of the body of resp without consuming them. It
// returns fewer bytes only if the body ends or breaks earlier. Peek is meant
// for Policy.Classify, because some services report an error inside a 200. It
// waits for the bytes, and AttemptTimeout keeps running meanwhile.
//
// If the body broke before n bytes, Peek returns the body's error, which a
// later Read of the body returns again. [io.EOF] is not an error. The bytes
// must not be changed, and are valid until the body is read. Peek returns no
// bytes if n is not positive, resp has no body, or resp is a 101. No other
// goroutine may use resp during the call.
func Peek(resp *http.Response, n int) ([]byte, error) {
	if n <= 0 || !hasBody(resp) {
		return nil, nil
	}
	ahead := readAhead(resp, int64(n))
	if err := ahead.Err(); err != nil && err != io.EOF && len(ahead.Bytes()) < n {
		return ahead.Bytes(), err
	}
	return ahead.Bytes()[:min(n, len(ahead.Bytes()))], nil
}

// readAhead reads up to n bytes of the body of resp ahead.
func readAhead(resp *http.Response, n int64) *body.Prefixed {
	ahead := body.Ahead(resp.Body, n, resp.ContentLength)
	resp.Body = ahead
	return ahead
}

// hasBody reports whether resp has a body to read. After 101 Switching
// Protocols it has a connection instead.
func hasBody(resp *http.Response) bool {
	if resp == nil || resp.Body == nil || resp.Body == http.NoBody || resp.StatusCode == http.StatusSwitchingProtocols {
		return false
	}
	_, conn := resp.Body.(io.Writer)
	return !conn
}

// readWhole reads the body of the response ahead, within the attempt, up to
// Policy.WholeBody. It skips a response that is retried anyway, one whose body
// the server produces over time, and one that continues a body, because the
// reader of that body watches and continues it.
func (x *exchange) readWhole() {
	limit := x.r.policy.WholeBody
	if limit <= 0 || x.continues || x.req.Method == http.MethodConnect || !hasBody(x.resp) || x.r.retry.has(x.resp.StatusCode) || endless(x.resp.Header) || x.attempt != nil && !x.attempt.BodySent() {
		return
	}
	// One more byte reveals the end of a body of exactly that length.
	ahead := readAhead(x.resp, min(limit, math.MaxInt64-1)+1)
	switch err := ahead.Err(); err {
	case nil:
	case io.EOF:
		x.whole = true
	default:
		ahead.SetErr(fault.Usable(err))
		x.torn = ahead
	}
}

// endless reports whether a body with the header fields h is a stream that
// lasts for as long as the server has something to send.
func endless(h http.Header) bool {
	kind, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	switch kind {
	case "text/event-stream", "multipart/x-mixed-replace",
		"application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines", "application/json-seq", "application/stream+json":
		return true
	}
	return strings.HasPrefix(kind, "application/grpc") || strings.HasPrefix(kind, "application/connect+")
}

// settle ends the attempt once its outcome is known.
func (x *exchange) settle() {
	a := x.attempt
	switch {
	case a == nil:
	case x.torn != nil:
		_, err := a.End(nil, x.torn.Err())
		x.torn.SetErr(err)
	case x.whole:
		a.Finish(x.resp)
	default:
		x.resp, x.err = a.End(x.resp, x.err)
		x.held = x.resp != nil
	}
}

// failure returns the error of the attempt, if it failed: that of the base, or
// that of a response body that had to be whole.
func (x *exchange) failure() error {
	if x.torn != nil {
		return tornError{x.torn.Err()}
	}
	return x.err
}

// tornError is the error of a body that broke within its attempt.
type tornError struct{ error }

func (e tornError) Error() string { return fmt.Sprintf("response body: %v", e.error) }
func (e tornError) Unwrap() error { return e.error }
