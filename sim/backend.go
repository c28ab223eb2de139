// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import "time"

// Backend is who answers. Its zero fields are the plainest there is: one
// instance that works on what comes in turn, and says nothing when it refuses.
type Backend struct {
	// Workers is how many requests an instance works on at a time. If 0, all
	// of them.
	Workers int

	// Service is the mean time it works on one, exponentially distributed.
	Service time.Duration

	// Fixed makes every request take exactly Service.
	Fixed bool

	// TailShare of the requests take TailTimes as long.
	TailShare, TailTimes float64

	// Queue is how many requests wait for a worker; further ones are refused
	// with a 503 at once.
	Queue int

	// Order is whose turn it is in the queue.
	Order QueueOrder

	// CoDel, if not 0, refuses requests from the queue, more and more of them,
	// while each of those of the last 100 ms has waited for longer than that
	// (RFC 8289).
	CoDel time.Duration

	// Patience is how long a request may wait in the queue until it is refused,
	// if not 0. The server's own timeout, whatever that of its clients.
	Patience time.Duration

	// DropAbandoned leaves out requests in the queue whose client has stopped
	// waiting. Otherwise the work is done all the same.
	DropAbandoned bool

	// ShedRetries, if not 0, refuses retries while so many requests wait.
	// Clients say which attempt it is, as with Policy.RetryHeader.
	ShedRetries int

	// RetryAfter is what refusals ask for, 0 for nothing, and NoRetry lets them
	// forbid retries, as X-Should-Retry: false does.
	RetryAfter time.Duration
	NoRetry    bool

	// RefusalCost is what a refusal takes of a worker, as a share of Service.
	RefusalCost float64

	// Crowding makes work take 1 + Crowding times as long when the queue is
	// full, and in proportion when it isn't: locks, memory, collections.
	Crowding float64

	// Connect is what it takes of a worker to answer an attempt after one that
	// has timed out, besides: that needs a new connection.
	Connect time.Duration

	// Cold makes work take so many times as long after the trigger, until
	// Refill requests have been answered in time: a cache that is empty. It
	// fills in proportion. If 0, there is no cache.
	Cold   float64
	Refill int

	// FailureRate is the share of requests answered 503 whatever the load, 0
	// to 1.
	FailureRate float64

	// Instances is how many there are behind the name, each with workers and a
	// queue of its own; attempts go to any of them at random. If 0, 1. Slow of
	// them take SlowBy times as long, and Dead others fail every attempt at once.
	Instances  int
	Slow, Dead int
	SlowBy     float64
}

// QueueOrder is whose turn it is in the queue of a [Backend].
type QueueOrder int

const (
	FirstInFirstOut QueueOrder = iota
	LastInFirstOut             // when the queue is full, the oldest is refused
)

// capacity is in requests per second, 0 for no limit. It is that of all
// instances when none is slow or dead.
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
	c.count("Backend.Instances", b.Instances, 0, 10_000)
	c.count("Backend.Slow", b.Slow, 0, max(1, b.Instances))
	c.count("Backend.Dead", b.Dead, 0, max(1, b.Instances)-b.Slow)
	c.want(b.Slow == 0 || b.SlowBy > 0, "Backend.SlowBy", b.SlowBy, "positive, since some are slow")
	c.number("Backend.SlowBy", b.SlowBy, 0, 1_000_000)
}
