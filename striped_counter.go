// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"sync/atomic"
	"unsafe"
)

// stripedCounter is a counter that many cores may raise at once without
// passing one cache line around: a counter on one line more than doubled in
// cost on two cores (BenchmarkCounter).
type stripedCounter [counterStripes]struct {
	n atomic.Uint64
	_ [56]byte
}

const (
	counterBits    = 4
	counterStripes = 1 << counterBits
)

func (c *stripedCounter) inc() {
	// A goroutine's stack is at least 2 KiB of its own, so its address picks a
	// stripe that the goroutine stays with: a random one would as often as not
	// be on the other core.
	var here byte
	stack := uint64(uintptr(unsafe.Pointer(&here))) >> 11
	c[stack*0x9e3779b97f4a7c15>>(64-counterBits)].n.Add(1)
}

func (c *stripedCounter) value() uint64 {
	var sum uint64
	for i := range c {
		sum += c[i].n.Load()
	}
	return sum
}
