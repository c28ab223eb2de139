// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package sim simulates what a retry policy does to a backend. A fleet of
// clients runs the decision code of [retrip.Transport] ([decide.Call]) on
// virtual time.
//
// There are two models:
//
//   - [Scenario] is a fleet, arrivals, a backend, a trigger and a policy.
//     [Overload] returns the most important one, a brownout that retries may
//     prolong forever. [Storm] is an outage with a crowd of callers waiting for
//     its end. [Faults] has failures that are independent of load.
//     [RecoveryCheck] says whether a backend recovers under a policy.
//   - [Stadium] has 25 million video players that lose their CDN for 100 ms.
//
// Runs are deterministic: the same model and seed give the same result on any
// machine and with any number of processors. One run uses one goroutine.
//
// The policies of other systems ([Preset]) exist only here, for comparison.
package sim
