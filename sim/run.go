// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// What an event is, in the lowest bits of its tag; the rest is the generation
// of the attempt that it belongs to.
const (
	happensArrival = iota
	happensWake
	happensTimeout
	happensReach    // a request gets to the backend
	happensServed   // a worker is done
	happensGood     // a good answer gets to the client
	happensBad      // a 503 gets to the client
	happensMask     = 7
	generationStep  = 8
	cancelCheckEach = 1 << 16 // events
)

// run is a Scenario under way.
type run struct {
	*Scenario
	rules   *retrip.Rules
	policy  retrip.Policy // resolved
	timeout time.Duration
	limit   limiter
	layers  int32
	asks    bool    // a breaker or gate has a say in first attempts
	out     []int32 // requests under way by host, if it asks

	queue    *queue
	hosts    []retrip.Host // by layer and client
	requests []request
	free     []int32
	shares   []uint64 // of unequal clients: upper ends of their draws

	arrivals, service, faults, draws *source

	busy    int
	waiting ring
	failure chance
	trouble chance
	arrived int

	now     int64
	result  Result
	latency latencies
	seconds seconds

	// What the hosts are asked and answer, for tests.
	traceAttempt func(now time.Duration)
	traceForget  func(host int32)
	traceNext    func(client int32, before retrip.Call, o retrip.Outcome, now time.Duration, draw uint64, d retrip.Decision)
	traceAsk     func(client int32, first bool, before retrip.Call, now time.Duration, draw uint64, d retrip.Decision)
}

// Run simulates s. The progress function, if not nil, is called from time to
// time with the share of the simulated time that is done. When ctx ends, Run
// returns what there is, marked as partial, and the context's error. Other
// errors are parameters out of bounds, and leave no result.
func (s Scenario) Run(ctx context.Context, progress func(done float64)) (*Result, error) {
	r, err := newRun(&s)
	if err != nil {
		return nil, err
	}
	return r.run(ctx, progress)
}

func newRun(s *Scenario) (*run, error) {
	rules, err := s.rules()
	if err != nil {
		return nil, err
	}
	policy := rules.Policy()
	r := &run{
		Scenario: s,
		rules:    rules,
		policy:   policy,
		timeout:  max(0, policy.AttemptTimeout),
		layers:   int32(max(1, s.Fleet.Layers)),
		asks:     asksFirst(policy),
		queue:    newQueue(18),
		arrivals: newSource(s.Seed, streamArrivals),
		service:  newSource(s.Seed, streamService),
		faults:   newSource(s.Seed, streamFaults),
		draws:    newSource(s.Seed, streamDraws),
		waiting:  newRing(s.Backend.Queue),
		failure:  newChance(s.Backend.FailureRate),
		trouble:  newChance(s.Trigger.FailureRate),
		seconds:  newSeconds(s),
	}
	if r.timeout == 0 && policy.AttemptTimeout != retrip.Off {
		r.timeout = s.Fleet.Timeout
	}
	r.hosts = make([]retrip.Host, int(r.layers)*s.Fleet.Clients)
	if r.asks {
		r.out = make([]int32, len(r.hosts))
	}
	if s.Policy.limit != nil {
		r.limit = s.Policy.limit(len(r.hosts))
	}
	if s.Fleet.Unequal {
		r.shares = unequal(s.Fleet.Clients)
	}
	r.result = Result{
		Policy:  s.Policy.name(),
		Clients: s.Fleet.Clients,
		Load:    s.Load(),
		Seed:    s.Seed,
		Bin:     s.Bin,
		WaitBin: waitBin,
	}
	if r.result.Bin == 0 {
		r.result.Bin = min(time.Second, s.Horizon)
	}
	r.result.Series = make([]Point, s.Horizon/r.result.Bin+1)
	return r, nil
}

func (r *run) run(ctx context.Context, progress func(float64)) (*Result, error) {
	horizon := int64(r.Horizon)
	r.queue.push(r.firstArrival(), 0, happensArrival)
	var events int64
	err := ctx.Err()
	for err == nil {
		e, ok := r.queue.pop()
		if !ok || e.at >= horizon {
			r.now = horizon
			break
		}
		r.now = e.at
		events++
		r.happen(e)
		if events%cancelCheckEach == 0 {
			err = ctx.Err()
			if progress != nil {
				progress(float64(r.now) / float64(horizon))
			}
		}
	}
	r.result.Events = events
	r.result.Until = time.Duration(r.now)
	r.result.Partial = err != nil
	r.result.finish(r.Scenario, &r.latency, &r.seconds)
	return &r.result, err
}

func (r *run) happen(e event) {
	gen := e.what &^ happensMask
	if kind := e.what & happensMask; kind < happensTimeout {
		if kind == happensArrival {
			r.arrive()
		} else if r.requests[e.who].gen == gen {
			r.wake(e.who)
		}
		return
	} else if kind == happensReach {
		r.reach(e.who, gen)
		return
	} else if kind == happensServed {
		r.served(e.who, gen)
		return
	}
	q := &r.requests[e.who]
	if q.gen != gen {
		return
	}
	switch e.what & happensMask {
	case happensTimeout:
		r.ended(e.who, retrip.Outcome{Timeout: true})
	case happensGood:
		r.ended(e.who, retrip.Outcome{Status: http.StatusOK})
	case happensBad:
		r.ended(e.who, retrip.Outcome{Status: http.StatusServiceUnavailable})
	}
}

// troubled reports whether the trigger is on.
func (r *run) troubled() bool { return r.Trigger.during(r.now) }

func (r *run) point() *Point { return &r.result.Series[r.now/int64(r.result.Bin)] }
