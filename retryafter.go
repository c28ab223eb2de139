// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"net/http"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/dialect"
)

// ParseRetryAfter returns the wait that the Retry-After of the response header
// h asks for, counted from the receipt of the response, and reports whether h
// has a valid Retry-After: delay-seconds or one of the three forms of an HTTP
// date (RFC 9110 §10.2.3, §5.6.7). ParseRetryAfter measures a date against the
// Date of the response, or against now if there is none. A date in the past
// yields 0, and a value too large for a duration yields the longest duration.
// Malformed values are ignored. Among several lines, the longest wait wins.
func ParseRetryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	return dialect.RetryAfter(h, now)
}

// verdict returns what the server says about retrying, or ByRule if it says
// nothing. Any server may forbid a retry, because that is safe; a permission
// counts only in the dialects that have one.
func (r *rules) verdict(status int, h http.Header) decide.Verdict {
	for _, value := range h["X-Should-Retry"] {
		if strings.EqualFold(strings.Trim(value, " \t"), "false") {
			return decide.Final
		}
	}
	for _, d := range r.dialects {
		if d.Verdict == nil {
			continue
		}
		switch d.Verdict(status, h) {
		case dialect.Retry:
			return decide.Retryable
		case dialect.Stop:
			return decide.Final
		}
	}
	return decide.ByRule
}

// serverWord returns how long the server of a retryable response asks to wait,
// or 0.
func (r *rules) serverWord(status int, h http.Header, now time.Time) time.Duration {
	for _, d := range r.dialects {
		if d.Instead != nil {
			if wait, ok := d.Instead(h, now); ok {
				return wait
			}
		}
	}
	if wait, ok := ParseRetryAfter(h, now); ok {
		return wait
	}
	for _, d := range r.dialects {
		if d.Besides != nil {
			if wait, ok := d.Besides(h, now); ok {
				return wait
			}
		}
	}
	for _, d := range r.dialects {
		if d.Least > 0 && status == http.StatusTooManyRequests {
			return d.Least
		}
	}
	return 0
}
