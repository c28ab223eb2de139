// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package heavy

import (
	"net/http"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"github.com/retrip/retrip"
)

// Anthropic returns a client for the API at url. Status 529 means "overloaded":
// like 429, it says that the API did not begin the request.
func Anthropic(base http.RoundTripper, url, key string) anthropic.Client {
	transport := &retrip.Transport{Base: base, Policy: retrip.Policy{
		Dialects:    []string{"anthropic"},
		Unprocessed: []int{http.StatusTooManyRequests, 529},

		AttemptTimeout: 2 * time.Minute, // the limit of the SDK's own client is lost
		Deadline:       15 * time.Minute,
	}}
	return anthropic.NewClient(
		option.WithBaseURL(url),
		option.WithAPIKey(key),
		option.WithHTTPClient(&http.Client{Transport: transport}),
		option.WithMaxRetries(0), // the default is two
	)
}
