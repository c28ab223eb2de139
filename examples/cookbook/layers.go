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

// OneSpan traces a request with its retries as one span, and what is sent as
// nothing: the server's span of each attempt has this one as its parent.
func OneSpan(base http.RoundTripper, options ...otelhttp.Option) *http.Client {
	return &http.Client{Transport: otelhttp.NewTransport(&retrip.Transport{Base: base}, options...)}
}

// SpanPerAttempt traces what is sent, each attempt as a request by itself.
func SpanPerAttempt(base http.RoundTripper, options ...otelhttp.Option) *http.Client {
	return &http.Client{Transport: &retrip.Transport{Base: otelhttp.NewTransport(base, options...)}}
}

// Both traces attempts, numbered, and around them the whole, with waits and
// reasons. It is what the conventions of OpenTelemetry ask for.
func Both(base http.RoundTripper, config retripotel.Config) *http.Client {
	return &http.Client{Transport: retripotel.New(&retrip.Transport{Base: base}, config)}
}

// Once makes a request without retries, by a client that has them.
func Once(ctx context.Context, client *http.Client, url string) (*http.Response, error) {
	ctx = retrip.WithPolicy(ctx, retrip.Policy{MaxAttempts: 1})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return client.Do(req)
}

// CountRetries tells how many retries a request took, in a test for instance.
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

// Timeout returns a client with http.Client's own Timeout: it bounds all
// attempts, all waits and the reading of the body together. retrip sees it as a
// deadline, and begins no wait that can't end before it.
func Timeout(base http.RoundTripper) *http.Client {
	return &http.Client{
		Timeout:   10 * time.Second,
		Transport: &retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: 3 * time.Second}},
	}
}
