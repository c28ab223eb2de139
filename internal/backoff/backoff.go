// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package backoff is the schedule of waits before retries.
package backoff

import (
	"math/bits"
	"time"

	"github.com/retrip/retrip/internal/span"
)

// Rule is a schedule as its owner set it; retrip.Backoff describes the fields. No
// field is inherited any more, and none but Base and ThrottleBase may be off, which
// is any value below 1.
type Rule struct {
	Base, Cap, ThrottleBase time.Duration
	Jitter                  Jitter
}

// Jitter is how a wait is drawn.
type Jitter uint8

const (
	Full         Jitter = iota + 1 // from 0 to the ceiling
	Equal                          // from half the ceiling to the ceiling
	Decorrelated                   // from Base to three times the previous wait
	None                           // the ceiling
)

// ceiling returns min(Cap, Base·2^(retry-1)). A retry below 1 counts as the first.
func (r Rule) ceiling(retry int) time.Duration {
	if r.Base <= 0 {
		return 0
	}
	// A shift that would overflow into the sign bit is beyond any cap.
	if shift := max(retry, 1) - 1; shift < bits.LeadingZeros64(uint64(r.Base)) {
		return min(r.Cap, r.Base<<shift)
	}
	return r.Cap
}

// Throttled returns the schedule for the wait after a refusal that names no wait.
func (r Rule) Throttled() Rule {
	r.Base = min(r.Cap, max(r.Base, r.ThrottleBase))
	return r
}

// Window returns the interval from which the wait before a retry is drawn.
// previous is the wait before the previous retry, or 0.
func (r Rule) Window(retry int, previous time.Duration) (lo, hi time.Duration) {
	ceiling := r.ceiling(retry)
	switch r.Jitter {
	case Equal:
		return ceiling / 2, ceiling
	case Decorrelated:
		if r.Base <= 0 {
			return 0, 0
		}
		previous = max(previous, r.Base)
		if previous > r.Cap/3 {
			return r.Base, r.Cap
		}
		return r.Base, 3 * previous
	case None:
		return ceiling, ceiling
	default:
		return 0, ceiling
	}
}

// ServerWindow returns the interval for a wait if a server asked for at least
// word. The wait is never shorter than word, and is spread out above word,
// because all clients that got the same word would otherwise return at the same
// instant.
func (r Rule) ServerWindow(word time.Duration, retry int, previous time.Duration) (lo, hi time.Duration) {
	lo, _ = r.Window(retry, previous)
	lo = max(word, lo)
	hi = span.Add(word, max(r.ceiling(retry), word/2))
	return lo, max(lo, hi)
}
