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

// WaitInHeader honours the wait that a refusal names in a header of the service's own, in a
// unit such as "ms": WaitInHeader("X-Rate-Limit-Time-Reset-Ms", "ms") is for BigCommerce.
// Values with a unit, dates and times since 1970 need none.
func WaitInHeader(name, unit string) func(*http.Response) {
	return func(resp *http.Response) { setWait(resp, resp.Header.Get(name), unit) }
}

// WaitInBody honours the wait that a refusal names in its body, where the group in pattern
// finds it: `"retry_after": *([0-9.]+)` is for Telegram and Discord, `"retry_after_ms": *([0-9]+)`
// with the unit "ms" for Matrix, `"retryDelay": *"([0-9.]+s)"` without one for Gemini.
func WaitInBody(pattern, unit string) func(*http.Response) {
	in := regexp.MustCompile(pattern)
	return func(resp *http.Response) {
		if resp.StatusCode < 400 {
			return
		}
		start, _ := retrip.Peek(resp, 4<<10) // the caller still gets all of the body
		if found := in.FindSubmatch(start); found != nil {
			setWait(resp, string(found[1]), unit)
		}
	}
}

// setWait puts the wait of a refusal where retrip reads it.
func setWait(resp *http.Response, wait, unit string) {
	if resp.StatusCode >= 400 && wait != "" && resp.Header.Get("Retry-After") == "" {
		resp.Header.Set("Retry-After", wait+unit)
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
