// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"github.com/retrip/retrip"
)

// RateLimitCase is a [RateLimit] with what must come of it.
type RateLimitCase struct {
	Name  string
	Must  must
	Model RateLimit
}

// must holds the bounds that the gate must meet in a case of RateLimits: percentages,
// the ratio of the worst wait to the fair one, and the last success of requests that
// all arrive at once. 0 means no bound. Where the bounds are below 88 %, or above 5
// refusals, docs/rate-limits.md names the case as out of reach.
type must struct {
	used, refusals, worst float64
	last                  time.Duration
}

// newRateLimitCase returns a case of one process with a gate.
func newRateLimitCase(name string, m must, l ServerLimit, horizon, warmUp time.Duration, change ...func(*RateLimit)) RateLimitCase {
	c := RateLimitCase{name, m, RateLimit{
		Policy:    retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, MaxWait: time.Hour},
		Limit:     l,
		Processes: 1,
		DelayLow:  10 * time.Millisecond,
		DelayHigh: 20 * time.Millisecond,
		Service:   50 * time.Millisecond,
		WarmUp:    warmUp,
		Horizon:   horizon,
		Seed:      1,
	}}
	for _, f := range change {
		f(&c.Model)
	}
	return c
}

// shorter ends a brief run after 600 accepted requests, but not before least for each process, ten
// windows and sixty of the waits that the server asks for.
func (m RateLimit) shorter(least time.Duration) RateLimit {
	perSecond := 0.0
	for _, s := range m.servers() {
		perSecond += s.allows(0, m.Horizon) / m.Horizon.Seconds()
	}
	if m.Limit.Kind == Unlimited {
		perSecond = float64(m.Workers) / m.Service.Seconds() / 10 // of which few are refused
	}
	if brief && perSecond > 0 && m.Limit.To == 0 {
		enough := time.Duration(600 / perSecond * float64(time.Second))
		m.Horizon = min(m.Horizon, m.WarmUp+max(time.Duration(m.Processes)*least, enough, 10*m.Limit.Window, 60*time.Duration(m.Limit.Word)))
	}
	return m
}

