// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/hedge"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/lend"
)

// The kind of an event is in the lowest bits of its tag. The remaining bits are
// the generation of the attempt.
const (
	happensArrival = iota
	happensWake
	happensTimeout
	happensServed   // a worker finishes
	happensGood     // a good answer reaches the client
	happensBad      // a 503 reaches the client
	happensRefused  // a 503 of a full queue reaches the client
	happensLate     // a first attempt is still out at its delay
	happensGateway  // a 504 of the gateway reaches the client
	happensLoss     // all connections break
	happensMask     = 15
	generationStep  = 16
	cancelCheckEach = 1 << 16 // events
)

// run is a Scenario in progress.
type run struct {
	*Scenario
	rules    *decide.Rules
	policy   retrip.Policy // resolved
	timeout  time.Duration // of an attempt; 0 means none
	asks     bool          // a breaker or gate decides about first attempts
	limit    limiter       // nil if there is none
	account  *accounts     // of the fleet; nil if the clients ask none
	deadEach uint64        // share of dead clients, in 2^-32

	hosts []host.Record // by client
	out   []int32       // requests in progress by client, kept if asks

	queue    *queue
	timeouts fifo[event] // of attempts that only AttemptTimeout bounds
	requests []request
	free     []int32
	shares   []uint64 // of unequal clients: the upper ends of their ranges of draws

	arrivals, service, faults, draws, instances, latencies *source

	stations []station
	working  []job        // by worker
	idle     []int32      // free slots of working
	hedges   []hedge.Host // by client; nil if they don't hedge
	hedging  hedge.Rule

	event decide.Event // of the current step, kept here so that it isn't allocated for each

	failure, broken, trouble, stall, well chance
	arrived                               int

	now     int64
	result  Result
	latency latencies
	seconds seconds

	// What the hosts are asked and answer, for tests.
	traceAttempt func(now time.Duration)
	traceForget  func(host int32)
	traceStep    func(host int32, before decide.Call, e decide.Event, now time.Duration, draw uint64, a decide.Action)
}

// Run simulates s. When ctx ends, Run returns the result so far, marked as
// partial, and the context's error. If a parameter is out of bounds, Run returns
// a nil result and the error.
func (s Scenario) Run(ctx context.Context) (*Result, error) {
	r, err := newRun(&s)
	if err != nil {
		return nil, err
	}
	return r.run(ctx)
}

