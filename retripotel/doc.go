// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package retripotel reports what a [retrip.Transport] does to OpenTelemetry.
//
//	client := &http.Client{Transport: retripotel.New(&retrip.Transport{}, retripotel.Config{})}
//
// # Spans
//
// Each attempt has a span of kind CLIENT, made by otelhttp with the attributes
// of OpenTelemetry's semantic conventions for HTTP. Its context goes to the
// server, so a server's span belongs to the attempt that it answered. From the
// second attempt on the span has http.request.resend_count; attempts before a
// redirect count too.
//
// The attempts of one RoundTrip are children of a span of kind INTERNAL, which
// lasts until the response headers are there. Its name is that of the method
// and "with retries". It has an event "retry" for each retry, written when the
// wait begins, with retrip.reason, retrip.wait_seconds and retrip.wait_source
// ("backoff" or "server"), and an event "give up" with retrip.reason.
// The reasons are those of [retrip.Reason]. Unlike a span of kind CLIENT around
// the attempts, which the conventions advise against, it isn't mistaken for a
// request that was sent.
//
// # Metrics
//
// otelhttp records http.client.request.duration for each attempt. This package
// adds what no attempt can tell:
//
//   - retrip.request.duration, a histogram in seconds: RoundTrips up to the
//     response headers, with attempts and waits. Attributes: retrip.policy,
//     http.request.method, http.response.status_code or error.type,
//     retrip.retried (true if there was more than one attempt) and, where
//     Transport gave up, retrip.reason.
//   - retrip.retry.delay, a histogram in seconds: the waits before retries, as
//     they were decided on. Its count is that of the retries. Attributes:
//     retrip.policy, retrip.reason, retrip.wait_source.
//   - retrip.hidden_sends, a counter: times that net/http sent a request again
//     within an attempt, where that can be seen. Attribute: retrip.policy.
//   - retrip.hosts.in_trouble, retrip.hosts.paused, retrip.hosts.breaker_open,
//     retrip.budget.tokens_missing and retrip.gate.waiting: the state of hosts at
//     the time of the export. Attribute: retrip.policy.
//
// No attribute of these holds a host, path or error text that a request brought
// along. Programs that have Prometheus use [retrip.Metrics] instead.
//
// # What it costs
//
// Every request has hooks and two spans, so none is free of allocations as it
// would be without. And since Base is no longer an *http.Transport, a retry
// after a timeout can't take another connection; see
// [retrip.Policy.AttemptTimeout].
package retripotel
