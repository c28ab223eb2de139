// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package storm exposes a real server to a fleet of real clients and a
// brownout, on virtual time in a testing/synctest bubble, and reports when the
// server has recovered.
package storm

import (
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip"
)

// Server works like a server with a bounded pool of workers: it finishes every
// request it has begun, whether or not the client still waits. A shed.Handler
// is meant to stand in front of it.
type Server struct {
	Workers int
	Service time.Duration // mean of the exponentially distributed service time
	Queue   int           // requests that may wait; others get a 503

	load  Load
	began time.Time

	mu     sync.Mutex
	free   []time.Duration // when each worker is
	starts []time.Duration // of requests that haven't begun, in order
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	done, ok := s.take(time.Since(s.began))
	if !ok {
		http.Error(w, "queue full", http.StatusServiceUnavailable)
		return
	}
	time.Sleep(time.Until(s.began.Add(done)))
	w.WriteHeader(http.StatusOK)
}

// take returns when a request that arrives now will be done, or that the queue
// is full.
func (s *Server) take(now time.Duration) (done time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	begun, _ := slices.BinarySearch(s.starts, now+1)
	s.starts = s.starts[begun:]
	if len(s.starts) >= s.Queue {
		return 0, false
	}
	if s.free == nil {
		s.free = make([]time.Duration, s.Workers)
	}
	worker := 0
	for i, free := range s.free {
		if free < s.free[worker] {
			worker = i
		}
	}
	start := max(now, s.free[worker])
	took := time.Duration(rand.ExpFloat64() * float64(s.Service))
	if start >= s.load.Trigger && start < s.load.TriggerEnd {
		took = took * time.Duration(s.load.Slow) / 100
	}
	s.free[worker] = start + took
	if start > now {
		s.starts = append(s.starts, start)
	}
	return s.free[worker], true
}

// Load describes the requests of the clients and the brownout of the server.
type Load struct {
	Clients int
	Rate    float64 // requests per second of all clients together
	Policy  retrip.Policy

	Trigger, TriggerEnd time.Duration // when the server is slow
	Slow                int64         // service time meanwhile, in percent of the usual time
	End                 time.Duration // no requests after this time
}

// Brownout returns the load of the table in docs/shed.md: 700 requests per
// second to a server with a capacity of 1000, which drops to 303 for ten
// seconds.
func Brownout(clients int) (*Server, Load) {
	server := &Server{Workers: 10, Service: 10 * time.Millisecond, Queue: 1000}
	return server, Load{
		Clients: clients, Rate: 700,
		Policy:  retrip.Policy{AttemptTimeout: 300 * time.Millisecond, Backoff: retrip.Backoff{Cap: time.Second}, RetryHeader: "Retry-Attempt"},
		Trigger: 3 * time.Second, TriggerEnd: 13 * time.Second, Slow: 330, End: 40 * time.Second,
	}
}

// Result is the outcome of a load.
type Result struct {
	Arrived, Good []int64 // requests, and those answered with 200, by the second of their arrival
}

// Never is the result of Recovery if the server hasn't recovered during the
// load.
const Never = -1

// Recovery returns the seconds from the end of the trigger to the first of
// three consecutive seconds in which 95 % of the requests were answered, or
// Never.
func (r *Result) Recovery(l Load) int {
	sum := func(of []int64, t int) int64 { return of[t] + of[t+1] + of[t+2] }
	from := int(l.TriggerEnd / time.Second)
	for t := from; t+3 < len(r.Good); t++ {
		if 100*sum(r.Good, t) >= 95*sum(r.Arrived, t) {
			return t - from
		}
	}
	return Never
}

// Goodput returns the answered share of the requests that arrived in the given
// seconds.
func (r *Result) Goodput(from, to int) float64 {
	var arrived, good int64
	for t := from; t < to; t++ {
		arrived += r.Arrived[t]
		good += r.Good[t]
	}
	return float64(good) / float64(arrived)
}

// Run sends the requests of l to url, which server serves, through base. It
// returns when all requests have ended, or when ctx ends. It must be called once
// for a server.
func (l Load) Run(ctx context.Context, server *Server, base http.RoundTripper, url string) *Result {
	began := time.Now()
	server.load, server.began = l, began
	fleet := make([]*retrip.Transport, l.Clients)
	for i := range fleet {
		fleet[i] = &retrip.Transport{Base: base, Policy: l.Policy}
	}
	seconds := int(l.End / time.Second)
	arrived, good := make([]int64, seconds), make([]atomic.Int64, seconds)
	var wg sync.WaitGroup
	next := time.Duration(0)
	for ctx.Err() == nil {
		next += time.Duration(rand.ExpFloat64() / l.Rate * float64(time.Second))
		if next >= l.End {
			break
		}
		time.Sleep(next - time.Since(began))
		second := int(next / time.Second)
		arrived[second]++
		client := fleet[rand.IntN(l.Clients)]
		wg.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return
			}
			resp, err := client.RoundTrip(req)
			if err != nil {
				return
			}
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				good[second].Add(1)
			}
		})
	}
	wg.Wait()
	result := &Result{Arrived: arrived}
	for i := range good {
		result.Good = append(result.Good, good[i].Load())
	}
	return result
}
