// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math/bits"
	"slices"
	"time"

	"github.com/retrip/retrip"
)

// Never is the duration reported for an event that doesn't happen before the
// horizon.
const Never time.Duration = -1

// Result is the outcome of a [Scenario]. Rates are per second.
type Result struct {
	Policy  string
	Clients int
	Load    float64 // arrivals as a share of the backend's capacity; 0 if the capacity is unlimited
	Seed    uint64
	Partial bool          // the run was interrupted
	Until   time.Duration // simulated time; the horizon, unless Partial

	Requests      int64 // that ended
	Succeeded     int64 // requests that ended in success
	Attempts      int64 // attempts sent to the backend
	Retries       int64 // attempts that are retries
	Hedges        int64 // attempts that are hedges
	HedgesWon     int64 // hedges that their requests were answered by
	GaveUp        []ReasonCount
	DeadRequests  int64   // that couldn't succeed: of [Fleet.Dead] clients, and to a broken route
	Amplification float64 // attempts per request

	DeadAttempts int64 `json:",omitempty"` // attempts to a broken route
	Lost         int64 `json:",omitempty"` // requests with an attempt that [Trigger.Loses] ended
	Saved        int64 `json:",omitempty"` // those of them that succeeded

	StoreOperations int64   // for which [Scenario.Store] was asked
	StorePeak       float64 // the most of them in one second

	// Recovery is the time from the end of the trigger until the backend has
	// recovered, or [Never]. It has recovered in the first second in which 95 %
	// of the arriving requests eventually get an answer, if the same holds on
	// average for the five seconds that begin with it. Seconds count from the
	// end of the trigger, whatever Bin is.
	Recovery time.Duration

	// Peak is the highest rate of attempts in one Bin, and PeakServed the
	// highest rate of answers other than 503. PeakSecond is the highest number
	// of attempts in one second, and Steady the rate of attempts in the last
	// sixth of the horizon; neither depends on Bin.
	Peak, PeakServed, PeakSecond, Steady float64

	// TriggerRequests is how many requests arrived during the trigger, Goodput
	// the rate of those that were eventually answered, and TriggerAttempts how
	// many attempts were made during the trigger.
	TriggerRequests, TriggerAttempts int64
	Goodput                          float64

	P50, P99 time.Duration // from a request's arrival to its success, accurate to a hundredth
	times    *latencies

	Bin    time.Duration
	Series []Point

	// Waits is a histogram of the waits before retries: element i counts waits
	// from i·WaitBin on. The last element also counts all longer waits.
	Waits   []int64
	WaitBin time.Duration
}

// SuccessRate returns the share of requests that succeeded.
func (r *Result) SuccessRate() float64 {
	return float64(r.Succeeded) / float64(max(1, r.Requests))
}

// AliveRate returns the share of requests that succeeded, of those that could: see
// DeadRequests.
func (r *Result) AliveRate() float64 {
	return float64(r.Succeeded) / float64(max(1, r.Requests-r.DeadRequests))
}

// Percentile returns the time that a share of the successful requests took at most, from
// 0 to 1. It is as accurate as P99.
func (r *Result) Percentile(share float64) time.Duration { return r.times.percentile(share) }

// Point holds the counts of one interval of [Result.Series].
type Point struct {
	Requests int32 // that arrived
	Good     int32 // requests of this interval that were eventually answered
	Attempts int32 // made
	Retries  int32 // attempts that are retries
	Hedges   int32 // attempts that are hedges
	Served   int32 // answers of the backend other than 503
}

// ReasonCount is how many requests ended without success for one reason. An
// empty reason is an answer that the policy doesn't retry; "limited" is a
// refusal by another system's rule.
type ReasonCount struct {
	Reason retrip.Reason
	Count  int64
}

const (
	waitBin  = 10 * time.Millisecond
	waitBins = 1001

	reasonLimited retrip.Reason = "limited"
)

func (r *Result) wait(d time.Duration) {
	i := min(int(d/waitBin), waitBins-1)
	for len(r.Waits) <= i {
		r.Waits = append(r.Waits, 0)
	}
	r.Waits[i]++
}

func (r *Result) gaveUp(reason retrip.Reason) {
	i := slices.IndexFunc(r.GaveUp, func(c ReasonCount) bool { return c.Reason == reason })
	if i < 0 {
		i = len(r.GaveUp)
		r.GaveUp = append(r.GaveUp, ReasonCount{Reason: reason})
	}
	r.GaveUp[i].Count++
}

