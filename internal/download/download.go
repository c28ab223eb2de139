// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package download continues the body of a response that breaks, with requests for its rest. It is
// all of Policy.Resume but the rule of whether a response fits, which is package resume.
package download

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/caller"
	"github.com/retrip/retrip/internal/chance"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/exchange"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/redact"
	"github.com/retrip/retrip/internal/resume"
	"github.com/retrip/retrip/internal/span"
	"github.com/retrip/retrip/internal/tell"
	"github.com/retrip/retrip/internal/turns"
)

// Continued is the result for a body that was continued. If it can't be, the
// result is a [resume.Refusal] or the reason why the request for the rest was given up.
const Continued = "continued"

// emptyMost is the number of attempts in a row that may yield no byte until the body
// waits for turns.
const emptyMost = 3

// download is a response body that is continued when it breaks. It is a single
// allocation.
type download struct {
	body.Joined

	env      *exchange.Env
	cfg      *exchange.Config
	override tell.Override
	req      *http.Request // the caller's
	http2    bool          // the response came over HTTP/2
	whole    resume.Representation
	refusal  string        // why the body can't be continued; empty if it can
	attempts int           // attempts since the last byte, or, without one, those of the request
	last     int64         // offset at which the last continuation began; -1 if there was none
	since    int           // attempts before the first continuation at that offset
	broke    time.Duration // instant at which the body broke at that offset
	waited   bool          // for a turn, at that offset
	earlier  error         // how the body broke at that offset before
	skipped  int64         // bytes discarded
	usual    time.Duration // that the response took, if its duration matters
}

// Do takes req through its attempts, as exchange.Do, for a policy with Resume. The body of the
// response is a download, unless it had to be whole and broke: it has been given up then.
func Do(env *exchange.Env, cfg *exchange.Config, req *http.Request, override tell.Override) (*http.Response, error) {
	resp, came, err := exchange.DoWhole(env, cfg, req, override)
	if resp != nil && !came.Broken && body.In(req, resp) {
		d := &download{env: env, cfg: cfg, override: override, req: req, attempts: came.Attempts, last: -1}
		d.join(resp, came.Took)
	}
	return resp, err
}

// join makes d the body of resp, which took so long if that matters. It must not be inlined, to
// keep the stack frame of Do small: a request waits on top of it.
//
//go:noinline
func (d *download) join(resp *http.Response, took time.Duration) {
	d.http2 = resp.ProtoMajor > 1
	// The host may have been overloaded.
	d.usual = min(took, d.turns().Slow/3*4)
	end := int64(-1)
	whole, refusal := resume.Of(d.req, resp)
	if d.whole, d.refusal = whole, string(refusal); refusal == "" {
		end = whole.Last + 1
		d.Keep(int(whole.Repeats(math.MaxInt64)))
	}
	d.Join(d.req.Context(), resp.Body, d, whole.First, end)
	resp.Body = &d.Joined
}

// turns returns the rule for the turns of bodies that wait.
func (d *download) turns() turns.Rule {
	return turns.Rule{
		Cap:  max(1, min(max(turns.CapLeast, d.cfg.Backoff.Cap), d.cfg.Resume/4)),
		Slow: time.Duration(turns.SlowShare * float64(max(0, d.cfg.AttemptTimeout))),
	}
}

// Continue implements [body.Source]. It requests the rest of the representation
// from the offset at, after the part before it ended with the error broken.
func (d *download) Continue(ctx context.Context, at int64, broken error) (body.Part, error) {
	switch {
	case ctx.Err() != nil:
		// The body broke because the caller has gone.
		return d.giveUp(reasonGone(context.Cause(ctx)).String(), at, broken, broken)
	case d.refusal != "":
		return d.giveUp(d.refusal, at, broken, d.lost(d.refusal, at, broken, 0))
	}
	if at != d.last {
		if at > d.whole.First {
			d.attempts = 1
		}
		d.last, d.since, d.earlier, d.broke, d.waited = at, d.attempts, nil, d.env.Now(), false
	}
	r := reply{why: resume.RefusedProgress, waits: true}
	if d.attempts-d.since < emptyMost {
		r = d.requestRest(ctx, at, broken, decide.None, 0)
	}
	if r.waits {
		r = d.waitForTurns(ctx, at, broken, r)
	}
	if r.why != "" {
		return d.giveUp(r.why, at, broken, d.lost(r.why, at, cmp.Or(r.err, broken), r.status))
	}
	return r.part, nil
}

