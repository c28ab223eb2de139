// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/account"
)

// RecoveryCheck tries whether retries substantially prolong an overload of a
// [Scenario]: goodput must be back at most 5 s later than without retries, and
// must stay back. Times are those in which it is back with four of five seeds: at a
// high load they differ by more than 5 s without retries, too.
type RecoveryCheck struct {
	// Brownouts are the lengths of the brownouts that the backend must recover
	// from, 100 ms to an hour.
	Brownouts []time.Duration

	// Loads are the loads to test, as shares of the backend's capacity, in
	// addition to the scenario's own.
	Loads []float64

	// Well are shares of a host's requests that always succeed. With each, only the rest
	// of the host is overloaded, at the scenario's own load, by the brownout whose length
	// is closest to 10 s. Every client sends the host as many requests as in the other cases.
	Well []float64
}

const (
	recoveryAllowed  = 5 * time.Second   // later than without retries
	partBrownout     = 10 * time.Second  // of a part of the host
	recoveryWarmUp   = 10 * time.Second  // until the trigger
	recoveryWatch    = 30 * time.Second  // how long to watch without retries
	recoveryPatience = 120 * time.Second // the same, if it doesn't recover in that time
	recoveryTail     = 15 * time.Second  // during which a recovered backend must stay so
	recoveryLonger   = 60 * time.Second  // how long to watch a backend that doesn't recover in time
	recoveryGrace    = 5 * time.Second   // beyond the limit, after which goodput must stay back
	recoveryPrice    = 20 * time.Second  // after a trigger, whose requests count for its price
	recoveryShare    = 0.95              // of the goodput without retries before the trigger
	recoveryClear    = time.Second       // from the limit, within which the times of a few seeds are chance
	recoverySeeds    = 5                 // if all of them are clear and agree
	recoveryMore     = 15                // otherwise
	binsPerSecond    = 10
	recoveryBin      = time.Second / binsPerSecond

	partRate    = 700  // requests per second, at least
	partWorkers = 10   // at least, unless requests are so short
	partMost    = 1400 // that ten workers serve more than this
)

// Part returns s with the standard part of its fleet: as many clients as keep a
// backend of some ten workers at this load, with the rate per client of s. So a
// check gives the same result, in the same time, for all fleets with the same rate
// per client. A service time of less than load/1400 s counts as that.
func (s Scenario) Part(load float64) Scenario {
	perClient := s.Arrivals.Rate * (1 - s.Backend.Well) / float64(s.Fleet.Clients)
	b := &s.Backend
	b.Service = max(b.Service, time.Duration(load/partMost*float64(time.Second)))
	each := load / b.Service.Seconds() // requests per second of one worker
	const exact = 1 - 1e-9             // a quotient that should be whole is
	for b.Workers = int(math.Ceil(exact * max(partRate/each, min(partWorkers, partMost/each)))); ; b.Workers++ {
		clients := float64(b.Workers) * each / perClient
		if whole := math.Round(clients); math.Abs(whole-clients) <= 0.03*clients {
			s.Fleet.Clients = int(min(whole, math.MaxInt32))
			break
		}
	}
	s = s.LoadOf(load)
	s.Store.Size = cmp.Or(s.Store.Size, account.DefaultSize) * s.Arrivals.Rate / partRate
	return s
}

// Verdict says how a policy does in a case.
type Verdict int

// With at least four of five seeds, the policy passes, and with at most one of
// five, it fails.
const (
	Passes Verdict = iota
	Borderline
	Fails
)

func (v Verdict) String() string { return [...]string{"passes", "borderline", "fails"}[v] }

// RecoveryCase is what a [RecoveryCheck] measured with one load and brownout.
type RecoveryCase struct {
	Load    float64 // arrivals as a share of the backend's capacity
	Well    float64 // share of the host's requests that always succeed, and don't count
	Trigger Trigger
	Idle    bool // the brownout has no effect

	// Recovery and Without are the times to recover with and without retries: to
	// the first second in which goodput is back, which begins at any tenth of a
	// second. It is [Never] if that wasn't seen within Watched, or without retries
	// within two minutes. If the backend doesn't recover without retries, the
	// policy isn't tried and passes.
	Recovery, Without, Watched time.Duration

	// Good and GoodWithout are the shares of the requests that are answered in
	// the end, of those that arrive during the trigger and in the 20 s after it.
	Good, GoodWithout float64

	// Steady is the rate of attempts at the end of the watched time, as a share
	// of the backend's capacity, if Recovery is Never.
	Steady float64

	// Verdict sums up how many of the Seeds passed: those with which the backend
	// recovers in time, and for good.
	Verdict       Verdict
	Passed, Seeds int

	place *place
}

// InTime reports whether goodput is back in time, if not for good.
func (c *RecoveryCase) InTime() bool {
	return c.Recovery != Never && c.Recovery <= c.Without+recoveryAllowed
}

