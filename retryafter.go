// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/dialect"
)

// ParseRetryAfter returns the wait that the response header h asks for, counted from
// the receipt of the response, and reports whether h has a valid Retry-After:
// delay-seconds or one of the three forms of an HTTP date (RFC 9110 §10.2.3, §5.6.7).
// A date counts from the Date of the response and its Age, or from now if there is no
// Date. A date in the past yields 0, and a value too large for a duration the longest
// duration. Malformed values are ignored, although the Transport understands some.
// Among several values, in lines of their own or joined by commas, the longest wait
// of the first 100 wins.
func ParseRetryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	return dialect.RetryAfter(h, now)
}
