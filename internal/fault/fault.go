// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package fault says what an error of an attempt means: what kind it is (kind.go),
// whether another attempt can fix it (hopeless.go), and whether it proves that no server
// has processed the request (proof.go).
package fault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"strings"

	"github.com/retrip/retrip/internal/errno"
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

// is reports whether err is, or wraps, one of targets.
func is(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// isA reports whether err is, or wraps, an error of type E.
func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// anyOf reports whether fits reports true of err or of an error that err wraps.
func anyOf(err error, fits func(error) bool) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if fits(err) {
			return true
		}
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			return slices.ContainsFunc(joined.Unwrap(), func(err error) bool { return anyOf(err, fits) })
		}
	}
	return false
}

// Timeout reports whether err is a timeout. A unix socket whose backlog is full refuses the
// connection at once, with an error that package syscall calls a timeout.
func Timeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &t) && t.Timeout() && !is(err, errno.Again)
}

// ErrRequestCanceled has the text of net/http's error after Request.Cancel.
var ErrRequestCanceled = errors.New("net/http: request canceled")

// Canceled reports whether err says no more than that the request was canceled.
// net/http's own error for a canceled request has no type.
func Canceled(err error) bool {
	switch err.Error() {
	case context.Canceled.Error(), ErrRequestCanceled.Error(), "net/http: request canceled while waiting for connection":
		return true
	}
	return false
}

// Lost reports whether err comes from a connection that was closed, mostly by the peer. Such
// errors are common, and net/http drops the connection.
func Lost(err error) bool {
	return ended(err) || err.Error() == "http: server closed idle connection"
}

// ended is Lost, as far as the type of err tells.
func ended(err error) bool {
	return is(err, io.EOF, net.ErrClosed) || is(err, errno.Lost...)
}

// AwaitedHeaders reports whether err is that of http.Transport.ResponseHeaderTimeout.
func AwaitedHeaders(err error) bool {
	return strings.HasSuffix(err.Error(), "timeout awaiting response headers")
}

// OverHTTP2 reports whether the text of err says that it comes from net/http's HTTP/2.
func OverHTTP2(err error) bool { return strings.HasPrefix(err.Error(), "http2: ") }

// NilPointer replaces an error that is, or wraps, a nil pointer, because most
// methods of such a pointer would panic.
type NilPointer struct{ Err, pointer error }

func (e NilPointer) Error() string { return fmt.Sprintf("a nil %T", e.pointer) }

// Usable returns err, or a NilPointer in place of err.
func Usable(err error) error {
	if pointer := nilPointerIn(err); pointer != nil {
		return NilPointer{err, pointer}
	}
	return err
}

// nilPointerIn returns an error in the tree of err that is a nil pointer, or nil
// if there is none.
func nilPointerIn(err error) error {
	for err != nil {
		if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.IsNil() {
			return err
		}
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			for _, err := range joined.Unwrap() {
				if pointer := nilPointerIn(err); pointer != nil {
					return pointer
				}
			}
			return nil
		}
		err = errors.Unwrap(err)
	}
	return nil
}
