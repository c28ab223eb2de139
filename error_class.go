// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
)

// What an error tells of how an attempt ended, beyond what error_hopeless.go and
// error_proof.go ask of it.

// wraps reports whether err is target, or wraps it and no other error.
func wraps(err, target error) bool {
	for err != nil {
		if err == target {
			return true
		}
		err = errors.Unwrap(err)
	}
	return false
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &t) && t.Timeout()
}

// errRequestCanceled is what net/http says after Request.Cancel.
var errRequestCanceled = errors.New("net/http: request canceled")

// canceled reports whether err says no more than that the request was canceled.
// net/http's own error for it has no type.
func canceled(err error) bool {
	text := err.Error()
	return errors.Is(err, context.Canceled) || text == errRequestCanceled.Error() || text == "net/http: request canceled while waiting for connection"
}

// lost reports whether err is that of an HTTP/1 connection that the peer has
// ended. One is nothing unusual, and net/http drops it.
func lost(err error) bool {
	for _, end := range []error{io.EOF, syscall.ECONNRESET, syscall.EPIPE, net.ErrClosed} {
		if errors.Is(err, end) {
			return true
		}
	}
	return err.Error() == "http: server closed idle connection"
}
