// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"net/http"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/account"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
)

// request is one RoundTrip in progress.
type request struct {
	call    decide.Call
	arrived int64
	began   int64  // start of the last attempt
	host    int32  // of its client
	gen     uint32 // of the current attempt; events tagged with another generation are stale
	paid    int32  // amount taken from a limiter
	broken  bool   // the request goes to a broken route
	well    bool   // the request is one of [Backend.Well]
	out     bool   // an attempt is under way
	hit     bool   // a broken connection has ended one
	stalls  bool   // all attempts of the request stall

	race race
}

const none = -1

// take returns the index of a request that nothing uses.
func (r *run) take() (i int32) {
	n := len(r.free)
	if n == 0 {
		r.requests = append(r.requests, request{})
		return int32(len(r.requests) - 1)
	}
	i = r.free[n-1]
	r.free = r.free[:n-1]
	r.requests[i] = request{gen: r.requests[i].gen}
	return i
}

// begin starts a request of a client.
func (r *run) begin(client int32, well bool) {
	i := r.take()
	q := &r.requests[i]
	q.arrived, q.host, q.race.other = r.now, client, none
	if q.well = well; !well && r.faults.happens(r.broken) {
		q.broken, q.call.Route = true, 1
	}
	q.stalls = r.Backend.Latency.StallSticks && r.latencies.happens(r.stall)
	if d := r.policy.Deadline; d > 0 {
		q.call.Deadline = max(1, time.Duration(r.now)+d)
	}
	if r.rules.Gated {
		q.call.Waiter = i
	}
	if r.account != nil {
		q.call.Account = r.account.size
	}
	if r.asks {
		r.out[client]++
		r.step(i, decide.Event{Kind: decide.Began})
		return
	}
	var a decide.Action
	q.call.Step(r.rules, nil, &decide.Event{Kind: decide.Began}, &a, 0, 0)
	r.attempt(i)
}

// step tells the machine what has happened to a request, and does what it says. A client
// asks the fleet's account, and decides at the instant of the answer.
func (r *run) step(i int32, event decide.Event) {
	q := &r.requests[i]
	r.event = event
	e := &r.event
	now, draw := time.Duration(r.now), r.draws.Uint64()
	a := r.decide(i, e, now, draw)
	for a.Do == decide.Ask {
		if !a.Again {
			draw = r.account.draws.Uint64()
		}
		e.Kind = decide.Heard
		now, e.Level, e.Known = r.account.ask(q.host, now, a.Again)
		a = r.decide(i, e, now, draw)
	}
	switch a.Do {
	case decide.Answer, decide.Refuse:
		r.finish(i, a.Reason == decide.None && e.Outcome.Status == http.StatusOK, retrip.Reason(a.Reason.String()))
	case decide.Send:
		r.attempt(i)
	default:
		r.pause(i, &a, &e.Outcome, now-time.Duration(r.now))
	}
}

// pause makes a request wait as a says, after some time has passed with a question.
func (r *run) pause(i int32, a *decide.Action, o *decide.Outcome, passed time.Duration) {
	q := &r.requests[i]
	wait := passed + a.Wait
	if a.Reason == decide.None { // the wait goes on
		r.sleep(i, wait)
		return
	}
	if r.limit != nil && !r.limit.retry(q.host, o, &q.paid) {
		r.decide(i, &decide.Event{Kind: decide.NoBody}, time.Duration(r.now), 0)
		r.finish(i, false, reasonLimited)
		return
	}
	if draw := r.Policy.draw; draw != nil {
		wait = draw(r.draws, r.policy, q.call.Attempts)
	}
	r.result.wait(wait)
	if a.Do == decide.Queue {
		wait = 0
	}
	r.sleep(i, wait)
}

// decide takes a request through one step of the machine.
func (r *run) decide(i int32, e *decide.Event, now time.Duration, draw uint64) (a decide.Action) {
	q := &r.requests[i]
	var before decide.Call
	if r.traceStep != nil {
		before = q.call
	}
	q.call.Step(r.rules, &r.hosts[q.host], e, &a, now, draw)
	if r.traceStep != nil {
		r.traceStep(q.host, before, *e, now, draw, a)
	}
	if a.Pays {
		a.Tokens += account.Deposit(r.account.size, r.account.draws.Uint64())
	}
	if a.Tokens != 0 {
		r.account.add(q.host, now, a.Tokens)
	}
	wakeOthers(&r.hosts[q.host], a.Wakes, func(i int32) { r.sleep(i, 0) })
	return a
}

// sleep makes a request wait. It replaces any earlier wait.
func (r *run) sleep(i int32, wait time.Duration) {
	q := &r.requests[i]
	q.gen += generationStep
	if wait < r.Horizon {
		r.queue.push(r.now+int64(wait), i, q.gen|happensWake)
	}
}

// wakeOthers wakes waiting requests of h that must ask it again, if there are
// any.
func wakeOthers(h *host.Record, any bool, wake func(request int32)) {
	for any {
		i, ok := h.NextWoken().(int32)
		if !ok {
			return
		}
		wake(i)
	}
}

