// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import "runtime"

func Heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
