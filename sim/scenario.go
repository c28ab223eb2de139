// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/retrip/retrip"
)

// Scenario is a fleet of clients that send requests to one backend through a
// policy, and what happens to them. Its parts can be set one by one, best on
// what [Overload], [Storm] or [Faults] return. It is a plain value: copy it to
// vary it.
type Scenario struct {
	// Policy is what the clients follow.
	Policy Policy

	Fleet    Fleet
	Arrivals Arrivals
	Backend  Backend
	Network  Network
	Trigger  Trigger

	// Horizon is where the simulated time ends, at most 24 h.
	Horizon time.Duration

	// Bin is the width of the intervals of [Result.Series]. If 0, a second.
	Bin time.Duration

	// Seed chooses the random numbers.
	Seed uint64
}

// Fleet is who sends requests.
type Fleet struct {
	// Clients is how many there are, each with a budget, breaker and pause of
	// its own, 1 to 1 000 000.
	Clients int

	// Unequal gives client number k of C a share of the requests in
	// proportion to ln((k+1)/k): a few send most of them.
	Unequal bool

	// Timeout is that of an attempt where the policy has none. If 0, there is
	// none.
	Timeout time.Duration

	// Services lie between the clients and the backend, each of which calls
	// the next, at most 5. The clients call the first.
	Services []Service
}

// Service answers a request with what the next service, or the backend, answers
// it in the end.
type Service struct {
	// Policy is what it follows. If nil, what the clients follow.
	Policy *Policy

	// Replicas is how many processes it has, each with a budget, breaker and
	// pause of its own, up to 1 000 000. A request goes to any of them. If 0,
	// each of its callers has one of its own.
	Replicas int

	// Timeout is that of an attempt where its policy has none. If 0, there is
	// none.
	Timeout time.Duration

	// Detached makes it go on with a request whose caller has stopped waiting.
	// Otherwise it stops too, as a Go server does that hands on the context of
	// the request.
	Detached bool
}

// Layered returns s with n services that do as the clients do: the product of
// their attempts. Only the last has Fleet.Timeout.
func (s Scenario) Layered(n int) Scenario {
	if n > 0 {
		s.Fleet.Services = make([]Service, n)
		s.Fleet.Services[n-1].Timeout = s.Fleet.Timeout
		s.Fleet.Timeout = 0
	}
	return s
}

// Arrivals are the requests, before any retry.
type Arrivals struct {
	// Rate is how many arrive per second, up to 10 000 000. Clients take turns
	// at random.
	Rate float64

	// Regular spaces them evenly, clients taking turns in order; otherwise
	// they form a Poisson process.
	Regular bool

	// AtOnce lets Count requests arrive at the instant zero, whatever the
	// Rate.
	AtOnce bool

	// Count ends the arrivals after so many. If 0, they go on to the horizon.
	Count int
}

// Network is what lies between.
type Network struct {
	// Delay is the time a request or an answer takes.
	Delay time.Duration
}

// Trigger is a trouble that passes. Its fields can be combined.
type Trigger struct {
	// At is when it begins, For how long it lasts. If For is 0, there is none.
	At, For time.Duration

	// Slowdown multiplies the time that the backend works on a request, if
	// not 0.
	Slowdown float64

	// Surge multiplies the rate of arrivals, if not 0.
	Surge float64

	// Delay holds every answer back for as long; the work is done in time.
	Delay time.Duration

	// FailureRate is the share of requests answered 503 at once, 0 to 1.
	FailureRate float64
}

func (t *Trigger) end() time.Duration { return t.At + t.For }

// during reports whether it is on at an instant.
func (t *Trigger) during(now int64) bool { return now >= int64(t.At) && now < int64(t.end()) }

// Default values of the overload model.
const (
	overloadRate    = 700
	overloadWorkers = 10
	overloadService = 10 * time.Millisecond
	overloadQueue   = 1000
	overloadTimeout = 300 * time.Millisecond
)

// Overload is a backend at 70 % of its capacity that slows down for 10 s to
// less than half of what is asked of it: 700 requests per second from 100
// clients, 10 workers that take 10 ms for one, a queue of 1000, attempts of
// 300 ms, and from t = 30 s to 40 s a capacity of 303/s. The question is
// whether load and goodput come back when the brown-out is over.
//
// The policy is retrip's default with waits of at most 1 s; one without
// AttemptTimeout takes the fleet's 300 ms.
func Overload() Scenario {
	return Scenario{
		Policy:   Policy{Retry: retrip.Policy{Backoff: retrip.Backoff{Cap: time.Second}}},
		Fleet:    Fleet{Clients: 100, Timeout: overloadTimeout},
		Arrivals: Arrivals{Rate: overloadRate},
		Backend:  Backend{Workers: overloadWorkers, Service: overloadService, Queue: overloadQueue},
		Trigger:  Trigger{At: 30 * time.Second, For: 10 * time.Second, Slowdown: 1000.0 / 303},
		Horizon:  120 * time.Second,
		Seed:     1,
	}
}

// LoadOf sets the rate of arrivals to a share of the backend's capacity and
// returns the result.
func (s Scenario) LoadOf(share float64) Scenario {
	s.Arrivals.Rate = share * s.Backend.capacity()
	return s
}

// Load returns the rate of arrivals as a share of the backend's capacity, 0 if
// that has none.
func (s Scenario) Load() float64 {
	if c := s.Backend.capacity(); c > 0 {
		return s.Arrivals.Rate / c
	}
	return 0
}

// Crowd is who waits for the end of the outage in [Storm].
type Crowd int

const (
	// Passing is 1000 callers, one every 2 ms from t = 0: the last comes as
	// the outage begins.
	Passing Crowd = iota

	// Continuing is callers that go on to arrive, one every 2 ms.
	Continuing

	// Herd is 1000 callers in the same instant, t = 0, in which the outage
	// begins.
	Herd
)

// Storm is an outage of 200 ms to a backend that answers in 5 ms, and callers
// who retry without a budget: 6 attempts, 100 ms doubling. The outage begins
// at t = 2 s, for a Herd at t = 0.
func Storm(crowd Crowd) Scenario {
	s := Scenario{
		Policy: Policy{Retry: retrip.Policy{
			MaxAttempts: 6,
			Backoff:     retrip.Backoff{Base: 100 * time.Millisecond},
			Budget:      retrip.Unlimited,
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

// Faults is a backend without a limit of which a share of answers fails
// whatever the load: 700 requests per second from 100 clients for 120 s. What
// retries are good for.
func Faults(share float64) Scenario {
	s := Overload()
	s.Trigger = Trigger{}
	s.Backend = Backend{Service: overloadService, FailureRate: share}
	return s
}