// attempt makes an attempt.
func (r *run) attempt(i int32) {
	q := &r.requests[i]
	q.gen += generationStep
	q.began, q.out = r.now, true
	limit := r.timeout
	if q.call.Deadline != 0 {
		if left := max(1, q.call.Deadline-time.Duration(r.now)); limit == 0 || left < limit {
			limit = left
		}
	}
	if limit > 0 {
		if at := r.now + int64(limit); limit == r.timeout {
			r.timeouts.push(r.queue.stamp(at, i, q.gen|happensTimeout))
		} else {
			r.queue.push(at, i, q.gen|happensTimeout)
		}
	}
	if r.hedges != nil && q.call.Attempts == 1 {
		r.watch(i, limit)
	}
	if r.traceAttempt != nil {
		r.traceAttempt(time.Duration(r.now))
	}
	if r.dead(q.host) {
		r.answer(i, q.gen|happensBad)
		return
	}
	if q.well {
		r.reach(i, q.gen)
		return
	}
	if q.broken {
		r.result.DeadAttempts++
	}
	p := r.point()
	p.Attempts++
	r.seconds.at(r.now).attempts++
	if r.troubled() {
		r.result.TriggerAttempts++
	}
	r.result.Attempts++
	switch {
	case q.race.hedge:
		p.Hedges++
		r.result.Hedges++
	case q.call.Attempts > 1:
		p.Retries++
		r.result.Retries++
	}
	r.reach(i, q.gen)
}

// ended processes the outcome of an attempt.
func (r *run) ended(i int32, outcome decide.Outcome) {
	q := &r.requests[i]
	q.gen += generationStep
	q.out = false
	now := time.Duration(r.now)
	r.event = decide.Event{Kind: decide.Ended, Outcome: outcome}
	o := &r.event.Outcome
	o.Repeatable, o.Replay, o.Took = true, true, now-time.Duration(q.began)
	if r.hedges != nil && q.call.Attempts <= 2 {
		if i = r.raced(i, o); i == none {
			return // the other attempt may still succeed
		}
		q = &r.requests[i]
	}
	if r.limit != nil {
		r.limit.result(q.host, o, q.call.Attempts, &q.paid)
	}
	r.step(i, r.event)
}

// lose breaks all connections.
func (r *run) lose() {
	for i := range r.requests {
		if q := &r.requests[i]; q.out && !q.well {
			q.hit = true
			r.ended(int32(i), decide.Outcome{})
		}
	}
}

// forget resets a host when Transport would: when it has healed and has no
// request in progress. A breaker's window then counts from the next failure on,
// so its failure ratio is biased high.
func (r *run) forget(at int32) {
	r.out[at]--
	if r.out[at] == 0 && r.hosts[at].Healed(time.Duration(r.now)) {
		r.hosts[at] = host.Record{}
		if r.traceForget != nil {
			r.traceForget(at)
		}
	}
}

// finish ends a request.
func (r *run) finish(i int32, good bool, reason retrip.Reason) {
	q := &r.requests[i]
	q.gen += generationStep
	q.out = false
	if r.asks {
		r.forget(q.host)
	}
	if q.race.other != none {
		r.drop(i)
	}
	r.free = append(r.free, i)
	if q.well {
		return
	}
	r.result.Requests++
	if q.hit {
		r.result.Lost++
		if good {
			r.result.Saved++
		}
	}
	if r.dead(q.host) || q.broken {
		r.result.DeadRequests++
	}
	if !good {
		r.result.gaveUp(reason)
		return
	}
	r.result.Succeeded++
	r.result.Series[q.arrived/int64(r.result.Bin)].Good++
	r.seconds.at(q.arrived).good++
	if r.Trigger.during(q.arrived) {
		r.seconds.troubled++
	}
	if q.arrived >= int64(r.WarmUp) {
		r.latency.add(time.Duration(r.now - q.arrived))
	}
}

// dead reports whether the network of a client is dead. The dead are spread over
// the fleet, with as many in every part of it.
func (r *run) dead(client int32) bool {
	return r.deadEach > 0 && uint64(client+1)*r.deadEach>>32 != uint64(client)*r.deadEach>>32
}

func (r *run) firstArrival() int64 {
	if r.Arrivals.Regular || r.Arrivals.AtOnce {
		return 0
	}
	return int64(r.arrivals.exponential(float64(time.Second) / r.Arrivals.Rate))
}

// arrive begins a request and schedules the next arrival.
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
	if r.faults.happens(r.well) {
		r.begin(client, true)
		return
	}
	r.point().Requests++
	r.seconds.at(r.now).requests++
	if r.troubled() {
		r.result.TriggerRequests++
	}
	r.begin(client, false)
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

// unequal returns the upper ends of the ranges of draws that choose each
// client: a draw u, uniform in [0, 1), chooses client number floor(C^u).
func unequal(clients int) []uint64 {
	shares := make([]uint64, clients)
	whole := ln(float64(clients + 1))
	for i := range shares {
		shares[i] = uint64(newChance(ln(float64(i+2)) / whole))
	}
	shares[clients-1] = math.MaxUint64
	return shares
}
