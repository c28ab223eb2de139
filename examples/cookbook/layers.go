// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/retripotel"
)

// OneSpan traces a request with all its retries as one span. Attempts have no
// spans of their own: the server's span of each attempt has this span as its
// parent.
func OneSpan(base http.RoundTripper, options ...otelhttp.Option) *http.Client {
	return &http.Client{Transport: otelhttp.NewTransport(&retrip.Transport{Base: base}, options...)}
}

// SpanPerAttempt traces each attempt as a request of its own.
func SpanPerAttempt(base http.RoundTripper, options ...otelhttp.Option) *http.Client {
	return &http.Client{Transport: &retrip.Transport{Base: otelhttp.NewTransport(base, options...)}}
}

// Both traces each attempt as a span with its number, inside a span for the
// request, with its waits and reasons. The conventions of OpenTelemetry ask for
// this.
func Both(base http.RoundTripper, config retripotel.Config) *http.Client {
	return &http.Client{Transport: retripotel.New(&retrip.Transport{Base: base}, config)}
}

// Once makes a request without retries through a client that retries.
func Once(ctx context.Context, client *http.Client, url string) (*http.Response, error) {
	ctx = retrip.WithPolicy(ctx, retrip.Policy{MaxAttempts: 1})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return client.Do(req)
}

// CountRetries returns how many retries a request took, for example in a test.
func CountRetries(ctx context.Context, client *http.Client, url string) (retries int, err error) {
	ctx = retrip.WithTrace(ctx, &retrip.Trace{Retry: func(retrip.Event) { retries++ }})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return retries, err
	}
	return retries, resp.Body.Close()
}

// Timeout returns a client with http.Client's own Timeout, which bounds all
// attempts, all waits and the reading of the body together. retrip treats it as
// a deadline, and starts no wait that leaves no time for another attempt.
func Timeout(base http.RoundTripper) *http.Client {
	return &http.Client{
		Timeout:   10 * time.Second,
		Transport: &retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: 3 * time.Second}},
	}
}
