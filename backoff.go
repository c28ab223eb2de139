// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/retrip/retrip/internal/span"
)

// Backoff is the schedule of waits before retries. The ceiling of the wait
// before retry n, counting from 1, is
//
//	ceiling = min(Cap, Base·2^(n-1))
//
// Jitter chooses a wait at or below the ceiling. The default, full jitter from
// 100 ms to 10 s, draws uniformly from:
//
//	retry    1            2            3            4            8 and later
//	wait     0 – 100 ms   0 – 200 ms   0 – 400 ms   0 – 800 ms   0 – 10 s
//
// After a 429 that doesn't say how long to wait, the schedule starts from a
// longer ceiling; see ThrottleBase.
//
// Full jitter is not a little noise on top of an exponential wait ("1, 2, 4, 8
// plus or minus something"). It draws from the whole window, starting at zero,
// which spreads many clients evenly. The formulas come from Marc Brooker,
// "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
// DecorrelatedJitter applies Cap within the draw, because clamping the result
// would pile up waits at the cap.
type Backoff struct {
	// Base is the ceiling of the first wait. Off retries at once, unless the
	// server asks for a wait or ThrottleBase applies. If 0, it is inherited;
	// the default is 100 ms.
	Base time.Duration `json:"base"`

	// Cap is the highest ceiling. If 0, it is inherited; the default is 10 s.
	Cap time.Duration `json:"cap"`

	// ThrottleBase is the minimum Base for the wait after a 429 that names no
	// wait, either with a Retry-After above 0 or in a dialect. Rate limits
	// count in seconds or minutes: waits starting at 100 ms would use up all
	// attempts before the limit admits a request again. The wait uses min(Cap,
	// max(Base, ThrottleBase)) as its Base, with the same doubling and jitter.
	// A [Policy].Gate uses its own pace instead, and the pause of a host takes
	// precedence over ThrottleBase. Off leaves Base as it is. If 0, it is
	// inherited; the default is 1 s.
	ThrottleBase time.Duration `json:"throttle_base"`

	// Jitter says how a wait is drawn. If 0, it is inherited; the default is
	// FullJitter.
	Jitter Jitter `json:"jitter"`
}

// Jitter is the randomness of a [Backoff]. Each wait is drawn uniformly from
// the window of the constant. The zero Jitter inherits.
type Jitter uint8

const (
	// FullJitter draws from 0 to the ceiling.
	FullJitter Jitter = iota + 1

	// EqualJitter draws from half the ceiling to the ceiling.
	EqualJitter

	// DecorrelatedJitter draws from Base to three times the previous wait, at
	// most Cap. The first previous wait is Base.
	DecorrelatedJitter

	// NoJitter waits for the ceiling. Clients that failed together retry
	// together.
	NoJitter
)

var jitterNames = [...]string{"", "full", "equal", "decorrelated", "none"}

// String returns the name of j in a policy's JSON: "full", "equal",
// "decorrelated" or "none", and "" for the zero Jitter.
func (j Jitter) String() string {
	if int(j) < len(jitterNames) {
		return jitterNames[j]
	}
	return fmt.Sprintf("Jitter(%d)", uint8(j))
}

// ceiling returns min(Cap, Base·2^(retry-1)) of a resolved Backoff. A retry
// below 1, as in a new Call, counts as the first.
func (b Backoff) ceiling(retry int) time.Duration {
	if b.Base <= 0 {
		return 0
	}
	// A shift that would overflow into the sign bit is beyond any cap.
	if shift := max(retry, 1) - 1; shift < bits.LeadingZeros64(uint64(b.Base)) {
		return min(b.Cap, b.Base<<shift)
	}
	return b.Cap
}

// throttled returns the schedule for the wait after a 429 that names no wait,
// of a resolved Backoff.
func (b Backoff) throttled() Backoff {
	b.Base = min(b.Cap, max(b.Base, b.ThrottleBase))
	return b
}

// window returns the interval from which the wait before a retry is drawn, of a
// resolved Backoff. previous is the wait before the previous retry, or 0.
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

// serverWindow returns the interval for a wait if a server asked for at least
// word. The wait is never shorter than word, and is spread out above word,
// because all clients that got the same word would otherwise return at the same
// instant.
func (b Backoff) serverWindow(word time.Duration, retry int, previous time.Duration) (lo, hi time.Duration) {
	lo, _ = b.window(retry, previous)
	lo = max(word, lo)
	hi = span.Add(word, max(b.ceiling(retry), word/2))
	return lo, max(lo, hi)
}
