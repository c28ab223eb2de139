// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip"
)

// RecoveryCheck tries whether retries substantially prolong an overload of a
// [Scenario]: goodput must be back at most 5 s later than without retries, and
// must stay back. It takes a few seconds for a fleet of any size: if the clients
// are equal and the backend has one instance, it replaces a large fleet with a
// smaller one that has the same rate per client, at a backend that is smaller
// by the same factor.
type RecoveryCheck struct {
	// Brownouts are the lengths of the brownouts that the backend must recover
	// from, 100 ms to an hour.
	Brownouts []time.Duration

	// Loads are the loads to test, as shares of the backend's capacity, in
	// addition to the scenario's own.
	Loads []float64
}

const (
	recoveryAllowed = 5 * time.Second  // later than without retries
	recoveryWarmUp  = 10 * time.Second // until the trigger
	recoveryWatch   = 30 * time.Second // how long to watch without retries
	recoveryTail    = 15 * time.Second // during which a recovered backend must stay so
	recoveryLonger  = 60 * time.Second // how long to watch a backend that doesn't recover in time
	recoveryShare   = 0.95             // of the goodput without retries before the trigger
	recoveryGroups  = 3                // of seeds: the median of their times counts, and all must recover eventually
	recoveryGroup   = 7                // seeds in one group, at most
	recoveryPrice   = 20               // seconds after a trigger whose requests count for its price
	recoveryGrace   = 5 * time.Second  // beyond the median, within which all must recover
	recoveryRate    = 700              // requests per second that suffice
	recoveryWorkers = 10               // workers that suffice
)

// RecoveryCase is what a [RecoveryCheck] measured with one load and brownout.
type RecoveryCase struct {
	Load    float64 // arrivals as a share of the backend's capacity
	Trigger Trigger

	// Recovery and Without are the times to recover with and without retries,
	// medians of several seeds; [Never] if the case was not seen to recover
	// within a minute, or without retries within half a minute. If it doesn't
	// recover without retries, the policy isn't tried and passes.
	Recovery, Without time.Duration

	// Good and GoodWithout are the shares of the requests that are answered in
	// the end, of those that arrive during the trigger and in the 20 s after it.
	Good, GoodWithout float64

	// OK reports whether the policy passes here: it recovers in time, and for
	// good, with every seed.
	OK bool
}

// Cases returns what it measured in all cases that had an effect on s, which
// must have no trigger of its own. The error is a *[RecoveryError] about the
// first case in which the policy fails, or a *[ParameterError] if s proves
// nothing: if no brownout has an effect, or if s recovers under any policy
// because no request waits in the backend's queue longer than an attempt may
// take. If ctx ends, Cases returns the cases measured until then. It calls
// progress, if not nil, after each case with the share that is complete.
func (c RecoveryCheck) Cases(ctx context.Context, s Scenario, progress func(done float64)) (cases []RecoveryCase, err error) {
	if err := c.validate(s); err != nil {
		return nil, err
	}
	places := c.places(s)
	var failed error
	for i, p := range places {
		without, err := c.without(ctx, p)
		if err != nil {
			return cases, err
		}
		if without.recovery == Never {
			cases = append(cases, RecoveryCase{Load: p.Load(), Trigger: p.Trigger, Recovery: Never, Without: Never, GoodWithout: without.during, OK: true})
			continue
		}
		if !without.effect {
			continue
		}
		seen, err := c.with(ctx, p, without)
		if err != nil {
			return cases, err
		}
		one := RecoveryCase{p.Load(), p.Trigger, seen.recovery, without.recovery, seen.during, without.during, seen.ok}
		if !seen.ok && failed == nil {
			if failed = c.explain(ctx, p, s, without); !errors.As(failed, new(*RecoveryError)) {
				return cases, failed
			}
		}
		if !seen.ok && seen.recovery == Never {
			longer, err := c.watch(ctx, p, recoveryLonger, 0, &without)
			if err != nil {
				return cases, err
			}
			one.Recovery = longer.recovery
		}
		cases = append(cases, one)
		if progress != nil {
			progress(float64(i+1) / float64(len(places)+1))
		}
	}
	if failed != nil {
		return cases, failed
	}
	if len(cases) == 0 {
		return nil, &ParameterError{"Arrivals.Rate", s.Arrivals.Rate, "more: no trigger has an effect"}
	}
	return cases, c.challenge(ctx, s, places)
}

