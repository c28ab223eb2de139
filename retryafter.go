// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/dialect"
)

// What the word of a server means here (P9 in docs/promises.md):
//
//	forms    of RFC 9110, and what servers write instead: dialect.List.Wait and the forms in form.go
//	minimum  no retry goes out earlier: backoff.Rule.ServerWindow
//	spread   on top come up to half of the wait or the backoff's ceiling, at random: the same
//	cap      beyond Policy.MaxWait the request gives up, with the response: decide.Call.final
//	pause    of a 503, or of a limit of all requests, for all retries to the host:
//	         decide.Rules.pause; each asks again before it goes: decide.Call.obeyPause
//	gate     with Policy.Gate, of every refusal for all requests: gate.Table.Refuse

// ParseRetryAfter returns the wait that the response header h asks for, counted from
// the receipt of the response, and reports whether h has a valid Retry-After:
// delay-seconds or one of the three forms of an HTTP date (RFC 9110 §10.2.3, §5.6.7).
// A date counts from the Date of the response and its Age, or from now if there is no
// Date. A date in the past yields 0, and a value too large for a duration the longest
// duration. Malformed values are ignored, although the Transport understands some. Of
// several, the longest of the first 100 wins.
func ParseRetryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	return dialect.RetryAfter(h, now)
}