// Cases returns what it measured in all cases of s, which must have no trigger of its own. The error is a *[ParameterError] if s proves
// nothing: if no brownout has an effect, or if s recovers under any policy
// because no request waits in the backend's queue longer than an attempt may
// take. If ctx ends, Cases returns the cases measured until then. It calls
// progress, if not nil, after each case with the share that is complete.
func (c RecoveryCheck) Cases(ctx context.Context, s Scenario, progress func(done float64)) (cases []RecoveryCase, err error) {
	if err := c.validate(s); err != nil {
		return nil, err
	}
	places := c.places(s)
	for i, p := range places {
		if err := p.measure(ctx, recoverySeeds); err != nil {
			return cases, err
		}
		if p.without == Never {
			cases = append(cases, RecoveryCase{Load: p.Load(), Well: p.Backend.Well, Trigger: p.Trigger, Recovery: Never, Without: Never, GoodWithout: p.during(p.bare)})
			continue
		}
		if p.without == 0 && p.bare.share(p.begin(), p.end()) >= p.good {
			cases = append(cases, RecoveryCase{Load: p.Load(), Well: p.Backend.Well, Trigger: p.Trigger, Idle: true, Good: p.during(p.bare), GoodWithout: p.during(p.bare)})
			continue
		}
		one, err := p.try(ctx, p.Policy)
		if err == nil && one.Recovery == Never {
			err = p.watchLonger(ctx, &one)
		}
		if err != nil {
			return cases, err
		}
		cases = append(cases, one)
		if progress != nil {
			progress(float64(i+1) / float64(len(places)+1))
		}
	}
	if !slices.ContainsFunc(cases, func(c RecoveryCase) bool { return !c.Idle }) {
		return nil, &ParameterError{"Arrivals.Rate", s.Arrivals.Rate, "more: no trigger has an effect"}
	}
	if slices.ContainsFunc(cases, func(c RecoveryCase) bool { return c.Verdict != Passes }) {
		return cases, nil
	}
	return cases, challenge(ctx, s, cases)
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
		check.want(load > 0 && load < 1, "Loads", load, "more than 0 and less than 1: 0.7 is 70 % of the capacity")
	}
	for _, share := range c.Well {
		check.number("Well", share, 0, 0.99)
	}
	return check.err
}

// places returns the places of a check, those with the scenario's own load first.
func (c RecoveryCheck) places(s Scenario) (list []*place) {
	add := func(s Scenario, load float64, d time.Duration) {
		p := &place{Scenario: s.LoadOf(load)}
		toBin := (recoveryBin - d%recoveryBin) % recoveryBin
		p.Trigger = Trigger{At: recoveryWarmUp + toBin, For: d, Slowdown: max(3.3, 2.31/load)}
		list = append(list, p)
	}
	for _, load := range append([]float64{s.Load()}, c.Loads...) {
		for _, d := range c.Brownouts {
			add(s, load, d)
		}
	}
	for _, share := range c.Well {
		if share > 0 {
			part := s
			part.Backend.Well = share
			part.Fleet.Clients = int(math.Round(float64(s.Fleet.Clients) / (1 - share)))
			add(part, s.Load(), slices.MinFunc(c.Brownouts, func(a, b time.Duration) int {
				return cmp.Compare((a - partBrownout).Abs(), (b - partBrownout).Abs())
			}))
		}
	}
	return list
}

// place is a scenario of a check, and what happens there without retries, and
// without a breaker, gate or limiter.
type place struct {
	Scenario
	bare    samples
	good    float64       // the share of answered requests that is a recovery
	without time.Duration // the time to recover
}

// samples are the runs of a place with consecutive seeds, each in bins of
// recoveryBin.
type samples [][]second

func (p *place) begin() int { return bins(p.Trigger.At) }
func (p *place) end() int   { return bins(p.Trigger.end()) }

func bins(d time.Duration) int { return int(d / recoveryBin) }

// measure makes sure that the place was run with so many seeds without retries.
func (p *place) measure(ctx context.Context, seeds int) error {
	if len(p.bare) >= seeds {
		return nil
	}
	policy := p.Policy
	policy.limit, policy.draw, policy.account = nil, nil, false
	policy.Retry.MaxAttempts, policy.Retry.Breaker, policy.Retry.Gate.Enabled = 1, retrip.Breaker{Ratio: retrip.Off}, retrip.Off
	for _, after := range []time.Duration{recoveryWatch, recoveryPatience} {
		var err error
		if p.bare, err = p.watch(ctx, policy, 0, seeds, after); err != nil {
			return err
		}
		p.good = recoveryShare * p.bare.share(0, p.begin())
		if p.without = most(p.times(p.bare)); p.without != Never {
			break
		}
	}
	return nil
}