func (c RecoveryCheck) validate(s Scenario) error {
	if err := s.Validate(); err != nil {
		return err
	}
	var check checker
	check.want(s.Backend.Workers > 0, "Backend.Workers", s.Backend.Workers, "positive, for there to be an overload to recover from")
	check.number("Arrivals.Rate", s.Arrivals.Rate, 5, maxRate)
	for _, d := range c.Brownouts {
		check.duration("Brownouts", d, 100*time.Millisecond, time.Hour)
	}
	for _, load := range c.Loads {
		check.number("Loads", load, 0.01, 10)
	}
	return check.err
}

// places returns the scenarios of a check, those with the scenario's own load
// first.
func (c RecoveryCheck) places(s Scenario) []Scenario {
	var list []Scenario
	loads := []float64{s.Load()}
	for _, load := range c.Loads {
		if math.Abs(load-s.Load()) > 0.02 {
			loads = append(loads, load)
		}
	}
	for i, load := range loads {
		one := s
		if i > 0 {
			one = s.LoadOf(load)
		}
		one = one.reduced()
		for _, d := range c.Brownouts {
			one.Trigger = Trigger{At: recoveryWarmUp, For: d, Slowdown: max(3.3, 2.31/one.Load())}
			list = append(list, one)
		}
	}
	return list
}

// reduced returns s with a fleet and a backend that are smaller by the same
// factor, so that it simulates quickly. Requests per second per client, the
// load and the time in a full queue stay the same.
func (s Scenario) reduced() Scenario {
	factor := min(s.Arrivals.Rate/recoveryRate, float64(s.Backend.Workers)/recoveryWorkers, float64(s.Fleet.Clients)/10)
	if factor < 1.5 || s.Fleet.Unequal || s.Backend.Instances > 1 {
		return s
	}
	workers := int(math.Round(float64(s.Backend.Workers) / factor))
	part := func(n int) int { return int(math.Round(float64(n) * float64(workers) / float64(s.Backend.Workers))) }
	s.Arrivals.Rate *= float64(workers) / float64(s.Backend.Workers)
	s.Fleet.Clients, s.Backend.Queue = part(s.Fleet.Clients), part(s.Backend.Queue)
	s.Backend.Workers = workers
	return s
}

// outcome summarizes the runs of a scenario with several seeds.
type outcome struct {
	ok       bool          // recovered in time, and for good
	effect   bool          // the trigger had an effect
	recovery time.Duration // the median
	normal   float64       // share of requests that are answered before the trigger
	during   float64       // the same, during the trigger and some time after it
	steady   float64       // attempts per second in the last five seconds, as a share of the capacity
}

// without returns the outcome without retries, and without a breaker, gate or
// limiter.
func (c RecoveryCheck) without(ctx context.Context, s Scenario) (outcome, error) {
	p := &s.Policy
	p.limit, p.draw, p.account = nil, nil, false
	p.Retry.MaxAttempts, p.Retry.Breaker, p.Retry.Gate.Enabled = 1, retrip.Breaker{Ratio: retrip.Off}, retrip.Off
	return c.watch(ctx, s, recoveryWatch, 0, nil)
}

// with returns the outcome with retries, watched only for as long as the
// verdict needs.
func (c RecoveryCheck) with(ctx context.Context, s Scenario, without outcome) (outcome, error) {
	limit := without.recovery + recoveryAllowed
	return c.watch(ctx, s, limit+recoveryGrace+s.tail(), limit, &without)
}

// tail returns how long to watch a recovered backend: as long as retries from
// before the recovery may arrive.
func (s Scenario) tail() time.Duration {
	_, p, err := s.Policy.rules()
	if err != nil {
		return recoveryTail
	}
	window, sum := p.Backoff.Base, time.Duration(0)
	for range min(p.MaxAttempts-1, 20) {
		sum += min(window, p.Backoff.Cap)
		window = min(2*window, p.Backoff.Cap)
	}
	return min(max(recoveryTail, sum), recoveryLonger)
}

