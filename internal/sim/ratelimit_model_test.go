// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
)

// RateLimit models a server that limits the rate of requests, and one or more
// processes that run at that limit. Each process has its own workers, or
// requests that arrive independently. The result says how much of the limit the
// processes use, how many refusals that costs, and how long a request waits.
type RateLimit struct {
	// Policy is the policy of the processes; each has its own host. The rules of other
	// systems aren't supported, and AttemptTimeout has no effect.
	Policy Policy

	Limit         ServerLimit
	Tenants       []float64 // the limits of keys through which workers cycle, each a token bucket of as many per second, instead of Limit
	GatePerTenant bool      // each key has its own gate, as by Policy.Gate.Key

	// Obeys makes each process keep to every Retry-After for all of its requests,
	// and otherwise send: a client to compare with, for a policy without a gate.
	Obeys bool

	Processes int           // that share the limit
	Stagger   time.Duration // within which they start one after another
	Workers   int           // of each process, which make one request after another
	Rate      float64       // requests per second that arrive at each process besides, and wait for no worker
	Burst     int           // such requests that arrive at once, at BurstAt
	BurstAt   time.Duration
	Deadline  time.Duration // of each request. If 0, none

	DelayLow, DelayHigh time.Duration // bounds of the one-way network delay

	Service     time.Duration // on an accepted request, which also counts towards a Concurrency limit
	Exponential bool          // Service is the mean of an exponential distribution
	Failures    float64       // share of accepted requests that are answered with 500, and count against the limit

	WarmUp, Horizon time.Duration // when counting starts, and the run ends
	Seed            uint64
}

// RateLimitResult is the outcome of a [RateLimit]. "After the warm-up" means:
// among the answers that clients received from RateLimit.WarmUp on.
type RateLimitResult struct {
	Accepted, Refused int64 // attempts, after the warm-up
	GaveUp            map[retrip.Reason]int64

	Used     float64 // accepted requests as a share of what the limit allows, after the warm-up
	Refusals float64 // per accepted request, after the warm-up

	// Worst is the longest time from arrival to success, among requests that
	// succeeded after the warm-up. Fair is what Worst would be if the workers
	// took turns at the whole limit; it is 0 without workers.
	Worst, Fair time.Duration

	Waited  time.Duration // the sum of all times from arrival to success
	Last    time.Duration // the time of the last success
	Share   float64       // of the process that got the largest share, after the warm-up
	Least   float64       // of the process that got the smallest
	Tenants []int64       // accepted by key, after the warm-up
	Early   int64         // attempts made while the process, or its key, had been told to wait
}

// The kind of an event is in the lowest bits of its tag. The remaining bits are
// the turn of the request.
const (
	limitArrival  = iota // of an open arrival at a process
	limitBegin           // a worker begins
	limitAsk             // a wait has ended, or a request was woken
	limitReach           // an attempt reaches the server
	limitServed          // the server has finished it
	limitAnswered        // the answer reaches the client
	limitKinds    = 8
)

// limitCall is one request, or a worker that makes requests one after another.
type limitCall struct {
	call    decide.Call
	arrived time.Duration
	sent    time.Duration
	outcome decide.Outcome
	process int32
	tenant  int32
	turn    uint32
	worker  bool
}

// limitRun is a RateLimit in progress.
type limitRun struct {
	*RateLimit
	rules    *decide.Rules
	hosts    []host.Record
	out      []int // requests in progress, by host
	told     [][]time.Duration
	servers  []limitServer
	queue    *queue
	requests []limitCall
	free     []int32

	arrivals, service, faults, draws, network, refusals *source

	failure chance
	random  chance // that the server refuses an attempt at random
	events  int
	reached int // attempts that have reached the server
	now     time.Duration
	shares  []int64
	result  RateLimitResult
}

func (m RateLimit) run(t *testing.T) *RateLimitResult {
	t.Helper()
	rules, _, err := m.Policy.rules()
	require.NoError(t, err)
	r := &limitRun{
		RateLimit: &m,
		rules:     rules,
		hosts:     make([]host.Record, m.Processes),
		out:       make([]int, m.Processes),
		told:      make([][]time.Duration, m.Processes),
		servers:   m.servers(),
		queue:     &queue{},
		arrivals:  newSource(m.Seed, streamArrivals),
		service:   newSource(m.Seed, streamService),
		faults:    newSource(m.Seed, streamFaults),
		draws:     newSource(m.Seed, streamDraws),
		network:   newSource(m.Seed, streamNetwork),
		refusals:  newSource(m.Seed, streamRefusals),
		failure:   newChance(m.Failures),
		random:    newChance(m.Limit.Random),
		shares:    make([]int64, m.Processes),
		result:    RateLimitResult{GaveUp: map[retrip.Reason]int64{}, Tenants: make([]int64, len(m.servers()))},
	}
	r.start()
	return r.run()
}

