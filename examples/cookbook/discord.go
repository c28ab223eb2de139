// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"
	"strings"
	"time"

	"github.com/retrip/retrip"
)

// Discord returns a client for Discord's API, which limits each route, and all routes
// together. A gate for each route holds back its requests; a refusal by the limit of all
// closes every gate, because the dialect tells one from the other.
func Discord(base http.RoundTripper) *http.Client {
	return &http.Client{Transport: &retrip.Transport{
		Base: base,
		Policy: retrip.Policy{
			Dialects:    []string{"discord"},
			Unprocessed: []int{429},
			MaxWait:     time.Minute,
			Gate:        retrip.Gate{Enabled: retrip.On, Key: route},

			AttemptTimeout: 10 * time.Second,
			Deadline:       5 * time.Minute,
		},
	}}
}

// route names the limit of a request: those to /api/v10/channels/1/messages/2 count for the
// channel, and not for the message.
func route(req *http.Request) string {
	parts := strings.Split(req.URL.Path, "/")
	return req.Method + strings.Join(parts[:min(6, len(parts))], "/")
}
