// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/hedge"
	"github.com/retrip/retrip/internal/host"
)

// The kind of an event is in the lowest bits of its tag. The remaining bits are
// the generation of the attempt.
const (
	happensArrival = iota
	happensWake
	happensTimeout
	happensReach    // a request reaches the backend
	happensServed   // a worker finishes
	happensGood     // a good answer reaches the client
	happensBad      // a 503 reaches the client
	happensRefused  // a 503 with the backend's hints reaches the client
	happensLate     // a first attempt is still out at its delay
	happensMask     = 15
	generationStep  = 16
	cancelCheckEach = 1 << 16 // events
)

// run is a Scenario in progress.
type run struct {
	*Scenario
	layers []layer
	hosts  []host.Record // of all layers
	out    []int32       // requests in progress by host, kept where a layer asks

	queue    *queue
	timeouts events // of the last layer's attempts, where only AttemptTimeout bounds them
	requests []request
	free     []int32
	shares   []uint64 // of unequal clients: the upper ends of their ranges of draws

	arrivals, service, faults, draws, replicas *source

	stations  []station
	working   []job   // by worker
	idle      []int32 // free slots of working
	instances *source
	tails     *source
	tail      chance
	latencies *source
	stall     chance
	hedges    []hedge.Host // of the hosts of layers that hedge; nil if none does
	missing   int          // answers still needed to fill the cache

	failure chance
	broken  chance
	trouble chance
	arrived int

	now     int64
	result  Result
	latency latencies
	seconds seconds

	// What the hosts are asked and answer, for tests.
	traceAttempt func(now time.Duration)
	traceForget  func(host int32)
	traceNext    func(client int32, before decide.Call, o decide.Outcome, now time.Duration, draw uint64, d decide.Decision)
	traceAsk     func(client int32, first bool, before decide.Call, now time.Duration, draw uint64, d decide.Decision)
}

// Run simulates s. It calls progress, if not nil, from time to time with the
// share of the simulated time that is complete. When ctx ends, Run returns the
// result so far, marked as partial, and the context's error. If a parameter is
// out of bounds, Run returns a nil result and the error.
func (s Scenario) Run(ctx context.Context, progress func(done float64)) (*Result, error) {
	r, err := newRun(&s)
	if err != nil {
		return nil, err
	}
	return r.run(ctx, progress)
}

func newRun(s *Scenario) (*run, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	r := &run{
		Scenario:  s,
		queue:     newQueue(18),
		arrivals:  newSource(s.Seed, streamArrivals),
		service:   newSource(s.Seed, streamService),
		faults:    newSource(s.Seed, streamFaults),
		draws:     newSource(s.Seed, streamDraws),
		replicas:  newSource(s.Seed, streamReplicas),
		stations:  newStations(&s.Backend),
		instances: newSource(s.Seed, streamInstances),
		tails:     newSource(s.Seed, streamTails),
		tail:      newChance(s.Backend.TailShare),
		latencies: newSource(s.Seed, streamLatencies),
		stall:     newChance(s.Backend.Latency.StallShare),
		failure:   newChance(s.Backend.FailureRate),
		broken:    newChance(s.Backend.BrokenShare),
		trouble:   newChance(s.Trigger.FailureRate),
		seconds:   newSeconds(s),
	}
	if s.Backend.Cold > 1 && s.Trigger.For > 0 {
		r.missing = s.Backend.Refill
	}
	if err := r.build(); err != nil {
		return nil, err
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
		e, ok := r.next()
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
	r.finishLayers()
	r.result.finish(r.Scenario, &r.latency, &r.seconds)
	return &r.result, err
}

// next removes and returns the next event, from the queue or from the list of
// timeouts. Most timeouts never fire, and timeouts of one layer are scheduled
// in order of time, so a separate list costs much less than the queue.
func (r *run) next() (event, bool) {
	for {
		e, ok := r.queue.first()
		if r.timeouts.n == 0 || ok && e.before(r.timeouts.first()) {
			return r.queue.pop()
		}
		if t := r.timeouts.shift(); r.requests[t.who].gen == t.what&^happensMask {
			return t, true
		}
	}
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
		r.served(e.who)
		return
	}
	q := &r.requests[e.who]
	if q.gen != gen {
		return
	}
	switch e.what & happensMask {
	case happensLate:
		r.late(e.who)
	case happensTimeout:
		r.abandon(e.who)
		r.ended(e.who, decide.Outcome{Timeout: true})
	case happensGood:
		r.ended(e.who, decide.Outcome{Status: http.StatusOK})
	case happensBad:
		o := decide.Outcome{Status: http.StatusServiceUnavailable}
		if r.troubled() {
			o.RetryAfter = r.Trigger.RetryAfter
		}
		r.ended(e.who, o)
	case happensRefused:
		r.ended(e.who, decide.Outcome{Status: http.StatusServiceUnavailable, RetryAfter: r.Backend.RetryAfter, Forbidden: r.Backend.NoRetry})
	}
}

// troubled reports whether the trigger is active.
func (r *run) troubled() bool { return r.Trigger.during(r.now) }

func (r *run) point() *Point { return &r.result.Series[r.now/int64(r.result.Bin)] }
