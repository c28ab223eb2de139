// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package caller knows whether the caller of a request still wants a response, and waits as long
// as it does.
package caller

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/fault"
)

// Gone returns why the caller no longer wants a response, or nil if it still
// does. If a context has a cause, Gone joins the context's error and its cause;
// net/http returns only one of them.
func Gone(req *http.Request) error {
	// Check Done, as net/http does: a custom context may have an error but no
	// Done channel.
	if err := req.Context().Err(); err != nil && req.Context().Done() != nil {
		if cause := fault.Usable(context.Cause(req.Context())); !errors.Is(cause, err) {
			return errors.Join(err, cause)
		}
		return err
	}
	canceled := LegacyCancel(req)
	if canceled == nil {
		return nil
	}
	select {
	case <-canceled:
		// http.Client closes the channel for its Timeout, when the deadline of
		// the context passes.
		if deadline, ok := req.Context().Deadline(); ok && !time.Now().Before(deadline) {
			return context.DeadlineExceeded
		}
		return context.Canceled
	default:
		return nil
	}
}

// LegacyCancel returns the channel of Request.Cancel, which is deprecated. But
// http.Client closes it for its Timeout, and net/http obeys it.
func LegacyCancel(req *http.Request) <-chan struct{} {
	return req.Cancel //lint:ignore SA1019 see above
}

// Sleep waits for timer or woken; either may be nil. If the caller goes
// meanwhile, Sleep returns why. Its stack frame is part of every request that
// waits.
func Sleep(req *http.Request, timer *time.Timer, woken <-chan struct{}) (gone error) {
	if timer != nil || woken != nil {
		var over <-chan time.Time
		if timer != nil {
			over = timer.C
		}
		select {
		case <-over:
		case <-woken:
		case <-req.Context().Done():
		case <-LegacyCancel(req):
		}
		if timer != nil {
			timer.Stop()
		}
	}
	return Gone(req)
}

// AwaitClient waits until http.Client knows that its Timeout has passed. The
// client signals its Timeout with the deadline of the context and with
// Request.Cancel, and names the Timeout in the error only if it has closed
// Request.Cancel.
func AwaitClient(req *http.Request) {
	canceled := LegacyCancel(req)
	if canceled == nil || req.Context().Err() != context.DeadlineExceeded {
		return
	}
	timer := time.NewTimer(clientGrace)
	defer timer.Stop()
	select {
	case <-canceled:
	case <-timer.C:
		// The deadline was the caller's own.
	}
}

// clientGrace is how far apart the two signals may be.
const clientGrace = 5 * time.Millisecond
