// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/http"
	"time"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
)

// request is one RoundTrip in progress.
type request struct {
	call    decide.Call
	arrived int64
	began   int64 // start of the last attempt
	decided int64 // end of the attempt that the wait follows
	host    int32
	parent  int32  // index of the request whose attempt made this one, none, or orphan
	child   int32  // index of the request that the next service makes for the current attempt, or none
	gen     uint32 // of the current attempt; events tagged with another generation are stale
	paid    int32  // amount taken from a limiter
	layer   int32

	timedOut bool // the last attempt; the next one needs a new connection
	broken   bool // the request goes to a broken route
	stalls   bool // all attempts of the request stall

	race race
}

const (
	none   = -1
	orphan = -2 // its parent has stopped waiting
)

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

// begin starts a request of the nth caller at a layer.
func (r *run) begin(n, level, parent int32) {
	i := r.take()
	l := &r.layers[level]
	q := &r.requests[i]
	q.arrived, q.host, q.layer, q.parent, q.child = r.now, r.member(l, n), level, parent, none
	if parent >= 0 {
		r.requests[parent].child = i
	}
	q.race.other = none
	q.broken = r.faults.happens(r.broken)
	q.stalls = r.Backend.Latency.StallSticks && r.latencies.happens(r.stall)
	if d := l.policy.Deadline; d > 0 {
		q.call.Deadline = max(1, time.Duration(r.now)+d)
	}
	if l.gated {
		q.call.Waiter = i
	}
	if l.asks {
		r.out[q.host]++
	}
	if l.limit != nil && !l.limit.first(q.host-l.first, time.Duration(r.now)) {
		r.finish(i, false, l.refusal)
		return
	}
	if l.asks {
		r.ask(i, true)
		return
	}
	r.send(i)
}

// wake continues a request after a wait.
func (r *run) wake(i int32) {
	q := &r.requests[i]
	l := &r.layers[q.layer]
	if l.limit != nil && !l.limit.wake(q.host-l.first, time.Duration(r.now)) {
		r.finish(i, false, l.refusal)
		return
	}
	r.ask(i, q.call.Attempts == 0)
}

// ask asks the host whether the attempt may start now, and acts on the answer.
func (r *run) ask(i int32, first bool) {
	q := &r.requests[i]
	l, host, now, draw := &r.layers[q.layer], q.host, time.Duration(r.now), r.draws.Uint64()
	before := q.call
	var d decide.Decision
	if first {
		d = l.rules.First(&r.hosts[host], &q.call, now, draw)
	} else {
		d = l.rules.Wake(&r.hosts[host], &q.call, now, draw)
	}
	if r.traceAsk != nil {
		r.traceAsk(host, first, before, now, draw, d)
	}
	switch {
	case !d.Retry:
		r.finish(i, false, retrip.Reason(d.Reason.String()))
	case d.Wait > 0:
		r.sleep(i, d.Wait)
	case !first && l.limit != nil && !l.limit.send(host-l.first, now, now-time.Duration(q.decided), &q.paid):
		d.Wakes = l.rules.Return(&r.hosts[host], &q.call) || d.Wakes
		r.finish(i, false, l.refusal)
	default:
		r.send(i)
	}
	r.wakeOthers(host, d.Wakes)
}

// sleep makes a request wait. It replaces any earlier wait.
func (r *run) sleep(i int32, wait time.Duration) {
	q := &r.requests[i]
	q.gen += generationStep
	if wait < r.Horizon {
		r.queue.push(r.now+int64(wait), i, q.gen|happensWake)
	}
}

// wakeOthers wakes waiting requests of the host that must ask it again, if
// there are any.
func (r *run) wakeOthers(host int32, any bool) {
	for any {
		i, ok := r.hosts[host].Woken().(int32)
		if !ok {
			return
		}
		r.sleep(i, 0)
	}
}

// send starts an attempt that is no hedge.
func (r *run) send(i int32) {
	q := &r.requests[i]
	q.call.Attempts++
	r.attempt(i)
}

