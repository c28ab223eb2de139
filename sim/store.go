// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import "time"

// store is a number shared by the processes of a fleet, like a counter in
// Redis: it is a round trip away, it answers from a replica that lags behind,
// and it is sometimes unavailable. It serves to simulate rules that use a
// shared account.
type store struct {
	delay   time.Duration // round-trip time of an operation
	lag     time.Duration // age of the level that an answer reports
	outages []outageTime  // in order
	size    float64       // the maximum level; the minimum is 0

	level   float64
	history []levelAt // past levels, kept for lag
}

// outageTime is a period in which a store doesn't answer.
type outageTime struct{ from, to time.Duration }

type levelAt struct {
	at    time.Duration
	level float64
}

func newStore(size float64) *store { return &store{size: size, level: size} }

// add changes the level by a number, and returns the level in the answer and
// the time when the answer arrives. If the store is down when the operation
// reaches it, the level stays the same and there is no answer. Callers must
// issue operations in order of time.
func (s *store) add(now time.Duration, by float64) (level float64, answered time.Duration, ok bool) {
	reached := now + s.delay/2
	for _, o := range s.outages {
		if reached >= o.from && reached < o.to {
			return 0, 0, false
		}
	}
	if s.lag == 0 {
		s.level = min(s.size, max(0, s.level+by))
		return s.level, now + s.delay, true
	}
	if len(s.history) == 0 {
		s.history = append(s.history, levelAt{-1 << 62, s.level})
	}
	s.level = min(s.size, max(0, s.level+by))
	s.history = append(s.history, levelAt{reached, s.level})
	for len(s.history) > 1 && s.history[1].at <= reached-s.lag {
		s.history = s.history[1:]
	}
	return s.history[0].level, now + s.delay, true
}
