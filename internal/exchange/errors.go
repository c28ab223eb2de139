// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import "context"

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
