// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"cmp"
	"errors"
	"net/http"

	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/caller"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/replay"
)

// finish ends the exchange, and returns the results of RoundTrip.
func (x *exchange) finish() (resp *http.Response, err error) {
	o, last, waits := &x.event.Outcome, x.last.show(), x.bodyWaits()
	if resp = x.last.resp; resp != nil {
		if x.cause != nil {
			last.Err = errors.Join(x.cause, last.Err) // why the next attempt would get no body
		}
		x.tell.Done(x.host, o, &last, waits)
		x.last.inHand = false
		if once := x.payload.Once; once != nil && once.Seal(bodyEnd(x.env.Base, resp)) {
			// The end of resp is also that of a request body that the base may still read.
			body.EndWith(resp, once, true, new(body.Releasing))
		}
	} else {
		err = x.tell.Fail(x.host, o, &last, x.cause, caller.Gone(x.req), waits)
		caller.AwaitClient(x.req)
	}
	x.done = true
	return resp, err
}

// bodyEnd returns how an attempt with base has ended for its body. net/http passes a body that
// it has closed on to another connection only over HTTP/2, and reads it no more after a
// refusal. Another base may.
func bodyEnd(base http.RoundTripper, resp *http.Response) replay.End {
	if isNetHTTP(base) && (resp.ProtoMajor == 1 || resp.StatusCode >= 300) {
		return replay.Refused
	}
	return replay.Answered
}

// cleanUp releases everything that the exchange holds.
func (x *exchange) cleanUp() {
	defer x.closeBodies()
	// Release first what other requests depend on: closing a body may panic.
	if !x.done {
		// Give back what an attempt that has panicked has taken.
		x.step(decide.Gone)
		x.tellPanic()
	}
	if x.host != nil {
		// If the policies have been replaced meanwhile, the exchange may have spent more
		// tokens than the new budget holds.
		x.env.Fit(x.host, x.env)
		now := x.last.decided
		if now == 0 {
			now = x.env.Now()
		}
		x.env.Hosts.Unpin(x.host, now)
	}
	if x.done {
		return
	}
	if x.last.attempt != nil {
		x.last.attempt.Abandon()
	}
	if x.last.inHand {
		body.Dismiss(x.last.resp)
	}
}

// closeBodies closes every body of the request that nothing else closes.
func (x *exchange) closeBodies() {
	end := replay.Answered
	switch {
	case !x.done || x.call.Attempts == 0:
		end = replay.Abandoned
	case x.last.err != nil || x.cause != nil:
		end = replay.Failed
	}
	x.payload.Close(x.req, end, x.done && x.payload.Kind >= replay.Gotten && !x.last.unsent(x.env.Inner))
}

// tellPanic tells what is known of the attempt that a panic has ended.
func (x *exchange) tellPanic() {
	status, sends := 0, 0
	if x.last.inHand {
		status = cmp.Or(x.last.resp.StatusCode, 1)
	}
	if x.last.attempt != nil {
		sends = x.last.attempt.Sends()
	}
	x.tell.Panicked(x.host, status, sends)
}
