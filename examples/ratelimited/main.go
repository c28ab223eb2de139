// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Ratelimited sends 200 requests at once to a server that allows ten a second
// and answers the others with 429 and Retry-After: 1, with a gate, without
// one, and without one or a budget.
package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip"
)

const requests = 200

func main() {
	policies := []struct {
		name   string
		policy retrip.Policy
	}{
		{"with a gate", retrip.Policy{MaxAttempts: 10, Gate: true}},
		{"without", retrip.Policy{MaxAttempts: 10}},
		{"without, and no budget", retrip.Policy{MaxAttempts: 10, Budget: retrip.Unlimited}},
	}
	fmt.Printf("%d requests at once to a server that allows 10 a second; this takes half a minute.\n\n", requests)
	fmt.Printf("%-23s %9s %13s %8s\n", "", "succeeded", "429 answers", "seconds")
	lines := make([]string, len(policies))
	var wg sync.WaitGroup
	for i, p := range policies {
		wg.Go(func() { lines[i] = fmt.Sprintf("%-23s %s", p.name, run(p.policy)) })
	}
	wg.Wait()
	for _, line := range lines {
		fmt.Println(line)
	}
}

func run(policy retrip.Policy) string {
	limit := &limiter{}
	server := httptest.NewServer(limit)
	defer server.Close()
	client := &http.Client{Transport: &retrip.Transport{Policy: policy}}
	defer client.CloseIdleConnections()

	began := time.Now()
	var succeeded atomic.Int32
	var wg sync.WaitGroup
	for range requests {
		wg.Go(func() {
			resp, err := client.Get(server.URL)
			if err != nil {
				return
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				succeeded.Add(1)
			}
		})
	}
	wg.Wait()
	return fmt.Sprintf("%9d %13d %8.1f", succeeded.Load(), limit.refused.Load(), time.Since(began).Seconds())
}

// limiter allows ten requests in every second of the clock.
type limiter struct {
	mu      sync.Mutex
	second  int64
	allowed int
	refused atomic.Int32
}

func (l *limiter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	if second := time.Now().Unix(); second != l.second {
		l.second, l.allowed = second, 0
	}
	l.allowed++
	ok := l.allowed <= 10
	l.mu.Unlock()
	if !ok {
		l.refused.Add(1)
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
	}
}