// reply is the outcome of a request for the rest of a body.
type reply struct {
	part       body.Part
	why        string // why the part doesn't continue the body; empty if it does
	err        error  // how the body broke, and what the request met
	status     int    // of a response that doesn't continue the body
	waits      bool   // the body may wait for a turn, and ask again
	retry      decide.Reason
	timeout    bool
	retryAfter time.Duration // the wait that the server asked for
	took       time.Duration // the last attempt
}

// requestRest requests the rest of the representation as the exchange of a request whose last
// attempt has just failed, or, with a reason to retry, as a turn for which the body has waited.
func (d *download) requestRest(ctx context.Context, at int64, broken error, turn decide.Reason, waited time.Duration) (r reply) {
	req := d.req.WithContext(ctx)
	req.Header = d.whole.Ask(req.Header, at)
	rest := exchange.Rest{Broken: broken, HTTP2: d.http2, Attempts: d.attempts, Until: d.latest(), Turn: turn, Waited: waited}
	a := rest.Do(d.env, d.cfg, req, d.override)
	d.attempts = a.Attempts
	r = reply{waits: a.Waits, retry: a.Failure, timeout: a.Timeout, retryAfter: a.RetryAfter, took: a.Took}
	refusal := a.Reason.String()
	if a.Late {
		refusal = resume.RefusedProgress
	}
	if a.Err != nil {
		r.why, r.err = cmp.Or(refusal, resume.RefusedError), joined(broken, a.Err)
		return r
	}
	d.accept(&r, a.Resp, at, broken, refusal)
	return r
}

// accept makes the body of resp the part from the offset at on, unless refusal says why it
// isn't, or it turns out that it isn't. It completes r.
func (d *download) accept(r *reply, resp *http.Response, at int64, broken error, refusal string) {
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
	if refusal == "" {
		land, refusal = d.land(resp, at)
	}
	skip := land.Skip
	if n := d.whole.Repeats(at); n > 0 && refusal == "" {
		same, err := d.Repeated(resp.Body, skip, n)
		if err != nil {
			// The reader of this part learns how it broke.
			d.addBreak(broken)
			r.part = body.Part{Body: brokenBody{err}, Until: land.Until}
			return
		}
		if skip = 0; !same {
			refusal = resume.RefusedChanged
		}
	}
	if refusal != "" {
		dismiss()
		r.why, r.err, r.status = refusal, broken, resp.StatusCode
		return
	}
	d.tell(Continued, at, max(0, at-d.whole.First-land.Skip), broken)
	taken = true
	d.addBreak(broken)
	r.part = body.Part{Body: resp.Body, Skip: skip, Until: land.Until}
}

// latest returns the instant at which Policy.Resume is over.
func (d *download) latest() time.Duration {
	return max(1, span.Add(d.broke, d.cfg.Resume))
}

// addBreak records how the body broke. It keeps few errors of those at one offset.
func (d *download) addBreak(broken error) {
	if d.earlier == nil || d.attempts-d.since <= emptyMost {
		d.earlier = joined(d.earlier, tell.Short(broken))
	}
}

// waitForTurns continues a body that may not be retried now. It asks the host whenever it is
// the body's turn among all that wait for the host.
func (d *download) waitForTurns(ctx context.Context, at int64, broken error, r reply) reply {
	key, rule := hostkey.Of(d.req.URL), d.turns()
	d.waited = true
	q := d.env.Turns.Join(key)
	defer d.env.Turns.Leave(key, q)
	if r.err == nil {
		q.Record(rule, turns.Empty, 0)
	}
	// The reader learns what happened before the wait and last, however many turns failed.
	before := r.err
	for r.waits {
		if r.retryAfter > d.cfg.MaxWait {
			r.why = decide.WaitTooLong.String()
			break
		}
		if r.retryAfter > 0 {
			q.PauseUntil(span.Add(d.env.Now(), r.retryAfter))
		}
		r = d.takeTurn(ctx, at, broken, r, q, rule)
	}
	if r.why != "" && before != nil {
		r.err = joined(before, r.err)
	}
	return r
}

