// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"syscall"
	"time"
	"unsafe"
)

func threadTime() time.Duration {
	const clockThread = 3 // CLOCK_THREAD_CPUTIME_ID
	var t syscall.Timespec
	if _, _, err := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockThread, uintptr(unsafe.Pointer(&t)), 0); err != 0 {
		panic(err)
	}
	return time.Duration(t.Nano())
}
