// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"bytes"
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// LLMs returns a client for the APIs of OpenAI and Anthropic. A completion is a
// POST: without Unprocessed, retrip would return its 429 at once.
func LLMs(base http.RoundTripper) *http.Client {
	return &http.Client{Transport: &retrip.Transport{
		Base: base,
		Policy: retrip.Policy{
			MaxWait:        time.Minute,     // limits are per minute
			AttemptTimeout: 2 * time.Minute, // up to the headers; it never cuts a stream
		},
		Hosts: map[string]retrip.Policy{
			"api.openai.com":    {Dialects: []string{"openai"}, Unprocessed: []int{429, 503}, Classify: credit},
			"api.anthropic.com": {Dialects: []string{"anthropic"}, Unprocessed: []int{429, 529}}, // 529: overloaded
		},
	}}
}

// credit finds the 429 of an account without credit, which no wait mends.
func credit(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
	if resp != nil && resp.StatusCode == 429 {
		if start, _ := retrip.Peek(resp, 4096); bytes.Contains(start, []byte("insufficient_quota")) {
			return retrip.Final
		}
	}
	return retrip.ByRule
}