// takeTurn waits for a turn and asks the host.
func (d *download) takeTurn(ctx context.Context, at int64, broken error, r reply, q *turns.Queue, rule turns.Rule) reply {
	req := d.req.WithContext(ctx)
	late := func() bool { // also if the clock was set, which ctx doesn't learn
		at, ok := ctx.Deadline()
		return ok && !time.Now().Before(at)
	}
	stop := func() reply {
		r.waits, r.why = false, resume.RefusedProgress
		if late() {
			r.why = decide.Deadline.String()
		}
		if gone := caller.Gone(req); gone != nil {
			r.why, r.err, r.status = reasonGone(gone).String(), joined(cmp.Or(r.err, broken), gone), 0
		}
		return r
	}
	over := time.NewTimer(d.latest() - d.env.Now())
	defer over.Stop()
	select {
	case <-q.Turn():
	case <-over.C:
		return stop()
	case <-ctx.Done():
		return stop()
	case <-caller.LegacyCancel(req):
		return stop()
	}
	pass := sync.OnceFunc(q.Pass)
	defer pass()
	var waited time.Duration
	for {
		now := d.env.Now()
		wait, ok := q.Wait(rule, now, d.latest(), chance.Draw())
		if !ok || late() || caller.Sleep(req, time.NewTimer(wait), nil) != nil {
			return stop()
		}
		waited += wait
		if h := d.env.Hosts.Find(hostkey.Of(d.req.URL), d.env.Now()); h == nil || !h.TimingOut(now) || !q.PutOff(rule) {
			break
		}
	}
	// A turn that isn't answered holds up no other body for long.
	defer time.AfterFunc(rule.Cap, pass).Stop()
	r = d.requestRest(ctx, at, broken, cmp.Or(r.retry, decide.Error), waited)
	result := turns.Continued
	switch {
	case r.waits && r.timeout:
		result = turns.TimedOut
	case r.waits:
		result = turns.Failed
	}
	q.Record(rule, result, max(0, r.took-d.usual))
	return r
}

// brokenBody is the body of a part that broke before it had a byte for the reader.
type brokenBody struct{ err error }

func (b brokenBody) Read([]byte) (int, error) { return 0, b.err }
func (brokenBody) Close() error               { return nil }

// lost returns the error of a body that can't be continued after err.
func (d *download) lost(why string, at int64, err error, status int) error {
	var idle time.Duration
	if d.waited {
		idle = d.env.Now() - d.broke
	}
	return &continueError{joined(d.earlier, err), at, why, status, idle}
}

// reasonGone returns the reason for the give-up when the caller has gone because of err.
func reasonGone(err error) decide.Reason {
	if errors.Is(err, context.DeadlineExceeded) {
		return decide.Deadline
	}
	return decide.Canceled
}

// joined returns an error that wraps both, each of them once. earlier may be nil.
func joined(earlier, err error) error {
	switch {
	case earlier == nil || errors.Is(err, earlier):
		return err
	case errors.Is(earlier, err):
		return earlier
	}
	return errors.Join(earlier, err)
}

// continueError is the error of a body that broke and can't be continued.
type continueError struct {
	error                // how the body broke, and what the requests for the rest met
	at     int64         // offset at which it broke
	why    string        // the result in metrics, hooks and the log
	status int           // of the response that doesn't continue the body; 0 if there was none
	idle   time.Duration // how long the body went without a byte, if it waited for turns
}

func (e *continueError) Error() string {
	text := fmt.Sprintf("%s; retrip: the response body can't be continued at byte %d: %s", redact.Error(e.error), e.at, e.why)
	if e.status != 0 {
		text += fmt.Sprintf(", in a response with status %d", e.status)
	}
	if idle := e.idle.Round(time.Millisecond); idle > 0 {
		text += fmt.Sprintf(", %v after the last byte", idle)
	}
	return text
}

func (e *continueError) Unwrap() error { return e.error }
func (e *continueError) Timeout() bool { return fault.Timeout(e.error) }

// land checks that resp continues the representation at the given offset. It
// returns where the continuation begins and ends, or the reason why it is
// refused.
func (d *download) land(resp *http.Response, at int64) (resume.Landing, string) {
	l, refusal := d.whole.Accept(resp, at)
	switch {
	case refusal != "":
		return l, string(refusal)
	case !body.In(d.req, resp) || d.Within(resp.Body):
		// If Base returns the same response twice, the body would read itself.
		return l, resume.RefusedContentRange
	case l.Whole && d.skipped > 0:
		return l, resume.RefusedRanges
	}
	// What retrip itself asks for twice isn't the server's fault.
	if d.skipped += l.Skip - d.whole.Repeats(at); d.skipped > d.whole.Last-d.whole.First+1 {
		return l, resume.RefusedCost
	}
	return l, ""
}

// giveUp reports why the Transport doesn't continue the body, which has ended with
// broken. It returns err for the reader.
func (d *download) giveUp(why string, at int64, broken, err error) (body.Part, error) {
	d.tell(why, at, 0, broken)
	return body.Part{}, err
}

// tell tells the result for a body that has ended with broken, and how many bytes the server
// needn't send again.
func (d *download) tell(result string, at, spared int64, broken error) {
	tell.Request{Desk: &d.env.Desk, Policy: &d.cfg.Policy, Req: d.req, Override: d.override}.Resumed(result, d.attempts, at, spared, broken)
}