// try returns how a policy does at the place, watched only for as long as the
// verdict needs.
func (p *place) try(ctx context.Context, policy Policy) (c RecoveryCase, err error) {
	var all samples
	for _, c.Seeds = range []int{recoverySeeds, recoveryMore} {
		if err := p.measure(ctx, c.Seeds); err != nil {
			return c, err
		}
		limit := p.without + recoveryAllowed
		if p.without == Never {
			limit = recoveryPatience
		}
		c.Watched = limit + recoveryGrace + policy.tail()
		more, err := p.watch(ctx, policy, len(all), c.Seeds, c.Watched)
		if err != nil {
			return c, err
		}
		all = append(all, more...)
		c.Passed = 0
		sure := true
		for i, d := range p.times(all) {
			if d <= limit && shareOf(all[i][min(len(all[i]), p.end()+bins(limit+recoveryGrace)):]) >= p.good {
				c.Passed++
			}
			sure = sure && (d-limit).Abs() >= recoveryClear
		}
		if sure && c.Passed%c.Seeds == 0 {
			break
		}
	}
	switch {
	case 5*c.Passed <= c.Seeds:
		c.Verdict = Fails
	case 5*c.Passed < 4*c.Seeds:
		c.Verdict = Borderline
	}
	c.Load, c.Well, c.Trigger, c.place = p.Load(), p.Backend.Well, p.Trigger, p
	c.Recovery, c.Without = most(p.times(all)), p.without
	c.Good, c.GoodWithout = p.during(all), p.during(p.bare)
	return c, nil
}

// watchLonger sees whether the backend recovers at last.
func (p *place) watchLonger(ctx context.Context, c *RecoveryCase) error {
	c.Watched = max(c.Watched, recoveryLonger)
	longer, err := p.watch(ctx, p.Policy, 0, recoverySeeds, c.Watched)
	if err != nil {
		return err
	}
	c.Recovery = most(p.times(longer))
	const last = 5 * binsPerSecond
	var attempts float64
	for _, run := range longer {
		for _, b := range run[len(run)-last:] {
			attempts += float64(b.attempts)
		}
	}
	c.Steady = attempts / (5 * recoverySeeds) / p.Backend.capacity()
	return nil
}

// watch runs the place with the seeds from one number to another until some time
// after the trigger.
func (p *place) watch(ctx context.Context, policy Policy, from, to int, after time.Duration) (samples, error) {
	s := p.Scenario
	s.Policy, s.Bin, s.Horizon = policy, recoveryBin, s.Trigger.end()+after
	results, err := RunAll(ctx, s.Seeds(to)[from:], nil)
	if err != nil {
		return nil, err
	}
	list := make(samples, len(results))
	for i, r := range results {
		for _, b := range r.Series {
			list[i] = append(list[i], second{b.Requests, b.Good, b.Attempts})
		}
	}
	return list, nil
}

// times returns the times to recover of all runs; one that was not seen is very
// long.
func (p *place) times(runs samples) []time.Duration {
	list := make([]time.Duration, len(runs))
	for i, run := range runs {
		if list[i] = recoveredTo(p.good, run[p.end():], binsPerSecond); list[i] == Never {
			list[i] = math.MaxInt64
		}
	}
	return list
}

// most returns the time in which four of five runs recover.
func most(times []time.Duration) time.Duration {
	if d := slices.Sorted(slices.Values(times))[len(times)*4/5-1]; d != math.MaxInt64 {
		return d
	}
	return Never
}

// during returns the share of requests that are answered, during the trigger and
// some time after it.
func (p *place) during(runs samples) float64 {
	return runs.share(p.begin(), p.end()+bins(recoveryPrice))
}

// share returns the share of requests that are answered in all runs, from one bin
// to another.
func (r samples) share(from, to int) float64 {
	var all []second
	for _, run := range r {
		all = append(all, run[from:min(to, len(run))]...)
	}
	return shareOf(all)
}

// tail returns how long to watch a recovered backend: as long as retries from
// before the recovery may arrive.
func (p Policy) tail() time.Duration {
	_, r, err := p.rules()
	if err != nil {
		return recoveryTail
	}
	window, sum := r.Backoff.Base, time.Duration(0)
	for range min(r.MaxAttempts-1, 20) {
		sum += min(window, r.Backoff.Cap)
		window = min(2*window, r.Backoff.Cap)
	}
	return min(max(recoveryTail, sum), recoveryLonger)
}

// challenge rejects a scenario in which no policy could fail.
func challenge(ctx context.Context, s Scenario, cases []RecoveryCase) error {
	tried := slices.DeleteFunc(slices.Clone(cases), func(c RecoveryCase) bool { return c.place == nil })
	if s.Policy.Retry.MaxAttempts == 1 || len(tried) == 0 {
		return nil
	}
	heaviest := slices.MaxFunc(tried, func(a, b RecoveryCase) int { return cmp.Compare(a.Load, b.Load) }).Load
	long := func(c RecoveryCase) bool { return c.Trigger.For >= 5*time.Second && c.Trigger.For <= 30*time.Second }
	for _, c := range tried {
		if c.Load < heaviest || !long(c) && slices.ContainsFunc(tried, long) {
			continue
		}
		retry := &s.Policy.Retry
		seen, err := c.place.try(ctx, Policy{Retry: retrip.Policy{AttemptTimeout: retry.AttemptTimeout, Deadline: retry.Deadline,
			MaxWait: retry.MaxWait, Budget: retrip.Off, Backoff: retrip.Backoff{Cap: time.Second}}})
		if err != nil || seen.Verdict != Passes {
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
