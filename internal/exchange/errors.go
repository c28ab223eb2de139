// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/retrip/retrip/internal/redact"
)

// timeoutError is the error of an attempt that ran out of time.
type timeoutError struct{ text string }

func (e *timeoutError) Error() string        { return e.text }
func (e *timeoutError) Timeout() bool        { return true }
func (e *timeoutError) Temporary() bool      { return true }
func (e *timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

var (
	errAttemptTimeout = &timeoutError{"retrip: no response within Policy.AttemptTimeout"}
	errDeadline       = &timeoutError{"retrip: no response within Policy.Deadline"}
	errNoProgress     = &timeoutError{"retrip: no response within Policy.Resume"}
	errBodyIdle       = &timeoutError{"retrip: no progress of the response body within Policy.BodyIdleTimeout"}
)

// keptErrors is how many of the first and how many of the last errors a request keeps.
const keptErrors = 8

// mostKept is how long the text may be of an error that a request keeps beyond its attempt. Much
// of it may be what a server has sent.
const mostKept = 64 << 10

// kept returns err, or the beginning of its text if that is too long to be kept.
func kept(err error) error {
	if isLong(err) {
		return errors.New(redact.Error(err))
	}
	return err
}

// isLong reports whether the text of err is longer than mostKept. A method of err that panics
// doesn't matter.
func isLong(err error) (long bool) {
	defer func() { _ = recover() }()
	return len(err.Error()) > mostKept
}

// longError is an error whose text is cut.
type longError struct{ error }

func (e longError) Error() string { return redact.Error(e.error) }
func (e longError) Unwrap() error { return e.error }

// omitted is the number of errors between them. It stands in their place.
type omitted int

func (n *omitted) Error() string { return strconv.Itoa(int(*n)) + " more" }

// addError records an error of an attempt, or of the wait after it.
func (x *journey) addError(err error) {
	if len(x.errs) >= 2*keptErrors {
		n, ok := x.errs[keptErrors].(*omitted)
		if ok {
			x.errs = slices.Delete(x.errs, keptErrors+1, keptErrors+2)
		} else {
			n = new(omitted)
			x.errs[keptErrors] = n
		}
		*n++
	}
	x.errs = append(x.errs, err)
}