// watch runs s with several seeds until some time after the trigger. If few
// requests arrive, it adds several runs together, so that each second holds
// enough requests to be meaningful.
func (c RecoveryCheck) watch(ctx context.Context, s Scenario, after, limit time.Duration, without *outcome) (outcome, error) {
	s.Horizon, s.Bin = s.Trigger.end()+after, time.Second
	size := int(min(recoveryGroup, max(1, math.Round(recoveryRate/s.Arrivals.Rate))))
	scenarios := s.Seeds(recoveryGroups * size)
	sums := make([]seconds, len(scenarios))
	err := parallel(ctx, len(scenarios), nil, func(ctx context.Context, i int) error {
		r, err := newRun(&scenarios[i])
		if err == nil {
			_, err = r.run(ctx)
			sums[i] = r.seconds
		}
		return err
	})
	if err != nil {
		return outcome{}, err
	}
	begin, end := sums[0].index(int64(s.Trigger.At)), sums[0].index(int64(s.Trigger.end()))
	all := add(sums, s.Horizon)
	o := outcome{normal: shareOf(all[:begin]), during: shareOf(all[begin:min(len(all), int(end)+recoveryPrice)])}
	good := o.normal
	if without != nil {
		good = without.normal
	}
	good *= recoveryShare
	o.ok = true
	var times []time.Duration
	last := min(len(all), int(end)+int((limit+recoveryGrace)/time.Second))
	for group := range slices.Chunk(sums, size) {
		list := add(group, s.Horizon)
		d := recoveredTo(good, list[end:])
		if d == Never {
			d = math.MaxInt64
		}
		times = append(times, d)
		o.ok = o.ok && shareOf(list[last:]) >= good
	}
	slices.Sort(times)
	if o.recovery = times[len(times)/2]; o.recovery == math.MaxInt64 {
		o.recovery = Never
	}
	o.ok = o.ok && o.recovery != Never && o.recovery <= limit
	o.effect = o.recovery != 0 || shareOf(all[begin:end]) < good
	var attempts float64
	for _, p := range all[len(all)-5:] {
		attempts += float64(p.attempts)
	}
	o.steady = attempts / 5 / float64(len(sums)) / s.Backend.capacity()
	return o, nil
}

// add returns the sums of several runs, second by second.
func add(runs []seconds, until time.Duration) []second {
	sum := slices.Clone(runs[0].whole(until))
	for _, r := range runs[1:] {
		for i := range sum {
			sum[i].requests += r.list[i].requests
			sum[i].good += r.list[i].good
			sum[i].attempts += r.list[i].attempts
		}
	}
	return sum
}

// challenge rejects a scenario in which no policy could fail.
func (c RecoveryCheck) challenge(ctx context.Context, s Scenario, places []Scenario) error {
	if s.Policy.Retry.MaxAttempts == 1 {
		return nil
	}
	heaviest := 0.0
	for _, p := range places {
		heaviest = max(heaviest, p.Load())
	}
	long := func(p Scenario) bool { return p.Trigger.For >= 5*time.Second && p.Trigger.For <= 30*time.Second }
	for _, p := range places {
		if p.Load() < heaviest || !long(p) && slices.ContainsFunc(places, long) {
			continue
		}
		without, err := c.without(ctx, p)
		if err != nil {
			return err
		}
		p.Policy = Policy{Retry: retrip.Policy{AttemptTimeout: p.Policy.Retry.AttemptTimeout, Deadline: p.Policy.Retry.Deadline,
			MaxWait: p.Policy.Retry.MaxWait, Budget: retrip.Off, Backoff: retrip.Backoff{Cap: time.Second}}}
		seen, err := c.with(ctx, p, without)
		if err != nil || !seen.ok {
			return err
		}
	}
	clients := "clients wait without end"
	if d := s.attemptTimeout(); d > 0 {
		clients = fmt.Sprintf("clients wait %v", d)
	}
	return &ParameterError{"Backend.Queue", s.Backend.Queue, fmt.Sprintf(
		"longer: nothing fails here, not even retries without any limit, since a full queue takes %v and %s for an attempt",
		time.Duration(float64(s.Backend.Queue*max(1, s.Backend.Instances))/s.Backend.capacity()*float64(time.Second)).Round(time.Millisecond), clients)}
}

// attemptTimeout returns how long a client waits for an attempt; 0 means without
// end.
func (s Scenario) attemptTimeout() time.Duration {
	timeout := s.Fleet.Timeout
	if d := s.Policy.Retry.AttemptTimeout; d != 0 {
		timeout = max(0, d)
	}
	if timeout == 0 {
		return max(0, s.Policy.Retry.Deadline)
	}
	return timeout
}

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
	fmt.Fprintf(&b, "sim: %d clients with %s requests/s each, at %.0f %% load: after %v in which work takes %.1f × as long, ",
		e.Clients, twoDigits(e.PerClient), 100*e.Load, e.Trigger.For, e.Trigger.Slowdown)
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
