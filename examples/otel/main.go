// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Otel traces requests with OpenTelemetry: one span for each attempt, with
// http.request.resend_count from the second on, and one for the whole, with an
// event for each retry. It needs nothing but retrip's hooks.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/retrip/retrip"
)

// traced returns retries with policy over base, with spans by provider:
//
//	otelhttp  a span for the whole
//	numbered  tells resends which attempt it is
//	retrip
//	otelhttp  a span for each attempt, whose context goes to the server
//	resends   puts the number on that span
//	base
func traced(base http.RoundTripper, policy retrip.Policy, provider trace.TracerProvider) http.RoundTripper {
	options := []otelhttp.Option{
		otelhttp.WithTracerProvider(provider),
		otelhttp.WithPropagators(propagation.TraceContext{}),
	}
	attempts := otelhttp.NewTransport(resends{base}, options...)
	whole := append(options,
		otelhttp.WithSpanOptions(trace.WithSpanKind(trace.SpanKindInternal)),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return r.Method + " with retries" }))
	return otelhttp.NewTransport(numbered{&retrip.Transport{Base: attempts, Policy: policy}}, whole...)
}

// numbered gives each request a place for the number of its attempt.
type numbered struct{ next http.RoundTripper }

type numberKey struct{}

func (n numbered) RoundTrip(req *http.Request) (*http.Response, error) {
	// Hooks and attempts of one request run one after another: no lock.
	number := new(int)
	span := trace.SpanFromContext(req.Context())
	ctx := context.WithValue(req.Context(), numberKey{}, number)
	ctx = retrip.WithTrace(ctx, &retrip.Trace{
		Attempt: func(e retrip.Event) { *number = e.Attempt },
		Retry: func(e retrip.Event) {
			span.AddEvent("retry", trace.WithAttributes(
				attribute.String("retrip.reason", string(e.Reason)),
				attribute.Float64("retrip.wait_seconds", e.Wait.Seconds())))
		},
		GiveUp: func(e retrip.Event) {
			span.AddEvent("give up", trace.WithAttributes(attribute.String("retrip.reason", string(e.Reason))))
		},
	})
	return n.next.RoundTrip(req.WithContext(ctx))
}

// resends marks the span of a retry as one.
type resends struct{ next http.RoundTripper }

func (r resends) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	if number, ok := ctx.Value(numberKey{}).(*int); ok && *number > 1 {
		trace.SpanFromContext(ctx).SetAttributes(semconv.HTTPRequestResendCount(*number - 1))
	}
	return r.next.RoundTrip(req)
}

func main() {
	var calls atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) <= 2 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()

	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	defer provider.Shutdown(context.Background())
	policy := retrip.Policy{Backoff: retrip.Backoff{Base: 20 * time.Millisecond}}
	client := &http.Client{Transport: traced(http.DefaultTransport, policy, provider)}

	resp, err := client.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	for _, span := range spans.GetSpans() {
		fmt.Printf("%-17s parent %s, %s\n", span.Name, span.Parent.SpanID(), describe(span))
	}
}

func describe(span tracetest.SpanStub) string {
	var parts []string
	for _, a := range span.Attributes {
		if a.Key == semconv.HTTPResponseStatusCodeKey || a.Key == semconv.HTTPRequestResendCountKey {
			parts = append(parts, fmt.Sprintf("%s=%s", a.Key, a.Value.String()))
		}
	}
	for _, e := range span.Events {
		parts = append(parts, "event: "+e.Name)
	}
	return strings.Join(parts, ", ")
}
