// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// GitHub returns a client for a job that has time. After the primary limit, it
// waits up to an hour for the reset. After a secondary limit, which only the body
// tells from a missing permission, it waits a minute at first, then longer and longer.
func GitHub(base http.RoundTripper) *http.Client {
	return &http.Client{Transport: &retrip.Transport{
		Base: base,
		Policy: retrip.Policy{
			Dialects:       []string{"github"},
			MaxAttempts:    5,
			MaxWait:        65 * time.Minute, // the primary limit is per hour
			Backoff:        retrip.Backoff{Base: time.Minute, ThrottleBase: 2 * time.Minute, Cap: 16 * time.Minute, Jitter: retrip.EqualJitter},
			Unprocessed:    []int{429},                                      // a refused POST or PATCH did nothing
			Classify:       CodeInBody(403, "rate limit", retrip.Throttled), // either limit, also of a POST
			AttemptTimeout: time.Minute,
			Deadline:       3 * time.Hour,
		},
	}}
}