// RateLimits returns the cases that measure the gate: combinations of servers,
// Retry-After values and worker pools, each with a policy that has a gate.
func RateLimits() []RateLimitCase {
	const s, ms = time.Second, time.Millisecond
	const rounded, exact, none = RoundedWord, ExactWord, NoWord
	var cases []RateLimitCase
	add := func(name string, m must, l ServerLimit, workers int, horizon, warmUp time.Duration, change ...func(*RateLimit)) {
		c := newRateLimitCase(name, m, l, horizon, warmUp, change...)
		c.Model.Workers = workers
		c.Model = c.Model.shorter(180 * s)
		cases = append(cases, c)
	}
	tokens := func(rate float64, burst int, w Word) ServerLimit {
		return ServerLimit{Kind: TokenBucket, Rate: rate, Count: burst, Word: w}
	}
	window := func(n int, d, phase time.Duration, w Word) ServerLimit {
		return ServerLimit{Kind: FixedWindow, Count: n, Window: d, Phase: phase, Word: w}
	}

	const minutes = 37*s + 30*time.Minute
	wide := func(m *RateLimit) { m.DelayLow, m.DelayHigh = 0, 200*ms }
	deadline := func(d time.Duration) func(*RateLimit) { return func(m *RateLimit) { m.Deadline = d } }
	maxWait := func(d time.Duration) func(*RateLimit) { return func(m *RateLimit) { m.Policy.MaxWait = d } }

	add("1/s, burst 1, 1 worker", must{used: 92, refusals: 4}, tokens(1, 1, rounded), 1, 600*s, 120*s)
	add("1/s, burst 1, 50 workers", must{used: 92, refusals: 4, worst: 1.3}, tokens(1, 1, rounded), 50, 900*s, 120*s)
	add("0.5/s, burst 1", must{used: 92, refusals: 4, worst: 1.3}, tokens(.5, 1, rounded), 10, 1200*s, 240*s)
	add("0.2/s, burst 1", must{used: 88, refusals: 12, worst: 1.5}, tokens(.2, 1, rounded), 10, 2400*s, 400*s)
	add("0.1/s, burst 1", must{used: 84, refusals: 24, worst: 1.6}, tokens(.1, 1, rounded), 10, 4000*s, 600*s)
	add("0.1/s, burst 1, always 10 s", must{used: 72, refusals: 22, worst: 2}, tokens(.1, 1, Word(10*s)), 10, 4000*s, 600*s)
	add("0.1/s, burst 1, always 1 s", must{used: 84, refusals: 24, worst: 1.6}, tokens(.1, 1, Word(s)), 10, 4000*s, 600*s)

	add("10/s, burst 10, always 1 s", must{used: 97, refusals: 1, worst: 1.3}, tokens(10, 10, Word(s)), 200, 600*s, 60*s)
	add("10/s, burst 100, always 1 s", must{used: 97, refusals: 1, worst: 1.3}, tokens(10, 100, Word(s)), 200, 600*s, 60*s)
	add("10/s, burst 10, exact", must{used: 97, refusals: 3, worst: 1.3}, tokens(10, 10, exact), 200, 600*s, 60*s)
	add("10/s, burst 10, 1 worker", must{used: 96, refusals: 3}, tokens(10, 10, rounded), 1, 600*s, 60*s)
	add("10/s, burst 10, 10 workers", must{used: 97, refusals: 1}, tokens(10, 10, rounded), 10, 600*s, 60*s)
	add("10/s, burst 10, net 0-200 ms", must{used: 96, refusals: 1, worst: 1.3}, tokens(10, 10, rounded), 200, 600*s, 60*s, wide)
	add("10/s, burst 10, 10 % fail", must{used: 97, refusals: 1, worst: 1.3}, tokens(10, 10, rounded), 200, 600*s, 60*s, func(m *RateLimit) { m.Failures = .1 })
	add("10/s, burst 10, no word", must{used: 95, refusals: 4, worst: 1.3}, tokens(10, 10, none), 200, 600*s, 60*s)
	add("10/s, burst 1, no word", must{used: 82, refusals: 4, worst: 1.3}, tokens(10, 1, none), 200, 600*s, 60*s)
	add("10/s, burst 1", must{used: 76, refusals: 2, worst: 1.7}, tokens(10, 1, rounded), 200, 600*s, 60*s)
	still := func(m *RateLimit) { m.DelayHigh = m.DelayLow }
	add("10/s, burst 1, no jitter", must{used: 90, refusals: 1, worst: 1.3}, tokens(10, 1, rounded), 200, 600*s, 60*s, still)
	add("100/s, burst 1, no jitter", must{used: 90, refusals: 1}, tokens(100, 1, rounded), 200, 600*s, 60*s, still)
	add("10/s, burst 1, always 5 s, 600 workers", must{used: 73, refusals: 1}, tokens(10, 1, Word(5*s)), 600, 900*s, 120*s)
	add("10/s, burst 10, always 5 s, 600 workers", must{used: 92, refusals: 1, worst: 1.3}, tokens(10, 10, Word(5*s)), 600, 900*s, 120*s)
	add("10/s, burst 10, always 60 s", must{used: 78}, tokens(10, 10, Word(60*s)), 200, 3600*s, 900*s)
	add("10/s, burst 10, deadline 10 s", must{used: 97, refusals: 1}, tokens(10, 10, rounded), 200, 600*s, 60*s, deadline(10*s))
	add("100/s, burst 100", must{used: 97, refusals: 1, worst: 1.6}, tokens(100, 100, rounded), 200, 600*s, 60*s)
	add("100/s, burst 1000", must{used: 97, refusals: 1, worst: 1.6}, tokens(100, 1000, rounded), 200, 600*s, 60*s)
	add("100/s, burst 100, no word", must{used: 97, refusals: 1, worst: 1.6}, tokens(100, 100, none), 200, 600*s, 60*s)
	add("100/s, burst 1", must{used: 40, refusals: 1}, tokens(100, 1, rounded), 200, 600*s, 60*s)
	add("1000/s, burst 1000, 1000 workers", must{used: 97, refusals: 1}, tokens(1000, 1000, rounded), 1000, 200*s, 60*s)

	add("1000/s, burst 10, 1000 workers", must{used: 88, refusals: 1}, tokens(1000, 10, rounded), 1000, 200*s, 60*s)
	add("100/s, burst 10, net 0-200 ms, 2 s each on average, 1000 workers", must{used: 62, refusals: 1}, tokens(100, 10, rounded), 1000, 600*s, 60*s, wide,
		func(m *RateLimit) { m.Service, m.Exponential = 2*s, true })

	add("10 in each 1 s", must{used: 86, refusals: 2}, window(10, s, 370*ms, rounded), 200, 600*s, 60*s)
	add("100 in each 1 s", must{used: 83, refusals: 2}, window(100, s, 370*ms, rounded), 200, 600*s, 60*s)
	add("600 in each 60 s", must{used: 95, refusals: 1}, window(600, 60*s, 37*s, rounded), 200, minutes, 157*s)
	add("600 in each 60 s, MaxWait 60 s", must{used: 95, refusals: 1}, window(600, 60*s, 37*s, rounded), 200, minutes, 157*s, maxWait(60*s))
	add("600 in each 60 s, MaxWait 30 s", must{used: 95, refusals: 1}, window(600, 60*s, 37*s, rounded), 200, minutes, 157*s, maxWait(0))
	add("600 in each 60 s, no word", must{used: 95, refusals: 2}, window(600, 60*s, 37*s, none), 200, minutes, 157*s)
	add("600 in each 60 s, always 1 s", must{used: 95, refusals: 2}, window(600, 60*s, 37*s, Word(s)), 200, minutes, 157*s)
	add("5000 in each hour, 50 workers", must{used: 90, refusals: 1}, window(5000, time.Hour, 50*time.Minute, rounded), 50, 5*time.Hour, 2*time.Hour)
	add("600 in any 60 s", must{used: 92, refusals: 4}, ServerLimit{Kind: SlidingWindow, Count: 600, Window: 60 * s}, 200, 1800*s, 120*s)
	add("10 in any 1 s", must{used: 87, refusals: 2}, ServerLimit{Kind: SlidingWindow, Count: 10, Window: s}, 200, 600*s, 60*s)

	together := ServerLimit{Kind: Concurrency, Count: 10, Word: Word(s)}
	add("10 at a time, 200 ms each", must{used: 83, refusals: 1}, together, 200, 600*s, 60*s,
		func(m *RateLimit) { m.Service = 200 * ms })
	average := func(m *RateLimit) { m.Service, m.Exponential = 200*ms, true }
	add("10 at a time, 200 ms on average", must{used: 45, refusals: 1.5}, together, 200, 600*s, 60*s, average)
	add("10 at a time, 200 ms on average, no word", must{used: 50, refusals: 3}, ServerLimit{Kind: Concurrency, Count: 10, Word: none}, 200, 600*s, 60*s, average)
	add("10 at a time, 200 ms on average, 10 workers", must{used: 85, refusals: .1}, together, 10, 600*s, 60*s, average)

	atOnce := func(n int) func(*RateLimit) { return func(m *RateLimit) { m.Burst, m.BurstAt = n, 100*ms } }
	pause := func(d time.Duration) ServerLimit {
		return ServerLimit{Kind: Outage, Until: 500 * ms, Word: Word(d)}
	}
	add("one pause of 8 s, 200 at once", must{last: 20 * time.Second}, pause(8*s), 0, 300*s, 0, atOnce(200))
	add("one pause of 8 s, 200 at once, deadline 30 s", must{last: 20 * time.Second}, pause(8*s), 0, 300*s, 0, atOnce(200), deadline(30*s))
	add("one pause of 60 s, 200 at once", must{last: 95 * time.Second}, pause(60*s), 0, 300*s, 0, atOnce(200))
	add("one pause of 8 s, 50 processes, 4 at once each", must{last: 20 * time.Second}, pause(8*s), 0, 300*s, 0, atOnce(4),
		func(m *RateLimit) { m.Processes = 50 })

	falls := tokens(100, 10, rounded)
	falls.From, falls.To, falls.Meanwhile = 120*s, 240*s, 10
	add("100/s falls to 10/s: the minute after", must{used: 92, refusals: 10}, falls, 200, 180*s, 120*s)
	add("10/s rises to 100/s: 30 to 60 s after", must{used: 87}, falls, 200, 300*s, 270*s)

	for _, c := range []struct {
		n        int
		used     float64 // at 100/s
		refusals [4]float64
	}{{2, 96, [4]float64{6, 2, 1, 2}}, {10, 97, [4]float64{22, 4, 13, 5}}} {
		several := func(m *RateLimit) { m.Processes = c.n }
		late := func(m *RateLimit) { m.Processes, m.Stagger = c.n, 100*s }
		who := fmt.Sprintf("%d processes", c.n)
		add("10/s, burst 10, "+who, must{used: 97, refusals: c.refusals[0]}, tokens(10, 10, rounded), 50, 600*s, 120*s, several)
		add("100/s, burst 100, "+who, must{used: c.used, refusals: c.refusals[1]}, tokens(100, 100, rounded), 100, 600*s, 120*s, several)
		add("600 in each 60 s, "+who, must{used: 97, refusals: c.refusals[2]}, window(600, 60*s, 37*s, rounded), 100, minutes, 337*s, several)
		add("100/s, burst 100, "+who+", one after another", must{used: c.used, refusals: c.refusals[3]}, tokens(100, 100, rounded), 100, 600*s, 240*s, late)
	}

	open := func(rate float64, deadline time.Duration) func(*RateLimit) {
		return func(m *RateLimit) { m.Rate, m.Deadline = rate, deadline }
	}
	add("10/s, burst 10, 5/s arrive, deadline 1 s", must{used: 45, refusals: 1}, tokens(10, 10, rounded), 0, 900*s, 60*s, open(5, s))
	add("10/s, burst 10, 9.5/s arrive, deadline 30 s", must{used: 92, refusals: 2}, tokens(10, 10, rounded), 0, 900*s, 60*s, open(9.5, 30*s))
	add("10/s, burst 10, 12/s arrive, deadline 30 s", must{used: 97, refusals: 2}, tokens(10, 10, rounded), 0, 900*s, 60*s, open(12, 30*s))
	add("10/s, burst 10, 12/s arrive, deadline 1 s", must{used: 97, refusals: 2}, tokens(10, 10, rounded), 0, 900*s, 60*s, open(12, s))

	tenants := func(m *RateLimit) { m.Tenants = []float64{1, 100} }
	add("keys with 1/s and 100/s, one gate", must{}, ServerLimit{}, 100, 600*s, 60*s, tenants)
	add("keys with 1/s and 100/s, a gate each", must{used: 97, refusals: 1}, ServerLimit{}, 100, 600*s, 60*s, tenants,
		func(m *RateLimit) { m.GatePerTenant = true })
	return cases
}

