// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"
	"strconv"
	"time"

	"github.com/retrip/retrip"
)

// Mesh returns a client of an internal service that answers within 50 ms and
// whose callers have half a second. Switch off the retries of the mesh for this
// route (in Istio: retries.attempts: 0): attempts would multiply.
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
// nobody works for a caller who is gone. Envoy takes the header as the timeout of
// the request. Under retrip each attempt tells what is left for it. The deadline
// is that of the caller's context: AttemptTimeout and Deadline of a Policy are
// none, since they never cut a body.
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