// latencies counts durations in bins a 64th of a power of two wide.
type latencies [64 * latencyParts]int64

const latencyParts = 64

func (l *latencies) add(d time.Duration) {
	n := uint64(max(d, latencyParts))
	e := bits.Len64(n) - bits.Len64(latencyParts)
	l[e*latencyParts+int(n>>e)-latencyParts]++
}

// percentile returns the middle of the bin that contains the given percentile
// of l.
func (l *latencies) percentile(share float64) time.Duration {
	var total, seen int64
	for _, n := range l {
		total += n
	}
	if total == 0 {
		return 0
	}
	rank := int64(share * float64(total))
	for i, n := range l {
		if seen += n; n > 0 && seen > rank {
			e := i / latencyParts
			return time.Duration(uint64(i%latencyParts+latencyParts)<<e + 1<<e/2)
		}
	}
	return 0
}

// finish computes the derived figures from the counts.
func (r *Result) finish(s *Scenario, l *latencies, seconds *seconds) {
	slices.SortFunc(r.GaveUp, func(a, b ReasonCount) int { return int(b.Count - a.Count) })
	if r.Requests > 0 {
		r.Amplification = float64(r.Attempts) / float64(r.Requests)
	}
	r.P50, r.P99, r.times = l.percentile(0.5), l.percentile(0.99), l
	perSecond := float64(time.Second) / float64(r.Bin)
	complete := int(r.Until / r.Bin)
	r.Series = r.Series[:min(len(r.Series), complete)]
	for _, p := range r.Series {
		r.Peak = max(r.Peak, float64(p.Attempts)*perSecond)
		r.PeakServed = max(r.PeakServed, float64(p.Served)*perSecond)
	}
	whole := seconds.whole(r.Until)
	var attempts int64
	tail := len(whole) - max(1, len(whole)/6)
	for i, p := range whole {
		r.PeakSecond = max(r.PeakSecond, float64(p.attempts))
		if i >= tail {
			attempts += int64(p.attempts)
		}
	}
	if len(whole) > 0 {
		r.Steady = float64(attempts) / float64(len(whole)-tail)
	}
	if s.Trigger.For > 0 {
		r.Goodput = float64(seconds.troubled) / min(s.Trigger.For, max(1, r.Until-s.Trigger.At)).Seconds()
		r.Recovery = recoveredTo(0.95, whole[min(len(whole), int(seconds.index(int64(s.Trigger.end())))):], 1)
	}
}

// second holds the counts of one second, or of a part of it.
type second struct{ requests, good, attempts int32 }

// seconds holds the counts of a run per second, independent of [Scenario.Bin].
// One of the seconds begins when the trigger ends.
type seconds struct {
	list     []second
	shift    time.Duration // how long before the run the first second begins
	troubled int64         // requests that arrived during the trigger and were answered
}

func newSeconds(s *Scenario) seconds {
	shift := (time.Second - s.Trigger.end()%time.Second) % time.Second
	return seconds{list: make([]second, (s.Horizon+shift)/time.Second+1), shift: shift}
}

func (s *seconds) index(now int64) int64 { return (now + int64(s.shift)) / int64(time.Second) }

func (s *seconds) at(now int64) *second { return &s.list[s.index(now)] }

// whole returns the complete seconds. The start of the run may cut off the
// first one.
func (s *seconds) whole(until time.Duration) []second {
	return s.list[:min(len(s.list), int((until+s.shift)/time.Second))]
}

// recoveredTo returns the time until the first second in which the given share
// of requests is answered, if the same holds for the five seconds that begin
// with it. A second is so many elements of list, and begins with any of them.
func recoveredTo(share float64, list []second, perSecond int) time.Duration {
	for i := 0; i+5*perSecond <= len(list); i++ {
		if shareOf(list[i:i+perSecond]) >= share && shareOf(list[i:i+5*perSecond]) >= share {
			return time.Duration(i) * time.Second / time.Duration(perSecond)
		}
	}
	return Never
}

// shareOf returns the share of requests that were answered, 1 if there were
// none.
func shareOf(list []second) float64 {
	var requests, good int64
	for _, p := range list {
		requests += int64(p.requests)
		good += int64(p.good)
	}
	if requests == 0 {
		return 1
	}
	return float64(good) / float64(requests)
}
