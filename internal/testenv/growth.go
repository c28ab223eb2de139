// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"math"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// Growth fails t unless each doubling of the input of f costs less than three times as
// much: what others send must not keep a goroutine busy. input makes an input of n parts.
// Growth compares inputs of n/2 and 4n parts, because over three doublings a busy machine
// weighs less. n must be so large that comparing each part with each would take far longer
// than the slack.
func Growth[T any](t testing.TB, n int, input func(n int) T, f func(T)) {
	t.Helper()
	if Race || testing.CoverMode() != "" {
		t.Skip("the race detector and the counters of coverage change what things cost")
	}
	const bound, slack = 3 * 3 * 3, 5 * time.Millisecond
	small, large := input(n/2), input(4*n)
	a, b := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	for i := range 20 {
		cost := quickCost[T]
		if i >= 5 {
			cost = exactCost[T]
		}
		a, b = min(a, cost(f, small)), min(b, cost(f, large))
		if b < bound*a+slack {
			return
		}
		if i >= 5 && b > time.Second {
			break
		}
	}
	t.Errorf("%v for an input of %d parts, %v for one of %d parts", a, n/2, b, 4*n)
}

func quickCost[T any](f func(T), input T) time.Duration {
	began := time.Now()
	f(input)
	return time.Since(began)
}

// clock returns how long the calling thread has run.
var clock = threadTime

// exactCost doesn't count other threads, nor the collection of garbage.
func exactCost[T any](f func(T), input T) time.Duration {
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := clock()
	for n := time.Duration(1); ; n++ {
		f(input)
		if took := clock() - began; took > 20*time.Millisecond {
			return took / n
		}
	}
}

// LongValues returns the values that a header field made of n times part may have: on
// one line, also in quotes or after or before something else, and on n lines.
func LongValues(n int, part string) [][]string {
	long, lines := strings.Repeat(part, n), make([]string, n)
	for i := range lines {
		lines[i] = part
	}
	return [][]string{{long}, {`"` + long + `"`}, {"1." + long}, {long + "x"}, lines}
}
