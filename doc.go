// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package retrip is a drop-in [net/http.RoundTripper] that retries failed
// requests when a retry is safe, and says why it gave up.
//
//	client := &http.Client{Transport: &retrip.Transport{}}
//
// The zero Policy is safe but has no time limit: set AttemptTimeout, and
// Deadline unless every context has a deadline.
//
// # What is retried
//
// The Transport retries 5xx and 429 responses and transient errors, up to four
// attempts in all, and returns everything else at once. It repeats a request
// only if the request is idempotent, by its method (RFC 9110 §9.2.2, RFC 10008),
// an Idempotency-Key header or the [Policy], or if the server provably did not
// process it. A body is replayed byte for byte, or the request is not repeated.
//
// # Waits
//
// Before retry n, the Transport waits for a random time of up to
// 100 ms·2^(n-1), or 1 s·2^(n-1) after a 429, at most 10 s. It never retries
// earlier than a Retry-After asks; first attempts wait only with a [Gate]. If
// the Retry-After is longer than 30 s, or the context's deadline leaves no time
// for the wait and another attempt, the Transport gives up at once.
//
// # Results
//
// When the Transport gives up on a response, the caller gets that response,
// with its body unread. If several attempts end in an error, the caller gets an
// [*Error] that wraps every failure. [Metrics], Transport.Logger and [Trace]
// give each retry and give-up exactly one [Reason].
//
// # Fleets
//
// The budget of a host stops retries that keep failing, so that a fleet hardly
// prolongs an overload. A [Breaker] is for hosts that are down, a [Gate] for rate
// limits, and a [Fleet] for many processes. The command retripsim tells what a
// fleet with a given policy does to a server. In a testing/synctest bubble, waits
// are exact and take no time. docs/promises.md states each promise with its limits.
package retrip
