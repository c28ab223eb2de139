// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package fault says what an error of an attempt means: whether another attempt can
// fix it, and whether it proves that no server has processed the request.
package fault

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
)

// ErrNothing is the error of a base that returned nothing.
var ErrNothing = errors.New("retrip: Base returned neither a response nor an error")

// Inner is what the error of another Transport says about its attempts.
type Inner struct {
	Attempts, StatusCode int
	Hopeless             bool // it gave up because no retry could help
}

// Reader reads the error of another Transport, if err is one.
type Reader func(err error) (inner Inner, ok bool)

// This file classifies errors by how an attempt ended. hopeless.go decides
// whether a retry can fix an error, proof.go whether an error proves that
// the request was not processed.

// Wraps reports whether err is target, or wraps target alone.
func Wraps(err, target error) bool {
	for err != nil {
		if err == target {
			return true
		}
		err = errors.Unwrap(err)
	}
	return false
}

func Timeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &t) && t.Timeout()
}

// ErrRequestCanceled has the text of net/http's error after Request.Cancel.
var ErrRequestCanceled = errors.New("net/http: request canceled")

// Canceled reports whether err says no more than that the request was canceled.
// net/http's own error for a canceled request has no type.
func Canceled(err error) bool {
	text := err.Error()
	return errors.Is(err, context.Canceled) || text == ErrRequestCanceled.Error() || text == "net/http: request canceled while waiting for connection"
}

// Lost reports whether err comes from an HTTP/1 connection that the peer
// closed. Such errors are common, and net/http drops the connection.
func Lost(err error) bool {
	return ended(err) || err.Error() == "http: server closed idle connection"
}

// ended is Lost, as far as the type of err tells.
func ended(err error) bool {
	for _, end := range []error{io.EOF, syscall.ECONNRESET, syscall.EPIPE, net.ErrClosed} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}
