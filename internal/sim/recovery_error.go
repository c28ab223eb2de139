// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip"
)

// RecoveryError reports a scenario in which retries prolong an overload.
type RecoveryError struct {
	Policy    string  // empty if the policy has no name
	Clients   int     // of the fleet
	PerClient float64 // requests per second of each client
	Load      float64 // arrivals as a share of the backend's capacity
	Trigger   Trigger // the trigger from which it doesn't recover in time

	// Recovery is the measured time to recover. It is Never if the scenario
	// didn't recover within Watched, which is how long it was watched after the
	// trigger. Without is the time to recover without retries.
	Recovery, Watched, Without time.Duration

	// Relapsed means that the scenario recovers in time, but either relapses
	// later or doesn't recover in every run.
	Relapsed bool

	// Steady is the rate of attempts at the end of the watched time, as a share
	// of the backend's capacity.
	Steady float64

	// Breaker means that the scenario recovers in time without the policy's
	// breaker.
	Breaker bool

	// Recovers is the largest fleet that recovers in time from this trigger, at
	// this load and with the same policy; 0 if there is none. WithoutBreaker is
	// the same without the policy's breaker, at most Clients; 0 if the policy has
	// no breaker, or if no larger fleet recovers without it.
	Recovers, WithoutBreaker int
}

func (e *RecoveryError) Error() string {
	var b strings.Builder
	name := e.Policy
	if name == "" {
		name = "this policy"
	}
	fmt.Fprintf(&b, "sim: %d clients with %s requests/s each, at %.0f %% load: after %s, ", e.Clients, twoDigits(e.PerClient), 100*e.Load, e.Trigger.about())
	switch {
	case e.Recovery == Never:
		fmt.Fprintf(&b, "%s has still not recovered after %v, and sends %.1f × capacity", name, e.Watched, e.Steady)
	case e.Relapsed:
		fmt.Fprintf(&b, "%s recovers in %v, but not for good or not always", name, e.Recovery)
	default:
		fmt.Fprintf(&b, "%s takes %v to recover", name, e.Recovery)
	}
	fmt.Fprintf(&b, "; without retries it takes %v; ", e.Without)
	switch {
	case e.Breaker:
		b.WriteString("without its breaker it recovers in time")
	case e.WithoutBreaker > 2*e.Recovers:
		fmt.Fprintf(&b, "without its breaker, in time is up to about %s, and with it ", e.fleet(e.WithoutBreaker))
		if e.Recovers == 0 {
			b.WriteString("no fleet size")
		} else {
			fmt.Fprintf(&b, "only up to %d", e.Recovers)
		}
	case e.Recovers > 0:
		fmt.Fprintf(&b, "in time is up to about %s", e.fleet(e.Recovers))
	default:
		b.WriteString("no fleet size recovers in time")
	}
	return b.String()
}

// fleet describes a fleet of n clients that sends what the whole fleet sends.
func (e *RecoveryError) fleet(n int) string {
	word := "clients"
	if n == 1 {
		word = "client"
	}
	return fmt.Sprintf("%d %s (%s requests/s each)", n, word, twoDigits(e.PerClient*float64(e.Clients)/float64(n)))
}

func twoDigits(x float64) string {
	if x >= 10 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 2, 64)
}

// about describes the brownout t in words.
func (t Trigger) about() string {
	return fmt.Sprintf("%v in which work takes %.1f × as long", t.For, t.Slowdown)
}

// explain returns the error for a place that doesn't recover in time.
func (c RecoveryCheck) explain(ctx context.Context, p, asked Scenario, without outcome) error {
	longer, err := c.watch(ctx, p, recoveryLonger, 0, &without)
	if err != nil {
		return err
	}
	e := &RecoveryError{
		Policy:    p.Policy.Name,
		PerClient: p.Arrivals.Rate / float64(p.Fleet.Clients),
		Load:      p.Load(),
		Trigger:   p.Trigger,
		Recovery:  longer.recovery,
		Watched:   recoveryLonger,
		Without:   without.recovery,
		Relapsed:  longer.recovery != Never && longer.recovery <= without.recovery+recoveryAllowed,
		Steady:    longer.steady,
	}
	scale := float64(asked.Backend.Workers) / float64(p.Backend.Workers)
	e.Clients = int(math.Round(float64(p.Fleet.Clients) * scale))
	if e.Recovers, err = c.largest(ctx, p, without, scale); err != nil {
		return err
	}
	if p.Policy.Retry.Breaker.Ratio > 0 {
		p.Policy.Retry.Breaker = retrip.Breaker{Ratio: retrip.Off}
		if e.WithoutBreaker, err = c.largest(ctx, p, without, scale); err != nil {
			return err
		}
		if e.WithoutBreaker <= e.Recovers {
			e.WithoutBreaker = 0
		}
		e.Breaker = e.WithoutBreaker == e.Clients
	}
	return e
}

// largest returns the largest fleet of at most the clients of p that recovers in
// time, times scale; 0 if there is none.
func (c RecoveryCheck) largest(ctx context.Context, p Scenario, without outcome, scale float64) (int, error) {
	best, err := bisect(p.Fleet.Clients, func(clients int) (bool, error) {
		p.Fleet.Clients = clients
		seen, err := c.with(ctx, p, without)
		return seen.ok, err
	})
	return int(math.Round(float64(best) * scale)), err
}

// bisect finds the largest number from 1 to most for which try returns true, to
// 1 % where it is larger than 100; 0 if there is none. It halves the interval at
// the geometric mean, since fleets span orders of magnitude.
func bisect(most int, try func(int) (bool, error)) (int, error) {
	lo, hi := 1, most
	if ok, err := try(lo); !ok || err != nil {
		return 0, err
	}
	if ok, err := try(hi); ok || err != nil {
		return hi, err
	}
	for {
		middle := max(lo+1, int(math.Round(math.Sqrt(float64(lo)*float64(hi)))))
		if middle >= hi || float64(hi-lo) < 0.01*float64(lo) {
			return lo, nil
		}
		ok, err := try(middle)
		if err != nil {
			return lo, err
		}
		if ok {
			lo = middle
		} else {
			hi = middle
		}
	}
}
