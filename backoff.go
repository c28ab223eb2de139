// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"fmt"
	"math/bits"
	"time"
)

// Backoff is the schedule of waits before retries. Its ceiling before retry n
// (1 is the first) is
//
//	ceiling = min(Cap, Base·2^(n-1))
//
// and Jitter says where below it a wait is drawn. The default, full jitter
// from 100 ms to 10 s, draws uniformly from:
//
//	retry    1            2            3            4            8 and later
//	wait     0 – 100 ms   0 – 200 ms   0 – 400 ms   0 – 800 ms   0 – 10 s
//
// A 429 that names no wait begins with a longer window: see ThrottleBase.
//
// Full jitter is not a little noise on top of an exponential wait ("1, 2, 4, 8
// plus or minus something"): it draws from the whole window, starting at zero,
// and that is what spreads a crowd of clients evenly. The formulas are those
// of Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog,
// 2015; the decorrelated one is capped inside the draw, since clamping after
// it piles waits up at the cap.
type Backoff struct {
	// Base is the ceiling of the first wait. If 0, it is inherited; the
	// default is 100 ms. Off retries at once, unless the server asks for a
	// wait or ThrottleBase holds.
	Base time.Duration `json:"base"`

	// Cap is the highest ceiling. If 0, it is inherited; the default is 10 s.
	Cap time.Duration `json:"cap"`

	// ThrottleBase is the least Base of the wait after a 429 that names no
	// wait itself, be it by Retry-After (other than 0) or in a dialect. A rate
	// limit counts in seconds or minutes: waits from 100 ms on would use up
	// all attempts before it lets anyone in again. That wait has Base
	// min(Cap, max(Base, ThrottleBase)); the rest of the schedule, its
	// doubling and its jitter, stays. If 0, it is inherited; the default is
	// 1 s. Off leaves Base as it is. [Policy].Gate has a pace of its own
	// instead, and a host's pause comes before it, too.
	ThrottleBase time.Duration `json:"throttle_base"`

	// Jitter is how a wait is drawn. If 0, it is inherited; the default is
	// FullJitter.
	Jitter Jitter `json:"jitter"`
}

// Jitter is the randomness of a [Backoff]: every wait is drawn uniformly from
// the window that the constant names. The zero Jitter inherits.
type Jitter uint8

const (
	// FullJitter draws from 0 to the ceiling.
	FullJitter Jitter = iota + 1

	// EqualJitter draws from half the ceiling to the ceiling.
	EqualJitter

	// DecorrelatedJitter draws from Base to three times the previous wait
	// (which starts at Base), at most Cap.
	DecorrelatedJitter

	// NoJitter waits the ceiling. Clients that failed together come back
	// together.
	NoJitter
)

var jitterNames = [...]string{"", "full", "equal", "decorrelated", "none"}

// String returns the word that stands for j in a policy's JSON: "full",
// "equal", "decorrelated" or "none", and "" for the zero Jitter.
func (j Jitter) String() string {
	if int(j) < len(jitterNames) {
		return jitterNames[j]
	}
	return fmt.Sprintf("Jitter(%d)", uint8(j))
}

// ceiling returns min(Cap, Base·2^(retry-1)) of a resolved Backoff. A retry
// below 1, which a caller's fresh Call may stand for, counts as the first.
func (b Backoff) ceiling(retry int) time.Duration {
	if b.Base <= 0 {
		return 0
	}
	// A shift that moves a bit into the sign would wrap: it is past any cap.
	if shift := max(retry, 1) - 1; shift < bits.LeadingZeros64(uint64(b.Base)) {
		return min(b.Cap, b.Base<<shift)
	}
	return b.Cap
}

// throttled returns the schedule for the wait after a 429 that names none, of a
// resolved Backoff.
func (b Backoff) throttled() Backoff {
	b.Base = min(b.Cap, max(b.Base, b.ThrottleBase))
	return b
}

// window returns the ends of the interval from which the wait before a retry
// is drawn, of a resolved Backoff. previous is the wait before the retry
// before it, 0 if there was none.
func (b Backoff) window(retry int, previous time.Duration) (lo, hi time.Duration) {
	ceiling := b.ceiling(retry)
	switch b.Jitter {
	case EqualJitter:
		return ceiling / 2, ceiling
	case DecorrelatedJitter:
		if b.Base <= 0 {
			return 0, 0
		}
		previous = max(previous, b.Base)
		if previous > b.Cap/3 {
			return b.Base, b.Cap
		}
		return b.Base, 3 * previous
	case NoJitter:
		return ceiling, ceiling
	default:
		return 0, ceiling
	}
}

// serverWindow returns the interval for a wait of which a server asked for at
// least word: never earlier than it said, and spread out behind it, since
// everyone it told the same would otherwise come back in the same instant.
func (b Backoff) serverWindow(word time.Duration, retry int, previous time.Duration) (lo, hi time.Duration) {
	lo, _ = b.window(retry, previous)
	lo = max(word, lo)
	hi = addCapped(word, max(b.ceiling(retry), word/2))
	return lo, max(lo, hi)
}
