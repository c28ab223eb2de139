// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"math"
	"time"
)

// noLimit is the instant or the wait of a request that has no bound for it.
const noLimit = time.Duration(math.MaxInt64)

// addCapped returns a+b of an instant or a duration and a duration that isn't
// negative, or the longest duration where the sum would overflow.
func addCapped(a, b time.Duration) time.Duration {
	if sum := a + b; sum >= a {
		return sum
	}
	return math.MaxInt64
}

// mulCapped returns d·n, or the longest duration where that would overflow.
func mulCapped(d time.Duration, n int) time.Duration {
	if d > 0 && time.Duration(n) > math.MaxInt64/d {
		return math.MaxInt64
	}
	return d * time.Duration(n)
}
