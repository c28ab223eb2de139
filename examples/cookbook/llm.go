// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
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
			Deadline:       15 * time.Minute,
		},
		Hosts: map[string]retrip.Policy{
			"api.openai.com": {
				Dialects: []string{"openai"}, Unprocessed: []int{429, 503},
				Classify: CodeInBody(429, "insufficient_quota", retrip.Final), // without credit, no wait helps
			},
			"api.anthropic.com": {Dialects: []string{"anthropic"}, Unprocessed: []int{429, 529}}, // 529: overloaded
		},
	}}
}
