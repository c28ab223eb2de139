// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// Connect returns an HTTP client for Connect clients. A unary call is a POST
// whose error is an HTTP status: 503 for unavailable, 429 for
// resource_exhausted. The procedures in reads have no side effects, so retrip
// repeats them after any failure. It repeats others only if the server provably
// didn't process them. The deadline of a call's context bounds it, in the server too.
func Connect(base http.RoundTripper, reads ...string) *http.Client {
	repeatable := map[string]bool{}
	for _, procedure := range reads {
		repeatable[procedure] = true
	}
	return &http.Client{Transport: &retrip.Transport{
		Base: base,
		Policy: retrip.Policy{
			AttemptTimeout: 2 * time.Second, Deadline: 10 * time.Second,
			Unprocessed: []int{429}, // if your services refuse a call before they begin
			Idempotent: func(req *http.Request) bool {
				return req.Method == http.MethodGet || repeatable[req.URL.Path]
			},
		},
	}}
}
