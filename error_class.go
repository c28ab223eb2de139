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

// This file classifies errors by how an attempt ended. error_hopeless.go decides
// whether a retry can fix an error, error_proof.go whether an error proves that
// the request was not processed.

// wraps reports whether err is target, or wraps target alone.
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

// errRequestCanceled has the text of net/http's error after Request.Cancel.
var errRequestCanceled = errors.New("net/http: request canceled")

// canceled reports whether err says no more than that the request was canceled.
// net/http's own error for a canceled request has no type.
func canceled(err error) bool {
	text := err.Error()
	return errors.Is(err, context.Canceled) || text == errRequestCanceled.Error() || text == "net/http: request canceled while waiting for connection"
}

// lost reports whether err comes from an HTTP/1 connection that the peer
// closed. Such errors are common, and net/http drops the connection.
func lost(err error) bool {
	for _, end := range []error{io.EOF, syscall.ECONNRESET, syscall.EPIPE, net.ErrClosed} {
		if errors.Is(err, end) {
			return true
		}
	}
	return err.Error() == "http: server closed idle connection"
}
