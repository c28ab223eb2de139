// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"math"
	"strings"
	"testing"
	"time"
)

// Growth fails t unless f costs less than three times as much for an input of
// twice the size: what others send must not keep a goroutine busy. input makes an
// input of n parts. n must be so large that comparing each part with each would
// take far longer than the slack.
func Growth[T any](t testing.TB, n int, input func(n int) T, f func(T)) {
	t.Helper()
	const slack = 5 * time.Millisecond
	once, twice := input(n), input(2*n)
	a, b := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	// A busy machine delays some of the calls, and collects garbage in others.
	for i := range 40 {
		a, b = min(a, cost(f, once)), min(b, cost(f, twice))
		if i >= 2 && b < 3*a+slack {
			return
		}
		if i >= 2 && a+b > time.Second {
			break
		}
	}
	t.Errorf("%v for an input of %d parts, %v for one of twice the size", a, n, b)
}

func cost[T any](f func(T), input T) time.Duration {
	began := time.Now()
	f(input)
	return time.Since(began)
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
