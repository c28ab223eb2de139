// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"cmp"
	"net/http"
	"strconv"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/shed"
)

// Mesh returns a client for an internal service that answers within 50 ms and
// whose callers have half a second. Switch off the retries of the mesh for this
// route (in Istio: retries.attempts: 0), or attempts multiply.
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

// TimeLeft tells the server, with each attempt, how many milliseconds the
// caller still has. Envoy uses the header as the timeout of the request. The
// deadline is that of the caller's context, not one of the Policy.
type TimeLeft struct{ Base http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t TimeLeft) RoundTrip(req *http.Request) (*http.Response, error) {
	if deadline, ok := req.Context().Deadline(); ok {
		req = req.Clone(req.Context())
		left := max(1, time.Until(deadline).Milliseconds())
		req.Header.Set("X-Envoy-Upstream-Rq-Timeout-Ms", strconv.FormatInt(left, 10))
	}
	return cmp.Or(t.Base, http.DefaultTransport).RoundTrip(req)
}

// BelowMesh wraps the handler of a service that gets its requests through a mesh
// whose retries stay on. Envoy numbers its attempts if the route sets
// include_request_attempt_count. Calls that the service makes with the context
// of a repeated request make one attempt, and under load the handler refuses
// repeated requests first.
func BelowMesh(service http.Handler) http.Handler {
	return &shed.Handler{
		Handler:        service,
		Limit:          64, // requests per second × seconds per request, and a little more
		RetryHeader:    "X-Envoy-Attempt-Count",
		DeadlineHeader: "X-Envoy-Expected-Rq-Timeout-Ms",
	}
}
