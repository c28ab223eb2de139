// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"
)

// RateLimit is a server that limits the rate of requests, and one or more
// processes that live at that limit, each with workers of its own or requests
// that arrive by themselves. The question is how much of the limit they get, at
// the cost of how many refusals, and how long a request waits.
type RateLimit struct {
	// Policy is what the processes follow, each with a host of its own. Rules
	// of other systems are not supported here, and AttemptTimeout has nothing
	// to say.
	Policy Policy

	// Limit is what the server does.
	Limit ServerLimit

	// Tenants gives each key a limit of its own, which is a token bucket of so
	// many requests per second with a burst of as many, at least 1. Workers
	// take turns with the keys. If nil, there is one key and Limit.
	Tenants []float64

	// GatePerTenant gives every key a gate of its own, as Policy.GateKey does.
	GatePerTenant bool

	// Processes is how many share the limit, 1 to 1000, and Stagger the time
	// in which they start.
	Processes int
	Stagger   time.Duration

	// Workers is how many each process has, 0 to 100 000. Each makes one
	// request after another.
	Workers int

	// Rate is how many requests per second arrive at each process besides,
	// whoever may be free, and Burst how many at once at the instant BurstAt.
	Rate    float64
	Burst   int
	BurstAt time.Duration

	// Deadline is that of a request. If 0, there is none.
	Deadline time.Duration

	// DelayLow and DelayHigh bound the time that a request or an answer is on
	// its way, uniformly distributed.
	DelayLow, DelayHigh time.Duration

	// Service is how long the server works on a request that it accepts, for
	// the limit of a Concurrency too. Exponential makes it the mean of an
	// exponential distribution.
	Service     time.Duration
	Exponential bool

	// Failures is the share of accepted requests that are answered 500. They
	// count against the limit all the same.
	Failures float64

	// WarmUp is when counting begins, Horizon where the simulated time ends,
	// at most 24 h.
	WarmUp, Horizon time.Duration

	// Seed chooses the random numbers.
	Seed uint64
}

// RateLimitResult is what became of a [RateLimit]. What is counted "after the
// warm-up" is what the clients learnt of from RateLimit.WarmUp on.
type RateLimitResult struct {
	Policy  string
	Seed    uint64
	Partial bool // the run was interrupted
	Until   time.Duration
	Events  int64

	Accepted, Refused int64 // attempts, after the warm-up
	Failed            int64 // requests that ended without success, in the whole run
	GaveUp            []ReasonCount

	Used     float64 // accepted as a share of what the limit allows, after the warm-up
	Refusals float64 // refused per accepted, after the warm-up

	// Worst is the longest time from the arrival of a request that succeeded
	// after the warm-up to its success, and Fair what it would be if the
	// workers took turns at the whole limit; 0 without workers.
	Worst, Fair time.Duration

	Waited   time.Duration // the sum of such times
	Last     time.Duration // the instant of the last success
	Share    float64       // of the process that got most, after the warm-up
	Tenants  []int64       // accepted by key, after the warm-up
	Attempts int           // the most that one request made
	Early    int64         // attempts made within the time that the process, or its key, was told to wait
}

// Validate reports the first parameter that is out of bounds, as a
// *[ParameterError], or what is wrong with the policy. Run does the same.
func (m RateLimit) Validate() error {
	var c checker
	l := m.Limit
	c.want(l.Kind >= TokenBucket && l.Kind <= Outage, "Limit.Kind", int(l.Kind), "one of the constants")
	if m.Tenants == nil && l.Kind == TokenBucket {
		c.number("Limit.Rate", l.Rate, 0.001, maxRate)
	}
	if m.Tenants == nil && l.Kind != Outage {
		c.count("Limit.Count", l.Count, 1, maxRate)
	}
	if l.Kind == FixedWindow || l.Kind == SlidingWindow {
		c.duration("Limit.Window", l.Window, time.Millisecond, maxHorizon)
	}
	c.duration("Limit.Phase", l.Phase, 0, maxHorizon)
	c.duration("Limit.Until", l.Until, 0, maxHorizon)
	c.duration("Limit.From", l.From, 0, maxHorizon)
	c.duration("Limit.To", l.To, 0, maxHorizon)
	c.number("Limit.Meanwhile", l.Meanwhile, 0, maxRate)
	c.want(l.To <= l.From || l.Meanwhile > 0, "Limit.Meanwhile", l.Meanwhile, "positive")
	c.want(l.Word.Kind >= RoundedWord && l.Word.Kind <= NoWord, "Limit.Word.Kind", int(l.Word.Kind), "one of the constants")
	c.duration("Limit.Word.Length", l.Word.Length, 0, maxHorizon)
	for _, rate := range m.Tenants {
		c.number("Tenants", rate, 0.001, maxRate)
	}
	c.count("Processes", m.Processes, 1, 1000)
	c.duration("Stagger", m.Stagger, 0, maxHorizon)
	c.count("Workers", m.Workers, 0, 100_000)
	c.number("Rate", m.Rate, 0, maxRate)
	c.count("Burst", m.Burst, 0, maxClients)
	c.want(m.Workers > 0 || m.Rate > 0 || m.Burst > 0, "Workers", m.Workers, "positive, or Rate or Burst must be")
	c.duration("BurstAt", m.BurstAt, 0, maxHorizon)
	c.duration("Deadline", m.Deadline, 0, maxHorizon)
	c.duration("DelayLow", m.DelayLow, 0, time.Hour)
	c.duration("DelayHigh", m.DelayHigh, m.DelayLow, time.Hour)
	c.duration("Service", m.Service, 0, time.Hour)
	c.number("Failures", m.Failures, 0, 1)
	c.duration("Horizon", m.Horizon, time.Second, maxHorizon)
	c.duration("WarmUp", m.WarmUp, 0, m.Horizon-1)
	c.want(m.Policy.limit == nil && m.Policy.draw == nil, "Policy", m.Policy.name(), "a retrip.Policy")
	if c.err != nil {
		return c.err
	}
	_, err := m.Policy.Retry.Rules()
	return err
}
