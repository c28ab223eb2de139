// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Deadline shows which limits bound a request: a payments service calls a
// fraud-score service with four attempts of at most 150 ms each, within 400 ms.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip"
)

func main() {
	var calls atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("/hangs-once", func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			<-r.Context().Done()
		}
	})
	mux.HandleFunc("/hangs", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/come-back-later", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "2")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	mux.HandleFunc("/streams", func(w http.ResponseWriter, r *http.Request) {
		for range 6 {
			fmt.Fprint(w, "score ")
			http.NewResponseController(w).Flush()
			time.Sleep(100 * time.Millisecond)
		}
	})
	server := httptest.NewServer(mux)
	defer server.Close()

	transport := &retrip.Transport{Policy: retrip.Policy{
		AttemptTimeout: 150 * time.Millisecond,
		Deadline:       400 * time.Millisecond,
		Backoff:        retrip.Backoff{Base: 50 * time.Millisecond, Cap: 2 * time.Second},
	}}
	// Four attempts and their waits don't fit the deadline: Validate says by
	// how much.
	fmt.Println("Validate:", transport.Validate())
	client := &http.Client{Transport: transport}

	for _, path := range []string{"/hangs-once", "/hangs", "/come-back-later", "/streams"} {
		began := time.Now()
		outcome := get(client, server.URL+path)
		fmt.Printf("%-17s %4d ms  %s\n", path, time.Since(began).Milliseconds()/10*10, outcome)
	}
	fmt.Println("So AttemptTimeout cuts an attempt that hangs, Deadline bounds attempts and waits together, and a wait of 2 s that can't fit isn't begun.")
	fmt.Println("Neither cuts a body that is arriving.")
}

func get(client *http.Client, url string) string {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		log.Fatal(err)
	}
	resp, err := client.Do(req)
	var failure *retrip.Error
	switch {
	case errors.As(err, &failure):
		return fmt.Sprintf("gave up after %d attempts: %s", failure.Attempts, failure.Reason)
	case err != nil:
		return err.Error()
	}
	defer resp.Body.Close()
	// retrip's timeouts never cut a body.
	var n int
	buf := make([]byte, 64)
	for {
		m, err := resp.Body.Read(buf)
		n += m
		if err != nil {
			return fmt.Sprintf("%s, body of %d bytes, ended by %v", resp.Status, n, err)
		}
	}
}
