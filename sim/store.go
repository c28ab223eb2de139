// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import "time"

// store is a number that the processes of a fleet share, as a Redis keeps one:
// a round trip away, answering with what a replica has that lags behind, and
// absent at times. It is what rules that use a shared account are simulated
// with.
type store struct {
	delay   time.Duration // of an operation, there and back
	lag     time.Duration // how old the level is that an answer tells
	outages []outageTime  // in order
	size    float64       // the level is 0 to size

	level   float64
	history []levelAt // what was, for as long as lag
}

// outageTime is a time in which a store doesn't answer.
type outageTime struct{ from, to time.Duration }

type levelAt struct {
	at    time.Duration
	level float64
}

func newStore(size float64) *store { return &store{size: size, level: size} }

// add changes the level by some number, and returns the level that the answer
// tells, and when the answer is there. Where the store is down when the
// operation gets there, nothing changes and there is no answer. Operations come
// in the order of their time.
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
