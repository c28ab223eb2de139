// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/retrip/retrip"
)

// AttemptTimeout ends an attempt that hangs, and Deadline bounds attempts and waits
// together. A wait that can't end in time isn't begun, and neither cuts a body.
func ExamplePolicy_timeouts() {
	var calls atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("/hangs-once", func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			<-r.Context().Done()
		}
	})
	mux.HandleFunc("/come-back-later", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "20")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	client := &http.Client{Transport: &retrip.Transport{Policy: retrip.Policy{
		AttemptTimeout: 200 * time.Millisecond,
		Deadline:       10 * time.Second,
	}}}
	for _, path := range []string{"/hangs-once", "/come-back-later"} {
		resp, err := client.Get(server.URL + path)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(path, resp.StatusCode)
	}
	// Output:
	// /hangs-once 200
	// /come-back-later 503
}

// Without a key, a POST isn't repeated after a status that leaves open whether it was
// processed. With one, the server recognizes the second request.
func ExamplePolicy_idempotencyKey() {
	keys := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if keys[r.Header.Get("Idempotency-Key")]++; len(keys) == 1 && keys[r.Header.Get("Idempotency-Key")] == 1 {
			w.WriteHeader(http.StatusGatewayTimeout)
		}
	}))
	defer server.Close()
	client := &http.Client{Transport: &retrip.Transport{Policy: retrip.Policy{IdempotencyKey: retrip.On}}}
	resp, err := client.Post(server.URL, "text/plain", strings.NewReader("10 EUR"))
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	for _, requests := range keys {
		fmt.Printf("%d: one key, %d requests\n", resp.StatusCode, requests)
	}
	// Output: 200: one key, 2 requests
}

// While a host is down, its breaker refuses requests at once.
func ExampleBreaker() {
	server := failing(1000, http.StatusServiceUnavailable)
	defer server.Close()
	client := &http.Client{Transport: &retrip.Transport{Policy: retrip.Policy{
		MaxAttempts: 1,
		Breaker:     retrip.Breaker{Ratio: 0.5, MinVolume: 5},
	}}}
	for range 6 {
		resp, err := client.Get(server.URL)
		var failure *retrip.Error
		if errors.As(err, &failure) {
			fmt.Println(failure.Reason, "after", failure.Attempts, "attempts")
			return
		}
		resp.Body.Close()
	}
	// Output: breaker_open after 0 attempts
}

func ExampleMetrics() {
	server := failing(1, http.StatusServiceUnavailable)
	defer server.Close()
	metrics := retrip.NewMetrics()
	registry := prometheus.NewRegistry() // for promhttp.HandlerFor
	registry.MustRegister(metrics)
	client := &http.Client{Transport: &retrip.Transport{Metrics: metrics}}
	resp, err := client.Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	families, err := registry.Gather()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, family := range families {
		for _, metric := range family.Metric {
			if n := metric.GetCounter().GetValue(); n > 0 && family.GetName() == "retrip_retries_total" {
				fmt.Println(family.GetName(), metric.GetLabel()[1].GetValue(), n)
			}
		}
	}
	// Output: retrip_retries_total server_error 1
}
