// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package errno names what operating systems say about connections.
package errno

import "syscall"

// Plan 9 has texts, and the same one for a refusal and a reset.
const (
	Reset       = syscall.ErrorString("connection refused")
	Pipe        = syscall.ErrorString("i/o on hungup channel")
	Refused     = Reset
	Unreachable = syscall.ErrorString("no route")
	Unconnected = Pipe
	Again       = syscall.ErrorString("try again")
)

var (
	Lost     = []error{Reset, Pipe}
	Refusals = []error{Refused}
)
