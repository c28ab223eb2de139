// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package span calculates with durations, which end at the longest one instead
// of overflowing, and draws from intervals of them.
package span

import (
	"math"
	"math/bits"
	"time"
)

// Forever is the instant or wait of a request without a bound.
const Forever = time.Duration(math.MaxInt64)

// Add returns a+b, or the longest duration if the sum overflows. b must
// not be negative; a may be an instant.
func Add(a, b time.Duration) time.Duration {
	if sum := a + b; sum >= a {
		return sum
	}
	return math.MaxInt64
}

// Sub returns a-b, or the longest or shortest duration if the difference
// overflows.
func Sub(a, b time.Duration) time.Duration {
	switch d := a - b; {
	case b < 0 && d < a:
		return math.MaxInt64
	case b > 0 && d > a:
		return math.MinInt64
	default:
		return d
	}
}

// Mul returns d·n, or the longest duration if the product overflows.
func Mul(d time.Duration, n int) time.Duration {
	if d > 0 && time.Duration(n) > math.MaxInt64/d {
		return math.MaxInt64
	}
	return d * time.Duration(n)
}

// Draw maps a uniformly distributed draw to [lo, hi], both included.
func Draw(lo, hi time.Duration, draw uint64) time.Duration {
	offset, _ := bits.Mul64(draw, uint64(hi-lo)+1)
	return lo + time.Duration(offset)
}

// Remix derives a second draw from one (the finalizer of SplitMix64), so that
// the breaker's time doesn't follow the backoff's.
func Remix(draw uint64) uint64 {
	draw += 0x9e3779b97f4a7c15
	draw = (draw ^ draw>>30) * 0xbf58476d1ce4e5b9
	draw = (draw ^ draw>>27) * 0x94d049bb133111eb
	return draw ^ draw>>31
}
