// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import "time"

// Trouble is a trigger whose strength doesn't depend on the load.
type Trouble struct {
	Kind TroubleKind
	For  time.Duration
}

// TroubleKind is the kind of a [Trouble].
type TroubleKind int

const (
	BrownOut    TroubleKind = iota // the backend works more than three times as slowly
	TotalOutage                    // every attempt fails at once
	Surge                          // one and a half times its capacity arrives
	LateAnswers                    // every answer comes after the attempt's timeout
)

const (
	recoveryAllowed = 5 * time.Second  // later than without retries
	recoveryWarmUp  = 10 * time.Second // until the trigger
	recoveryWatch   = 30 * time.Second // how long to watch without retries
	recoveryTail    = 15 * time.Second // during which a recovered backend must stay so
	recoveryLonger  = 60 * time.Second // how long to watch a backend that doesn't recover in time
	recoveryLongest = time.Hour        // how long to wait for waits that a server asks for
	recoveryShare   = 0.95             // of the goodput without retries before the trigger
	recoveryGroups  = 3                // of seeds: the median of their times counts, and all must recover eventually
	recoveryGroup   = 7                // seeds in one group, at most
	recoveryPrice   = 20               // seconds after a trigger whose requests count for its price
	recoveryGrace   = 5 * time.Second  // beyond the median, within which all must recover
	recoveryRate    = 700              // requests per second that suffice
	recoveryWorkers = 10               // workers that suffice
)

// trigger returns t as a Trigger for s.
func (t Trouble) trigger(s Scenario) Trigger {
	trigger := Trigger{For: t.For}
	switch load := s.Load(); t.Kind {
	case BrownOut:
		trigger.Slowdown = max(3.3, 2.31/load)
	case TotalOutage:
		trigger.FailureRate = 1
	case Surge:
		trigger.Surge = max(1.05, 1.5/load)
	case LateAnswers:
		trigger.Delay = 3 * max(time.Millisecond, s.attemptTimeout())
	}
	return trigger
}
