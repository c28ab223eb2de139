// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/retrip/retrip"
)

// CheckRecovery returns nil if retries don't substantially prolong an overload
// of s. It tries the scenario's own trigger, if it has one, and other triggers
// of 1 to 60 s, each at the scenario's own load and at 80 %. In every case
// goodput must be back at most 5 s later than without retries, and must stay
// back. Otherwise CheckRecovery returns a *[RecoveryError] with what it
// measured.
//
// It rejects scenarios that prove nothing, with a *[ParameterError]: scenarios
// without an overload, scenarios that don't recover even without retries, and
// scenarios that recover under any policy because no request waits in the
// backend's queue longer than an attempt may take.
//
// CheckRecovery is meant for the tests of a repository that holds policies. It
// takes a few seconds for a fleet of any size: if the clients are equal and the
// backend has one instance, it replaces a large fleet with a smaller one that
// has the same rate per client, at a backend that is smaller by the same
// factor. [FullRecovery] checks more.
func CheckRecovery(ctx context.Context, s Scenario) error {
	return RecoveryCheck{Loads: []float64{0.8}}.Run(ctx, s)
}

// FullRecovery returns a more thorough check, which takes a minute or two and
// is meant to run outside unit tests. It tries every kind of trigger for 1, 10
// and 60 s, at four loads, with clients that send the scenario's own rate, ten
// times as much, and a tenth.
func FullRecovery() RecoveryCheck {
	c := RecoveryCheck{Loads: []float64{0.5, 0.7, 0.8, 0.9}, Fleets: []float64{0.1, 1, 10}}
	for _, length := range []time.Duration{time.Second, 10 * time.Second, time.Minute} {
		for kind := BrownOut; kind <= LateAnswers; kind++ {
			c.Troubles = append(c.Troubles, Trouble{kind, length})
		}
	}
	return c
}

// RecoveryCheck holds the parameters of [CheckRecovery].
type RecoveryCheck struct {
	// Allowed is how much longer recovery may take with retries than without.
	// If 0, 5 s.
	Allowed time.Duration

	// Troubles are the triggers that the backend must recover from, in addition
	// to the scenario's own. If nil: brownouts of 1, 10 and 60 s, and an
	// outage, a surge and late answers of 10 s each.
	Troubles []Trouble

	// Loads are the loads to test, as shares of the backend's capacity, in
	// addition to the scenario's own.
	Loads []float64

	// Fleets are the fleet sizes to test, as multiples of the scenario's own.
	// If nil, only its own size.
	Fleets []float64
}

// attemptTimeout returns how long a client waits for an attempt at the backend; 0
// means without end.
func (s Scenario) attemptTimeout() time.Duration {
	policy, timeout := s.Policy, s.Fleet.Timeout
	if n := len(s.Fleet.Services); n > 0 {
		last := s.Fleet.Services[n-1]
		timeout = last.Timeout
		if last.Policy != nil {
			policy = *last.Policy
		}
	}
	if policy.Retry.AttemptTimeout != 0 {
		timeout = max(0, policy.Retry.AttemptTimeout)
	}
	if timeout == 0 {
		return max(0, policy.Retry.Deadline)
	}
	return timeout
}

// Run performs the check that [CheckRecovery] describes, with the triggers,
// loads and fleets of c.
func (c RecoveryCheck) Run(ctx context.Context, s Scenario) error {
	_, err := c.measure(ctx, s, false, nil)
	return err
}

// RecoveryCase is what a [RecoveryCheck] measured with one load and trigger.
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

// Cases performs the check like [RecoveryCheck.Run], but goes on after a case in
// which the policy fails, and returns what it measured in all cases that had an
// effect. The error is that of Run. If ctx ends, Cases returns the cases
// measured until then. It calls progress, if not nil, after each case with the
// share that is complete.
func (c RecoveryCheck) Cases(ctx context.Context, s Scenario, progress func(done float64)) ([]RecoveryCase, error) {
	return c.measure(ctx, s, true, progress)
}

