// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/incoming"
	"github.com/retrip/retrip/internal/replay"
	"github.com/retrip/retrip/internal/span"
)

// exchange is one RoundTrip on its way through its attempts. It carries out
// what Host decides, and records what has to be cleaned up at the end. It lives
// on the stack of RoundTrip, as long as nothing keeps a pointer to it.
type exchange struct {
	t        *Transport
	s        *settings
	r        *Rules
	req      *http.Request
	asked    *override // of the context, for its hooks; nil if there is none
	call     Call
	payload  payload
	host     *host.Entry   // pinned; nil while the host is in no trouble
	woken    chan struct{} // signals that the call must ask again; nil if it can't wait at a gate
	doubt    doubt
	incoming int    // number of the incoming attempt on whose behalf the request is made; 1 if none
	key      string // generated; empty if there is none

	started  time.Time     // first reading of the clock; zero before
	hooked   time.Duration // instant at which RoundTrip began, if there are hooks
	deadline time.Duration // instant at which Policy.Deadline ends an attempt; 0 if the context's deadline does
	began    time.Duration // instant at which the last attempt began; 0 if its duration doesn't matter
	decided  time.Duration // instant of the decision about the last attempt; 0 before it

	attempt  *attempt.Attempt // the last one, if it was derived
	sends    int              // number of sends seen in the last attempt
	resp     *http.Response   // of the last attempt
	err      error            // of the last attempt
	torn     *body.Prefixed   // the body of resp, if it had to be whole and broke
	download *download        // the body of resp, if it is watched or may be continued
	cut      *cutter          // ends a stalled Read of the body of resp, if x continues another body
	outcome  Outcome          // of the last attempt
	decision Decision         // about the next attempt; in the end, why there is none
	met      []error          // errors of all attempts, in order
	seen     seen             // of the last discarded response

	// Together these take little space.
	told       tally
	idempotent bool
	keyed      bool // call.Gate is known
	atFleet    bool // the attempt under way is a retry that the fleet's account has let through
	sent       bool // resp and err are of an attempt that send must take, not make
	held       bool // resp is in hand: neither returned nor discarded
	discarded  bool // the response of the last attempt has been discarded
	whole      bool // all of the body of resp has been read
	continues  bool // x continues the body of a response that was returned
	ended      bool // run has returned; false if a base, a body or a hook panicked
}

// seen is what an error or hook may have to show of a discarded response. The
// response itself would keep its attempt in memory during a wait.
type seen struct {
	status int
	header http.Header
}

// init completes x, which has its first four fields.
func (x *exchange) init(kind replay.Kind, o *override) {
	x.payload = payload{req: x.req, kind: kind, given: x.req.Body}
	x.incoming = 1
	if o != nil {
		x.asked = o
		if x.r.retryHeader != "" {
			x.incoming = incoming.Attempt(x.req.Context())
		}
	}
	if x.watch().hooked() {
		x.hooked = x.now()
	}
	if deadline, ok := x.req.Context().Deadline(); ok {
		// An instant of 0 would mean no deadline.
		x.call.Deadline = max(1, x.s.instant(deadline))
	}
}

// clock returns the first reading of the clock by x.
func (x *exchange) clock() time.Time {
	if x.started.IsZero() {
		x.started = time.Now()
	}
	return x.started
}

// now returns the current instant.
func (x *exchange) now() time.Duration {
	if x.started.IsZero() {
		return x.s.instant(x.clock())
	}
	return x.s.now()
}

// limit bounds x by Policy.Deadline, which must be set, from the instant now on.
func (x *exchange) limit(now time.Duration) {
	if at := span.Add(now, x.r.policy.Deadline); x.call.Deadline == 0 || at < x.call.Deadline {
		x.call.Deadline, x.deadline = at, at
	}
}

// first records an attempt that was made before x ran. send takes its result.
func (x *exchange) first(a *attempt.Attempt, resp *http.Response, err error, began time.Duration) {
	x.sent, x.began, x.call.Attempts = true, began, 1
	x.told.attempted, x.told.pending = true, true
	x.resp, x.err, x.held = resp, err, resp != nil
	if a != nil {
		x.attempt, x.sends = a, a.Sends()
	}
}

// run takes the request from one attempt to the next, until an outcome is final
// or a rule forbids another attempt.
func (x *exchange) run() (*http.Response, error) {
	defer x.cleanUp()
	x.prepare()
	end := x.admit()
	for end.how == goesOn {
		x.send()
		if end = x.judge(); end.how != goesOn {
			break
		}
		// A request spends its time in sleep, so as little as possible is on the
		// stack.
		timer := x.startWait()
		end = x.awake(x.sleep(timer, nil))
	}
	resp, err := x.finish(end)
	x.awaitClient(err)
	x.ended = true
	return resp, err
}

