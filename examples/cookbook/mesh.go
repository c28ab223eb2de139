// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"
	"strconv"
	"time"

	"github.com/retrip/retrip"
)

// Mesh returns a client for an internal service that is a millisecond away and
// answers within 50 ms, whose callers have half a second. For a distant service,
// AttemptTimeout must cover two more round trips, for TCP and TLS. Switch off the
// retries of the mesh for this route (in Istio: retries.attempts: 0), or attempts
// multiply.
func Mesh(base http.RoundTripper) *http.Client {
	return &http.Client{Transport: &retrip.Transport{
		Base: TimeLeft{base},
		Policy: retrip.Policy{
			MaxAttempts:    3,
			Deadline:       500 * time.Millisecond,
			AttemptTimeout: 150 * time.Millisecond,
			Backoff:        retrip.Backoff{Base: 10 * time.Millisecond, Cap: 20 * time.Millisecond},
			Breaker:        retrip.Breaker{OpenFor: time.Second},
			RetryHeader:    "Retry-Attempt", // lets the service shed retries first
		},
	}}
}

// TimeLeft tells the server how many milliseconds the caller still has, so that
// the server doesn't work for a caller that has gone. Envoy uses the header as
// the timeout of the request. Below retrip, each attempt sends the time left at
// that moment. The deadline comes from the caller's context. AttemptTimeout and
// Deadline of a Policy don't set it, because they never cut a body.
type TimeLeft struct{ Base http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t TimeLeft) RoundTrip(req *http.Request) (*http.Response, error) {
	if deadline, ok := req.Context().Deadline(); ok {
		req = req.Clone(req.Context())
		left := max(1, time.Until(deadline).Milliseconds())
		req.Header.Set("X-Envoy-Upstream-Rq-Timeout-Ms", strconv.FormatInt(left, 10))
	}
	return t.Base.RoundTrip(req)
}
