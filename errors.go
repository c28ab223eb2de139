// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/redact"
	"github.com/retrip/retrip/internal/tell"
)

// Reason is the one cause of a retry or a give-up, for which metrics, logs, hooks and
// [Error] all have the same word.
type Reason string

const (
	// Reasons for a retry.
	ReasonServerError Reason = "server_error" // a 5xx response
	ReasonThrottled   Reason = "throttled"    // a refusal for the rate of requests: a 429, or what says the same
	ReasonStatus      Reason = "status"       // another 4xx that the policy marks as retryable
	ReasonPending     Reason = "pending"      // such a response below 400, which is no failure
	ReasonTimeout     Reason = "timeout"      // the attempt timed out
	ReasonError       Reason = "error"        // any other error

	// Reasons to give up, although a retry might have helped.
	ReasonMaxAttempts       Reason = "max_attempts"        // the request has used all of Policy.MaxAttempts
	ReasonNotIdempotent     Reason = "not_idempotent"      // the server might process the request twice
	ReasonBodyNotReplayable Reason = "body_not_replayable" // the request body can't be replayed
	ReasonRetryForbidden    Reason = "retry_forbidden"     // the server said not to retry
	ReasonWaitTooLong       Reason = "wait_too_long"       // the server asked for a wait longer than Policy.MaxWait
	ReasonHostPaused        Reason = "host_paused"         // the host or, at a gate, the key is paused for longer than MaxWait or the deadline allows
	ReasonDeadline          Reason = "deadline"            // the deadline leaves no time for the wait and another attempt
	ReasonBreakerOpen       Reason = "breaker_open"        // the breaker of the host is open
	ReasonBudgetExhausted   Reason = "budget_exhausted"    // the retry budget of the host has too few tokens
	ReasonRetriesFailing    Reason = "retries_failing"     // too many retries to the host have failed in a row; see Budget
	ReasonFleetBudget       Reason = "fleet_budget"        // too many retries of all processes together failed
	ReasonHiddenSends       Reason = "hidden_sends"        // net/http itself sent the request more than 10 times in the last attempt; also a reason for a retry
	ReasonCanceled          Reason = "canceled"            // the caller canceled the request
)

// wordOf returns the word for r.
func wordOf(r decide.Reason) Reason { return Reason(r.String()) }

// Error is the error that RoundTrip returns after several attempts, during a wait,
// when a breaker or gate refused the first attempt, or if Base's error hides why the
// caller canceled. After a single attempt, RoundTrip returns Base's error, with the
// limit of the policy that ended it, if any; if the context has ended before that, its
// cause.
type Error struct {
	Attempts int    // number of attempts made; 0 if a breaker or gate refused the first
	Reason   Reason // why no further attempt followed; empty if a retry can't fix the last error

	// StatusCode is that of the last response, which is gone; 0 if there was none.
	StatusCode int

	// RetryAfter is the time until another request may help, after ReasonWaitTooLong,
	// ReasonHostPaused and ReasonBreakerOpen; 0 if that isn't known.
	RetryAfter time.Duration

	// Err wraps the errors of the attempts, and why there was no other, the last one first:
	// of more than 16, the first and the last eight and a count of the others; of a text
	// before the last that is longer than 64 KiB, only a part. It is nil without an error.
	Err error

	last error // the most recent error in Err, for Timeout
}

// mostText is how long the text of an Error may be before a further error: see also
// [redact.Error].
const mostText = 4 << 10

// Error describes what happened on one line of a few KiB at most, without the userinfo
// and the query of a URL.
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
	errs := []error{e.Err}
	if joined, ok := e.Err.(interface{ Unwrap() []error }); ok {
		errs = joined.Unwrap()
	}
	before, seen := ": ", map[string]bool{}
	for _, err := range errs {
		if err == nil {
			continue
		}
		if text := redact.Error(err); !seen[text] {
			if seen[text] = true; b.Len() > mostText {
				b.WriteString(before + "…")
				break
			}
			b.WriteString(before + text)
			before = "; before that: "
		}
	}
	return b.String()
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether the last failure was a timeout: of the attempt, of
// Policy.Deadline or of the context. A wait that doesn't fit is no timeout.
func (e *Error) Timeout() bool {
	if e.last == nil && e.StatusCode == 0 {
		return fault.Timeout(e.Err)
	}
	return fault.Timeout(e.last)
}

// innerError reads the error of another Transport, which may be, or be below, the
// Base.
func innerError(err error) (fault.Inner, bool) {
	e, ok := err.(*Error)
	if !ok {
		return fault.Inner{}, false
	}
	return fault.Inner{Attempts: e.Attempts, StatusCode: e.StatusCode, Hopeless: e.Reason == ""}, true
}

// Error implements [tell.Owner].
func (owner) Error(e *tell.Error) error {
	made := &Error{Attempts: e.Attempts, Reason: wordOf(e.Reason), StatusCode: e.StatusCode, RetryAfter: e.RetryAfter, last: e.Last}
	if n := len(e.Errs); n > 0 {
		joined := make([]error, n)
		for i, err := range e.Errs {
			joined[n-1-i] = err
		}
		made.Err = errors.Join(joined...)
	}
	return made
}
