// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package retrip is a drop-in [net/http.RoundTripper] that retries failed
// requests when a retry is safe. It honours Retry-After and deadlines, limits
// retries to each host so that a fleet doesn't prolong an outage, and says why
// it gave up.
//
//	client := &http.Client{Transport: &retrip.Transport{}}
//
// # Defaults
//
// A request gets up to four attempts. The Transport retries 5xx and 429
// responses and transient errors, and returns everything else at once. Before
// retry n, it waits for a random time between zero and 100 ms·2^(n-1), or
// 1 s·2^(n-1) after a 429 that names no wait, capped at 10 s. If the server
// sends a Retry-After of at most 30 s, the wait is at least that long; a longer
// Retry-After ends the retries. No wait starts that leaves no time for another
// attempt before the context's deadline.
//
// The Transport repeats a request only if the request is idempotent: by its
// method (GET, HEAD, OPTIONS, TRACE, PUT, DELETE by RFC 9110 §9.2.2, QUERY by
// RFC 10008), by an Idempotency-Key or X-Idempotency-Key header, or by Policy.
// Any other request needs proof that the server did not process the request:
// the connection could not be made, HTTP/2 reported the request as unprocessed,
// or the policy says so. A body is replayed byte for byte, from GetBody, a file
// or a copy of up to 64 KiB of a stream, or the request is not repeated.
// net/http repeats some requests by itself; Policy.MaxSends bounds how often.
//
// If the Transport gives up on a response, the caller gets that response. If
// several attempts end in an error, the caller gets an [*Error] that wraps
// every failure. docs/promises.md, in the repository, states each promise
// exactly.
//
// # Safety of the fleet
//
// Backoff delays retries, but doesn't make them fewer; the [Budget] of a host
// does. A 503 with Retry-After holds back all retries of the Transport to that
// host, for at most MaxWait. [Breaker], [Gate] and [Fleet] do more. After a
// short overload, or when each client sends few requests, a fleet recovers more
// slowly with retries than without: docs/retry-storms.md has the figures.
//
// # Observing and testing
//
// [Metrics], Transport.Logger and [Trace] report every retry and every give-up
// with exactly one [Reason]; [Transport.HostState] shows why a host gets no
// retries. In a testing/synctest bubble, time is virtual and waits are exact.
// Package sim simulates what a fleet with a given policy does to a server.
package retrip
