// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package sim shows what a retry policy does to a backend before it is
// shipped. A modelled fleet follows the very code that [retrip.Transport]
// follows ([retrip.Host] decides, on virtual time) against a modelled backend.
//
// There are four models, from which the questions of practice are composed:
//
//   - [Scenario], of parts: a fleet, arrivals, a backend, a network, a trigger
//     and a policy. [Overload] makes the one that matters, a brown-out that
//     retries may prolong for ever; [Storm] an outage with a crowd waiting for
//     its end; [Faults] failures that have nothing to do with load.
//   - [Contention], optimistic writers of one row: what jitter is good for.
//   - [Stadium], 25 million players who lose their CDN for 100 ms.
//   - [RateLimit], a server that limits the rate of requests, and the pools
//     that live at that limit: what a gate is good for. [RateLimits] are the
//     cases by which it is measured.
//
// [CheckRecovery] makes a test of the question whether a policy lets a backend
// recover, [Largest] answers up to which fleet, load, budget or number of
// attempts it does.
//
// A run is deterministic: the same model and seed give the same result, byte
// for byte, on any machine and with any number of processors. One run uses one
// goroutine; functions that need several runs share them out among the
// processors.
//
// The policies of other systems ([Preset]) live here only, for comparison.
package sim
