// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"
)

// RateLimit models a server that limits the rate of requests, and one or more
// processes that run at that limit. Each process has its own workers, or
// requests that arrive independently. The result says how much of the limit the
// processes use, how many refusals that costs, and how long a request waits.
type RateLimit struct {
	// Policy is the policy of the processes; each process has its own host.
	// RateLimit doesn't support the rules of other systems, and AttemptTimeout
	// has no effect.
	Policy Policy

	// Limit describes the server's limit.
	Limit ServerLimit

	// Tenants gives each key its own limit: a token bucket that refills at that
	// many requests per second and holds as many, at least 1. Workers cycle
	// through the keys. If nil, there is one key, limited by Limit.
	Tenants []float64

	// Obeys makes each process keep to every Retry-After for all of its requests,
	// and otherwise send: a client to compare with, for a policy without a gate.
	Obeys bool

	// GatePerTenant gives each key its own gate, as Policy.Gate.Key does.
	GatePerTenant bool

	// Processes is how many processes share the limit, 1 to 1000. They start
	// one after another within Stagger.
	Processes int
	Stagger   time.Duration

	// Workers is how many workers each process has, 0 to 100 000. Each worker
	// makes one request after another.
	Workers int

	// Rate is how many requests per second arrive at each process in addition
	// to those of the workers. They don't wait for a free worker. Burst is how
	// many such requests arrive at once, at the time BurstAt.
	Rate    float64
	Burst   int
	BurstAt time.Duration

	// Deadline is the deadline of each request. If 0, there is none.
	Deadline time.Duration

	// DelayLow and DelayHigh bound the one-way network delay, which is
	// uniformly distributed between them.
	DelayLow, DelayHigh time.Duration

	// Service is how long the server works on a request that it accepts, which
	// also counts towards a Concurrency limit. With Exponential, Service is the
	// mean of an exponential distribution.
	Service     time.Duration
	Exponential bool

	// Failures is the share of accepted requests that the server answers with
	// 500. They count against the limit all the same.
	Failures float64

	// WarmUp is the time at which counting starts. Horizon is the simulated
	// time at which the run ends, at most 24 h.
	WarmUp, Horizon time.Duration

	// Seed chooses the random numbers.
	Seed uint64
}

// RateLimitResult is the outcome of a [RateLimit]. "After the warm-up" means:
// among the answers that clients received from RateLimit.WarmUp on.
type RateLimitResult struct {
	Policy  string
	Seed    uint64
	Partial bool // the run was interrupted
	Until   time.Duration
	Events  int64

	Accepted, Refused int64 // attempts, after the warm-up
	Failed            int64 // requests that ended without success, in the whole run
	GaveUp            []ReasonCount

	Used     float64 // accepted requests as a share of what the limit allows, after the warm-up
	Refusals float64 // refusals per accepted request, after the warm-up

	// Worst is the longest time from arrival to success, among requests that
	// succeeded after the warm-up. Fair is what Worst would be if the workers
	// took turns at the whole limit; it is 0 without workers.
	Worst, Fair time.Duration

	Waited   time.Duration // the sum of all times from arrival to success
	Last     time.Duration // the time of the last success
	Share    float64       // of the process that got the largest share, after the warm-up
	Least    float64       // of the process that got the smallest
	Tenants  []int64       // accepted by key, after the warm-up
	Attempts int           // the largest number for one request
	Early    int64         // attempts made while the process, or its key, had been told to wait
}

// Validate reports the first parameter that is out of bounds, as a
// *[ParameterError], or an invalid policy. Run validates too.
func (m RateLimit) Validate() error {
	var c checker
	l := m.Limit
	c.want(l.Kind >= TokenBucket && l.Kind <= Unlimited, "Limit.Kind", int(l.Kind), "one of the constants")
	if m.Tenants == nil && l.Kind == TokenBucket {
		c.number("Limit.Rate", l.Rate, 0.001, maxRate)
	}
	if m.Tenants == nil && l.Kind != Outage && l.Kind != Unlimited {
		c.count("Limit.Count", l.Count, 1, maxRate)
	}
	if l.Kind == FixedWindow || l.Kind == SlidingWindow {
		c.duration("Limit.Window", l.Window, time.Millisecond, maxHorizon)
	}
	c.number("Limit.Random", l.Random, 0, 1)
	c.count("Limit.Every", l.Every, 0, maxRate)
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
	_, _, err := m.Policy.rules()
	return err
}
