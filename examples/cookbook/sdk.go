// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// Client is the client of an SDK.
type Client struct {
	http *http.Client
	base string
}

// NewClient returns a client of the service at base. If rt is nil, it uses a
// default transport.
func NewClient(base string, rt http.RoundTripper) *Client {
	return &Client{base: base, http: &http.Client{Transport: &retrip.Transport{
		Base: rt,
		Policy: retrip.Policy{
			MaxAttempts: 3,
			Unprocessed: []int{429}, // this API checks the limit before anything else

			AttemptTimeout: 5 * time.Second,
			Deadline:       20 * time.Second,
		},
	}}}
}
