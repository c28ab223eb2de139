// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package sim shows what a retry policy does to a backend before you ship it. A
// simulated fleet of clients runs the decision code of [retrip.Transport]
// ([host.Record]) on virtual time, against a simulated backend.
//
// There are four models:
//
//   - [Scenario] is assembled from parts: a fleet, arrivals, a backend, a
//     network, a trigger and a policy. [Overload] returns the most important
//     one, a brownout that retries may prolong forever. [Storm] is an outage
//     with a crowd of callers waiting for its end. [Faults] has failures that
//     are independent of load.
//   - [Contention] has optimistic writers of one row. It shows the effect of
//     jitter.
//   - [Stadium] has 25 million video players that lose their CDN for 100 ms.
//   - [RateLimit] has a server that limits the rate of requests, and worker
//     pools that run at that limit. It shows the effect of a gate.
//     [RateLimits] returns the cases that measure the gate.
//
// [CheckRecovery] lets a test assert that a backend recovers under a policy.
// [Largest] finds the largest fleet, load, budget or number of attempts under
// which it does.
//
// Runs are deterministic: the same model and seed give the same result, byte
// for byte, on any machine and with any number of processors. One run uses one
// goroutine; functions that need several runs distribute them over the
// processors.
//
// The policies of other systems ([Preset]) exist only in this package, for
// comparison.
package sim
