// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Perhost gives three hosts three policies. One is a POST API whose 429
// guarantees that nothing was done, so its POSTs are retried after a 429.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip"
)

func main() {
	payments := httptest.NewServer(failing(1, http.StatusTooManyRequests)) // a POST API behind a rate limit
	search := httptest.NewServer(failing(3, http.StatusServiceUnavailable))
	legacy := httptest.NewServer(failing(1, http.StatusInternalServerError))
	for _, s := range []*httptest.Server{payments, search, legacy} {
		defer s.Close()
	}

	transport := &retrip.Transport{
		Policy: retrip.Policy{Backoff: retrip.Backoff{Base: 20 * time.Millisecond}},
		Hosts: map[string]retrip.Policy{
			host(payments): {Unprocessed: []int{http.StatusTooManyRequests}},
			host(search):   {MaxAttempts: 6},
			host(legacy):   {MaxAttempts: 1},
		},
	}
	// Validate reports a mistake in a policy at start-up instead of at the
	// first request.
	if err := transport.Validate(); err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	for _, call := range []struct {
		name   string
		server *httptest.Server
		method string
	}{
		{"payments", payments, "POST"},
		{"search", search, "GET"},
		{"legacy", legacy, "GET"},
	} {
		var attempts int
		trace := &retrip.Trace{Done: func(e retrip.Event) { attempts = e.Attempt }}
		req, err := http.NewRequest(call.method, call.server.URL, strings.NewReader("{}"))
		if err != nil {
			log.Fatal(err)
		}
		resp, err := client.Do(req.WithContext(retrip.WithTrace(req.Context(), trace)))
		if err != nil {
			log.Fatal(err)
		}
		resp.Body.Close()
		fmt.Printf("%-9s %-4s → %d after %d attempt(s)\n", call.name, call.method, resp.StatusCode, attempts)
	}

	// The effective policy of a host, with everything it inherits.
	policy, err := transport.PolicyFor(host(search))
	if err != nil {
		log.Fatal(err)
	}
	effective, err := json.MarshalIndent(policy, "", "  ")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("\nThe effective policy of search:\n%s\n", effective)
	fmt.Println("\nSo each host has a policy of its own: a POST that may be repeated after a 429, up to 6 attempts, a single one. It inherits the rest.")
}

// failing answers with status n times, then with 200.
func failing(n int32, status int) http.Handler {
	var calls atomic.Int32
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) <= n {
			w.WriteHeader(status)
		}
	})
}

func host(s *httptest.Server) string {
	u, err := url.Parse(s.URL)
	if err != nil {
		log.Fatal(err)
	}
	return u.Host
}
