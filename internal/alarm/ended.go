// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package alarm

import (
	"context"
	"errors"
	"fmt"
)

// Ended returns the error of what was ended for cause and then failed with err, which wraps
// [context.Canceled]. The caller has canceled nothing, so the result doesn't wrap that, but
// it keeps whatever else err says.
func Ended(cause, err error) error {
	if err.Error() == context.Canceled.Error() {
		return cause
	}
	return &ended{cause, err}
}

// ended is what Ended returns. It wraps its cause alone: who walks through it, and not only
// asks, would find the cancellation.
type ended struct{ cause, err error }

func (e *ended) Error() string        { return fmt.Sprintf("%v: %v", e.cause, e.err) }
func (e *ended) Unwrap() error        { return e.cause }
func (e *ended) Is(target error) bool { return target != context.Canceled && errors.Is(e.err, target) }
func (e *ended) As(target any) bool   { return errors.As(e.err, target) }
func (e *ended) Temporary() bool      { return e.Timeout() }

func (e *ended) Timeout() bool {
	t, ok := e.cause.(interface{ Timeout() bool })
	return ok && t.Timeout()
}

// Hidden returns the error that only Is and As find, for who looks for secrets.
func (e *ended) Hidden() error { return e.err }