func (c RecoveryCheck) measure(ctx context.Context, s Scenario, all bool, progress func(float64)) (cases []RecoveryCase, err error) {
	if err := c.validate(s); err != nil {
		return nil, err
	}
	if c.Allowed == 0 {
		c.Allowed = recoveryAllowed
	}
	if c.Troubles == nil {
		c.Troubles = []Trouble{{BrownOut, time.Second}, {BrownOut, 10 * time.Second}, {BrownOut, time.Minute},
			{TotalOutage, 10 * time.Second}, {Surge, 10 * time.Second}, {LateAnswers, 10 * time.Second}}
	}
	places := c.places(s)
	var failed error
	for i, p := range places {
		without, err := c.without(ctx, p)
		if err != nil {
			return cases, err
		}
		if without.recovery == Never && all {
			cases = append(cases, RecoveryCase{Load: p.Load(), Trigger: p.Trigger, Recovery: Never, Without: Never, GoodWithout: without.during, OK: true})
			continue
		}
		if without.recovery == Never {
			return cases, &ParameterError{"Arrivals.Rate", p.Arrivals.Rate,
				fmt.Sprintf("less: after %s there is no recovery within %v without retries either", p.Trigger.about(), recoveryWatch)}
		}
		if !without.effect {
			if p.own {
				return cases, &ParameterError{"Trigger", "of no effect", "one in which more than 5 % of the requests fail without retries"}
			}
			continue
		}
		seen, err := c.with(ctx, p, without)
		if err != nil {
			return cases, err
		}
		one := RecoveryCase{p.Load(), p.Trigger, seen.recovery, without.recovery, seen.during, without.during, seen.ok}
		if !seen.ok && failed == nil {
			if failed = c.explain(ctx, p, s, without); !errors.As(failed, new(*RecoveryError)) || !all {
				return cases, failed
			}
		}
		if !seen.ok && seen.recovery == Never {
			longer, err := c.watch(ctx, p.Scenario, recoveryLonger, 0, &without)
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
	check.duration("Allowed", c.Allowed, 0, maxHorizon)
	check.want(s.Backend.Workers > 0, "Backend.Workers", s.Backend.Workers, "positive, for there to be an overload to recover from")
	check.want(!s.Arrivals.AtOnce, "Arrivals.AtOnce", s.Arrivals.AtOnce, "false: what arrives at once is no load to recover under")
	check.want(s.Arrivals.Count == 0, "Arrivals.Count", s.Arrivals.Count, "0: when nothing arrives any more, everything recovers")
	check.number("Arrivals.Rate", s.Arrivals.Rate, 5, maxRate)
	for _, t := range c.Troubles {
		check.want(t.Kind >= BrownOut && t.Kind <= LateAnswers, "Troubles.Kind", int(t.Kind), "one of the constants")
		check.duration("Troubles.For", t.For, 100*time.Millisecond, time.Hour)
	}
	for _, load := range c.Loads {
		check.number("Loads", load, 0.01, 10)
	}
	for _, factor := range c.Fleets {
		check.number("Fleets", factor, 0.0001, 10_000)
	}
	return check.err
}

// place is one scenario of a check.
type place struct {
	Scenario
	own bool // uses the caller's own trigger and load
}

// places returns the scenarios of a check, the caller's own first.
func (c RecoveryCheck) places(s Scenario) []place {
	var list []place
	fleets := c.Fleets
	if fleets == nil {
		fleets = []float64{1}
	}
	loads := []float64{s.Load()}
	for _, load := range c.Loads {
		if math.Abs(load-s.Load()) > 0.02 {
			loads = append(loads, load)
		}
	}
	for _, factor := range fleets {
		for i, load := range loads {
			one := s
			if i > 0 {
				one = s.LoadOf(load)
			}
			one.Fleet.Clients = min(maxClients, max(1, int(math.Round(float64(s.Fleet.Clients)*factor))))
			one = one.reduced()
			triggers := []Trigger{s.Trigger}
			for _, t := range c.Troubles {
				triggers = append(triggers, t.trigger(one))
			}
			for k, t := range triggers {
				if t.For > 0 {
					one.Trigger = t
					one.Trigger.At = recoveryWarmUp
					list = append(list, place{one, i == 0 && k == 0 && factor == 1})
				}
			}
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
	s.Fleet.Clients = part(s.Fleet.Clients)
	s.Backend.Queue, s.Backend.Refill = part(s.Backend.Queue), part(s.Backend.Refill)
	if n := s.Backend.ShedRetries; n > 0 {
		s.Backend.ShedRetries = max(1, part(n))
	}
	s.Fleet.Services = slices.Clone(s.Fleet.Services)
	for i := range s.Fleet.Services {
		if n := &s.Fleet.Services[i].Replicas; *n > 0 {
			*n = max(1, part(*n))
		}
	}
	s.Backend.Workers = workers
	return s
}

// outcome summarizes the runs of a place with several seeds.
type outcome struct {
	ok       bool          // recovered in time, and for good
	effect   bool          // the trigger had an effect
	recovery time.Duration // the median
	normal   float64       // share of requests that are answered before the trigger
	during   float64       // the same, during the trigger and some time after it
	steady   float64       // attempts per second in the last five seconds, as a share of the capacity
}

// without returns the outcome without retries.
func (c RecoveryCheck) without(ctx context.Context, p place) (outcome, error) {
	p.Policy = p.Policy.single()
	p.Fleet.Services = slices.Clone(p.Fleet.Services)
	for i := range p.Fleet.Services {
		if policy := p.Fleet.Services[i].Policy; policy != nil {
			single := policy.single()
			p.Fleet.Services[i].Policy = &single
		}
	}
	return c.watch(ctx, p.Scenario, recoveryWatch, 0, nil)
}

// single returns p without retries and without a breaker, gate or limiter.
func (p Policy) single() Policy {
	p.limit, p.draw = nil, nil
	p.Retry.MaxAttempts, p.Retry.Breaker, p.Retry.Gate.Enabled = 1, retrip.Breaker{Ratio: retrip.Off}, retrip.Off
	return p
}

// with returns the outcome with retries, watched only for as long as the
// verdict needs.
func (c RecoveryCheck) with(ctx context.Context, p place, without outcome) (outcome, error) {
	limit := without.recovery + c.Allowed
	return c.watch(ctx, p.Scenario, limit+recoveryGrace+p.tail(), limit, &without)
}

// tail returns how long to watch a recovered backend: as long as retries from
// before the recovery may arrive.
func (s Scenario) tail() time.Duration {
	tail := recoveryTail
	if _, p, err := s.Policy.rules(); err == nil {
		window, sum := p.Backoff.Base, time.Duration(0)
		for range min(p.MaxAttempts-1, 20) {
			sum += min(window, p.Backoff.Cap)
			window = min(2*window, p.Backoff.Cap)
		}
		tail = min(max(tail, sum), recoveryLonger)
		for _, wait := range []time.Duration{s.Backend.RetryAfter, s.Trigger.RetryAfter} {
			if wait <= p.MaxWait {
				// The waits are spread by up to as much again.
				tail = max(tail, min(2*wait, recoveryLongest))
			}
		}
	}
	return tail
}

// watch runs s with several seeds until some time after the trigger. If few
// requests arrive, it adds several runs together, so that each second holds
// enough requests to be meaningful.
func (c RecoveryCheck) watch(ctx context.Context, s Scenario, after, limit time.Duration, without *outcome) (outcome, error) {
	s.Horizon, s.Bin = s.Trigger.end()+after, time.Second
	size := int(min(recoveryGroup, max(1, math.Round(recoveryRate/s.Arrivals.Rate))))
	scenarios := s.Seeds(recoveryGroups * size)
	sums := make([]seconds, len(scenarios))
	err := parallel(ctx, len(scenarios), nil, func(ctx context.Context, i int, _ func(float64)) error {
		r, err := newRun(&scenarios[i])
		if err == nil {
			_, err = r.run(ctx, nil)
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
func (c RecoveryCheck) challenge(ctx context.Context, s Scenario, places []place) error {
	if s.Policy.Retry.MaxAttempts == 1 {
		return nil
	}
	heaviest := 0.0
	for _, p := range places {
		heaviest = max(heaviest, p.Load())
	}
	long := func(p place) bool { return p.Trigger.For >= 5*time.Second && p.Trigger.For <= 30*time.Second }
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
