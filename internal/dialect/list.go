// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"net/http"
	"strings"
	"time"
)

// List is the dialects of a policy, in its order.
type List []Dialect

// Verdict returns what the server says about retrying. Any server may forbid a retry,
// because that is safe; a permission counts only in the dialects that have one.
func (l List) Verdict(status int, h http.Header) Verdict {
	for _, value := range h["X-Should-Retry"] {
		if strings.EqualFold(strings.Trim(value, " \t"), "false") {
			return Stop
		}
	}
	for _, d := range l {
		if d.Verdict == nil {
			continue
		}
		if v := d.Verdict(status, h); v != Silent {
			return v
		}
	}
	return Silent
}

// Wait returns how long the server of a retryable response asks to wait, or 0.
func (l List) Wait(status int, h http.Header, now time.Time) time.Duration {
	for _, d := range l {
		if d.Instead != nil {
			if wait, ok := d.Instead(h, now); ok {
				return wait
			}
		}
	}
	if wait, ok := RetryAfter(h, now); ok {
		return wait
	}
	for _, d := range l {
		if d.Besides != nil {
			if wait, ok := d.Besides(h, now); ok {
				return wait
			}
		}
	}
	for _, d := range l {
		if d.Least > 0 && status == http.StatusTooManyRequests {
			return d.Least
		}
	}
	return 0
}
