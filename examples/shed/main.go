// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Shed shows the effect of a shed.Handler on a server that gets three times its
// capacity from clients with retries: first without a Handler, then with one.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/shed"
)

const (
	workers  = 4 // the number of database connections
	service  = 20 * time.Millisecond
	patience = 200 * time.Millisecond // how long a client waits for an attempt
)

// work returns a handler that needs one of the database's connections.
func work() http.Handler {
	connections := make(chan struct{}, workers)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connections <- struct{}{} // in order of arrival, even for clients that have gone
		time.Sleep(service)
		<-connections
	})
}

func main() {
	fmt.Println("three times what the server can do, for a second:")
	report("without", work())

	handler := &shed.Handler{Handler: work(), Limit: workers, DeadlineHeader: "Timeout-Ms"}
	if err := handler.Validate(); err != nil {
		log.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(handler)
	report("with", handler)

	families, err := registry.Gather()
	if err != nil {
		log.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if n := m.GetCounter().GetValue(); n > 0 {
					fmt.Printf("  %s{%s=%q} %.0f\n", family.GetName(), label.GetName(), label.GetValue(), n)
				}
			}
		}
	}
	fmt.Println("So without a Handler, the server works for clients that have given up. With one, it refuses what it can't do in time, and does all it can.")
}

// budgeted is a Base that tells the server how long the caller will wait.
type budgeted struct{ http.RoundTripper }

func (b budgeted) RoundTrip(req *http.Request) (*http.Response, error) {
	if deadline, ok := req.Context().Deadline(); ok {
		req = req.Clone(req.Context())
		req.Header.Set("Timeout-Ms", strconv.FormatInt(time.Until(deadline).Milliseconds(), 10))
	}
	return b.RoundTripper.RoundTrip(req)
}

// load sends requests at three times the server's capacity. It returns how many
// were answered in time, and how many were sent.
func load(handler http.Handler) (good, all int64) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	defer server.Close() // doesn't wait for requests still in progress
	go server.Serve(listener)
	url := "http://" + listener.Addr().String()
	base := &http.Transport{MaxIdleConnsPerHost: 1000}
	defer base.CloseIdleConnections()
	// Many clients, each with its own budget: here, one per request.
	client := func() *http.Client {
		return &http.Client{Transport: &retrip.Transport{Base: budgeted{base}, Policy: retrip.Policy{
			AttemptTimeout: patience,
			RetryHeader:    "Retry-Attempt",
		}}}
	}
	var answered atomic.Int64
	var wg sync.WaitGroup
	const gap = service / workers / 3
	start := time.Now()
	for ; time.Since(start) < time.Second; all++ {
		if wait := time.Duration(all)*gap - time.Since(start); wait > 0 {
			time.Sleep(wait)
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				log.Fatal(err)
			}
			resp, err := client().Do(req)
			if err != nil {
				return
			}
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				answered.Add(1)
			}
		})
	}
	wg.Wait()
	return answered.Load(), all
}

func report(what string, handler http.Handler) {
	good, all := load(handler)
	can := int64(time.Second / service * workers)
	fmt.Printf("%-8s a Handler: %d of %d requests answered; the server can do %d\n", what, good, all, can)
}
