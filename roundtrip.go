// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/meter"
	"github.com/retrip/retrip/internal/replay"
	"github.com/retrip/retrip/internal/span"
)

// RoundTrip sends req, retrying until it gets a final answer or a rule forbids
// another attempt. It implements [http.RoundTripper].
//
// If RoundTrip gives up with a response in hand, it returns that response and a
// nil error. It returns the error of a single attempt as Base gave it; after
// several attempts, the error is an *[Error] that wraps every failure. If t's
// policies, or a policy from [WithPolicy], are invalid, the error names each
// field and value, and nothing is sent. RoundTrip always closes the request
// body, but may do so after it has returned. It is safe for concurrent use.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	s := t.settings.Load()
	if s == nil {
		s = t.start()
	}
	if !s.looked {
		s = t.look()
	}
	if s.err != nil {
		body.CloseRequest(req)
		return nil, s.err
	}
	o := overrideOf(req.Context())
	r := s.find(req.URL)
	if !r.matched.Load() {
		r.matched.Store(true)
	}
	if o != nil && o.policy != nil {
		var err error
		if r, err = o.rules(r); err != nil {
			body.CloseRequest(req)
			return nil, err
		}
	}

	kind := replay.KindOf(req)
	host := host.Lookup{URL: req.URL}
	if t.Trace != nil || o != nil && (o.traces != nil || r.retryHeader != "") || // hooks, or a number in a header
		r.apart || s.watch&attempt.WatchHandshake != 0 || kind >= replay.Gotten ||
		r.policy.IdempotencyKey == On && (r.policy.Idempotent != nil || !r.idempotent(req)) || // it may need a key
		!t.hosts.Calm(&host) || hasGone(req) {
		return t.exchange(s, r, req, kind, o)
	}
	if r.derives {
		return t.bounded(s, r, req, kind, host)
	}
	return t.plain(s, r, req, kind, host)
}

// rules returns r as overridden by o. It must not be inlined: the stack frame
// of every request would then hold a Policy.
//
//go:noinline
func (o *override) rules(r *Rules) (*Rules, error) { return r.override(*o.policy) }

// plain makes a first attempt with the caller's own request while the host
// isn't in trouble. An attempt that succeeds costs next to nothing; plain hands
// any other attempt to resume.
func (t *Transport) plain(s *settings, r *Rules, req *http.Request, kind replay.Kind, host host.Lookup) (*http.Response, error) {
	// The duration of an attempt matters only with a deadline. A custom
	// context may have a deadline and no Done channel.
	var began time.Duration
	if _, ok := req.Context().Deadline(); ok {
		began = s.now()
	}
	returned := false
	defer func() {
		if !returned {
			r.metrics.Attempt(meter.Error)
			r.metrics.Request(meter.Failed, true)
			body.CloseRequest(req)
		}
	}()
	resp, err := s.base.RoundTrip(req)
	returned = true
	if err == nil && resp != nil && r.plainly(resp.StatusCode) && t.hosts.Calm(&host) && !r.pool.Owes() {
		r.metrics.Answered(resp.StatusCode)
		t.payFleet(r, req.URL)
		return resp, nil
	}
	return t.resume(s, r, req, kind, nil, resp, err, began)
}

// bounded is plain for a policy with time limits: the attempt has a request and
// a context of its own.
func (t *Transport) bounded(s *settings, r *Rules, req *http.Request, kind replay.Kind, host host.Lookup) (*http.Response, error) {
	clock := time.Now()
	began, left := s.instant(clock), r.policy.Deadline
	if left > 0 {
		// As in exchange.limit, the context's deadline stands for both if it
		// isn't later.
		if at, ok := req.Context().Deadline(); ok && s.instant(at) <= span.Add(began, left) {
			left = 0
		}
	}
	a := r.begin(req, r.idempotent(req), s.watch)
	r.limit(a, clock, left)
	returned := false
	defer func() {
		if !returned {
			r.metrics.Attempt(meter.Error)
			r.metrics.HiddenSends(a.Sends() - 1)
			r.metrics.Request(meter.Failed, true)
			a.Abandon()
			body.CloseRequest(req)
		}
	}()
	// It doesn't matter whether the base is net/http's: a request with a body
	// that net/http can't send twice takes exchange.
	resp, err := a.Use(s.base, false, &a.Req)
	returned = true
	if err == nil && resp != nil && r.plainly(resp.StatusCode) && t.hosts.Calm(&host) && !r.pool.Owes() && a.InTime() {
		a.GiveBack(resp, &a.Req, req)
		resp, _ = a.End(resp, nil)
		r.metrics.Answered(resp.StatusCode)
		r.metrics.HiddenSends(a.Sends() - 1)
		t.payFleet(r, req.URL)
		return resp, nil
	}
	return t.resume(s, r, req, kind, a, resp, err, began)
}

// exchange handles a whole exchange.
func (t *Transport) exchange(s *settings, r *Rules, req *http.Request, kind replay.Kind, o *override) (*http.Response, error) {
	x := exchange{t: t, s: s, r: r, req: req}
	x.init(kind, o)
	if r.policy.Deadline > 0 {
		x.limit(x.now())
	}
	return x.run()
}

// resume makes the rest of an exchange whose first attempt ended with resp or
// err. If a is nil, the attempt used the caller's own request. It began at the
// instant began, which is 0 if its duration doesn't matter.
func (t *Transport) resume(s *settings, r *Rules, req *http.Request, kind replay.Kind, a *attempt.Attempt, resp *http.Response, err error, began time.Duration) (*http.Response, error) {
	x := exchange{t: t, s: s, r: r, req: req}
	x.init(kind, nil)
	if r.policy.Deadline > 0 {
		x.limit(began)
	}
	x.first(a, resp, err, began)
	return x.run()
}
