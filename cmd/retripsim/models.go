// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip/sim"
)

// faults runs a scenario for each failure rate of a list.
func faults(f *flags) func(context.Context, func(float64)) (*report, error) {
	s := sim.Faults(0)
	rates := []float64{0.01, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 1}
	f.scenario(&s)
	f.Var(floats(&rates), f.field("rates", "Backend.FailureRate"), "failure rates: `shares` of the attempts, each in a run of its own")
	f.replaces("rates", "failures")
	f.choice("no-retries,no-budget,sre,grpc,aws-standard,retrip")
	f.plots("success", "attempts")
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		if err := f.settle(&s); err != nil {
			return nil, err
		}
		policies, err := f.load(s.Policy.Retry)
		if err != nil {
			return nil, err
		}
		var all []sim.Scenario
		for _, p := range policies {
			s.Policy = p
			for _, rate := range rates {
				s.Backend.FailureRate = rate
				all = append(all, s)
			}
		}
		results, err := sim.RunAll(ctx, all, progress)
		r := &report{
			title: fmt.Sprintf("failures whatever the load; %d clients, %.0f requests/s: success, and attempts per request", s.Fleet.Clients, s.Arrivals.Rate),
			table: [][]string{{"policy"}},
			json:  results,
			unit:  "% success",
		}
		for _, rate := range rates {
			r.table[0] = append(r.table[0], fmt.Sprintf("p = %v %%", percent(rate)))
		}
		success, attempts := make([]line, len(policies)), make([]line, len(policies))
		some := false
		for i, p := range policies {
			row := []string{p.Name}
			success[i].name, attempts[i].name = p.Name, p.Name
			for j, rate := range rates {
				result := results[i*len(rates)+j]
				if result == nil {
					row = append(row, "")
					continue
				}
				some = true
				row = append(row, fmt.Sprintf("%.2f  %.2f×", 100*result.SuccessRate(), result.Amplification))
				success[i].add(100*rate, 100*result.SuccessRate())
				attempts[i].add(100*rate, result.Amplification)
			}
			r.table = append(r.table, row)
		}
		if !some {
			return nil, err
		}
		r.lines, r.over = success, points("p", success, " %")
		r.csv = linesCSV("failures %", success, attempts, "success %", "attempts per request")
		r.draw = func(t *theme) (*figure, error) {
			about := fmt.Sprintf("%s clients, %s requests/s in all; each attempt fails with the same probability, whatever the load.",
				count(int64(s.Fleet.Clients)), tickText(s.Arrivals.Rate))
			if f.plot == "attempts" {
				times := func(x float64) string { return fmt.Sprintf("%.2f", x) }
				return lineFigure(t, extremes(attempts, "When %s %% of attempts fail, %s makes %s attempts per request and %s %s", times),
					"Attempts per request, by per cent of attempts that fail", about, attempts, nil)
			}
			share := func(x float64) string { return fmt.Sprintf("%.1f %%", x) }
			return lineFigure(t, extremes(withRule(success), "When %s %% of attempts fail, %s answers %s of the requests and %s %s", share),
				"Requests that succeed, %, by per cent of attempts that fail", about, success, nil)
		}
		return r, err
	}
}

// withRule omits the two reference policies where there are others.
func withRule(lines []line) []line {
	rest := slices.DeleteFunc(slices.Clone(lines), func(l line) bool { return l.name == "no-retries" || l.name == "no-budget" })
	if len(rest) < 2 {
		return lines
	}
	return rest
}

func percent(share float64) float64 { return float64(int(share*1e6+0.5)) / 1e4 }

func contention(f *flags) func(context.Context, func(float64)) (*report, error) {
	m := sim.ArticleContention()
	clients := []int{10, 50, 100, 200}
	f.names["Clients"] = "clients"
	f.Var(ints(&clients), "clients", "`numbers` of clients, each in a run of its own")
	f.DurationVar(&m.Delay, f.field("delay", "Delay"), m.Delay, "mean delay of the network, each way")
	f.DurationVar(&m.Deviation, f.field("deviation", "Deviation"), m.Deviation, "standard deviation of the network's delay, each way")
	f.IntVar(&m.Trials, f.field("trials", "Trials"), m.Trials, "number of trials; the report shows their mean")
	f.DurationVar(&m.Bin, f.field("bin", "Bin"), m.Bin, "width of the intervals of time series; 0 means 20ms")
	f.Uint64Var(&m.Seed, "seed", m.Seed, "seed of the random numbers")
	f.choice("")
	f.Lookup("policy").Usage += "; if empty, the five of the model: no-backoff, no-jitter, equal, full, decorrelated"
	f.plots("calls", "time", "when")
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
			unit:  "calls",
		}
		for _, n := range clients {
			r.table[0] = append(r.table[0], fmt.Sprintf("N = %d", n))
		}
		calls, times, when := make([]line, 0, len(policies)), make([]line, 0, len(policies)), make([]line, 0, len(policies))
		var results []*sim.ContentionResult
		var err error
		for i, p := range policies {
			row := []string{p.Name}
			c, t, w := line{name: p.Name}, line{name: p.Name}, line{name: p.Name}
			for j, n := range clients {
				if err != nil {
					break
				}
				m.Policy, m.Clients = p, n
				part := float64(i*len(clients)+j) / float64(len(policies)*len(clients))
				var result *sim.ContentionResult
				result, err = m.Run(ctx, func(done float64) { progress(part + done/float64(len(policies)*len(clients))) })
				if result == nil {
					return nil, err
				}
				if result.Trials == 0 {
					break
				}
				results = append(results, result)
				row = append(row, fmt.Sprintf("%.1f  %.3f s", result.Calls, result.Time.Seconds()))
				c.add(float64(n), result.Calls)
				t.add(float64(n), result.Time.Seconds())
				if j == len(clients)-1 {
					for k, count := range result.Series {
						w.add((time.Duration(k) * result.Bin).Seconds(), float64(count))
					}
				}
			}
			if len(row) > 1 {
				r.table = append(r.table, row)
				calls, times, when = append(calls, c), append(times, t), append(when, w)
			}
		}
		if len(results) == 0 {
			return nil, err
		}
		r.json = results
		r.lines, r.over = calls, points("N", calls, "")
		r.csv = linesCSV("clients", calls, times, "calls", "seconds")
		r.draw = func(t *theme) (*figure, error) {
			about := fmt.Sprintf("Clients write one row in turn; mean of %s trials.", count(int64(m.Trials)))
			switch f.plot {
			case "time":
				seconds := func(x float64) string { return fmt.Sprintf("%.1f s", x) }
				return lineFigure(t, extremes(times, "Until all of %s clients have written, %s takes %s and %s %s", seconds),
					"Seconds until all have written, by number of clients", about, times, nil)
			case "when":
				return whenFigure(t, clients[len(clients)-1], results[0].Bin, when)
			}
			whole := func(x float64) string { return count(int64(x + 0.5)) }
			return lineFigure(t, extremes(calls, "Until all of %s clients have written, %s makes %s calls and %s %s", whole),
				"Calls until all have written, by number of clients", about, calls, nil)
		}
		return r, err
	}
}

