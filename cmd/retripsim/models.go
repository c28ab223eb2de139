// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/retrip/retrip/internal/sim"
)

// contention runs writers of one row, for several sizes of the fleet.
func contention(f *flags) work {
	m := sim.ArticleContention()
	clients := []int{10, 50, 100, 200}
	f.names["Clients"], f.names["Policy"] = "clients", "policy"
	f.Var(ints(&clients), "clients", "`numbers` of clients, each in a run of its own")
	f.DurationVar(&m.Delay, f.field("delay", "Delay"), m.Delay, "mean delay of the network, each way")
	f.DurationVar(&m.Deviation, f.field("deviation", "Deviation"), m.Deviation, "standard deviation of the network's delay, each way")
	f.IntVar(&m.Trials, f.field("trials", "Trials"), m.Trials, "number of trials; the report shows their mean")
	f.Uint64Var(&m.Seed, "seed", m.Seed, "seed of the random numbers")
	f.choice("")
	f.Lookup("policy").Usage += "; if empty, the five of the model: no-backoff, no-jitter, equal, full, decorrelated"
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		policies := sim.Contenders()
		if f.policies != "" {
			var err error
			if policies, err = f.load(m.Policy.Retry); err != nil {
				return nil, err
			}
		}
		r := &report{
			title: fmt.Sprintf("one row, %d trials: calls, and seconds until all have written", m.Trials),
			table: [][]string{{"policy"}},
		}
		for _, n := range clients {
			r.table[0] = append(r.table[0], fmt.Sprintf("N = %d", n))
		}
		var results []*sim.ContentionResult
		for _, p := range policies {
			row := []string{p.Name}
			for _, n := range clients {
				m.Policy, m.Clients = p, n
				before, all := float64(len(results)), float64(len(policies)*len(clients))
				result, err := m.Run(ctx, func(done float64) { progress((before + done) / all) })
				if err != nil {
					if len(results) == 0 {
						return nil, err
					}
					return r, err
				}
				results = append(results, result)
				row = append(row, fmt.Sprintf("%.1f  %.3f s", result.Calls, result.Time.Seconds()))
			}
			r.table, r.json = append(r.table, row), results
		}
		return r, nil
	}
}

// stadium runs players who lose their CDN.
func stadium(f *flags) work {
	m := sim.CupFinal()
	f.IntVar(&m.Players, f.field("players", "Players"), m.Players, "number of players who watch")
	f.DurationVar(&m.Interval, f.field("interval", "Interval"), m.Interval, "time between two segments of a player")
	f.DurationVar(&m.Flight, f.field("flight", "Flight"), m.Flight, "round-trip time of a request")
	f.DurationVar(&m.At, f.field("at", "At"), m.At, "time at which the CDN fails")
	f.DurationVar(&m.For, f.field("for", "For"), m.For, "how long it fails")
	f.Float64Var(&m.Capacity, f.field("capacity", "Capacity"), m.Capacity, "requests per second that the origin can serve")
	f.DurationVar(&m.Burst, f.field("burst", "Burst"), m.Burst, "longest backlog that the origin accepts")
	f.DurationVar(&m.RetryAfter, f.field("retry-after", "RetryAfter"), m.RetryAfter, "wait that a refusal asks for; 0 means none")
	f.IntVar(&m.Refusal, f.field("refusal", "Refusal"), m.Refusal, "status of a refusal: 503 or 429; 0 is 503")
	f.DurationVar(&m.RetryEvery, f.field("retry-every", "RetryEvery"), m.RetryEvery, "minimum time between two retries of a player")
	f.DurationVar(&m.Horizon, f.field("horizon", "Horizon"), m.Horizon, "end of the simulated time")
	f.Uint64Var(&m.Seed, "seed", m.Seed, "seed of the random numbers")
	f.choice("retrip")
	f.throttled()
	f.names["Policy"] = "policy"
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		policies, err := f.load(m.Policy.Retry)
		if err != nil {
			return nil, err
		}
		r := &report{
			title: fmt.Sprintf("%d players, an outage of %v, Retry-After %v", m.Players, m.For, m.RetryAfter),
			table: [][]string{{"policy", "fetches", "failed", "refused", "retries", "lost", "peak load/s", "peak retries/s", "waiting", "90 % of retries within"}},
		}
		var results []*sim.StadiumResult
		for i, p := range policies {
			m.Policy = p
			var result *sim.StadiumResult
			result, err = m.Run(ctx, func(done float64) { progress((float64(i) + done) / float64(len(policies))) })
			if result == nil {
				return nil, err
			}
			results = append(results, result)
			name := p.Name
			if result.Partial {
				name += fmt.Sprintf(" (until %v)", round(result.Until))
			}
			r.table = append(r.table, []string{name, count(result.Fetches), count(result.Failed), count(result.Refused), count(result.Retries),
				count(result.Lost), millions(result.PeakLoad), millions(result.PeakRetries), count(result.PeakWaiting), round(result.Spread).String()})
			if err != nil {
				break
			}
		}
		r.json = results
		return r, err
	}
}

// count formats n in groups of three digits, separated by non-breaking spaces.
func count(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u00a0" + s[i:]
	}
	return s
}

func millions(x float64) string { return fmt.Sprintf("%.2f M", x/1e6) }

// seconds formats a duration in milliseconds or seconds.
func seconds(d time.Duration) string {
	if d != 0 && d < time.Second {
		return number(float64(d)/float64(time.Millisecond)) + "\u00a0ms"
	}
	return number(d.Seconds()) + "\u00a0s"
}
