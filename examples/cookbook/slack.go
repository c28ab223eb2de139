// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// Slack returns a client for Slack's Web API, whose methods are POSTs. Slack
// answers 429 with Retry-After before it does anything. With the gate, other
// messages wait too, instead of being refused one by one.
func Slack(base http.RoundTripper) *http.Client {
	return &http.Client{Transport: &retrip.Transport{
		Base: base,
		Policy: retrip.Policy{
			Unprocessed: []int{429},
			Gate:        retrip.Gate{Enabled: retrip.On},
			MaxWait:     time.Minute,

			AttemptTimeout: 10 * time.Second,
			Deadline:       5 * time.Minute,
		},
	}}
}
