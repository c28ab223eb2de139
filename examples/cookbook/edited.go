// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"
	"regexp"

	"github.com/retrip/retrip"
)

// Edited is a base that edits responses before retrip reads them.
type Edited struct {
	Base http.RoundTripper
	Edit func(*http.Response)
}

// RoundTrip implements http.RoundTripper.
func (e Edited) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := e.Base.RoundTrip(req)
	if err == nil {
		e.Edit(resp)
	}
	return resp, err
}

// WaitInHeader honours the wait that responses with the status name in a header of the service's
// own, in a unit such as "ms": WaitInHeader(429, "X-Rate-Limit-Time-Reset-Ms", "ms") is for
// BigCommerce. Values with a unit, dates and times since 1970 need none.
func WaitInHeader(status int, name, unit string) func(*http.Response) {
	return func(resp *http.Response) {
		if wait := resp.Header.Get(name); resp.StatusCode == status && wait != "" {
			resp.Header.Add("Retry-After", wait+unit) // of several, the longest counts
		}
	}
}

// WaitInBody honours the wait that responses with the status name in the body, where the group
// in pattern finds it: `"retry_after": *([0-9.]+)` is for Telegram, `"retry_after_ms": *([0-9]+)`
// with the unit "ms" for Matrix, `"retryDelay": *"([0-9.]+s)"` without one for Gemini.
func WaitInBody(status int, pattern, unit string) func(*http.Response) {
	in := regexp.MustCompile(pattern)
	return func(resp *http.Response) {
		if resp.StatusCode != status {
			return
		}
		start, _ := retrip.Peek(resp, 4<<10) // the caller still gets all of the body
		if found := in.FindSubmatch(start); found != nil {
			resp.Header.Add("Retry-After", string(found[1])+unit)
		}
	}
}

// IgnoreRetryAfter ignores the waits that a host asks for, for a host whose waits
// are known to be nonsense.
func IgnoreRetryAfter(host string) func(*http.Response) {
	return func(resp *http.Response) {
		if resp.Request.URL.Hostname() == host {
			resp.Header.Del("Retry-After")
		}
	}
}
