// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// Deploy returns a client of a service that is away for up to 3 s while it
// restarts: it refuses connections, and then answers 503 until it is ready. rate
// is how many requests per second this process sends to it.
func Deploy(base http.RoundTripper, rate float64) *http.Client {
	const away = 3 // seconds
	return &http.Client{Transport: &retrip.Transport{
		Base: base,
		Policy: retrip.Policy{
			// Five waits, at least half of 0.5, 1, 2, 2 and 2 s: 3.75 s in all.
			MaxAttempts:    6,
			Backoff:        retrip.Backoff{Base: 500 * time.Millisecond, Cap: 2 * time.Second, Jitter: retrip.EqualJitter},
			AttemptTimeout: time.Second,
			Deadline:       15 * time.Second,
			// The default budget of 5 stops retries after a few failures. This one
			// covers the requests of the restart.
			Budget: 20 + 2*away*rate,
		},
	}}
}
