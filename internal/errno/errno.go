// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !plan9

// Package errno names what operating systems say about connections, for all systems that
// Go builds for.
package errno

import "syscall"

// The errors of package syscall.
const (
	Reset       = syscall.ECONNRESET
	Pipe        = syscall.EPIPE
	Refused     = syscall.ECONNREFUSED
	Unreachable = syscall.ENETUNREACH
	Unconnected = syscall.ENOTCONN
	Again       = syscall.EAGAIN
)

// Windows returns numbers of its own, which differ from package syscall's constants
// there. No other system uses these numbers.
const (
	wsaAborted = syscall.Errno(10053)
	wsaReset   = syscall.Errno(10054)
	wsaRefused = syscall.Errno(10061)
)

var (
	// Lost are the errors of a connection that the peer, or the system, has closed.
	Lost = []error{Reset, Pipe, syscall.ECONNABORTED, wsaAborted, wsaReset}
	// Refusals are the errors of a connection that the peer's system has refused.
	Refusals = []error{Refused, wsaRefused}
)
