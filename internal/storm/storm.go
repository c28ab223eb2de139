// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package storm exposes a real server to a fleet of real clients and a
// brownout, on virtual time in a testing/synctest bubble or in real time, and
// reports when the server has recovered.
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
//
// When a request will be done is known when it arrives. So its capacity is
// exact also on a busy machine, where a sleep ends late.
type Server struct {
	Workers int
	Service time.Duration // mean of the exponentially distributed service time
	Queue   int           // requests that may wait; others get a 503

	load   Load
	began  time.Time
	served atomic.Int64

	mu     sync.Mutex
	free   []time.Duration // when each worker is
	starts []time.Duration // of requests that haven't begun, in order
}

// Begin has s suffer the trigger of l, which begins at the time given. It must
// be called before the first request.
func (s *Server) Begin(l Load, at time.Time) { s.load, s.began = l, at }

// Served returns how many requests have been served, including those of clients
// that had gone.
func (s *Server) Served() int64 { return s.served.Load() }

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	done, ok := s.take(time.Since(s.began))
	if !ok {
		http.Error(w, "queue full", http.StatusServiceUnavailable)
		return
	}
	time.Sleep(time.Until(s.began.Add(done)))
	s.served.Add(1)
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
	Attempts      int64
	Refused       int64 // answers with X-Should-Retry: false
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

// Add adds the requests of other clients in the same load.
func (r *Result) Add(other *Result) {
	sum := func(to, from []int64) []int64 {
		to = append(to, make([]int64, max(0, len(from)-len(to)))...)
		for i, n := range from {
			to[i] += n
		}
		return to
	}
	r.Arrived, r.Good = sum(r.Arrived, other.Arrived), sum(r.Good, other.Good)
	r.Attempts += other.Attempts
	r.Refused += other.Refused
}

// Run sends the requests of l to url through base. It returns when all requests
// have ended, or when ctx ends.
func (l Load) Run(ctx context.Context, server *Server, base http.RoundTripper, url string) *Result {
	began := time.Now()
	server.Begin(l, began)
	return l.Send(ctx, began, base, url, func(base http.RoundTripper) *retrip.Transport {
		return &retrip.Transport{Base: base, Policy: l.Policy}
	})
}

// Send is Run without the server. The load begins at the time given, and each
// client is made by the function given, on a base that counts its attempts.
func (l Load) Send(ctx context.Context, began time.Time, base http.RoundTripper, url string, client func(http.RoundTripper) *retrip.Transport) *Result {
	fleet := make([]*retrip.Transport, l.Clients)
	counting := &counter{base: base}
	for i := range fleet {
		fleet[i] = client(counting)
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
		// In real time a sleep may end late; the next one makes up for it.
		if wait := next - time.Since(began); wait > 0 {
			time.Sleep(wait)
		}
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
	result := &Result{Arrived: arrived, Attempts: counting.attempts.Load(), Refused: counting.refused.Load()}
	for i := range good {
		result.Good = append(result.Good, good[i].Load())
	}
	return result
}

// counter counts attempts and their answers.
type counter struct {
	base              http.RoundTripper
	attempts, refused atomic.Int64
}

func (c *counter) RoundTrip(req *http.Request) (*http.Response, error) {
	c.attempts.Add(1)
	resp, err := c.base.RoundTrip(req)
	if err == nil && resp.Header.Get("X-Should-Retry") == "false" {
		c.refused.Add(1)
	}
	return resp, err
}
