// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// Scraper returns a client for many unknown hosts. If a host asks for a pause,
// all workers leave it alone. A host that is down costs next to nothing.
// Neither delays requests to other hosts.
func Scraper(base http.RoundTripper) *http.Client {
	return &http.Client{Transport: &retrip.Transport{
		Base: base,
		Policy: retrip.Policy{
			MaxAttempts:    3,
			AttemptTimeout: 20 * time.Second,
			Deadline:       5 * time.Minute,
			MaxWait:        2 * time.Minute,
			Gate:           retrip.Gate{Enabled: retrip.On},
			Breaker:        retrip.Breaker{MinVolume: 5, OpenFor: time.Minute},
		},
	}}
}
