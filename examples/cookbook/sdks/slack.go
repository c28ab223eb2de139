// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sdks

import (
	"net/http"
	"time"

	"github.com/slack-go/slack"

	"github.com/retrip/retrip"
)

// Slack returns a client for the API at url. Slack answers 429 with Retry-After
// before it does anything, so retrip may also repeat a POST of a message, while
// other messages wait. slack-go retries only with OptionRetry; leave it out.
func Slack(base http.RoundTripper, url, token string) *slack.Client {
	transport := &retrip.Transport{
		Base: base,
		Policy: retrip.Policy{
			Unprocessed:    []int{http.StatusTooManyRequests},
			Gate:           retrip.Gate{Enabled: retrip.On},
			AttemptTimeout: 10 * time.Second,
			Deadline:       3 * time.Minute,
		},
	}
	return slack.New(token, slack.OptionAPIURL(url), slack.OptionHTTPClient(&http.Client{Transport: transport}))
}
