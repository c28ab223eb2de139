// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package retripotel reports what a [retrip.Transport] does to OpenTelemetry.
//
//	client := &http.Client{Transport: retripotel.New(&retrip.Transport{}, retripotel.Config{})}
//
// # Spans
//
// Each attempt has a span of kind CLIENT, which otelhttp creates with the
// attributes of OpenTelemetry's semantic conventions for HTTP. The attempt's
// headers carry the context of that span, so a server's span belongs to the
// attempt that it answered. From the second attempt on, the span has the
// attribute http.request.resend_count. Attempts before a redirect count too.
// The span ends when the attempt fails, or when the response body is closed or
// read to its end. A body that nobody closes leaves its span open, as with
// otelhttp alone.
//
// The attempts of one RoundTrip are children of a span of kind INTERNAL, which
// lasts until the response headers arrive. Its name is the method followed by
// "with retries". It has an event "retry" for each retry, written when the wait
// begins, with retrip.reason, retrip.wait_seconds and retrip.wait_source
// ("backoff" or "server"), an event "hedge" when a hedge has ended, with
// retrip.hedge_result ("won", "lost" or "failed") and the delay before the hedge as
// retrip.wait_seconds, and an event "give up" with retrip.reason. The
// reasons are those of [retrip.Reason]. The conventions advise against a span
// of kind CLIENT around the attempts, because it would look like a request that
// was sent.
//
// # Metrics
//
// otelhttp records http.client.request.duration for each attempt, with Go's name
// for the type of an error as error.type. This package adds what no single attempt shows:
//
//   - retrip.request.duration, a histogram in seconds: RoundTrips up to the
//     response headers, with all attempts and waits. Attributes: retrip.policy,
//     http.request.method, http.response.status_code or error.type (the Kind of
//     [retrip.Event], or the reason to give up if there is none), retrip.retried
//     (true if there was more than one attempt) and, if the Transport gave up,
//     retrip.reason.
//   - retrip.retry.delay, a histogram in seconds: the waits before retries, as
//     they were decided. Its count is the number of retries. Attributes:
//     retrip.policy, retrip.reason, retrip.wait_source.
//   - retrip.hidden_sends, a counter: how often net/http resent a request
//     within an attempt, as far as that can be observed. Attribute:
//     retrip.policy.
//   - retrip.hosts.failing, the hosts at which a request failed in the last five
//     minutes, and retrip.hosts.in_trouble, retrip.hosts.paused,
//     retrip.hosts.breaker_open, retrip.budget.tokens_missing and
//     retrip.gate.waiting, the state of hosts in trouble: all at the time of the
//     export. Attribute: retrip.policy.
//
// No attribute of these metrics holds a host, path or error text from a
// request. Programs that use Prometheus should use [retrip.Metrics] instead.
//
// # What it costs
//
// Every request has hooks and two spans, so every request allocates. Base is
// not an *http.Transport, so a retry after a timeout can't use another
// connection; see Base of [retrip.Transport].
package retripotel
