// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"github.com/retrip/retrip"
)

// Refusals returns the cases in which a gate could do harm, each with a policy that
// has a gate: refusals that don't depend on the rate of the requests, limits that
// change, and clients that share a low limit. They are to be compared with clients
// without a gate, and with those that [RateLimit.Obeys] describes.
func Refusals() []RateLimitCase {
	const s, ms = time.Second, time.Millisecond
	var cases []RateLimitCase
	add := func(name string, l ServerLimit, horizon, warmUp time.Duration, change func(*RateLimit)) {
		m := RateLimit{
			Policy:    Policy{Retry: retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, MaxWait: time.Hour}},
			Limit:     l,
			Processes: 1,
			DelayLow:  10 * ms,
			DelayHigh: 20 * ms,
			Service:   50 * ms,
			WarmUp:    warmUp,
			Horizon:   horizon,
			Seed:      1,
		}
		change(&m)
		cases = append(cases, RateLimitCase{name, m})
	}
	workers := func(n int) func(*RateLimit) { return func(m *RateLimit) { m.Workers = n } }
	arrive := func(rate float64, deadline time.Duration) func(*RateLimit) {
		return func(m *RateLimit) { m.Rate, m.Deadline = rate, deadline }
	}
	always := func(d time.Duration) Word { return Word{Kind: ConstantWord, Length: d} }
	words := []struct {
		name string
		word Word
	}{{"no word", Word{Kind: NoWord}}, {"always 1 s", always(s)}}

	for _, w := range words {
		for _, share := range []float64{.01, .05, .1, .25} {
			l := ServerLimit{Kind: Unlimited, Random: share, Word: w.word}
			name := fmt.Sprintf("%g %% at random, %s, ", 100*share, w.name)
			add(name+"20 workers", l, 600*s, 60*s, workers(20))
			add(name+"1/s arrive", l, 1800*s, 60*s, arrive(1, 0))
			add(name+"10/s arrive", l, 600*s, 60*s, arrive(10, 0))
		}
	}
	for _, d := range []time.Duration{s, 5 * s} {
		add(fmt.Sprintf("one backend of ten refuses, always %v, 20 workers", d), ServerLimit{Kind: Unlimited, Every: 10, Word: always(d)}, 600*s, 60*s, workers(20))
	}
	for _, w := range words {
		for _, share := range []float64{.05, .1} {
			l := ServerLimit{Rate: 10, Count: 10, Random: share, Word: w.word}
			add(fmt.Sprintf("10/s, burst 10, and %g %% at random, %s, 50 workers", 100*share, w.name), l, 600*s, 60*s, workers(50))
		}
	}
	for _, d := range []time.Duration{s, 5 * s, 30 * s} {
		l := ServerLimit{Kind: Unlimited, Every: 2, Word: always(d)}
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
	for _, n := range []int{2, 5} {
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
