// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retripotel

import (
	"context"
	"net/http"
	"time"

	"github.com/hashicorp/go-cleanhttp"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/retrip/retrip"
)

const scope = "github.com/retrip/retrip/retripotel"

// Config says where telemetry goes. The zero Config uses OpenTelemetry's
// globals as they are when [New] is called.
type Config struct {
	// TracerProvider makes the spans. If nil, it is otel.GetTracerProvider().
	TracerProvider trace.TracerProvider

	// MeterProvider makes the metrics. If nil, it is otel.GetMeterProvider().
	MeterProvider metric.MeterProvider

	// Propagator writes the context of an attempt's span into the attempt's
	// headers. If nil, it is otel.GetTextMapPropagator().
	Propagator propagation.TextMapPropagator
}

// Transport is an [http.RoundTripper] that makes requests by a
// [retrip.Transport] and reports what happens. Make one with [New]; the zero
// Transport is not usable. It is safe for concurrent use.
type Transport struct {
	retry   *retrip.Transport
	tracer  trace.Tracer
	metrics *instruments
}

// New returns a Transport that makes requests by t. It replaces t.Base by one
// that makes a span for each attempt, so t must not have been used, and must
// not be given to New twice. t's Trace, Logger and Metrics stay t's own.
//
// If t.Base is nil, attempts are made as by a retrip.Transport without Base. If
// t.Base makes a span for each attempt already, as an otelhttp.Transport does,
// each would have two: leave that to New.
func New(t *retrip.Transport, c Config) *Transport {
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.Propagator == nil {
		c.Propagator = otel.GetTextMapPropagator()
	}
	if t.Base == nil {
		base := cleanhttp.DefaultPooledTransport()
		base.HTTP2 = &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second}
		t.Base = base
	}
	t.Base = &attempts{base: t.Base, traced: otelhttp.NewTransport(resends{t.Base},
		otelhttp.WithTracerProvider(c.TracerProvider),
		otelhttp.WithMeterProvider(c.MeterProvider),
		otelhttp.WithPropagators(c.Propagator))}
	return &Transport{
		retry:   t,
		tracer:  c.TracerProvider.Tracer(scope),
		metrics: newInstruments(c.MeterProvider.Meter(scope), t),
	}
}

// RoundTrip implements [http.RoundTripper]. The Request of the response is a
// copy of req with the context of the span.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	began := time.Now()
	c := &call{metrics: t.metrics, sent: sentBefore(req)}
	ctx, span := t.tracer.Start(req.Context(), spanName(req),
		trace.WithSpanKind(trace.SpanKindInternal), trace.WithAttributes(requestAttributes(req)...))
	defer span.End()
	c.span = span
	ctx = retrip.WithTrace(context.WithValue(ctx, callKey{}, c), c.trace())
	resp, err := t.retry.RoundTrip(req.WithContext(ctx))
	c.end(ctx, req, resp, err, time.Since(began))
	return resp, err
}

// CloseIdleConnections closes those of the [retrip.Transport].
func (t *Transport) CloseIdleConnections() { t.retry.CloseIdleConnections() }

// Unwrap returns the [retrip.Transport], to ask it for HostState, or to set
// policies.
func (t *Transport) Unwrap() http.RoundTripper { return t.retry }

// attempts makes an attempt with a span of its own.
type attempts struct {
	base   http.RoundTripper
	traced *otelhttp.Transport
}

func (a *attempts) RoundTrip(req *http.Request) (*http.Response, error) {
	return a.traced.RoundTrip(req)
}

// CloseIdleConnections is what otelhttp's Transport hasn't.
func (a *attempts) CloseIdleConnections() {
	if c, ok := a.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Unwrap lets retrip.Transport.Validate see a Base that retries itself.
func (a *attempts) Unwrap() http.RoundTripper { return a.base }