// attempt makes an attempt.
func (r *run) attempt(i int32) {
	q := &r.requests[i]
	q.gen += generationStep
	q.began = r.now
	l := &r.layers[q.layer]
	l.attempts++
	limit := l.timeout
	if q.call.Deadline != 0 {
		if left := max(1, q.call.Deadline-time.Duration(r.now)); limit == 0 || left < limit {
			limit = left
		}
	}
	if limit > 0 {
		if at := r.now + int64(limit); limit == l.timeout && int(q.layer)+1 == len(r.layers) {
			r.timeouts.add(r.queue.stamp(at, i, q.gen|happensTimeout))
		} else {
			r.queue.push(at, i, q.gen|happensTimeout)
		}
	}
	if l.hedge.Share > 0 && q.call.Attempts == 1 {
		r.watch(i, limit)
	}
	if l.seconds != nil {
		l.seconds[r.seconds.index(r.now)]++
		if int(q.layer)+1 < len(r.layers) {
			r.begin(q.host-l.first, q.layer+1, i)
			return
		}
	}
	if r.traceAttempt != nil {
		r.traceAttempt(time.Duration(r.now))
	}
	if len(r.layers) == 1 && l.dead(q.host) {
		r.answer(i, q.gen|happensBad)
		return
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
	if r.Network.Delay > 0 {
		r.queue.push(r.now+int64(r.Network.Delay), i, q.gen|happensReach)
		return
	}
	r.reach(i, q.gen)
}

// ended processes the outcome of an attempt.
func (r *run) ended(i int32, o decide.Outcome) {
	q := &r.requests[i]
	q.gen += generationStep
	now := time.Duration(r.now)
	l := &r.layers[q.layer]
	o.Idempotent, o.Replay, o.Took = true, true, now-time.Duration(q.began)
	if l.hedge.Share > 0 && q.call.Attempts <= 2 {
		if i = r.raced(i, &o); i == none {
			return // the other attempt may still succeed
		}
		q = &r.requests[i]
	}
	host := q.host
	q.timedOut, q.decided = o.Timeout, r.now
	before := q.call
	draw := r.draws.Uint64()
	if l.limit != nil {
		l.limit.result(host-l.first, now, &o, q.call.Attempts, &q.paid)
	}
	d := l.rules.Next(&r.hosts[host], &q.call, o, now, draw)
	if r.traceNext != nil {
		r.traceNext(host, before, o, now, draw, d)
	}
	r.wakeOthers(host, d.Wakes)
	if !d.Retry {
		r.finish(i, o.Status == http.StatusOK, retrip.Reason(d.Reason.String()))
		return
	}
	if l.limit != nil && !l.limit.retry(host-l.first, now, &o, &q.paid) {
		r.wakeOthers(host, l.rules.Return(&r.hosts[host], &q.call))
		r.finish(i, false, l.refusal)
		return
	}
	if l.draw != nil {
		d.Wait = l.draw(r.draws, l.policy, q.call.Attempts)
	}
	if l.limit != nil {
		d.Wait = max(d.Wait, l.limit.delay(host-l.first, now))
	}
	r.result.wait(d.Wait)
	if d.AtGate {
		d.Wait = 0
	}
	r.sleep(i, d.Wait)
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
	l := &r.layers[q.layer]
	l.requests++
	if l.limit != nil {
		l.limit.done(q.host - l.first)
	}
	if l.asks {
		r.forget(q.host)
	}
	if q.race.other != none {
		r.drop(i)
	}
	parent := q.parent
	r.free = append(r.free, i)
	if parent == orphan {
		return
	}
	if parent >= 0 {
		r.requests[parent].child = none
		status := http.StatusOK
		if !good {
			status = http.StatusServiceUnavailable
		}
		r.ended(parent, decide.Outcome{Status: status})
		return
	}
	r.result.Requests++
	if l.dead(q.host) || q.broken {
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
