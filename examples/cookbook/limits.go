// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// Limits returns a client for an API that limits each key, and all keys together:
// two Transports, each with a gate. all reports whether a 429 is by the limit of all.
// Only the upper Transport repeats requests, and should have the Metrics.
func Limits(base http.RoundTripper, key func(*http.Request) string, all func(*http.Response) bool) *http.Client {
	shared := &retrip.Transport{Base: base, Policy: retrip.Policy{
		MaxAttempts:    1,
		MaxWait:        time.Minute,
		AttemptTimeout: 10 * time.Second,
		Gate:           retrip.Gate{Enabled: retrip.On},
		Classify: func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
			if resp != nil && resp.StatusCode == http.StatusTooManyRequests && !all(resp) {
				return retrip.Final // the limit of a key, which concerns no other
			}
			return retrip.ByRule
		},
	}}
	return &http.Client{Transport: &retrip.Transport{Base: shared, Policy: retrip.Policy{
		MaxWait:     time.Minute,
		Deadline:    5 * time.Minute,
		Unprocessed: []int{429},
		Gate:        retrip.Gate{Enabled: retrip.On, Key: key},
	}}}
}
