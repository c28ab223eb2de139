// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Ratelimited shows what a gate is for: 200 workers at a server that allows ten
// requests per second. With a gate, the server refuses a few hundred requests;
// without one, tens of thousands. The program compares a policy with a gate, one
// without a gate, and one without a gate or a budget, over real sockets and in
// real time. The server allows bursts of ten and answers other requests with 429 and
// Retry-After.
package main

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip"
)

func main() {
	const workers = 200
	lasts := flag.Duration("lasts", 10*time.Second, "how long the workers make requests")
	flag.Parse()
	allowed := 10*lasts.Seconds() + 10
	policies := []struct {
		name   string
		policy retrip.Policy
	}{
		{"with a gate", retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}}},
		{"without a gate", retrip.Policy{}},
		{"without a gate or a budget", retrip.Policy{Budget: retrip.Off}},
	}
	fmt.Printf("%d workers for %v at a server that allows 10 requests a second.\n\n", workers, *lasts)
	fmt.Printf("%-26s %14s %9s %10s %19s\n", "", "refused by 429", "given up", "succeeded", "of what is allowed")
	results := make([]result, len(policies))
	var wg sync.WaitGroup
	for i, p := range policies {
		wg.Go(func() { results[i].run(p.policy, workers, *lasts) })
	}
	wg.Wait()
	for i, p := range policies {
		r := &results[i]
		fmt.Printf("%-26s %14d %9d %10d %17.0f %%\n", p.name, r.refused.Load(), r.gaveUp.Load(), r.succeeded.Load(), 100*float64(r.succeeded.Load())/allowed)
	}
	fmt.Printf("So the gate turns %d refusals into %d, and no request fails. It needs some seconds to find the pace; from then on it uses 99 %% of the limit.\n",
		results[1].refused.Load(), results[0].refused.Load())
}

// result counts requests.
type result struct{ succeeded, refused, gaveUp atomic.Int64 }

// run makes requests with a policy to a server that allows 10 a second, and 10 at once.
func (r *result) run(policy retrip.Policy, workers int, lasts time.Duration) {
	server := httptest.NewServer(&limited{result: r, tokens: 10, last: time.Now()})
	defer server.Close()
	client := &http.Client{Transport: &retrip.Transport{Policy: policy}}
	defer client.CloseIdleConnections()
	end := time.Now().Add(lasts)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for time.Now().Before(end) {
				resp, err := client.Get(server.URL)
				if err == nil {
					resp.Body.Close()
				}
				switch {
				case err != nil || resp.StatusCode != http.StatusOK:
					r.gaveUp.Add(1)
					time.Sleep(50 * time.Millisecond)
				case time.Now().Before(end):
					r.succeeded.Add(1)
				}
			}
		})
	}
	wg.Wait()
}

// limited is a token bucket.
type limited struct {
	*result

	mu     sync.Mutex // guards what follows
	tokens float64
	last   time.Time
}

func (l *limited) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.tokens = min(10, l.tokens+10*now.Sub(l.last).Seconds())
	l.last = now
	if l.tokens < 1 {
		l.refused.Add(1)
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	l.tokens--
}
