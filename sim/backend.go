// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import "time"

// Backend describes the servers that answer. With its optional fields at zero,
// it is one instance that serves requests in order of arrival and names no wait
// when it refuses one.
type Backend struct {
	// Workers is how many requests an instance works on at a time. If 0, the
	// number is unlimited.
	Workers int

	// Service is the mean time that a worker spends on a request, exponentially
	// distributed.
	Service time.Duration

	// Fixed makes every request take exactly Service.
	Fixed bool

	// Spread, if not 0, makes the time normally distributed instead, with this
	// standard deviation as a share of Service.
	Spread float64

	// TailShare of the requests take TailTimes as long.
	TailShare, TailTimes float64

	// Latency is the time from the end of a worker's work to the answer. It takes no
	// worker.
	Latency Latency

	// Queue is how many requests may wait for a worker. The backend refuses
	// further requests at once, with a 503.
	Queue int

	// Order decides which queued request a free worker takes next.
	Order QueueOrder

	// CoDel, if not 0, refuses requests from the queue, at a growing rate,
	// while every request of the last 100 ms has waited longer than CoDel (RFC
	// 8289).
	CoDel time.Duration

	// Patience, if not 0, is how long a request may wait in the queue before
	// the backend refuses it. It is the server's own timeout and independent of
	// the clients' timeouts.
	Patience time.Duration

	// DropAbandoned removes a request from the queue when its client has
	// stopped waiting. Otherwise a worker still does the work.
	DropAbandoned bool

	// ShedRetries, if not 0, makes the backend refuse retries while that many
	// requests wait. Clients number their attempts, as with Policy.RetryHeader.
	ShedRetries int

	// RetryAfter is the Retry-After of a refusal, 0 for none. NoRetry makes
	// refusals forbid a retry, as X-Should-Retry: false does.
	RetryAfter time.Duration
	NoRetry    bool

	// RefusalCost is how much worker time a refusal costs, as a share of
	// Service.
	RefusalCost float64

	// Crowding slows work down as the queue fills: with a full queue, work
	// takes 1 + Crowding times as long, and proportionally less with a shorter
	// queue. It models locks, memory and garbage collection.
	Crowding float64

	// Connect is the extra worker time of an attempt that follows a timed-out
	// one, because it needs a new connection.
	Connect time.Duration

	// Cold models a cache that is empty after the trigger: work takes Cold
	// times as long until the backend has answered Refill requests in time. The
	// cache fills in proportion. If 0, there is no cache.
	Cold   float64
	Refill int

	// FailureRate is the share of requests that the backend answers with 503
	// regardless of load, 0 to 1.
	FailureRate float64

	// BrokenShare of the requests go to a broken route: all their attempts fail
	// with 503, or without an answer if BrokenSilent is set.
	BrokenShare  float64
	BrokenSilent bool

	// Instances is how many servers share the name, each with its own workers
	// and queue. Each attempt goes to a random instance, or to the one with fewer
	// requests of two random instances if ShorterOfTwo is set. If 0, 1. Of the
	// instances, Slow take SlowBy times as long, and Dead fail every attempt at
	// once.
	Instances    int
	ShorterOfTwo bool

	Slow, Dead int
	SlowBy     float64

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

// QueueOrder is the order in which workers take requests from the queue of a
// [Backend].
type QueueOrder int

const (
	FirstInFirstOut QueueOrder = iota
	LastInFirstOut             // when the queue is full, it drops the oldest
)

// capacity returns the requests per second that all instances can serve
// together when none is slow or dead; 0 means no limit.
func (b *Backend) capacity() float64 {
	if b.Workers == 0 || b.Service == 0 {
		return 0
	}
	mean := b.Service.Seconds()
	if b.TailShare > 0 {
		mean *= 1 + b.TailShare*(b.TailTimes-1)
	}
	return float64(max(1, b.Instances)) * float64(b.Workers) / mean
}

func (c *checker) backend(b *Backend) {
	c.count("Backend.Workers", b.Workers, 0, maxClients)
	c.duration("Backend.Service", b.Service, time.Nanosecond, maxHorizon)
	c.number("Backend.Spread", b.Spread, 0, 1)
	c.duration("Backend.Latency.Median", b.Latency.Median, 0, maxHorizon)
	c.number("Backend.Latency.Spread", b.Latency.Spread, 0, 10)
	c.number("Backend.Latency.StallShare", b.Latency.StallShare, 0, 1)
	c.duration("Backend.Latency.StallMedian", b.Latency.StallMedian, 0, maxHorizon)
	c.number("Backend.Latency.StallSpread", b.Latency.StallSpread, 0, 10)
	c.want(b.Spread == 0 || !b.Fixed, "Backend.Spread", b.Spread, "0, since Fixed is true")
	c.number("Backend.TailShare", b.TailShare, 0, 1)
	c.number("Backend.TailTimes", b.TailTimes, 0, 1_000_000)
	c.count("Backend.Queue", b.Queue, 0, 100*maxClients)
	c.want(b.Order == FirstInFirstOut || b.Order == LastInFirstOut, "Backend.Order", int(b.Order), "one of the constants")
	c.duration("Backend.CoDel", b.CoDel, 0, maxHorizon)
	c.duration("Backend.Patience", b.Patience, 0, maxHorizon)
	c.count("Backend.ShedRetries", b.ShedRetries, 0, 100*maxClients)
	c.duration("Backend.RetryAfter", b.RetryAfter, 0, maxHorizon)
	c.number("Backend.RefusalCost", b.RefusalCost, 0, 1000)
	c.number("Backend.Crowding", b.Crowding, 0, 1000)
	c.duration("Backend.Connect", b.Connect, 0, maxHorizon)
	c.number("Backend.Cold", b.Cold, 0, 1_000_000)
	c.want(b.Cold == 0 || b.Refill > 0, "Backend.Refill", b.Refill, "positive, for the cache to fill")
	c.count("Backend.Refill", b.Refill, 0, 1_000_000_000)
	c.number("Backend.FailureRate", b.FailureRate, 0, 1)
	c.number("Backend.BrokenShare", b.BrokenShare, 0, 1)
	c.count("Backend.Instances", b.Instances, 0, 10_000)
	c.count("Backend.Slow", b.Slow, 0, max(1, b.Instances))
	c.count("Backend.Dead", b.Dead, 0, max(1, b.Instances)-b.Slow)
	c.want(b.Slow == 0 || b.SlowBy > 0, "Backend.SlowBy", b.SlowBy, "positive, since some are slow")
	c.number("Backend.SlowBy", b.SlowBy, 0, 1_000_000)
}
