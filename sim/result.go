// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math/bits"
	"slices"
	"time"

	"github.com/retrip/retrip"
)

// Never is the time of what doesn't happen up to the horizon.
const Never time.Duration = -1

// Result is what became of a [Scenario]. Rates are per second.
type Result struct {
	Policy  string
	Clients int
	Load    float64 // share of the backend's capacity that arrives; 0 if that has no limit
	Seed    uint64
	Partial bool          // the run was interrupted
	Until   time.Duration // simulated so far; the horizon, unless Partial
	Events  int64         // that the simulator worked off

	Requests  int64 // that ended
	Succeeded int64 // of those
	Attempts  int64 // that reached for the backend
	Retries   int64 // of those, without first attempts of inner layers
	GaveUp    []ReasonCount

	// Amplification is attempts per request.
	Amplification float64

	// Recovery is the time from the end of the trigger until 95 % of the
	// requests that arrive are answered in the end, in that second and on
	// average of the five that begin with it, or [Never]. Seconds are counted
	// from the end of the trigger, whatever Bin is.
	Recovery time.Duration

	// Peak is the highest rate of attempts in one Bin, PeakServed that of
	// answers other than 503. PeakSecond is the highest number of attempts in
	// one second, and Steady their rate in the last sixth of the horizon,
	// both whatever Bin is.
	Peak, PeakServed, PeakSecond, Steady float64

	// TriggerRequests is how many requests arrived during the trigger, and
	// Goodput the rate of those that were answered in the end.
	// TriggerAttempts is how many attempts were made during it.
	TriggerRequests, TriggerAttempts int64
	Goodput                          float64

	// Layers is what the clients and each of the services sent, in this order.
	// It is nil if there are no services.
	Layers []LayerResult

	// P50 and P99 are percentiles of the time from a request's arrival to its
	// success, exact to a sixteenth.
	P50, P99 time.Duration

	Bin    time.Duration
	Series []Point

	// Waits counts the waits before retries by length: element i those from
	// i·WaitBin on, the last all longer ones too.
	Waits   []int64
	WaitBin time.Duration
}

// SuccessRate returns the share of requests that succeeded.
func (r *Result) SuccessRate() float64 {
	if r.Requests == 0 {
		return 0
	}
	return float64(r.Succeeded) / float64(r.Requests)
}

// Point is what happened in one interval of [Result.Series].
type Point struct {
	Requests int32 // that arrived
	Good     int32 // of those, answered in the end
	Attempts int32 // made
	Retries  int32 // of those
	Served   int32 // answers of the backend other than 503
}

// LayerResult is what the clients, or one of [Fleet.Services], sent to the next.
type LayerResult struct {
	Requests   int64   // that it was asked, and ended
	Attempts   int64   // that it made
	PeakSecond float64 // the most attempts in one second
}

// ReasonCount is how many requests ended without success for one reason. An
// empty one is an answer that the policy doesn't retry; "limited" is the rule
// of another system.
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

func (r *Result) gaveUp(reason retrip.Reason) { r.GaveUp = countReason(r.GaveUp, reason) }

// countReason counts one more for a reason.
func countReason(counts []ReasonCount, reason retrip.Reason) []ReasonCount {
	for i := range counts {
		if counts[i].Reason == reason {
			counts[i].Count++
			return counts
		}
	}
	return append(counts, ReasonCount{reason, 1})
}

// latencies counts durations in bins an eighth of a power of two wide.
type latencies [64 * 8]int64

func (l *latencies) add(d time.Duration) { l[latencyBin(d)]++ }

func latencyBin(d time.Duration) int {
	n := uint64(max(d, 8))
	e := bits.Len64(n) - 4
	return e*8 + int(n>>e) - 8
}

// percentile returns the middle of the bin in which the given share of l ends.
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
			e := i / 8
			return time.Duration(uint64(i%8+8)<<e + 1<<e/2)
		}
	}
	return 0
}

// finish computes what follows from the counts.
func (r *Result) finish(s *Scenario, l *latencies, seconds *seconds) {
	slices.SortFunc(r.GaveUp, func(a, b ReasonCount) int { return int(b.Count - a.Count) })
	if r.Requests > 0 {
		r.Amplification = float64(r.Attempts) / float64(r.Requests)
	}
	r.P50, r.P99 = l.percentile(0.5), l.percentile(0.99)
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
		r.Recovery = seconds.recovery(s.Trigger.end(), whole)
	}
}

// second is what happened in a second.
type second struct{ requests, good, attempts int32 }

// seconds are the seconds of a run, one of which begins when the trigger ends:
// what is said of them doesn't depend on [Scenario.Bin].
type seconds struct {
	list     []second
	shift    time.Duration // of the first, which begins so long before the run
	troubled int64         // requests that arrived during the trigger and were answered
}

func newSeconds(s *Scenario) seconds {
	shift := (time.Second - s.Trigger.end()%time.Second) % time.Second
	return seconds{list: make([]second, (s.Horizon+shift)/time.Second+1), shift: shift}
}

func (s *seconds) index(now int64) int64 { return (now + int64(s.shift)) / int64(time.Second) }

func (s *seconds) at(now int64) *second { return &s.list[s.index(now)] }

// whole returns the seconds of which nothing is missing. The first may be cut
// off by the beginning.
func (s *seconds) whole(until time.Duration) []second {
	return s.list[:min(len(s.list), int((until+s.shift)/time.Second))]
}

// recovery returns the time from end to the first second that is good, and is
// followed by good ones.
func (s *seconds) recovery(end time.Duration, whole []second) time.Duration {
	return recoveredTo(0.95, whole[min(len(whole), int(s.index(int64(end)))):])
}

// recoveredTo returns how long it takes until a second comes in which a share
// of the requests are answered, and in the five that begin with it.
func recoveredTo(share float64, list []second) time.Duration {
	for i := 0; i+5 <= len(list); i++ {
		if shareOf(list[i:i+1]) >= share && shareOf(list[i:i+5]) >= share {
			return time.Duration(i) * time.Second
		}
	}
	return Never
}

// shareOf returns the share of requests that are answered, 1 if there are none.
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
