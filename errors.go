// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/redact"
)

// Error is the error that RoundTrip returns after several attempts, during a
// wait, or when a breaker or gate refused the first attempt. If the only attempt
// fails, RoundTrip returns the error that Base returned, with the limit of the
// policy that ended the attempt, if one did. RoundTrip returns an Error instead
// if Base's error hides why the caller canceled. If the context has ended before
// the first attempt, RoundTrip returns the cause of the context.
type Error struct {
	// Attempts is the number of attempts made. It is 0 if the breaker or gate
	// of the host refused the first attempt.
	Attempts int

	// Reason says why there was no further attempt. It is empty if a retry
	// can't fix the last error.
	Reason Reason

	// StatusCode and Header are those of the last response, or zero if there
	// was none. The body of that response is gone: the Transport discarded it
	// before a wait, or the body broke or came too late.
	StatusCode int
	Header     http.Header

	// Err wraps the errors of all attempts, the last error first; errors.Is and
	// errors.As find each of them. It is nil if there was no error.
	Err error

	last error // the most recent error in Err, for Timeout
}

// Error describes on one line what happened. The text contains neither the
// userinfo nor the query of a URL.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("retrip: ")
	switch {
	case e.Attempts == 0:
		b.WriteString("not sent")
	case e.Attempts == 1:
		b.WriteString("gave up after 1 attempt")
	default:
		fmt.Fprintf(&b, "gave up after %d attempts", e.Attempts)
	}
	if e.Reason != "" {
		fmt.Fprintf(&b, " (%s)", e.Reason)
	}
	if e.StatusCode != 0 {
		fmt.Fprintf(&b, ", last status %d", e.StatusCode)
	}
	for i, err := range e.met() {
		if i == 0 {
			b.WriteString(": ")
		} else {
			b.WriteString("; before that: ")
		}
		b.WriteString(redact.Error(err))
	}
	return b.String()
}

// met returns the errors to show, without repetitions.
func (e *Error) met() []error {
	joined, ok := e.Err.(interface{ Unwrap() []error })
	if !ok {
		if e.Err == nil {
			return nil
		}
		return []error{e.Err}
	}
	var show []error
	seen := map[string]bool{}
	for _, err := range joined.Unwrap() {
		if text := redact.Error(err); !seen[text] {
			seen[text] = true
			show = append(show, err)
		}
	}
	return show
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether the last failure was a timeout: of the attempt, of
// Policy.Deadline or of the context. Giving up because a wait doesn't fit the
// deadline is not a timeout.
func (e *Error) Timeout() bool {
	if e.last == nil && e.StatusCode == 0 {
		return fault.Timeout(e.Err)
	}
	return fault.Timeout(e.last)
}

// Temporary reports whether trying again later may help. It returns false only
// if the caller has canceled the request or a retry can't fix the last error.
func (e *Error) Temporary() bool { return e.Reason != "" && e.Reason != ReasonCanceled }

// timeoutError is the error of an attempt that ran out of time.
type timeoutError struct{ text string }

func (e *timeoutError) Error() string        { return e.text }
func (e *timeoutError) Timeout() bool        { return true }
func (e *timeoutError) Temporary() bool      { return true }
func (e *timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

var (
	errAttemptTimeout = &timeoutError{"retrip: no response within Policy.AttemptTimeout"}
	errDeadline       = &timeoutError{"retrip: no response within Policy.Deadline"}
	errBodyIdle       = &timeoutError{"retrip: no progress of the response body within Policy.BodyIdle"}
)

// innerError reads the error of another Transport, which may be, or be below, the
// Base.
func innerError(err error) (fault.Inner, bool) {
	e, ok := err.(*Error)
	if !ok {
		return fault.Inner{}, false
	}
	return fault.Inner{Attempts: e.Attempts, StatusCode: e.StatusCode, Hopeless: e.Reason == ""}, true
}