// judge decides whether there is another attempt after the one that send has
// made.
func (x *exchange) judge() ending {
	x.classify()
	err := x.decide()
	if !x.answered() {
		x.count(&x.outcome, x.decision.Reason)
	}
	x.tellFleet()
	if !x.decision.Retry {
		return ending{endAnswered, err}
	}
	end := x.askFleet()
	if end.how == goesOn {
		x.goOn()
	}
	return end
}

// awake ends the wait before a retry. If gone isn't nil, the caller has gone
// meanwhile.
func (x *exchange) awake(gone error) ending {
	if gone != nil {
		return x.leave(gone)
	}
	return x.wake()
}

// prepare sets up what all attempts share.
func (x *exchange) prepare() {
	x.idempotent = x.r.idempotent(x.req)
	if x.sent {
		return
	}
	// Keep the caller's own key: the caller may retry with the same key.
	if x.r.policy.IdempotencyKey == On && !x.idempotent && !hasKey(x.req.Header) {
		x.key, x.idempotent = newKey(), true
	}
	if x.r.policy.MaxAttempts > 1 {
		x.payload.open(max(0, x.r.policy.MaxReplayBody))
	}
}

// take records what the base returned.
func (x *exchange) take(resp *http.Response, err error) {
	switch {
	case err != nil:
		body.Dismiss(resp)
		resp, err = nil, fault.Usable(err)
	case resp == nil:
		err = fault.ErrNothing
	}
	x.resp, x.err, x.held, x.discarded = resp, err, resp != nil, false
}

// decide asks the host what to do after an attempt, and sets x.decision. If
// there is no retry because GetBody failed, it returns the error of GetBody.
func (x *exchange) decide() error {
	o, d := &x.outcome, &x.decision
	*d = Decision{}
	failed := x.r.retryable(*o)
	if x.host == nil {
		x.pin(failed)
	}
	if x.host == nil && !o.Canceled && !x.r.pool.Owes() {
		// There is nothing to retry, and a success doesn't change the state of
		// a host without trouble.
		return nil
	}
	if x.decided == 0 {
		x.decided = x.now()
	}
	now := x.decided
	var record *host.Record
	if x.host != nil {
		record = &x.host.Record
		if failed {
			x.host.Used.Store(int64(now))
			x.host.Failed.Store(numberOf(retryReason(*o)))
		}
	} else {
		record = new(host.Record)
	}
	if x.timed() {
		o.Took = now - x.began
	}
	x.nameGate()
	faulty := x.faulty()
	o.Replay = x.payload.hold() && !faulty
	*d = x.rules().next(record, &x.call, *o, now, rand.Uint64())
	// The fleet may still forbid the retry, and the upload must then go on.
	x.payload.release(d.Retry && !x.asksFleet())
	wakeOthers(record, d.Wakes)
	if d.Reason == ReasonBudgetExhausted && x.host.RanOut() {
		d.change |= host.Emptied
	}
	x.changed(d.change)
	if d.Retry {
		// Call GetBody now, while the response in hand can still be returned
		// if it fails.
		if err := x.payload.renew(); err != nil {
			x.giveBack(record)
			*d = Decision{Reason: ReasonBodyNotReplayable}
			return err
		}
	}
	return nil
}

// pin finds the host of the request, if the attempt failed or the host is in
// trouble. It must not be inlined, to keep the stack frame of decide small.
//
//go:noinline
func (x *exchange) pin(failed bool) {
	if !failed && x.t.hosts.Calm(&host.Lookup{URL: x.req.URL}) {
		return
	}
	x.decided = x.now()
	if key := hostkey.Of(x.req.URL); failed {
		if hostkey.IsLong(x.req.URL) {
			// A new entry keeps the key, and with it the string of the URL.
			key = key.Clone()
		}
		x.host = x.t.hosts.PinNew(key, x.decided)
	} else {
		x.host = x.t.hosts.PinGood(key, x.decided)
	}
}

// goOn records the decision to make another attempt.
func (x *exchange) goOn() {
	if x.torn != nil {
		x.err = x.failure()
		body.Dismiss(x.release())
		x.torn = nil
	}
	if x.err != nil {
		x.met = append(x.met, x.err)
		x.doubts()
	}
	x.announce()
	// A wait may be long, and nobody needs the attempt any more.
	x.attempt, x.download, x.decided = nil, nil, 0
}
