// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Otel traces and measures requests with OpenTelemetry, using package
// retripotel: a span per attempt, a span around all attempts with an event per
// retry, and metrics with the names of OpenTelemetry's conventions.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/retripotel"
)

func main() {
	if err := run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(out io.Writer) error {
	var calls atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) <= 2 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()

	// A real program would use exporters here.
	spans, reader := tracetest.NewInMemoryExporter(), metric.NewManualReader()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	defer tracers.Shutdown(context.Background())
	meters := metric.NewMeterProvider(metric.WithReader(reader))
	defer meters.Shutdown(context.Background())

	client := &http.Client{Transport: retripotel.New(&retrip.Transport{
		Base:   http.DefaultTransport,
		Policy: retrip.Policy{Backoff: retrip.Backoff{Base: 20 * time.Millisecond}},
	}, retripotel.Config{
		TracerProvider: tracers,
		MeterProvider:  meters,
		Propagator:     propagation.TraceContext{},
	})}

	resp, err := client.Get(server.URL)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}

	for _, span := range spans.GetSpans() {
		fmt.Fprintf(out, "span %-17s %s%s\n", span.Name, show(span.Attributes), events(span.Events))
	}
	var metrics metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &metrics); err != nil {
		return err
	}
	for _, scope := range metrics.ScopeMetrics {
		for _, m := range scope.Metrics {
			if histogram, ok := m.Data.(metricdata.Histogram[float64]); ok {
				for _, p := range histogram.DataPoints {
					fmt.Fprintf(out, "metric %-28s %d times, %s\n", m.Name, p.Count, show(p.Attributes.ToSlice()))
				}
			}
		}
	}
	fmt.Fprintln(out, "So one trace shows the request, its three attempts and the reasons for its two retries.")
	return nil
}

// show returns the attributes that matter for this example.
func show(attributes []attribute.KeyValue) string {
	var parts []string
	for _, a := range attributes {
		key := string(a.Key)
		if strings.HasPrefix(key, "retrip.") || slices.Contains([]string{"http.response.status_code", "http.request.resend_count"}, key) {
			parts = append(parts, key+"="+a.Value.String())
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

func events(events []sdktrace.Event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "\n     event %s: %s", e.Name, show(e.Attributes))
	}
	return b.String()
}
