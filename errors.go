// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
)

// Error is what RoundTrip returns when it ends without a response after
// something of its own: after several attempts, in a wait, or before a first
// attempt that a breaker or gate held back. RoundTrip returns the error of a
// single attempt as the base gave it, and the cause of a context that has ended
// before the first attempt as it is.
type Error struct {
	// Attempts is how many attempts were made; 0 if the host's breaker or
	// gate let none through.
	Attempts int

	// Reason is why there was no further attempt. It is empty if the last
	// error can't heal.
	Reason Reason

	// StatusCode and Header are those of the last response, if there was one.
	// It is gone: it was discarded before a wait.
	StatusCode int
	Header     http.Header

	// Err joins the errors met, the last one first; errors.Is and errors.As
	// reach all of them. It is nil if none was met.
	Err error

	last error // of the joined, for the text and Timeout
}

// Error returns what happened, on one line. It has neither userinfo nor a
// query of a URL in it.
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
		b.WriteString(errorText(err))
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
		if text := errorText(err); !seen[text] {
			seen[text] = true
			show = append(show, err)
		}
	}
	return show
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether the last thing met was a timeout: of the attempt, of
// Policy.Deadline or of the context. An end before the deadline, because a
// wait would not have fitted, is not one.
func (e *Error) Timeout() bool {
	if e.last == nil && e.StatusCode == 0 {
		return isTimeout(e.Err)
	}
	return isTimeout(e.last)
}

// Temporary reports whether trying again later may help: always, unless the
// caller is gone or the last error can't heal.
func (e *Error) Temporary() bool { return e.Reason != "" && e.Reason != ReasonCanceled }

// timeoutError is how an attempt ends that ran out of its time.
type timeoutError struct{ text string }

func (e *timeoutError) Error() string        { return e.text }
func (e *timeoutError) Timeout() bool        { return true }
func (e *timeoutError) Temporary() bool      { return true }
func (e *timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

var (
	errAttemptTimeout = &timeoutError{"retrip: no response within Policy.AttemptTimeout"}
	errDeadline       = &timeoutError{"retrip: no response within Policy.Deadline"}
	errBodyIdle       = &timeoutError{"retrip: no progress of the response body within Policy.BodyIdle"}

	errNothing = errors.New("retrip: Base returned neither a response nor an error")
)

// nilPointer stands for an error that is a nil pointer, since most methods of
// one would panic.
type nilPointer struct{ err error }

func (e nilPointer) Error() string { return fmt.Sprintf("a nil %T", e.err) }

// usable returns err, or what stands for it.
func usable(err error) error {
	if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.IsNil() {
		return nilPointer{err}
	}
	return err
}
