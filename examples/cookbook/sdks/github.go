// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sdks

import (
	"net/http"
	"time"

	"github.com/google/go-github/v75/github"

	"github.com/retrip/retrip"
)

// GitHub returns a client that comes back when GitHub's rate limit resets.
// GitHub announces the reset with a 403 or 429. go-github doesn't retry, but it
// refuses calls until the last reset that it has seen. The function turns that
// off, because it would fail calls that only need to wait.
func GitHub(base http.RoundTripper) *github.Client {
	client := github.NewClient(&http.Client{Transport: &retrip.Transport{
		Base:   base,
		Policy: retrip.Policy{Dialects: []string{"github"}, AttemptTimeout: 10 * time.Second, Deadline: 3 * time.Minute},
	}})
	client.DisableRateLimitCheck = true
	return client
}
