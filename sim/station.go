// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/decide"
)

// job is one attempt as the backend sees it.
type job struct {
	at      int64 // when it arrived
	who     int32
	gen     uint32
	station int32
	connect bool // it needs a new connection
}

// station is one instance of the backend.
type station struct {
	busy    int
	waiting deque
	owed    int64   // refusal work that workers still have to do
	slow    float64 // factor on all work; 0 means no change
	dead    bool
	codel   codel
}

func newStations(b *Backend) []station {
	list := make([]station, max(1, b.Instances))
	for i := range list {
		list[i].waiting.jobs = make([]job, 16)
		switch {
		case i < b.Slow:
			list[i].slow = b.SlowBy
		case i < b.Slow+b.Dead:
			list[i].dead = true
		}
	}
	return list
}

// reach handles an attempt that reaches the backend.
func (r *run) reach(i int32, gen uint32) {
	if r.requests[i].broken {
		if !r.Backend.BrokenSilent {
			r.answer(i, gen|happensBad)
		}
		return
	}
	if r.faults.happens(r.failure) || r.trouble != 0 && r.troubled() && r.faults.happens(r.trouble) {
		r.fault(i, gen)
		return
	}
	b := &r.Backend
	j := job{at: r.now, who: i, gen: gen}
	if len(r.stations) > 1 {
		j.station = r.balance()
	}
	s := &r.stations[j.station]
	if s.dead {
		r.fault(i, gen)
		return
	}
	j.connect = r.requests[i].timedOut
	if b.Workers == 0 || s.busy < b.Workers {
		r.work(s, j)
		return
	}
	switch {
	case b.ShedRetries > 0 && s.waiting.n >= b.ShedRetries && r.requests[i].call.Attempts > 1:
		r.refuse(s, j)
	case s.waiting.n < b.Queue:
		s.waiting.push(j)
	case b.Order == LastInFirstOut && b.Queue > 0:
		r.refuse(s, s.waiting.shift())
		s.waiting.push(j)
	default:
		r.refuse(s, j)
	}
}

// balance chooses an instance.
func (r *run) balance() int32 {
	n := uint64(len(r.stations))
	one := int32(r.instances.below(n))
	if r.Backend.ShorterOfTwo {
		load := func(i int32) int { return r.stations[i].busy + r.stations[i].waiting.n }
		if other := int32(r.instances.below(n)); load(other) < load(one) {
			return other
		}
	}
	return one
}

// fault answers with 503, or not at all.
func (r *run) fault(i int32, gen uint32) {
	if !r.Backend.Silent {
		r.answer(i, gen|happensBad)
	}
}

// refuse answers with 503 and the backend's hints.
func (r *run) refuse(s *station, j job) {
	if r.Backend.RefusalCost > 0 {
		s.owed += int64(float64(r.Backend.Service) * r.Backend.RefusalCost)
	}
	r.answer(j.who, j.gen|happensRefused)
}

// work starts a worker on j.
func (r *run) work(s *station, j job) {
	s.busy++
	b := &r.Backend
	mean := float64(b.Service)
	if r.Trigger.Slowdown > 0 && r.troubled() {
		mean *= r.Trigger.Slowdown
	}
	if s.slow > 0 {
		mean *= s.slow
	}
	if b.Crowding > 0 && b.Queue > 0 {
		mean *= 1 + float64(b.Crowding*float64(s.waiting.n)/float64(b.Queue))
	}
	if r.missing > 0 && r.now >= int64(r.Trigger.end()) {
		mean *= 1 + float64((b.Cold-1)*float64(r.missing)/float64(b.Refill))
	}
	if b.TailShare > 0 && r.tails.happens(r.tail) {
		mean *= b.TailTimes
	}
	took := int64(mean)
	switch {
	case b.Spread > 0:
		took = int64(max(0, mean+float64(mean*b.Spread)*r.service.normal()))
	case !b.Fixed:
		took = int64(r.service.exponential(mean))
	}
	if j.connect {
		took += int64(b.Connect)
	}
	took += s.owed
	s.owed = 0
	var worker int32
	if n := len(r.idle); n > 0 {
		worker = r.idle[n-1]
		r.idle = r.idle[:n-1]
		r.working[worker] = j
	} else {
		worker = int32(len(r.working))
		r.working = append(r.working, j)
	}
	r.queue.push(r.now+took, worker, happensServed)
}

