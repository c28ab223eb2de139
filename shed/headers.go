// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// attemptOf returns the attempt number in the values of a header, or 1 if they
// don't mark a retry. Of several values the largest counts: a sender that marks
// a request as a retry has a reason to.
func attemptOf(values []string) int {
	attempt := 1
	for _, value := range values {
		// Clients may send any number; it is capped because the number is
		// passed on and incremented.
		if n, err := strconv.ParseUint(strings.Trim(value, " \t"), 10, 64); err == nil || n == math.MaxUint64 {
			attempt = max(attempt, int(min(n, maxAttempt)))
		}
	}
	return attempt
}

const maxAttempt = 1_000_000

// deadlineOf returns the time left according to the values of a header, or the
// longest duration if they hold none. Of several values the shortest counts.
func deadlineOf(values []string) time.Duration {
	left := time.Duration(math.MaxInt64)
	for _, value := range values {
		ms, err := strconv.ParseFloat(strings.Trim(value, " \t"), 64)
		switch {
		case err != nil || math.IsNaN(ms) || ms > math.MaxInt64/float64(time.Millisecond)/2:
		case ms <= 0:
			left = 0
		default:
			left = min(left, time.Duration(ms*float64(time.Millisecond)))
		}
	}
	return left
}

// mayLast reports whether the response to r may be a stream. Whether it is one
// depends on the handler.
func mayLast(r *http.Request) bool {
	if r.Method == http.MethodConnect || r.Header["Upgrade"] != nil {
		return true
	}
	return slices.ContainsFunc(r.Header["Accept"], func(value string) bool { return strings.Contains(value, eventStream) })
}

const eventStream = "text/event-stream"
