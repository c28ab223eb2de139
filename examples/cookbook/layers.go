// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/retripotel"
)

// OneSpan traces a request with all its retries as one span, the parent of the
// server's span of each attempt.
func OneSpan(base http.RoundTripper, options ...otelhttp.Option) *http.Client {
	return &http.Client{Transport: otelhttp.NewTransport(&retrip.Transport{Base: base}, options...)}
}

// SpanPerAttempt traces each attempt as a request of its own.
func SpanPerAttempt(base http.RoundTripper, options ...otelhttp.Option) *http.Client {
	return &http.Client{Transport: &retrip.Transport{Base: otelhttp.NewTransport(base, options...)}}
}

// Both traces each attempt as a span with its number, inside a span for the
// request, with its waits and reasons, as OpenTelemetry's conventions ask.
func Both(base http.RoundTripper, config retripotel.Config) *http.Client {
	return &http.Client{Transport: retripotel.New(&retrip.Transport{Base: base}, config)}
}
