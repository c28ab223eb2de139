// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"cmp"
	"net/http"
	"regexp"
	"strings"

	"github.com/retrip/retrip"
)

// Edited is a base that edits responses before retrip reads them. A nil Base, here and in
// other recipes, is http.DefaultTransport.
type Edited struct {
	Base http.RoundTripper
	Edit func(*http.Response)
}

// RoundTrip implements http.RoundTripper.
func (e Edited) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := cmp.Or(e.Base, http.DefaultTransport).RoundTrip(req)
	if err == nil {
		e.Edit(resp)
	}
	return resp, err
}

// WaitIn honours the wait that responses with the status name in a header of the service's own,
// or with the header "" in the body, where the group in pattern finds it. Values with a unit,
// dates and times since 1970 need no unit. What makes retrip retry another status than a 429
// is RetryOn, or CodeInBody with Throttled:
//
//	BigCommerce: WaitIn(429, "X-Rate-Limit-Time-Reset-Ms", "(.+)", "ms")
//	Gemini:      WaitIn(429, "", `"retryDelay": *"([0-9.]+s)"`, "")
//	Matrix:      WaitIn(429, "", `"retry_after_ms": *([0-9]+)`, "ms")
//	Meta:        WaitIn(400, "X-Business-Use-Case-Usage", `regain_access": *([0-9]+)`, "m")
//	Telegram:    WaitIn(429, "", `"retry_after": *([0-9]+)`, "")
func WaitIn(status int, header, pattern, unit string) func(*http.Response) {
	in := regexp.MustCompile(pattern)
	return func(resp *http.Response) {
		if resp.StatusCode != status {
			return
		}
		text := []byte(resp.Header.Get(header))
		if header == "" {
			text, _ = retrip.Peek(resp, 64<<10) // the caller still gets all of the body
		}
		if found := in.FindSubmatch(text); found != nil {
			resp.Header.Add("Retry-After", string(found[1])+unit) // of several, the longest counts
		}
	}
}

// IgnoreRetryAfter ignores the waits that a host asks for, for a host whose waits
// are known to be nonsense.
func IgnoreRetryAfter(host string) func(*http.Response) {
	return func(resp *http.Response) {
		if strings.EqualFold(resp.Request.URL.Hostname(), host) {
			resp.Header.Del("Retry-After")
		}
	}
}
