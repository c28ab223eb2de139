// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func Heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// RareGC is the TestMain of a package whose tests produce much garbage on a small
// heap, which would be collected again and again.
func RareGC(m *testing.M) {
	debug.SetGCPercent(400)
	m.Run()
}
