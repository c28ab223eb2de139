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

	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/fault"
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

	// barrenMost is the number of attempts in a row that may yield no byte.
	barrenMost = 3
)

// download is a response body that is continued when it breaks. It is a single
// allocation.
type download struct {
	body.Joined

	t        *Transport
	s        *settings
	r        *rules
	req      *http.Request // the caller's
	http2    bool          // the response came over HTTP/2
	whole    resume.Representation
	refusal  Reason // why the body can't be continued; empty if it can
	attempts int    // attempts of the request so far
	mark     int64  // offset at which the count of attempts started
	last     int64  // offset at which the last continuation began; -1 if there was none
	since    int    // attempts before the first continuation at that offset
	skipped  int64  // bytes discarded
}

// join makes the body of the response a download, if the policy says so. A body
// that had to be whole and broke has been given up already.
func (x *exchange) join() {
	if x.r.policy.Resume != On || x.continues || x.last.torn != nil || !hasBody(x.last.resp) {
		return
	}
	d := &download{t: x.t, s: x.s, r: x.r, req: x.req, http2: x.last.resp.ProtoMajor > 1, attempts: x.call.Attempts, last: -1}
	end := int64(-1)
	whole, refusal := resume.Of(x.req, x.last.resp)
	if d.whole, d.refusal = whole, Reason(refusal); refusal == "" {
		end = whole.Last + 1
	}
	d.mark = whole.First
	d.Join(x.req.Context(), x.last.resp.Body, d, whole.First, end)
	x.last.resp.Body = &d.Joined
}

// Continue implements [body.Source]. It requests the rest of the representation
// from the offset at, after the part before it ended with the error broken.
func (d *download) Continue(ctx context.Context, at int64, broken error) (body.Part, error) {
	switch {
	case ctx.Err() != nil:
		// The body broke because the caller has gone.
		return d.end(wordOf(reasonGone(context.Cause(ctx))), at, broken, broken)
	case d.refusal != "":
		return d.end(d.refusal, at, broken, broken)
	case at == d.last && d.attempts-d.since >= barrenMost && d.attempts < d.r.MaxAttempts:
		return d.end(resume.RefusedProgress, at, broken, broken)
	case at-d.mark >= muchProgress:
		d.mark, d.attempts = at, 1
	}
	if at != d.last {
		d.last, d.since = at, d.attempts
	}

	// Continue as the exchange of a request whose last attempt has just failed.
	req := d.req.WithContext(ctx)
	req.Header = d.whole.Ask(req.Header, at)
	x := exchange{continues: true}
	x.init(d.t, d.s, d.r, req, replay.None, overrideOf(ctx))
	x.last.take(nil, broken)
	x.last.began = max(1, d.s.now())
	x.call.Attempts, x.doubt.http2 = d.attempts, d.http2
	resp, err := x.run()
	d.attempts = x.call.Attempts
	if err != nil {
		if !errors.Is(err, broken) {
			err = errors.Join(broken, err)
		}
		return d.end(cmp.Or(wordOf(x.decision.Reason), resume.RefusedError), at, broken, err)
	}
	taken := false
	dismiss := func() {
		if taken {
			return
		}
		// Dismiss may panic, and must not run again then.
		if taken = true; !d.Within(resp.Body) {
			body.Dismiss(resp)
		}
	}
	defer dismiss()
	var land resume.Landing
	refusal := wordOf(x.decision.Reason)
	if refusal == "" {
		land, refusal = d.land(resp, at)
	}
	if refusal != "" {
		dismiss()
		return d.end(refusal, at, broken,
			errors.Join(broken, fmt.Errorf("retrip: the response body can't be continued at byte %d: %s, in a response with status %d", at, refusal, resp.StatusCode)))
	}
	d.r.metrics.Resumed(string(resumeContinued), max(0, at-d.whole.First-land.Skip))
	d.tell(resumeContinued, at, broken)
	taken = true
	return body.Part{Body: resp.Body, Skip: land.Skip, Until: land.Until}, nil
}

// land checks that resp continues the representation at the given offset. It
// returns where the continuation begins and ends, or the reason why it is
// refused.
func (d *download) land(resp *http.Response, at int64) (resume.Landing, Reason) {
	l, refusal := d.whole.Accept(resp, at)
	switch {
	case refusal != "":
		return l, Reason(refusal)
	case !hasBody(resp) || d.Within(resp.Body):
		// If Base returns the same response twice, the body would read itself.
		return l, resume.RefusedContentRange
	case l.Whole && d.skipped > 0:
		return l, resume.RefusedRanges
	}
	if d.skipped += l.Skip; d.skipped > d.whole.Last-d.whole.First+1 {
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

// requireProgress bounds the Reads of the response's body by Policy.BodyIdleTimeout.
func (x *exchange) requireProgress() {
	if idle := x.r.policy.BodyIdleTimeout; idle > 0 && hasBody(x.last.resp) {
		x.last.resp.Body = body.Watch(x.last.resp.Body, idle, errBodyIdle, x.last.attempt, x.r.metrics)
	}
}

// Peek returns the first n bytes of the body of resp without consuming them, or
// fewer if the body ends or breaks earlier. Peek is meant for Policy.Classify,
// because some services report an error inside a 200. AttemptTimeout keeps
// running while Peek waits for the bytes. If the body broke before n bytes,
// Peek returns the body's error, as a later Read does; [io.EOF] is not an
// error. The bytes must not be changed, and are valid until the body is read.
// Peek returns no bytes if n is not positive, resp has no body, or resp is a
// 101. No other goroutine may use resp during the call.
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
	if limit <= 0 || x.continues || x.req.Method == http.MethodConnect || !hasBody(x.last.resp) || x.r.Retry.Has(x.last.resp.StatusCode) || endless(x.last.resp.Header) || x.last.attempt != nil && !x.last.attempt.BodySent() {
		return
	}
	// One more byte reveals the end of a body of exactly that length.
	ahead := readAhead(x.last.resp, min(limit, math.MaxInt64-1)+1)
	switch err := ahead.Err(); err {
	case nil:
	case io.EOF:
		x.last.whole = true
	default:
		ahead.SetErr(fault.Usable(err))
		x.last.torn = ahead
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