// Refusals returns the cases in which a gate could do harm, each with a policy that
// has a gate: refusals that don't depend on the rate of the requests, limits that
// change, and clients that share a low limit. They are to be compared with clients
// without a gate, and with those that [RateLimit.Obeys] describes.
func Refusals() []RateLimitCase {
	const s, ms = time.Second, time.Millisecond
	var cases []RateLimitCase
	add := func(name string, l ServerLimit, horizon, warmUp time.Duration, change func(*RateLimit)) {
		c := newRateLimitCase(name, must{}, l, horizon, warmUp, change)
		c.Model = c.Model.shorter(60 * s)
		cases = append(cases, c)
	}
	workers := func(n int) func(*RateLimit) { return func(m *RateLimit) { m.Workers = n } }
	arrive := func(rate float64, deadline time.Duration) func(*RateLimit) {
		return func(m *RateLimit) { m.Rate, m.Deadline = rate, deadline }
	}
	words := []struct {
		name string
		word Word
	}{{"no word", NoWord}, {"always 1 s", Word(s)}}

	for _, w := range words {
		for _, share := range rows([]float64{.05, .25}, []float64{.01, .05, .1, .25}) {
			l := ServerLimit{Kind: Unlimited, Random: share, Word: w.word}
			name := fmt.Sprintf("%g %% at random, %s, ", 100*share, w.name)
			add(name+"20 workers", l, 600*s, 60*s, workers(20))
			add(name+"1/s arrive", l, 1800*s, 60*s, arrive(1, 0))
			add(name+"10/s arrive", l, 600*s, 60*s, arrive(10, 0))
		}
	}
	for _, d := range []time.Duration{s, 5 * s} {
		add(fmt.Sprintf("one backend of ten refuses, always %v, 20 workers", d), ServerLimit{Kind: Unlimited, Every: 10, Word: Word(d)}, 600*s, 60*s, workers(20))
	}
	for _, w := range words {
		for _, share := range rows([]float64{.1}, []float64{.05, .1}) {
			l := ServerLimit{Rate: 10, Count: 10, Random: share, Word: w.word}
			add(fmt.Sprintf("10/s, burst 10, and %g %% at random, %s, 50 workers", 100*share, w.name), l, 600*s, 60*s, workers(50))
		}
	}
	for _, d := range []time.Duration{s, 5 * s, 30 * s} {
		l := ServerLimit{Kind: Unlimited, Every: 2, Word: Word(d)}
		add(fmt.Sprintf("each request refused once, always %v, one in %v", d, 10*d), l, 2000*d, 0, arrive(1/(10*d).Seconds(), 0))
	}
	for _, rate := range []float64{10, 1, .5, .2, .1} {
		gap := time.Duration(float64(s) / rate)
		to := 10*time.Minute + 20*gap
		seen := to + max(2*time.Minute, 3*gap)
		l := ServerLimit{Rate: 1e6, Count: 1, To: to, Meanwhile: rate}
		add(fmt.Sprintf("%g/s is gone: 2 min or 3 gaps later", rate), l, seen+time.Minute, seen, workers(10))
		l.Rate = 10 * rate
		add(fmt.Sprintf("%g/s rises to %g/s: 2 min or 3 gaps later", rate, l.Rate), l, seen+max(time.Minute, 10*gap), seen, workers(50))
	}
	for _, n := range rows([]int{5}, []int{2, 5}) {
		for _, rate := range []int{1, 10, 100} {
			add(fmt.Sprintf("%d/s, burst %d, %d processes of 50 workers", rate, rate, n), ServerLimit{Rate: float64(rate), Count: rate},
				1200*s, 300*s, func(m *RateLimit) { m.Workers, m.Processes = 50, n })
		}
	}
	add("0.1/s, burst 1, one in 6 s arrives, deadline 1 s", ServerLimit{Rate: .1, Count: 1}, 7200*s, 600*s, arrive(1./6, s))
	add("0.05/s, burst 1, one in 6 s arrives, deadline 2 s", ServerLimit{Rate: .05, Count: 1}, 7200*s, 600*s, arrive(1./6, 2*s))
	gone := ServerLimit{Rate: 1e6, Count: 1, To: 1200 * s, Meanwhile: .05}
	add("0.05/s is gone, one in 6 s arrives, deadline 2 s: 2 min later", gone, 1920*s, 1320*s, arrive(1./6, 2*s))
	return cases
}
