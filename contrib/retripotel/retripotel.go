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
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/retrip/retrip"
)

const scope = "github.com/retrip/retrip/contrib/retripotel"

// Config says where telemetry goes. The zero Config uses OpenTelemetry's
// globals at the time when [New] is called.
type Config struct {
	// TracerProvider creates the spans. If nil, it is otel.GetTracerProvider().
	TracerProvider trace.TracerProvider

	// MeterProvider creates the metrics. If nil, it is otel.GetMeterProvider().
	MeterProvider metric.MeterProvider

	// Propagator writes the context of an attempt's span into the attempt's
	// headers. If nil, it is otel.GetTextMapPropagator().
	Propagator propagation.TextMapPropagator
}

// Transport is an [http.RoundTripper] that sends requests through a
// [retrip.Transport] and reports what happens. Create one with [New]; the zero
// Transport is not usable. A Transport is safe for concurrent use.
type Transport struct {
	retry   *retrip.Transport
	tracer  trace.Tracer
	metrics *instruments
}

// New returns a Transport that sends requests through t. It replaces t.Base
// with one that creates a span for each attempt, and panics if it is too late for
// that, because t has begun a request, or if New has been called for t before.
// Trace, Logger and Metrics of t keep working.
//
// If t.Base is nil, attempts use the default base of retrip.Transport. If
// t.Base already creates a span for each attempt, like otelhttp.Transport, each
// attempt would have two; use a Base without spans.
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
	if _, twice := t.Base.(*attempts); twice {
		panic("retripotel: New was called twice for one retrip.Transport: each attempt would have two spans")
	}
	if !takes(t) {
		panic("retripotel: New was called after the first request of the retrip.Transport: no attempt would have a span")
	}
	if t.Base == nil {
		base := cleanhttp.DefaultPooledTransport()
		base.HTTP2 = &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second}
		t.Base = base
	}
	if base, ok := t.Base.(*http.Transport); !ok || base != nil { // else t refuses its Base
		t.Base = &attempts{base: t.Base, traced: otelhttp.NewTransport(resends{t.Base},
			otelhttp.WithTracerProvider(c.TracerProvider),
			otelhttp.WithMeterProvider(c.MeterProvider),
			otelhttp.WithPropagators(c.Propagator))}
	}
	return &Transport{
		retry:   t,
		tracer:  c.TracerProvider.Tracer(scope),
		metrics: newInstruments(c.MeterProvider.Meter(scope), t),
	}
}

// asked is a Base that only knows whether it is in use.
type asked struct {
	http.RoundTripper
	closed bool
}

func (a *asked) CloseIdleConnections() { a.closed = true }

// takes reports whether t still takes another Base, without a request.
func takes(t *retrip.Transport) bool {
	base, probe := t.Base, &asked{}
	defer func() { t.Base = base }()
	t.Base = probe
	t.CloseIdleConnections()
	return probe.closed
}

// RoundTrip implements [http.RoundTripper]. The Request of the response is a
// copy of req with the context of the span.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	began := time.Now()
	c := &call{metrics: t.metrics}
	c.sent.Store(int64(sentBefore(req)))
	ctx, span := t.tracer.Start(req.Context(), spanName(req),
		trace.WithSpanKind(trace.SpanKindInternal), trace.WithAttributes(requestAttributes(req)...))
	returned := false
	defer func() {
		if !returned {
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}()
	c.span = span
	ctx = retrip.WithTrace(context.WithValue(ctx, callKey{}, c), c.trace())
	resp, err := t.retry.RoundTrip(req.WithContext(ctx))
	returned = true
	c.end(ctx, req, resp, err, time.Since(began))
	return resp, err
}

// CloseIdleConnections closes the idle connections of the [retrip.Transport].
func (t *Transport) CloseIdleConnections() { t.retry.CloseIdleConnections() }

// Unwrap returns the [retrip.Transport], for example to call HostState or
// SetPolicies.
func (t *Transport) Unwrap() http.RoundTripper { return t.retry }

// attempts is the Base that makes each attempt with a span of its own.
type attempts struct {
	base   http.RoundTripper
	traced *otelhttp.Transport
}

func (a *attempts) RoundTrip(req *http.Request) (*http.Response, error) {
	return a.traced.RoundTrip(req)
}

// CloseIdleConnections passes the call on, because otelhttp's Transport
// doesn't.
func (a *attempts) CloseIdleConnections() {
	if c, ok := a.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Unwrap lets retrip.Transport.Advice find a Base that retries by itself.
func (a *attempts) Unwrap() http.RoundTripper { return a.base }
