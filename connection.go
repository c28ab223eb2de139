// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/spare"
)

// lostLately is how long a lost connection is assumed to have been dead
// before its attempt failed, at most.
const lostLately = time.Second

// doubt is what a request knows about bad connections to its host.
type doubt struct {
	on    bool          // the next attempt avoids the pool of the base
	http2 bool          // the connection of the last attempt spoke HTTP/2
	lost  int32         // attempts whose connection was lost
	since time.Duration // an instant by which that attempt should have been answered
}

// doubts records what the error of the last attempt says about its connection.
// From then on the request may avoid the pool of the base.
func (x *exchange) doubts() {
	base, ok := x.s.base.(*http.Transport)
	if !ok {
		return
	}
	var limit time.Duration
	a := x.attempt
	had := a != nil && a.HadConn()
	switch {
	// An attempt without a connection waited for a dial or for its turn. That
	// says nothing about a connection of the base, but counts against a spare.
	case errors.Is(x.err, errBodyIdle):
		if a != nil && !x.doubt.on && !had {
			return
		}
		limit = x.r.policy.BodyIdle
	case errors.Is(x.err, errAttemptTimeout):
		if a == nil || !x.doubt.on && !had {
			return
		}
		limit = x.r.policy.AttemptTimeout
	case base.ResponseHeaderTimeout > 0 && strings.HasSuffix(x.err.Error(), awaitingHeaders):
		limit = base.ResponseHeaderTimeout
	case fault.Lost(x.err):
		if x.doubt.lost++; x.doubt.lost < 2 || had && a.SpokeHTTP2() {
			return
		}
		limit = lostLately
	default:
		// A dial that failed, for instance.
		return
	}
	switch {
	case x.continues && a == nil:
		// x.doubt.http2 is already set, from the body that broke.
	case a == nil:
		x.doubt.http2 = strings.HasPrefix(x.err.Error(), "http2: ")
	case had:
		x.doubt.http2 = a.SpokeHTTP2()
	}
	// Ignore responses from the first half of the attempt: the connection may
	// have frozen after them. The second half lets requests that time out at
	// different moments share a spare.
	x.doubt.on, x.doubt.since = true, x.s.now()-limit/2
}

// awaitingHeaders ends the texts of net/http's errors for
// ResponseHeaderTimeout.
const awaitingHeaders = "timeout awaiting response headers"

// base returns the RoundTripper for the next attempt.
func (x *exchange) base() http.RoundTripper {
	if !x.doubt.on {
		return x.s.base
	}
	return x.spare()
}

// spare returns the spare of the request's host, or the base if there can't be
// one. It must not be inlined, to keep the stack frames of other attempts
// small.
//
//go:noinline
func (x *exchange) spare() http.RoundTripper {
	key := spare.Key{Key: hostkey.Of(x.req.URL), Scheme: x.req.URL.Scheme, HTTP2: x.doubt.http2}
	if p := x.t.spares.Get(x.s.epoch, x.s.base.(*http.Transport), key, x.doubt.since); p != nil {
		return p
	}
	return x.s.base
}
