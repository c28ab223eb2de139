// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"net/http"

	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/replay"
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

	x := exchange{t: t, s: s, r: r, req: req}
	x.init(replay.KindOf(req), o)
	if r.policy.Deadline > 0 {
		x.limit(x.now())
	}
	return x.run()
}

// rules returns r as overridden by o. It must not be inlined: the stack frame
// of every request would then hold a Policy.
//
//go:noinline
func (o *override) rules(r *Rules) (*Rules, error) { return r.override(*o.policy) }
