// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"runtime"
	"strings"
	"time"
)

// Usage is the resources held by a process.
type Usage struct {
	Goroutines  int // without toxiproxy's, which leaves some of its own behind
	Descriptors int // open; 0 if the system doesn't report them
}

// Resources returns the resources that this process holds now.
func Resources() Usage {
	return Usage{Goroutines: len(Goroutines()), Descriptors: descriptors()}
}

// Back waits up to d for goroutines and descriptors to return to at most u. It
// reports whether they did, and returns the usage at that time.
func (u Usage) Back(d time.Duration) (Usage, bool) {
	ok := within(d, func() bool {
		return len(Goroutines()) <= u.Goroutines && descriptors() <= u.Descriptors
	})
	return Resources(), ok
}

func descriptors() int {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(open)
}

// Goroutines returns the stacks of all goroutines except toxiproxy's.
func Goroutines() []string {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	var stacks []string
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		if !strings.Contains(stack, "Shopify/toxiproxy") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}
