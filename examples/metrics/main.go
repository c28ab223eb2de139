// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Metrics serves /metrics for Prometheus while a client calls a server that
// fails one request in five. With -listen it runs until it is interrupted;
// without, it scrapes itself once and exits.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/retrip/retrip"
)

func main() {
	listen := flag.String("listen", "", "address to serve /metrics on until interrupted, such as 127.0.0.1:9100")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	reg := prometheus.NewRegistry()
	metrics := retrip.NewMetrics()
	reg.MustRegister(metrics)

	var calls atomic.Int64
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1)%5 == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer backend.Close()
	client := &http.Client{Transport: &retrip.Transport{
		Metrics: metrics,
		Policy:  retrip.Policy{Backoff: retrip.Backoff{Base: 5 * time.Millisecond}},
	}}

	address := *listen
	if address == "" {
		address = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	// Errors of a collector never break a request; they show here.
	server := &http.Server{Handler: promhttp.HandlerFor(reg, promhttp.HandlerOpts{}), ReadHeaderTimeout: time.Second}
	go server.Serve(listener)
	defer server.Close()
	if *listen != "" {
		fmt.Printf("serving metrics on http://%s/metrics until interrupted\n", listener.Addr())
	} else {
		fmt.Printf("100 requests, then one scrape of http://%s/metrics (use -listen to keep serving)\n", listener.Addr())
	}

	for i := 0; ctx.Err() == nil && (*listen != "" || i < 100); i++ {
		resp, err := client.Get(backend.URL)
		if err != nil {
			log.Fatal(err)
		}
		resp.Body.Close()
		if *listen != "" {
			time.Sleep(10 * time.Millisecond)
		}
	}
	if *listen == "" {
		scrape(listener.Addr().String())
	}
}

// scrape prints what Prometheus would read, without comments, buckets and zeros.
func scrape(address string) {
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		log.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") && !strings.HasSuffix(line, " 0\n") && !strings.Contains(line, "_bucket") {
			fmt.Print(line)
		}
	}
	fmt.Println("So callers saw no failure, and the metrics show what hides behind that: recovered requests, retries and their cause.")
}
