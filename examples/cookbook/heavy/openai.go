// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package heavy

import (
	"bytes"
	"net/http"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/retrip/retrip"
)

// OpenAI returns a client for the API at url. A completion is a POST. A 429
// says that the API did not begin it, and retry-after-ms says how long to wait,
// more exactly than Retry-After. Without credit, no wait helps.
func OpenAI(base http.RoundTripper, url, key string) openai.Client {
	transport := &retrip.Transport{Base: base, Policy: retrip.Policy{
		Dialects:    []string{"openai"},
		Unprocessed: []int{http.StatusTooManyRequests},
		Classify: func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
			if resp != nil && resp.StatusCode == http.StatusTooManyRequests {
				if start, _ := retrip.Peek(resp, 1024); bytes.Contains(start, []byte("insufficient_quota")) {
					return retrip.Final
				}
			}
			return retrip.ByRule
		},
		AttemptTimeout: 2 * time.Minute, // the limit of the SDK's own client is lost
		Deadline:       15 * time.Minute,
	}}
	return openai.NewClient(
		option.WithBaseURL(url),
		option.WithAPIKey(key),
		option.WithHTTPClient(&http.Client{Transport: transport}),
		option.WithMaxRetries(0), // the default is two
	)
}
