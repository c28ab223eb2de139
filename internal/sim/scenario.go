// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/retrip/retrip"
)

// Scenario is a fleet of clients that send requests to one backend through a
// policy, and the trigger that overloads the backend. It is a plain value: copy
// the result of [Overload], [Storm] or [Faults] to vary it.
type Scenario struct {
	Policy   Policy // of the clients
	Fleet    Fleet
	Arrivals Arrivals
	Backend  Backend
	Trigger  Trigger
	Store    Store // holds the fleet's account for clients of the preset "account"

	Horizon time.Duration // the simulated time at which the run ends, at most 24 h
	Bin     time.Duration // the width of the intervals of [Result.Series]. If 0, one second
	WarmUp  time.Duration // before the first arrival that counts for the times to a success
	Seed    uint64        // chooses the random numbers
}

// Fleet describes the senders of requests.
type Fleet struct {
	// Clients is the number of clients, 1 to 1 000 000. Each has its own
	// budget, breaker and pause.
	Clients int

	// Unequal gives client number k of C a share of the requests in proportion
	// to ln((k+1)/k), so that a few clients send most requests.
	Unequal bool

	// Dead is the share of clients whose own network is dead, 0 to 1: all their
	// attempts fail without reaching anything.
	Dead float64

	// Timeout is the attempt timeout of clients whose policy sets none. If 0,
	// there is none.
	Timeout time.Duration
}

// Arrivals describes the requests before any retry: a Poisson process of requests
// from random clients.
type Arrivals struct {
	Rate    float64 // requests per second, up to 10 000 000
	Regular bool    // arrivals are evenly spaced, and the clients take turns
	AtOnce  bool    // all Count requests arrive at time zero, whatever the Rate
	Count   int     // the number of arrivals. If 0, they continue to the horizon
}

// Trigger is a temporary disturbance. Its fields can be combined; those that are 0
// change nothing.
type Trigger struct {
	At, For     time.Duration // when it starts, and for how long. If For is 0, there is no trigger
	Slowdown    float64       // multiplies the time that the backend works on a request
	Latency     float64       // multiplies the times of [Backend.Latency]
	Surge       float64       // multiplies the rate of arrivals
	Delay       time.Duration // holds back every answer; the backend finishes its work on time
	FailureRate float64       // the share of requests that the backend answers with 503 at once, 0 to 1
	RetryAfter  time.Duration // of these answers, 0 for none
	Loses       bool          // as it starts, all connections break: the attempts under way end with an error
}

func (t *Trigger) end() time.Duration { return t.At + t.For }

// during reports whether the trigger is active at now.
func (t *Trigger) during(now int64) bool { return now >= int64(t.At) && now < int64(t.end()) }

// Overload returns a backend at 70 % of its capacity that slows down for 10 s
// to less than half of the load: 100 clients send 700 requests per second in
// total to 10 workers that take 10 ms each, with a queue of 1000 and attempts
// of 300 ms. From t = 30 s to 40 s, the capacity is 303/s. The question is
// whether load and goodput return to normal when the brownout is over.
//
// The policy is retrip's default with waits of at most 1 s.
func Overload() Scenario {
	return Scenario{
		Policy:   Policy{Retry: retrip.Policy{Backoff: retrip.Backoff{Cap: time.Second}}},
		Fleet:    Fleet{Clients: 100, Timeout: 300 * time.Millisecond},
		Arrivals: Arrivals{Rate: 700},
		Backend:  Backend{Workers: 10, Service: 10 * time.Millisecond, Queue: 1000},
		Trigger:  Trigger{At: 30 * time.Second, For: 10 * time.Second, Slowdown: 1000.0 / 303},
		Horizon:  120 * time.Second,
		Seed:     1,
	}
}

// LoadOf returns s with the rate of arrivals that reach the workers set to a share of the
// backend's capacity.
func (s Scenario) LoadOf(share float64) Scenario {
	s.Arrivals.Rate = share * s.Backend.capacity() / (1 - s.Backend.Well)
	return s
}

// Load returns the rate of arrivals as a share of the backend's capacity, or 0
// if the capacity is unlimited.
func (s Scenario) Load() float64 {
	if c := s.Backend.capacity(); c > 0 {
		return s.Arrivals.Rate * (1 - s.Backend.Well) / c
	}
	return 0
}

// Seeds returns n copies of s with consecutive seeds.
func (s Scenario) Seeds(n int) []Scenario {
	list := make([]Scenario, n)
	for i := range list {
		list[i] = s
		list[i].Seed += uint64(i)
	}
	return list
}

// Crowd describes the callers in a [Storm].
type Crowd int

const (
	// Passing is 1000 callers, one every 2 ms from t = 0. The last one arrives
	// as the outage begins.
	Passing Crowd = iota

	// Continuing is one caller every 2 ms until the horizon.
	Continuing

	// Herd is 1000 callers at t = 0, when the outage begins.
	Herd
)

// Storm returns an outage of 200 ms at a backend that answers in 5 ms, and
// callers who retry without a budget: 6 attempts, backoff from 100 ms,
// doubling. The outage begins at t = 2 s, for a Herd at t = 0.
func Storm(crowd Crowd) Scenario {
	s := Scenario{
		Policy: Policy{Retry: retrip.Policy{
			MaxAttempts: 6,
			Backoff:     retrip.Backoff{Base: 100 * time.Millisecond},
			Budget:      retrip.Off,
		}},
		Fleet:    Fleet{Clients: 1000},
		Arrivals: Arrivals{Rate: 500, Regular: true, Count: 1000},
		Backend:  Backend{Service: 5 * time.Millisecond, Fixed: true},
		Trigger:  Trigger{At: 2 * time.Second, For: 200 * time.Millisecond, FailureRate: 1},
		Horizon:  6 * time.Second,
		Bin:      50 * time.Millisecond,
		Seed:     1,
	}
	switch crowd {
	case Continuing:
		s.Arrivals.Count = 0
	case Herd:
		s.Arrivals.AtOnce = true
		s.Trigger.At = 0
	}
	return s
}

// Faults returns a backend without a capacity limit in which a share of answers
// fails regardless of load: 100 clients send 700 requests per second in total
// for 120 s. It shows the benefit of retries.
func Faults(share float64) Scenario {
	s := Overload()
	s.Trigger = Trigger{}
	s.Backend = Backend{Service: 10 * time.Millisecond, FailureRate: share}
	return s
}

// TenBackends returns a fleet before ten backends of one worker each, without a
// trigger.
func TenBackends(clients int) Scenario {
	s := Overload()
	s.Trigger, s.Horizon = Trigger{}, 300*time.Second
	s.Backend.Instances, s.Backend.Workers, s.Backend.Queue = 10, 1, 100
	s.Fleet.Timeout, s.Fleet.Clients = 500*time.Millisecond, clients
	return s
}

// Stalls returns a fleet before a backend without a limit of its capacity, of which
// the answers take 20 ms, and one in a hundred some 300 ms longer.
func Stalls(clients int) Scenario {
	s := Overload()
	s.Trigger, s.Fleet.Clients, s.Fleet.Timeout = Trigger{}, clients, 2*time.Second
	s.Backend = Backend{Service: 1, Fixed: true, Latency: Latency{Median: 20 * time.Millisecond, Spread: 0.4,
		StallShare: 0.01, StallMedian: 300 * time.Millisecond, StallSpread: 0.5}}
	s.WarmUp, s.Horizon = 150*time.Second, 300*time.Second
	return s
}
