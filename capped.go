// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"math"
	"time"
)

// noLimit is the instant or wait of a request without a bound.
const noLimit = time.Duration(math.MaxInt64)

// addCapped returns a+b, or the longest duration if the sum overflows. b must
// not be negative; a may be an instant.
func addCapped(a, b time.Duration) time.Duration {
	if sum := a + b; sum >= a {
		return sum
	}
	return math.MaxInt64
}

// mulCapped returns d·n, or the longest duration if the product overflows.
func mulCapped(d time.Duration, n int) time.Duration {
	if d > 0 && time.Duration(n) > math.MaxInt64/d {
		return math.MaxInt64
	}
	return d * time.Duration(n)
}
