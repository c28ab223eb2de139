// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/replay"
)

// plain reports whether the first attempt needs nothing but Base.
func plain(env *Env, r *Rules, req *http.Request, kind replay.Kind) bool {
	return r.Plain && !r.Metrics.Timed() && (env.Fleet == nil || r.Fleet == 0) && env.Watch&attempt.WatchHandshake == 0 && !env.Spares.Some() &&
		kind <= replay.Memory && req.URL != nil && legacyCancel(req) == nil && req.Context().Err() == nil && !attempt.ChecksInterim(req.Context())
}

// tryFirst makes a plain first attempt, and goes on if that isn't enough.
func tryFirst(env *Env, r *Rules, req *http.Request, kind replay.Kind) (*http.Response, error) {
	f := first{env: env, r: r, req: req, kind: kind, idempotent: r.Asks.Idempotent(req)}
	resp, err := f.send()
	if err == nil && f.clean(resp) {
		r.Metrics.Answered(resp.StatusCode)
		return resp, nil
	}
	return f.goOn(resp, err)
}

// first is a plain first attempt: Base gets the caller's own request, and only if the
// answer isn't clean, the request becomes an exchange.
type first struct {
	env        *Env
	r          *Rules
	req        *http.Request
	kind       replay.Kind
	idempotent bool
	began      time.Time // if the caller has a deadline
	returned   bool      // Base hasn't panicked
}

// send makes the attempt. It must not be inlined: its stack frame would lie under every
// retry.
//
//go:noinline
func (f *first) send() (*http.Response, error) {
	if _, ok := f.req.Context().Deadline(); ok {
		f.began = time.Now()
	}
	defer f.sent()
	resp, err := f.env.Base.RoundTrip(f.req)
	f.returned = true
	return resp, err
}

// sent counts the attempt and closes the body if Base has panicked.
func (f *first) sent() {
	if !f.returned {
		f.fail()
	}
}

// fail must not be inlined, to keep the stack frame of every request small.
//
//go:noinline
func (f *first) fail() {
	var x exchange
	f.begin(&x)
	x.cleanUp()
}

// clean reports whether nothing but the number of answers changes with resp.
func (f *first) clean(resp *http.Response) bool {
	env := f.env
	return resp != nil && resp.StatusCode > 0 && resp.StatusCode < http.StatusBadRequest && env.Hosts.Calm(&host.Lookup{URL: f.req.URL}) &&
		(resp.ProtoMajor < 2 || !env.Spares.Some()) && (env.Logger == nil || !env.Owner.Unsaid())
}

// goOn takes the request on after what Base has returned.
//
//go:noinline
func (f *first) goOn(resp *http.Response, err error) (*http.Response, error) {
	var x exchange
	f.begin(&x)
	x.last.resp, x.last.err = resp, err
	return x.run(decide.Ended)
}

// begin begins x, of which f is the first attempt.
func (f *first) begin(x *exchange) {
	x.started, x.idempotent = f.began, f.idempotent
	x.init(f.env, f.r, f.req, f.kind, Asked{Incoming: 1})
	x.call.Attempts, x.told = 1, tally{attempted: true, pending: true}
	if x.timed() {
		x.last.began = x.beginning()
	}
}
