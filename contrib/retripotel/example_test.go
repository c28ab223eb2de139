// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retripotel_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/contrib/retripotel"
)

// A trace shows the request, its attempts and the reasons for its retries.
func ExampleNew() {
	var calls atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) <= 2 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()

	spans := tracetest.NewInMemoryExporter() // a real program would use exporters here
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	defer tracers.Shutdown(context.Background())
	meters := metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))
	defer meters.Shutdown(context.Background())

	client := &http.Client{Transport: retripotel.New(&retrip.Transport{
		Base:   http.DefaultTransport,
		Policy: retrip.Policy{Backoff: retrip.Backoff{Base: 20 * time.Millisecond}},
	}, retripotel.Config{TracerProvider: tracers, MeterProvider: meters, Propagator: propagation.TraceContext{}})}
	resp, err := client.Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	for _, span := range spans.GetSpans() {
		fmt.Println("span", span.Name)
		for _, event := range span.Events {
			fmt.Println("event", event.Name)
		}
	}
	// Unordered output:
	// span HTTP GET
	// span HTTP GET
	// span HTTP GET
	// span GET with retries
	// event retry
	// event retry
}
