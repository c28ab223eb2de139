// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Idempotency shows when retrip repeats a POST. The server executes a request
// and then fails to confirm it, so a careless retry would charge a customer
// twice.
package main

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"

	"github.com/retrip/retrip"
)

func main() {
	bank := &bank{charged: map[string]bool{}}
	server := httptest.NewServer(bank)
	defer server.Close()

	show := func(what string, policy retrip.Policy, key string) {
		bank.reset()
		client := &http.Client{Transport: &retrip.Transport{Policy: policy}}
		req, err := http.NewRequest(http.MethodPost, server.URL, strings.NewReader("10 EUR"))
		if err != nil {
			log.Fatal(err)
		}
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		resp, err := client.Do(req)
		if err != nil {
			log.Fatal(err)
		}
		resp.Body.Close()
		fmt.Printf("%-34s → %d; requests %d, charges %d, keys %q\n", what, resp.StatusCode, bank.requests, bank.charges, bank.keys)
	}
	show("a POST is not repeated", retrip.Policy{}, "")
	show("a POST with a key of the caller's", retrip.Policy{}, `"order-4711"`)
	show("a POST given a key by the policy", retrip.Policy{IdempotencyKey: retrip.On}, "")
	fmt.Println("So nobody is charged twice: without a key, retrip doesn't repeat the POST; with one, the bank recognizes the second request.")
}

// bank charges once per key, and fails the first response.
type bank struct {
	mu                sync.Mutex
	requests, charges int
	charged           map[string]bool
	keys              []string
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests++
	key := r.Header.Get("Idempotency-Key")
	if key == "" || !b.charged[key] {
		b.charges++
	}
	if key != "" && !b.charged[key] {
		b.charged[key] = true
		b.keys = append(b.keys, key)
	}
	if b.requests == 1 {
		w.WriteHeader(http.StatusGatewayTimeout)
	}
}

func (b *bank) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests, b.charges, b.keys = 0, 0, nil
	clear(b.charged)
}
