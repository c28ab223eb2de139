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

// stadium runs players who lose their CDN.
func stadium(f *flags) work {
	m := sim.CupFinal()
	f.IntVar(&m.Players, f.field("players", "Players"), m.Players, "number of players who watch")
	f.Float64Var(&m.Capacity, f.field("capacity", "Capacity"), m.Capacity, "requests per second that the origin can serve")
	f.Uint64Var(&m.Seed, "seed", m.Seed, "seed of the random numbers")
	f.choice("retrip")
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