// served handles a worker that has finished, whether or not the client still
// waits.
func (r *run) served(worker int32) {
	j := r.working[worker]
	r.idle = append(r.idle, worker)
	s := &r.stations[j.station]
	s.busy--
	r.point().Served++
	if r.missing > 0 && r.now >= int64(r.Trigger.end()) && r.requests[j.who].gen == j.gen {
		r.missing--
	}
	if r.Backend.Workers > 0 {
		r.serveNext(s)
	}
	if r.Backend.Latency.Median > 0 {
		if r.requests[j.who].gen == j.gen {
			r.queue.push(r.now+r.latencyOf(j.who, s), j.who, j.gen|happensGood)
		}
		return
	}
	if r.Network.Delay == 0 && r.Trigger.Delay == 0 {
		// The answer can be delivered directly, since there is no delay and
		// send isn't on the call stack.
		if r.requests[j.who].gen == j.gen {
			r.ended(j.who, decide.Outcome{Status: http.StatusOK})
		}
		return
	}
	r.answer(j.who, j.gen|happensGood)
}

// latencyOf draws the latency of an answer of s.
func (r *run) latencyOf(i int32, s *station) int64 {
	l := &r.Backend.Latency
	lognormal := func(median time.Duration, spread float64) float64 {
		return float64(median) * exp(float64(spread*r.latencies.normal()))
	}
	took := lognormal(l.Median, l.Spread)
	if l.StallSticks && r.requests[i].stalls || !l.StallSticks && r.latencies.happens(r.stall) {
		took += lognormal(l.StallMedian, l.StallSpread)
	}
	if r.Trigger.Latency > 0 && r.troubled() {
		took *= r.Trigger.Latency
	}
	if s.slow > 0 {
		took *= s.slow
	}
	return int64(took) + int64(r.Network.Delay)
}

// serveNext starts a worker on the next request in the queue, if there is one.
func (r *run) serveNext(s *station) {
	b := &r.Backend
	for {
		if s.waiting.n == 0 {
			s.codel = codel{}
			return
		}
		var j job
		if b.Order == LastInFirstOut {
			j = s.waiting.pop()
		} else {
			j = s.waiting.shift()
		}
		switch waited := time.Duration(r.now - j.at); {
		case b.DropAbandoned && r.requests[j.who].gen != j.gen:
		case b.Patience > 0 && waited > b.Patience, b.CoDel > 0 && s.codel.drops(r.now, waited, b.CoDel):
			r.refuse(s, j)
		default:
			r.work(s, j)
			return
		}
	}
}

// answer sends an answer to the client.
func (r *run) answer(i int32, what uint32) {
	delay := r.Network.Delay
	if r.Trigger.Delay > 0 && r.troubled() {
		delay += r.Trigger.Delay
	}
	// The answer is an event of its own even without a delay: delivered
	// directly within send, it would recurse without end under a policy that
	// retries at once.
	r.queue.push(r.now+int64(delay), i, what)
}

// codel is the control law of RFC 8289, section 5: the longer waits stay above
// the target, the shorter the intervals between drops become.
type codel struct {
	above    int64 // when to start dropping if waits stay above the target; 0 means they are below it
	next     int64 // time of the next drop
	count    int
	dropping bool
}

const codelInterval = 100 * time.Millisecond

func (c *codel) drops(now int64, waited, target time.Duration) bool {
	if waited < target {
		*c = codel{count: c.count, next: c.next}
		return false
	}
	if c.above == 0 {
		c.above = now + int64(codelInterval)
		return false
	}
	if now < c.above || c.dropping && now < c.next {
		return false
	}
	if c.dropping {
		c.count++
	} else {
		// Resume at the previous drop rate if dropping ended recently.
		recent := now-c.next < 16*int64(codelInterval)
		if c.dropping = true; recent && c.count > 2 {
			c.count -= 2
		} else {
			c.count = 1
		}
		c.next = now
	}
	c.next += int64(float64(codelInterval) / math.Sqrt(float64(c.count)))
	return true
}

// deque is a double-ended queue.
type deque struct {
	jobs  []job
	first int
	n     int
}

func (q *deque) push(j job) {
	if q.n == len(q.jobs) {
		grown := make([]job, 2*len(q.jobs))
		n := copy(grown, q.jobs[q.first:])
		copy(grown[n:], q.jobs[:q.first])
		q.jobs, q.first = grown, 0
	}
	q.jobs[(q.first+q.n)&(len(q.jobs)-1)] = j
	q.n++
}

// shift removes and returns the first job. The deque must not be empty.
func (q *deque) shift() job {
	j := q.jobs[q.first]
	q.first = (q.first + 1) & (len(q.jobs) - 1)
	q.n--
	return j
}

// pop removes and returns the last job. The deque must not be empty.
func (q *deque) pop() job {
	q.n--
	return q.jobs[(q.first+q.n)&(len(q.jobs)-1)]
}