func (r *limitRun) start() {
	for p := range r.hosts {
		r.told[p] = make([]time.Duration, len(r.servers))
		var at time.Duration
		if p > 0 {
			at = time.Duration(r.arrivals.below(uint64(max(r.Stagger, 50*time.Millisecond))))
		}
		for k := range r.Workers {
			i := r.make(int32(p), k)
			r.requests[i].worker = true
			r.queue.push(int64(at), i, limitBegin)
		}
		for k := range r.Burst {
			r.queue.push(int64(r.BurstAt), r.make(int32(p), k), limitBegin)
		}
		if r.Rate > 0 {
			r.queue.push(int64(at+r.arrivals.exponential(float64(time.Second)/r.Rate)), int32(p), limitArrival)
		}
	}
}

// make returns a new request of process p: number k among the requests made the
// same way.
func (r *limitRun) make(p int32, k int) int32 {
	var i int32
	if n := len(r.free); n > 0 {
		i = r.free[n-1]
		r.free = r.free[:n-1]
	} else {
		i = int32(len(r.requests))
		r.requests = append(r.requests, limitCall{})
	}
	q := &r.requests[i]
	q.process, q.tenant, q.worker = p, int32(k%len(r.servers)), false
	return i
}

func (r *limitRun) run() *RateLimitResult {
	for {
		e, ok := r.queue.pop()
		if !ok || e.at >= int64(r.Horizon) {
			r.now = r.Horizon
			break
		}
		r.now = time.Duration(e.at)
		r.events++
		r.happen(e)
	}
	r.finish()
	return &r.result
}

func (r *limitRun) happen(e event) {
	kind := e.what % limitKinds
	if kind == limitArrival {
		r.queue.push(e.at+int64(r.arrivals.exponential(float64(time.Second)/r.Rate)), e.who, limitArrival)
		r.begin(r.make(e.who, r.events))
		return
	}
	q := &r.requests[e.who]
	switch {
	case kind == limitBegin:
		r.begin(e.who)
	case e.what/limitKinds != q.turn%(1<<29):
	case kind == limitAsk:
		r.ask(e.who)
	case kind == limitReach:
		r.reach(e.who)
	case kind == limitServed:
		leave(r.servers[q.tenant])
		r.push(e.who, r.way(), limitAnswered)
	case kind == limitAnswered:
		r.answered(e.who)
	}
}

// push schedules the next event of a request. Only the newest event of a
// request counts.
func (r *limitRun) push(i int32, after time.Duration, kind uint32) {
	q := &r.requests[i]
	q.turn++
	if after < r.Horizon {
		r.queue.push(int64(r.now+after), i, q.turn%(1<<29)*limitKinds+kind)
	}
}

// way returns a one-way network delay.
func (r *limitRun) way() time.Duration {
	if r.DelayHigh == r.DelayLow {
		return r.DelayLow
	}
	return r.DelayLow + time.Duration(r.network.below(uint64(r.DelayHigh-r.DelayLow)))
}

func (r *limitRun) begin(i int32) {
	q := &r.requests[i]
	q.call, q.arrived, q.outcome = decide.Call{}, r.now, decide.Outcome{}
	if r.Deadline > 0 {
		q.call.Deadline = r.now + r.Deadline
	}
	if r.rules.Gate {
		q.call.Waiter = i
		if r.GatePerTenant {
			q.call.Gate = strconv.Itoa(int(q.tenant))
		}
	}
	r.out[q.process]++
	r.ask(i)
}

// ask asks the host whether the attempt may start now, and acts on the answer.
func (r *limitRun) ask(i int32) {
	q := &r.requests[i]
	h, draw := &r.hosts[q.process], r.draws.Uint64()
	if told := slices.Max(r.told[q.process]); r.Obeys && told > r.now {
		if q.call.Deadline > 0 && told > q.call.Deadline {
			r.end(i, false, retrip.ReasonDeadline)
			return
		}
		r.push(i, told-r.now, limitAsk)
		return
	}
	var a decide.Action
	q.call.Step(r.rules, h, &decide.Event{Kind: decide.Due}, &a, r.now, draw)
	r.wakeOthers(h, a.Wakes)
	switch a.Do {
	case decide.Refuse:
		r.end(i, false, retrip.Reason(a.Reason.String()))
	case decide.Sleep:
		r.push(i, a.Wait, limitAsk)
	default:
		q.sent = r.now
		if r.now < r.told[q.process][q.tenant] {
			r.result.Early++
		}
		r.push(i, r.way(), limitReach)
	}
}

