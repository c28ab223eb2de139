// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"math"
	"net/http"
	"strings"
	"time"
)

// RetryAfter reads the Retry-After of h, as [retrip.ParseRetryAfter] describes.
func RetryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	longest, found := time.Duration(0), false
	for _, value := range h["Retry-After"] {
		if wait, ok := parseRetryAfter(strings.Trim(value, " \t"), h, now); ok {
			longest, found = max(longest, wait), true
		}
	}
	return longest, found
}

func parseRetryAfter(value string, h http.Header, now time.Time) (time.Duration, bool) {
	if value == "" {
		return 0, false
	}
	if value[0] >= '0' && value[0] <= '9' {
		return parseSeconds(value)
	}
	at, ok := parseDate(value)
	if !ok {
		return 0, false
	}
	return max(0, at.Sub(serverNow(h, now))), true
}

// parseSeconds parses *DIGIT.
func parseSeconds(digits string) (time.Duration, bool) {
	const most = int64(math.MaxInt64 / time.Second)
	var seconds int64
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' {
			return 0, false
		}
		// Saturate beyond the longest duration, but keep checking that the
		// rest are digits.
		seconds = min(seconds*10+int64(c-'0'), most+1)
	}
	if seconds > most {
		return math.MaxInt64, true
	}
	return time.Duration(seconds) * time.Second, true
}