func stadium(f *flags) func(context.Context, func(float64)) (*report, error) {
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
	f.DurationVar(&m.Bin, f.field("bin", "Bin"), m.Bin, "width of the intervals of time series; 0 means 50ms")
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
			unit:  "attempts/s, millions",
		}
		var results []*sim.StadiumResult
		var loads []line
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
			total, retries := line{name: p.Name}, line{name: p.Name + retriesSuffix}
			for k, point := range result.Series {
				at := (time.Duration(k) * result.Bin).Seconds()
				perSecond := 1e-6 / result.Bin.Seconds()
				total.add(at, float64(point.Fetches+point.Retries)*perSecond)
				retries.add(at, float64(point.Retries)*perSecond)
			}
			loads = append(loads, total, retries)
			if err != nil {
				break
			}
		}
		r.json, r.lines = results, loads
		r.csv = linesCSV("seconds", loads, nil, "millions per second", "")
		r.draw = func(t *theme) (*figure, error) {
			return stadiumFigure(t, m, loads)
		}
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

// line is a line of a picture, as points.
type line struct {
	name string
	x, y []float64
	peak string // of the table; if empty, the highest point
}

func (l *line) add(x, y float64) { l.x, l.y = append(l.x, x), append(l.y, y) }

// points lists the x positions of the first line's points, because a chart
// spaces them evenly.
func points(name string, lines []line, unit string) string {
	var at []string
	for _, x := range lines[0].x {
		at = append(at, number(x))
	}
	return fmt.Sprintf("%s = %s%s", name, strings.Join(at, ", "), unit)
}

// linesCSV writes one row per point, with the value of a second line if there
// is one.
func linesCSV(x string, first, second []line, names ...string) func(io.Writer) error {
	return func(w io.Writer) error {
		out := csv.NewWriter(w)
		head := []string{"policy", x, names[0]}
		if second != nil {
			head = append(head, names[1])
		}
		out.Write(head)
		for i, l := range first {
			for j := range l.x {
				row := []string{l.name, number(l.x[j]), number(l.y[j])}
				if second != nil {
					row = append(row, number(second[i].y[j]))
				}
				out.Write(row)
			}
		}
		out.Flush()
		return out.Error()
	}
}

func number(x float64) string { return strconv.FormatFloat(x, 'g', 8, 64) }

// seriesCSV writes one row per run and interval.
func seriesCSV(groups [][]*sim.Result) func(io.Writer) error {
	return func(w io.Writer) error {
		out := csv.NewWriter(w)
		out.Write(strings.Split("policy,clients,seed,seconds,requests,good,attempts,retries,served", ","))
		for _, group := range groups {
			for _, r := range group {
				for i, p := range r.Series {
					row := []string{r.Policy, strconv.Itoa(r.Clients), strconv.FormatUint(r.Seed, 10), number((time.Duration(i) * r.Bin).Seconds())}
					for _, n := range []int32{p.Requests, p.Good, p.Attempts, p.Retries, p.Served} {
						row = append(row, strconv.Itoa(int(n)))
					}
					out.Write(row)
				}
			}
		}
		out.Flush()
		return out.Error()
	}
}

// seriesLines returns rates over time for the first run of each group.
func seriesLines(groups [][]*sim.Result, of func(sim.Point) int32) []line {
	lines := make([]line, len(groups))
	for i, group := range groups {
		r := group[0]
		lines[i].name = r.Policy
		for j, p := range r.Series {
			lines[i].add((time.Duration(j) * r.Bin).Seconds(), float64(of(p))/r.Bin.Seconds())
		}
	}
	return lines
}
