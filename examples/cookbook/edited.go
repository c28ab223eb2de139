// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"

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

// WaitInBody honours the wait that a service names in the body of a 429, such as
// {"retry_after": 1.5}.
func WaitInBody(resp *http.Response) {
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "" {
		return
	}
	start, _ := retrip.Peek(resp, 4<<10) // the caller still gets all of the body
	var says struct {
		RetryAfter float64 `json:"retry_after"`
	}
	if json.Unmarshal(start, &says) == nil && says.RetryAfter > 0 {
		resp.Header.Set("Retry-After", strconv.FormatFloat(math.Ceil(says.RetryAfter), 'f', 0, 64))
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
