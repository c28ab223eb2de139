// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// Scraper returns a client for many hosts that nobody has promised anything. A
// host that asks to be left alone is left alone by all workers, one that is down
// costs next to nothing, and neither holds up the others.
func Scraper(base http.RoundTripper) *http.Client {
	return &http.Client{Transport: &retrip.Transport{
		Base: base,
		Policy: retrip.Policy{
			MaxAttempts:    3,
			AttemptTimeout: 20 * time.Second,
			MaxWait:        2 * time.Minute,
			Gate:           retrip.On,
			Breaker:        retrip.Breaker{MinVolume: 5, OpenFor: time.Minute},
		},
	}}
}
