// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import "time"

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
	FailureRate  float64
	BrokenShare  float64
	BrokenSilent bool

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
	c.count("Backend.Instances", b.Instances, 0, 10_000)
	c.count("Backend.Dead", b.Dead, 0, max(1, b.Instances)-b.Slow)
}
