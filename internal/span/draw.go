// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package span

import (
	"math/bits"
	"time"
)

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
