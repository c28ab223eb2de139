// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Ratelimited shows what a gate is for: 200 workers at a server that allows ten
// requests per second. With a gate, the server refuses a few hundred requests;
// without one, tens of thousands. The program compares a policy with a gate, one
// without a gate, and one without a gate or a budget, over real sockets and in
// real time. The server allows bursts of ten and answers other requests with 429 and Retry-After. The program then shows two
// keys with separate limits, with one gate for both and with a gate for each.
package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
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
		wg.Go(func() {
			results[i] = run(map[string]*bucket{"": {perSecond: 10, tokens: 10, size: 10}}, p.policy, workers, *lasts)
		})
	}
	keyed := make([]result, 2)
	for i, key := range []func(*http.Request) string{nil, func(r *http.Request) string { return r.Header.Get("Authorization") }} {
		wg.Go(func() {
			buckets := map[string]*bucket{"poor": {perSecond: 1, tokens: 1, size: 1}, "rich": {perSecond: 20, tokens: 20, size: 20}}
			keyed[i] = run(buckets, retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On, Key: key}}, 40, *lasts)
		})
	}
	wg.Wait()
	for i, p := range policies {
		r := results[i]
		fmt.Printf("%-26s %14d %9d %10d %17.0f %%\n", p.name, r.refused, r.gaveUp, r.succeeded[""], 100*float64(r.succeeded[""])/allowed)
	}
	fmt.Printf("So the gate turns %d refusals into %d, and no request fails. It needs some seconds to find the pace; from then on it uses 99 %% of the limit.\n",
		results[1].refused, results[0].refused)

	fmt.Printf("\n%-26s %18s %18s\n", "two keys", "poor, 1 a second", "rich, 20 a second")
	for i, name := range []string{"one gate", "a gate for each"} {
		fmt.Printf("%-26s %18d %18d\n", name, keyed[i].succeeded["poor"], keyed[i].succeeded["rich"])
	}
	fmt.Println("So requests with limits of their own need a gate each (Gate.Key): at one gate, the rich key waits for the poor one.")
}

type result struct {
	succeeded       map[string]int // by key
	refused, gaveUp int32
}

// run starts workers that cycle through the keys and make one request after
// another to a server with a bucket per key.
func run(buckets map[string]*bucket, policy retrip.Policy, workers int, lasts time.Duration) result {
	server := &limited{buckets: buckets}
	s := httptest.NewServer(server)
	defer s.Close()
	client := &http.Client{Transport: &retrip.Transport{Policy: policy}}
	defer client.CloseIdleConnections()

	var keys []string
	for key := range buckets {
		keys = append(keys, key)
	}
	var mu sync.Mutex
	var gaveUp atomic.Int32
	succeeded := map[string]int{}
	end := time.Now().Add(lasts)
	var wg sync.WaitGroup
	for i := range workers {
		key := keys[i%len(keys)]
		wg.Go(func() {
			for time.Now().Before(end) {
				if !get(client, s.URL, key) {
					gaveUp.Add(1)
					time.Sleep(50 * time.Millisecond)
					continue
				}
				if time.Now().Before(end) {
					mu.Lock()
					succeeded[key]++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return result{succeeded, server.refused.Load(), gaveUp.Load()}
}

func get(client *http.Client, url, key string) bool {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	req.Header.Set("Authorization", key)
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err == nil && resp.StatusCode == http.StatusOK
}

// limited is a server with a limit for each key.
type limited struct {
	buckets map[string]*bucket
	refused atomic.Int32
}

func (l *limited) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	wait := l.buckets[r.Header.Get("Authorization")].take(time.Now())
	if wait == 0 {
		return
	}
	l.refused.Add(1)
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(max(1, wait.Seconds())))))
	w.WriteHeader(http.StatusTooManyRequests)
}

// bucket is a token bucket.
type bucket struct {
	perSecond, size float64

	mu     sync.Mutex // guards what follows
	tokens float64
	last   time.Time
}

// take takes a token, or returns how long it takes until there is one.
func (b *bucket) take(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.last.IsZero() {
		b.tokens = min(b.size, b.tokens+b.perSecond*now.Sub(b.last).Seconds())
	}
	b.last = now
	if b.tokens < 1 {
		return time.Duration((1 - b.tokens) / b.perSecond * float64(time.Second))
	}
	b.tokens--
	return 0
}
