// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"fmt"
	"time"
)

// Backoff is the schedule of waits before retries. The ceiling of the wait
// before retry n, counting from 1, is
//
//	ceiling = min(Cap, Base·2^(n-1))
//
// Jitter draws the wait, by default uniformly between 0 and the ceiling:
// 0 – 100 ms before the first retry, 0 – 200 ms before the second, and 0 – 10 s
// before the eighth and later ones. The formulas come from Marc Brooker,
// "Exponential Backoff And Jitter", AWS Architecture Blog, 2015, but
// DecorrelatedJitter applies Cap within the draw. Fields that are 0 inherit, as
// in [Policy].
type Backoff struct {
	// Base is the ceiling of the first wait. Off retries at once, unless the
	// server asks for a wait or ThrottleBase applies. The default is 100 ms.
	Base time.Duration `json:"base"`
	// Cap is the highest ceiling. Cap can't be Off. The default is 10 s.
	Cap time.Duration `json:"cap"`
	// ThrottleBase replaces Base, if Base is shorter, after a 429 that names no
	// wait, either with a Retry-After above 0 or in a dialect; Cap still
	// applies. A [Gate] uses its own pace instead, and the pause of a host
	// takes precedence. The default is 1 s.
	ThrottleBase time.Duration `json:"throttle_base"`
	// Jitter says how a wait is drawn. The default is FullJitter.
	Jitter Jitter `json:"jitter"`
}

// Jitter is the randomness of a [Backoff]: the window from which each wait is
// drawn uniformly. The zero Jitter inherits.
type Jitter uint8

const (
	FullJitter  Jitter = iota + 1 // from 0 to the ceiling
	EqualJitter                   // from half the ceiling to the ceiling

	// DecorrelatedJitter draws from Base to three times the previous wait, at
	// most Cap. The first previous wait is Base.
	DecorrelatedJitter

	NoJitter // always the ceiling: clients that failed together retry together
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
