// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package retrip is a drop-in [net/http.RoundTripper] that retries failed
// requests when a retry is safe. It honours Retry-After, stays within the
// caller's deadline, limits retries to each host so that a fleet doesn't
// prolong an outage, and reports why it retried or gave up.
//
//	client := &http.Client{Transport: &retrip.Transport{}}
//
// # Defaults
//
// A request gets up to four attempts. Before retry n, the Transport waits for a
// random time between zero and 100 ms·2^(n-1), capped at 10 s ("full jitter").
// If the server sends a Retry-After of at most 30 s, the wait is at least that
// long; a longer Retry-After ends the retries. After a 429 that doesn't say how
// long to wait, the schedule starts at 1 s instead of 100 ms. The Transport
// never starts a wait that leaves no time for another attempt before the
// context's deadline.
//
// # What is retried
//
// The Transport retries 5xx and 429 responses and errors. It returns every
// other response at once. It also returns errors that a retry can't fix: a
// malformed URL or header, an untrusted certificate, a host name that doesn't
// exist, or the caller's cancellation.
//
// The Transport repeats a request only if the request is idempotent: its method
// is GET, HEAD, OPTIONS, TRACE, PUT, DELETE (RFC 9110 §9.2.2) or QUERY (RFC
// 10008), it has an Idempotency-Key or X-Idempotency-Key header, or Policy
// declares it idempotent. Any other request is repeated only on proof that the
// server did not process it: the connection could not be made, HTTP/2 reported
// the request as unprocessed, or the policy says so through Unprocessed or
// Classify. net/http repeats some requests by itself; Policy.MaxSends bounds
// how often.
//
// The Transport replays a request body byte for byte or not at all. It takes
// the body from GetBody, which http.NewRequest sets for in-memory bodies,
// rereads an *os.File or io.SectionReader from its original offset, or keeps a
// copy of up to 64 KiB while the body streams.
//
// When the Transport gives up on a retryable response, the caller gets that
// response. When several attempts end in an error, the caller gets an *[Error]
// that wraps every failure.
//
// docs/promises.md in the repository states each promise exactly, with its
// limits and its tests.
//
// # Safety of the fleet
//
// Backoff spreads retries over time, but doesn't reduce their number: clients
// that retry everything keep an overloaded server overloaded, however long they
// wait. So a [Budget] limits the retries to each host. It holds five tokens. A
// retry takes half a token, or three quarters after a timeout, and gets it back
// if the retry succeeds. A success without a retry adds a fifth of a token.
// After four failed retries in a row, there are no retries until a request
// succeeds. In an outage, retries to the host therefore stop quickly. If up to
// a third of all attempts fail independently of each other, the Transport still
// retries nearly all of them. The budget doesn't restrain a caller that calls
// again at once in a loop of its own; Policy.Gate does.
//
// How long a fleet takes to recover depends on the request rate of each client,
// the length of the overload and the load. After a short overload, or when each
// client sends few requests, a fleet recovers more slowly with retries than
// without: docs/retry-storms.md has the figures, and package sim computes them.
//
// Policy.Breaker stops all attempts to a host that is down. A 503 with
// Retry-After holds back all retries of the Transport to that host, for at most
// MaxWait. [Transport.HostState] shows why a host gets no retries.
//
// # Observing
//
// [Metrics] exports Prometheus metrics, Transport.Logger gets a record of every
// retry and every give-up, and [Trace] hooks follow the stages of one request
// or of all requests. Every retry and every give-up has exactly one [Reason],
// spelled the same in metrics, logs, hooks and errors.
//
// # Testing
//
// There is no clock to inject. Time is virtual in a [testing/synctest] bubble,
// so a test whose waits add up to hours finishes at once, and can check the
// waits exactly. [Host] answers what a policy would do, without a network.
// Package sim simulates what a fleet of clients with a given policy does to a
// server in trouble.
package retrip
