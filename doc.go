// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package retrip is a drop-in [net/http.RoundTripper] that retries what is
// safe to retry, waits as long as the server asks, stops when the caller's
// deadline or the host's health says stop, and explains every decision it took.
//
//	client := &http.Client{Transport: &retrip.Transport{}}
//
// # Defaults
//
// A request gets up to four attempts. Before retry n the [Transport] waits for
// a time drawn uniformly from zero to 100 ms·2^(n-1), at most 10 s ("full
// jitter"), or at least as long as a Retry-After asks, if that is at most 30 s.
// After a 429 that names no wait it is 1 s instead of 100 ms.
// No wait is begun that can't end, with room for an attempt, before the
// context's deadline.
//
// # What is retried
//
// 5xx and 429 answers and errors are, every other answer is returned at once,
// and so are errors that can't heal: a bad URL or header, a certificate that
// isn't trusted, a name that doesn't exist, the caller's cancellation.
//
// Transport repeats only a request that is idempotent: GET, HEAD, OPTIONS,
// TRACE, PUT, DELETE (RFC 9110 §9.2.2), QUERY (RFC 10008), one with an
// Idempotency-Key or X-Idempotency-Key header, or what [Policy] declares. It
// repeats any other only on proof that it was not processed: the connection
// could not be made, HTTP/2 left the request unprocessed, or the policy vouches
// for it by Unprocessed or Classify. net/http repeats some requests by itself;
// Policy.MaxSends bounds that.
//
// A body is sent again byte for byte or not at all: from GetBody, which
// http.NewRequest sets for buffers, from an *os.File or io.SectionReader by
// offset, or from a copy of at most 64 KiB that is kept while it streams.
//
// When Transport stops with a response in hand, the caller gets that response.
// The error after several attempts is an *[Error] that joins the errors of all.
//
// docs/promises.md has the exact wording of what is promised, with its limits
// and the tests that hold it.
//
// # Safety of the fleet
//
// Backoff spreads retries over time, but it doesn't make them fewer: clients
// that retry everything keep an overloaded server overloaded, however they
// wait. So retries to a host spend from a [Budget]: five tokens, half a
// one for each retry and a whole one after a timeout, back if that retry
// succeeds, and a fifth back for a success without retry; and none is made after
// four that failed in a row. In an outage a host soon gets no retries at all,
// while independent failures of up to a third of all attempts are still retried
// nearly always.
// A caller whose own loop calls again at once isn't held back by that;
// Policy.Gate does it.
//
// How long that takes a fleet depends on the requests per second of each client,
// the length of the overload and the load. After short overloads, and with
// clients that seldom send, it takes longer than without retries:
// docs/retry-storms.md has the figures, and package sim computes them.
//
// Policy.Breaker stops all attempts to a host that is down, and a Retry-After
// on a 503 holds back every retry of this Transport to that host, for MaxWait at
// most. [Transport.HostState] tells why nothing is retried to a host.
//
// # Observing
//
// [Metrics] counts for Prometheus, Transport.Logger writes a record for every
// retry and give-up, [Trace] hooks see every stage of one request or of all.
// Every retry and every give-up has exactly one [Reason], the same word
// everywhere.
//
// # Testing
//
// There is no clock to inject: time in a testing/synctest bubble is virtual,
// so a test with waits of hours ends at once, with exact waits. What a policy
// would do is asked of [Host] with no network at all. And package sim tells
// what a fleet that follows a policy does to a server in trouble.
package retrip