func newRun(s *Scenario) (*run, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	r := &run{
		Scenario:  s,
		queue:     &queue{},
		arrivals:  newSource(s.Seed, streamArrivals),
		service:   newSource(s.Seed, streamService),
		faults:    newSource(s.Seed, streamFaults),
		draws:     newSource(s.Seed, streamDraws),
		stations:  newStations(&s.Backend),
		instances: newSource(s.Seed, streamInstances),
		latencies: newSource(s.Seed, streamLatencies),
		stall:     newChance(s.Backend.Latency.StallShare),
		failure:   newChance(s.Backend.FailureRate),
		broken:    newChance(s.Backend.BrokenShare),
		trouble:   newChance(s.Trigger.FailureRate),
		well:      newChance(s.Backend.Well),
		seconds:   newSeconds(s),
	}
	retry := s.Policy.Retry
	if retry.AttemptTimeout == 0 {
		// The budget depends on the attempt timeout.
		retry.AttemptTimeout = s.Fleet.Timeout
	}
	var err error
	if r.rules, r.policy, err = lend.Rules(retry); err != nil {
		return nil, err
	}
	r.timeout = max(0, r.policy.AttemptTimeout)
	clients := s.Fleet.Clients
	r.hosts = make([]host.Record, clients)
	if r.asks = asksFirst(r.policy); r.asks {
		r.out = make([]int32, clients)
	}
	if share := r.policy.Hedge; share > 0 && r.policy.MaxAttempts > 1 {
		r.hedging.Share, r.hedges = share, make([]hedge.Host, clients)
	}
	switch {
	case s.Policy.account:
		r.account = newAccounts(&s.Store, clients, s.Seed)
	case s.Policy.limit != nil:
		r.limit = s.Policy.limit(clients)
	}
	r.deadEach = uint64(s.Fleet.Dead * (1 << 32))
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

func (r *run) run(ctx context.Context) (*Result, error) {
	horizon := int64(r.Horizon)
	r.queue.push(r.firstArrival(), 0, happensArrival)
	if r.Trigger.Loses {
		r.queue.push(int64(r.Trigger.At), 0, happensLoss)
	}
	err := ctx.Err()
	for events := 0; err == nil; events++ {
		e, ok := r.next()
		if !ok || e.at >= horizon {
			r.now = horizon
			break
		}
		r.now = e.at
		r.happen(e)
		if events%cancelCheckEach == cancelCheckEach-1 {
			err = ctx.Err()
		}
	}
	r.result.Until = time.Duration(r.now)
	r.result.Partial = err != nil
	if a := r.account; a != nil {
		r.result.StoreOperations, r.result.StorePeak = a.operations, float64(a.peak)
	}
	r.result.finish(r.Scenario, &r.latency, &r.seconds)
	return &r.result, err
}

// next removes and returns the next event, from the queue or from the list of
// timeouts. Most timeouts never fire, and they are scheduled in
// order of time, so a separate list costs much less than the queue.
func (r *run) next() (event, bool) {
	for {
		e, ok := r.queue.first()
		if r.timeouts.len() == 0 || ok && e.before(r.timeouts.first()) {
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
			r.step(e.who, decide.Event{Kind: decide.Due})
		}
		return
	} else if kind == happensServed {
		r.served(e.who)
		return
	} else if kind == happensLoss {
		r.lose()
		return
	}
	q := &r.requests[e.who]
	if q.gen != gen {
		return
	}
	switch e.what & happensMask {
	case happensLate:
		r.late(e.who)
	case happensGateway:
		r.ended(e.who, decide.Outcome{Status: http.StatusGatewayTimeout})
	case happensTimeout:
		r.ended(e.who, decide.Outcome{Timeout: true})
	case happensGood:
		r.ended(e.who, decide.Outcome{Status: http.StatusOK})
	case happensBad:
		o := decide.Outcome{Status: http.StatusServiceUnavailable}
		switch {
		case q.broken:
			o.RetryAfter = r.Backend.BrokenRetryAfter
		case r.troubled():
			o.RetryAfter = r.Trigger.RetryAfter
		}
		r.ended(e.who, o)
	case happensRefused:
		r.ended(e.who, decide.Outcome{Status: http.StatusServiceUnavailable})
	}
}

// troubled reports whether the trigger is active.
func (r *run) troubled() bool { return r.Trigger.during(r.now) }

func (r *run) point() *Point { return &r.result.Series[r.now/int64(r.result.Bin)] }

// RunAll runs scenarios in parallel on all processors and returns their results
// in the order of scenarios. It calls progress, if not nil, after each run
// with the share that is complete; calls don't overlap. RunAll validates all
// parameters before the first run. If there is an error, some results may be
// nil and others partial.
func RunAll(ctx context.Context, scenarios []Scenario, progress func(done float64)) ([]*Result, error) {
	results := make([]*Result, len(scenarios))
	for _, s := range scenarios {
		if err := s.Validate(); err != nil {
			return results, err
		}
	}
	err := parallel(ctx, len(scenarios), progress, func(ctx context.Context, i int) (err error) {
		results[i], err = scenarios[i].Run(ctx)
		return err
	})
	return results, err
}

// parallel calls do for 0 to n-1, with as many goroutines as there are
// processors, and reports progress when a call ends. It stops at the first error
// and returns the one with the lowest index.
func parallel(ctx context.Context, n int, progress func(done float64), do func(ctx context.Context, i int) error) error {
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		mu         sync.Mutex
		next, done int
		failed     = n
		first      error
		wg         sync.WaitGroup
	)
	for range min(n, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= n || ctx.Err() != nil {
					return
				}
				err := do(ctx, i)
				mu.Lock()
				if err != nil {
					// A run that was canceled because of another run's error
					// has no error of its own.
					if i < failed && (ctx.Err() == nil || !errors.Is(err, context.Canceled)) {
						failed, first = i, err
					}
					cancel()
				} else if done++; progress != nil {
					progress(float64(done) / float64(n))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if err := outer.Err(); err != nil {
		return err
	}
	return first
}
