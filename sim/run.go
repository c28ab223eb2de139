// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"math"
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// request is one RoundTrip under way.
type request struct {
	call    retrip.Call
	arrived int64
	began   int64 // of the last attempt
	client  int32
	parent  int32  // index of the request in whose attempt it is made; -1 is none
	gen     uint32 // of the attempt under way; what is tagged with another one comes too late
	paid    int32  // to a limiter
	layer   int32
}

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

// unequal returns the upper ends of the draws that fall to each client when
// client number k is floor(C^u), u uniform.
func unequal(clients int) []uint64 {
	shares := make([]uint64, clients)
	whole := ln(float64(clients + 1))
	for i := range shares {
		shares[i] = uint64(newChance(ln(float64(i+2)) / whole))
	}
	shares[clients-1] = math.MaxUint64
	return shares
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
	r.result.finish(r.Scenario, &r.latency)
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
func (r *run) troubled() bool {
	return r.now >= int64(r.Trigger.At) && r.now < int64(r.Trigger.end())
}

func (r *run) firstArrival() int64 {
	if r.Arrivals.Regular || r.Arrivals.AtOnce {
		return 0
	}
	return int64(r.arrivals.exponential(float64(time.Second) / r.Arrivals.Rate))
}

// arrive begins a request and schedules the arrival of the next.
func (r *run) arrive() {
	client := int32(r.arrived % r.Fleet.Clients)
	if !r.Arrivals.Regular && !r.Arrivals.AtOnce {
		client = r.pick()
	}
	r.arrived++
	if r.Arrivals.Count == 0 || r.arrived < r.Arrivals.Count {
		mean := float64(time.Second) / r.Arrivals.Rate
		if r.Trigger.Surge > 0 && r.troubled() {
			mean /= r.Trigger.Surge
		}
		var gap int64
		switch {
		case r.Arrivals.AtOnce:
		case r.Arrivals.Regular:
			gap = int64(mean)
		default:
			gap = int64(r.arrivals.exponential(mean))
		}
		r.queue.push(r.now+gap, 0, happensArrival)
	}
	r.point().Requests++
	r.begin(client, 0, -1)
}

func (r *run) pick() int32 {
	if r.shares == nil {
		return int32(r.arrivals.below(uint64(r.Fleet.Clients)))
	}
	draw := r.arrivals.Uint64()
	lo, hi := 0, len(r.shares)-1
	for lo < hi {
		if mid := (lo + hi) / 2; draw <= r.shares[mid] {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return int32(lo)
}

func (r *run) point() *Point { return &r.result.Series[r.now/int64(r.result.Bin)] }

// begin starts a request of a client at a layer.
func (r *run) begin(client, layer, parent int32) {
	var i int32
	if n := len(r.free); n > 0 {
		i = r.free[n-1]
		r.free = r.free[:n-1]
		gen := r.requests[i].gen
		r.requests[i] = request{gen: gen}
	} else {
		i = int32(len(r.requests))
		r.requests = append(r.requests, request{})
	}
	q := &r.requests[i]
	q.arrived, q.client, q.layer, q.parent = r.now, client, layer, parent
	if d := r.policy.Deadline; d > 0 {
		q.call.Deadline = max(1, time.Duration(r.now)+d)
	}
	host := r.host(q)
	if r.policy.Gate == retrip.On {
		q.call.Waiter = i
	}
	if r.limit != nil && !r.limit.first(host, time.Duration(r.now)) {
		r.finish(i, false, reasonLimited)
		return
	}
	if r.asks {
		r.out[host]++
		r.ask(i, true)
		return
	}
	r.send(i)
}

func (r *run) host(q *request) int32 { return q.layer*int32(r.Fleet.Clients) + q.client }

// wake goes on after a wait.
func (r *run) wake(i int32) {
	q := &r.requests[i]
	if r.limit != nil && !r.limit.wake(r.host(q), time.Duration(r.now)) {
		r.finish(i, false, reasonLimited)
		return
	}
	if q.call.Attempts == 0 {
		r.ask(i, true)
		return
	}
	r.ask(i, false)
}

// ask has the host say whether an attempt may be made now, and does what it
// says.
func (r *run) ask(i int32, first bool) {
	q := &r.requests[i]
	host, now, draw := r.host(q), time.Duration(r.now), r.draws.Uint64()
	before := q.call
	var d retrip.Decision
	if first {
		d = r.hosts[host].First(r.rules, &q.call, now, draw)
	} else {
		d = r.hosts[host].Wake(r.rules, &q.call, now, draw)
	}
	if r.traceAsk != nil {
		r.traceAsk(host, first, before, now, draw, d)
	}
	switch {
	case !d.Retry:
		r.finish(i, false, d.Reason)
	case d.Wait > 0:
		r.sleep(i, d.Wait)
	default:
		r.send(i)
	}
	r.wakeOthers(host, d.Wakes)
}

// sleep lets a request wait. What it waited for before is over.
func (r *run) sleep(i int32, wait time.Duration) {
	q := &r.requests[i]
	q.gen += generationStep
	if wait < r.Horizon {
		r.queue.push(r.now+int64(wait), i, q.gen|happensWake)
	}
}

// wakeOthers has those ask again who must, if there are any.
func (r *run) wakeOthers(host int32, any bool) {
	for any {
		i, ok := r.hosts[host].Woken().(int32)
		if !ok {
			return
		}
		r.sleep(i, 0)
	}
}

// send makes an attempt.
func (r *run) send(i int32) {
	q := &r.requests[i]
	q.call.Attempts++
	q.gen += generationStep
	q.began = r.now
	if q.layer+1 < r.layers {
		r.begin(q.client, q.layer+1, i)
		return
	}
	if r.traceAttempt != nil {
		r.traceAttempt(time.Duration(r.now))
	}
	p := r.point()
	p.Attempts++
	r.result.Attempts++
	if q.call.Attempts > 1 {
		p.Retries++
		r.result.Retries++
	}
	limit := r.timeout
	if q.call.Deadline != 0 {
		if left := max(1, q.call.Deadline-time.Duration(r.now)); limit == 0 || left < limit {
			limit = left
		}
	}
	if limit > 0 {
		r.queue.push(r.now+int64(limit), i, q.gen|happensTimeout)
	}
	if r.Network.Delay > 0 {
		r.queue.push(r.now+int64(r.Network.Delay), i, q.gen|happensReach)
		return
	}
	r.reach(i, q.gen)
}

// ended takes in the outcome of an attempt.
func (r *run) ended(i int32, o retrip.Outcome) {
	q := &r.requests[i]
	q.gen += generationStep
	now, host := time.Duration(r.now), r.host(q)
	o.Idempotent, o.Replay, o.Took = true, true, now-time.Duration(q.began)
	before := q.call
	draw := r.draws.Uint64()
	if r.limit != nil {
		r.limit.result(host, now, &o, q.call.Attempts, &q.paid)
	}
	d := r.hosts[host].Next(r.rules, &q.call, o, now, draw)
	if r.traceNext != nil {
		r.traceNext(host, before, o, now, draw, d)
	}
	r.wakeOthers(host, d.Wakes)
	if !d.Retry {
		r.finish(i, o.Status == http.StatusOK, d.Reason)
		return
	}
	if r.limit != nil && !r.limit.retry(host, now, &o, &q.paid) {
		r.finish(i, false, reasonLimited)
		return
	}
	if r.Policy.draw != nil {
		d.Wait = r.Policy.draw(r.draws, r.policy, q.call.Attempts)
	}
	r.result.wait(d.Wait)
	if d.AtGate {
		d.Wait = 0
	}
	r.sleep(i, d.Wait)
}

// forget makes a host new as Transport does: when it has healed and no request
// is under way. A breaker's window counts from the next failure on, so its
// ratio is biased high.
func (r *run) forget(host int32) {
	r.out[host]--
	if r.out[host] == 0 && r.hosts[host].Healed(time.Duration(r.now)) {
		r.hosts[host] = retrip.Host{}
		if r.traceForget != nil {
			r.traceForget(host)
		}
	}
}

// finish ends a request.
func (r *run) finish(i int32, good bool, reason retrip.Reason) {
	q := &r.requests[i]
	q.gen += generationStep
	if r.limit != nil {
		r.limit.done(r.host(q))
	}
	if r.asks {
		r.forget(r.host(q))
	}
	parent := q.parent
	r.free = append(r.free, i)
	if parent >= 0 {
		status := http.StatusOK
		if !good {
			status = http.StatusServiceUnavailable
		}
		r.ended(parent, retrip.Outcome{Status: status})
		return
	}
	r.result.Requests++
	if !good {
		r.result.gaveUp(reason)
		return
	}
	r.result.Succeeded++
	r.result.Series[q.arrived/int64(r.result.Bin)].Good++
	r.latency.add(time.Duration(r.now - q.arrived))
}