func (r *limitRun) wakeOthers(h *host.Record, any bool) {
	for any {
		i, ok := h.Woken().(int32)
		if !ok {
			return
		}
		r.push(i, 0, limitAsk)
	}
}

// reach handles an attempt that reaches the server.
func (r *limitRun) reach(i int32) {
	q := &r.requests[i]
	r.reached++
	var ok bool
	var exact time.Duration
	if r.Limit.Every == 0 || r.reached%r.Limit.Every != 0 {
		if !r.refusals.happens(r.random) {
			ok, exact = r.servers[q.tenant].arrive(r.now)
		}
	}
	q.outcome = decide.Outcome{Status: http.StatusOK, Idempotent: true, Replay: true}
	if !ok {
		q.outcome.Status, q.outcome.RetryAfter = http.StatusTooManyRequests, r.Limit.Word.of(exact)
		r.push(i, r.way(), limitAnswered)
		return
	}
	if r.faults.happens(r.failure) {
		q.outcome.Status = http.StatusInternalServerError
	}
	service := r.Service
	if r.Exponential {
		service = r.service.exponential(float64(service))
	}
	r.push(i, service, limitServed)
}

// answered handles an answer that reaches the client.
func (r *limitRun) answered(i int32) {
	q := &r.requests[i]
	o := q.outcome
	o.Took = r.now - q.sent
	counts := r.now >= r.WarmUp
	if o.Status == http.StatusTooManyRequests {
		if counts {
			r.result.Refused++
		}
		r.told[q.process][q.tenant] = max(r.told[q.process][q.tenant], r.now+o.RetryAfter)
	} else if counts {
		r.result.Accepted++
		r.result.Tenants[q.tenant]++
		r.shares[q.process]++
	}
	h := &r.hosts[q.process]
	var a decide.Action
	q.call.Step(r.rules, h, &decide.Event{Kind: decide.Ended, Outcome: o}, &a, r.now, r.draws.Uint64())
	r.wakeOthers(h, a.Wakes)
	switch a.Do {
	case decide.Answer:
		r.end(i, o.Status == http.StatusOK, retrip.Reason(a.Reason.String()))
	case decide.Queue:
		r.push(i, 0, limitAsk)
	default:
		r.push(i, a.Wait, limitAsk)
	}
}

// end ends a request. Its worker, if it has one, begins the next request.
func (r *limitRun) end(i int32, good bool, reason retrip.Reason) {
	q := &r.requests[i]
	q.turn++
	if good {
		wait := r.now - q.arrived
		r.result.Last = r.now
		r.result.Waited += wait
		if r.now >= r.WarmUp {
			r.result.Worst = max(r.result.Worst, wait)
		}
	} else {
		r.result.GaveUp[reason]++
	}
	// As in Transport, a host is forgotten when no request is in progress and
	// it has no state left to keep.
	p := q.process
	if r.out[p]--; r.out[p] == 0 && r.hosts[p].Healed(r.now) {
		r.hosts[p] = host.Record{}
	}
	switch {
	case !q.worker:
		r.free = append(r.free, i)
	case good:
		r.queue.push(int64(r.now), i, limitBegin)
	default:
		r.queue.push(int64(r.now+50*time.Millisecond), i, limitBegin)
	}
}

func (r *limitRun) finish() {
	res := &r.result
	allowed, perSecond := 0.0, 0.0
	for _, s := range r.servers {
		allowed += s.allows(r.WarmUp, max(r.now, r.WarmUp))
		perSecond += s.allows(0, r.Horizon) / r.Horizon.Seconds()
	}
	if allowed > 0 {
		res.Used = float64(res.Accepted) / allowed
	}
	res.Refusals = float64(res.Refused) / float64(max(1, res.Accepted))
	if perSecond > 0 {
		res.Fair = time.Duration(math.Round(float64(r.Workers*r.Processes) / perSecond * float64(time.Second)))
	}
	if res.Accepted > 0 {
		res.Share = float64(slices.Max(r.shares)) / float64(res.Accepted)
		res.Least = float64(slices.Min(r.shares)) / float64(res.Accepted)
	}
}
