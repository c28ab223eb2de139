// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"

	"github.com/google/go-github/v75/github"

	"github.com/retrip/retrip"
)

// GitHub returns a client that comes back when GitHub's rate limit is reset,
// which GitHub tells with 403 or 429. go-github has no retries of its own, but
// refuses calls until the reset that it has heard of last: that is turned off,
// since it would fail what a wait can heal.
func GitHub(base http.RoundTripper) *github.Client {
	client := github.NewClient(&http.Client{Transport: &retrip.Transport{
		Base:   base,
		Policy: retrip.Policy{Dialects: []string{"github"}},
	}})
	client.DisableRateLimitCheck = true
	return client
}
