// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"math"
	"net/http"
	"strings"
	"time"
)

// ParseRetryAfter returns how long from the receipt of a response with the
// header h its Retry-After asks to wait, and whether it has a valid one. It
// reads delay-seconds and the three forms of an HTTP date (RFC 9110 §10.2.3,
// §5.6.7). A date is measured against the response's own Date where there is
// one, so that the clocks of server and client need not agree, else against
// now. A date in the past is 0. A value that is signed, fractional or
// otherwise malformed is ignored, one beyond the range of a duration is the
// longest duration. Of several lines the longest wait counts: nobody is asked
// earlier than it said. It is safe for concurrent use.
func ParseRetryAfter(h http.Header, now time.Time) (time.Duration, bool) {
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
	at, err := http.ParseTime(value)
	if err != nil {
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
		// Once past the longest duration it stays there; the rest must still
		// be digits.
		seconds = min(seconds*10+int64(c-'0'), most+1)
	}
	if seconds > most {
		return math.MaxInt64, true
	}
	return time.Duration(seconds) * time.Second, true
}
