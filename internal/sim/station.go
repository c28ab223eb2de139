// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/decide"
)

// job is one attempt as the backend sees it.
type job struct {
	who     int32
	gen     uint32
	station int32
}

// station is one instance of the backend.
type station struct {
	busy    int
	waiting fifo[job]
	slow    float64 // factor on all work; 0 means no change
	dead    bool
}

func newStations(b *Backend) []station {
	list := make([]station, max(1, b.Instances))
	for i := range list {
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
	if r.requests[i].well {
		r.answer(i, gen|happensGood)
		return
	}
	if r.Backend.Gateway > 0 {
		r.queue.push(r.now+int64(r.Backend.Gateway), i, gen|happensGateway)
	}
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
	j := job{who: i, gen: gen}
	if len(r.stations) > 1 {
		j.station = r.balance()
	}
	s := &r.stations[j.station]
	if s.dead {
		r.fault(i, gen)
		return
	}
	switch {
	case b.Workers == 0 || s.busy < b.Workers:
		r.work(s, j)
	case s.waiting.len() < b.Queue:
		s.waiting.push(j)
	default:
		r.answer(i, gen|happensRefused)
	}
}

// balance chooses an instance.
func (r *run) balance() int32 {
	n := uint64(len(r.stations))
	one := int32(r.instances.below(n))
	if r.Backend.ShorterOfTwo {
		load := func(i int32) int { return r.stations[i].busy + r.stations[i].waiting.len() }
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
	took := int64(mean)
	switch {
	case b.Spread > 0:
		took = int64(max(0, mean+float64(mean*b.Spread)*r.service.normal()))
	case !b.Fixed:
		took = int64(r.service.exponential(mean))
	}
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
	if r.Backend.Workers > 0 {
		r.serveNext(s)
	}
	if r.Backend.Latency.Median > 0 {
		if r.requests[j.who].gen == j.gen {
			r.queue.push(r.now+r.latencyOf(j.who, s), j.who, j.gen|happensGood)
		}
		return
	}
	if r.Trigger.Delay == 0 {
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
	return int64(took)
}

// serveNext starts a worker on the next request in the queue, if there is one.
func (r *run) serveNext(s *station) {
	for s.waiting.len() > 0 {
		j := s.waiting.shift()
		if !r.Backend.DropAbandoned || r.requests[j.who].gen == j.gen {
			r.work(s, j)
			return
		}
	}
}

// answer sends an answer to the client.
func (r *run) answer(i int32, what uint32) {
	delay := time.Duration(0)
	if r.troubled() {
		delay = r.Trigger.Delay
	}
	// The answer is an event of its own even without a delay: delivered
	// directly within send, it would recurse without end under a policy that
	// retries at once.
	r.queue.push(r.now+int64(delay), i, what)
}

// Backend describes the servers that answer. With its optional fields at zero,
// it is one instance that serves requests in order of arrival.
type Backend struct {
	Workers int           // how many requests an instance works on at a time; 0 means any number
	Service time.Duration // mean time that a worker spends on a request, exponentially distributed
	Fixed   bool          // every request takes exactly Service
	Spread  float64       // if not 0, the time is normally distributed, with this standard deviation as a share of Service
	Latency Latency       // from the end of the work to the answer. It takes no worker
	Queue   int           // how many requests may wait for a worker; more are refused at once, with a 503

	// DropAbandoned removes a request from the queue when its client has
	// stopped waiting. Otherwise a worker still does the work.
	DropAbandoned bool

	// FailureRate is the share of requests that the backend answers with 503
	// regardless of load, 0 to 1. BrokenShare of the requests go to a broken route:
	// all their attempts fail with 503, or without an answer if BrokenSilent is set.
	FailureRate      float64
	BrokenShare      float64
	BrokenSilent     bool
	BrokenRetryAfter time.Duration // of the answers of the broken route; 0 for none

	// Well is the share of requests that the workers never see, and that are answered at
	// once, whatever the others suffer: those to another route, shard or tenant of the same
	// host. A result counts only the other ones.
	Well float64

	// Gateway is the time after which a gateway in front answers with 504, while the
	// backend works on; 0: there is none.
	Gateway time.Duration

	// Instances is how many servers share the name, each with its own workers
	// and queue. Each attempt goes to a random instance, or to the one with fewer
	// requests of two random instances if ShorterOfTwo is set. If 0, 1. Of the
	// instances, Slow take SlowBy times as long, and Dead fail every attempt at
	// once.
	Instances    int
	ShorterOfTwo bool
	Slow, Dead   int
	SlowBy       float64

	// Silent makes the failures of FailureRate and of dead instances time out:
	// the client gets no answer. Without a timeout it waits until the horizon.
	Silent bool
}

// Latency is a distribution of times that don't depend on load: lognormal times with a
// Median, and the logarithm's standard deviation Spread. A StallShare of them are longer
// by a second lognormal time.
type Latency struct {
	Median      time.Duration // 0: no latency
	Spread      float64
	StallShare  float64
	StallMedian time.Duration
	StallSpread float64

	// StallSticks makes all attempts of a request stall, such as those for a large
	// answer. Otherwise each attempt draws anew, as behind servers that pause.
	StallSticks bool
}

// capacity returns the requests per second that all instances can serve
// together when none is slow or dead; 0 means no limit.
func (b *Backend) capacity() float64 {
	if b.Workers == 0 || b.Service == 0 {
		return 0
	}
	return float64(max(1, b.Instances)) * float64(b.Workers) / b.Service.Seconds()
}

func (c *checker) backend(b *Backend) {
	c.count("Backend.Workers", b.Workers, 0, maxClients)
	c.duration("Backend.Service", b.Service, time.Nanosecond, maxHorizon)
	c.count("Backend.Queue", b.Queue, 0, 100*maxClients)
	c.number("Backend.FailureRate", b.FailureRate, 0, 1)
	c.number("Backend.Well", b.Well, 0, 0.999)
	c.duration("Backend.Gateway", b.Gateway, 0, maxHorizon)
	c.count("Backend.Instances", b.Instances, 0, 10_000)
	c.count("Backend.Dead", b.Dead, 0, max(1, b.Instances)-b.Slow)
}
