// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/retrip/retrip"
)

// bench implements the backend of a Scenario as a RoundTripper in a synctest
// bubble. It shares no code with the simulator: goroutines wait for their turn,
// and there is no event queue.
type bench struct {
	s       Scenario
	began   time.Time
	service *source
	faults  *source

	mu       sync.Mutex
	attempts []time.Duration
	stations []benchStation
	work     sync.WaitGroup

	fleets []*retrip.Fleet // one for each client with an account
	lacks  float64         // tokens of that account
}

// add is the store of the fleet's account.
func (b *bench) add(_ context.Context, _ string, tokens, size float64) (level float64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lacks = min(size, max(0, b.lacks-tokens))
	return size - b.lacks, nil
}

// benchStation is an instance: how many work, and who waits.
type benchStation struct {
	busy    int
	waiting []*benchJob
}

type benchJob struct {
	ctx  context.Context
	turn chan bool // true to work, false is refused
}

func newBench(s Scenario) *bench {
	return &bench{s: s, began: time.Now(), service: newSource(s.Seed+99, 1), faults: newSource(s.Seed+99, 2),
		stations: make([]benchStation, max(1, s.Backend.Instances))}
}

func (b *bench) RoundTrip(req *http.Request) (*http.Response, error) {
	be := &b.s.Backend
	b.mu.Lock()
	now := time.Since(b.began)
	b.attempts = append(b.attempts, now)
	troubled := now >= b.s.Trigger.At && now < b.s.Trigger.end()
	rate := be.FailureRate
	if troubled {
		rate = max(rate, b.s.Trigger.FailureRate)
	}
	n := int(b.faults.below(uint64(len(b.stations))))
	s := &b.stations[n]
	if b.faults.happens(newChance(rate)) || n >= be.Slow && n < be.Slow+be.Dead {
		b.mu.Unlock()
		if be.Silent {
			<-req.Context().Done()
			return nil, req.Context().Err()
		}
		resp := answer(req, http.StatusServiceUnavailable)
		if d := b.s.Trigger.RetryAfter; d > 0 && troubled {
			resp.Header.Set("Retry-After", strconv.Itoa(int(d.Seconds())))
		}
		return resp, nil
	}
	j := &benchJob{ctx: req.Context(), turn: make(chan bool, 1)}
	switch {
	case be.Workers == 0 || s.busy < be.Workers:
		s.busy++
		j.turn <- true
	case len(s.waiting) < be.Queue:
		s.waiting = append(s.waiting, j)
	default:
		j.turn <- false
	}
	b.mu.Unlock()
	done := make(chan bool, 1)
	// The worker finishes the job whether or not the client waits.
	b.work.Go(func() {
		if !<-j.turn {
			done <- false
			return
		}
		work(b.takes(n))
		b.mu.Lock()
		defer b.mu.Unlock()
		b.turn(s)
		done <- true
	})
	select {
	case good := <-done:
		if !good {
			return answer(req, http.StatusServiceUnavailable), nil
		}
		return answer(req, http.StatusOK), nil
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}

// takes returns how long a worker of the nth instance works.
func (b *bench) takes(n int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	be := &b.s.Backend
	mean := float64(be.Service)
	now := time.Since(b.began)
	if b.s.Trigger.Slowdown > 0 && now >= b.s.Trigger.At && now < b.s.Trigger.end() {
		mean *= b.s.Trigger.Slowdown
	}
	if n < be.Slow {
		mean *= be.SlowBy
	}
	took := time.Duration(mean)
	if be.Spread > 0 {
		took = time.Duration(max(0, mean*(1+be.Spread*b.service.normal())))
	} else if !be.Fixed {
		took = b.service.exponential(mean)
	}
	return took
}

// turn gives the place of a finished worker to the next request in the queue.
func (b *bench) turn(s *benchStation) {
	for len(s.waiting) > 0 {
		j := s.waiting[0]
		s.waiting = s.waiting[1:]
		if b.s.Backend.DropAbandoned && j.ctx.Err() != nil {
			j.turn <- false
			continue
		}
		j.turn <- true
		return
	}
	s.busy--
}
