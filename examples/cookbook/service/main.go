// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Service calls three upstreams, as a program in production does.
package main

import (
	"context"
	"io"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/retrip/retrip"
	"github.com/retrip/retrip/contrib/retripotel"
	"github.com/retrip/retrip/statuspage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/trace"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	spans := trace.NewTracerProvider() // with the exporter of your choice: trace.WithBatcher(…)
	public, debug := http.NewServeMux(), http.NewServeMux()
	if err := service(ctx, public, debug, "policies.json", nil, spans); err != nil {
		log.Fatal(err)
	}
	go http.ListenAndServe("localhost:6060", debug) // never public: the page names the upstreams
	server := &http.Server{Addr: ":8080", Handler: public, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := server.ListenAndServe(); err != http.ErrServerClosed {
			log.Fatal(err)
		}
	}()
	<-ctx.Done()
	server.Shutdown(context.Background()) // waits for requests in flight
}

// service registers the handlers of both ports. A nil base is retrip's default.
func service(ctx context.Context, public, debug *http.ServeMux, policies string, base http.RoundTripper, spans *trace.TracerProvider) error {
	transport := &retrip.Transport{Base: base, Metrics: &retrip.Metrics{}, Logger: slog.Default()}
	prometheus.MustRegister(transport.Metrics)
	// This comes before reload and the status page. One client serves all upstreams.
	client := &http.Client{Transport: retripotel.New(transport, retripotel.Config{TracerProvider: spans, Propagator: propagation.TraceContext{}})}
	public.Handle("POST /orders/{order}", forward(client, "http://payments.internal"))
	public.Handle("GET /search", forward(client, "http://search.internal"))
	public.Handle("PUT /files/{name}", forward(client, "http://uploads.internal"))
	debug.Handle("GET /metrics", promhttp.Handler())
	debug.Handle("GET /debug/retrip", statuspage.Handler(map[string]*retrip.Transport{"upstreams": transport}))
	return reload(ctx, transport, policies)
}

func forward(client *http.Client, upstream string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		req, err := http.NewRequestWithContext(r.Context(), r.Method, upstream+r.URL.RequestURI(), r.Body)
		if err != nil {
			http.Error(w, "no such address", http.StatusBadRequest)
			return
		}
		req.ContentLength = r.ContentLength
		if order := r.PathValue("order"); order != "" {
			req.Header.Set("Idempotency-Key", order) // the order's own: who clicks twice pays once
		}
		resp, err := client.Do(req)
		if err != nil {
			http.Error(w, "try again later", http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		w.WriteHeader(resp.StatusCode)
		io.Copy(w, resp.Body)
	}
}
