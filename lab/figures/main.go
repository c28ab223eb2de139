// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Figures draws the pictures of docs/img that show figures: from the simulator, from
// fleet.json, which 64 real processes measured, and from lab/bench/results.
//
//	go -C lab/figures run .
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/sim"
)

func main() {
	log.SetFlags(0)
	for _, draw := range []func() *figure{waits, storm, overload, parts, stadium, fleet, hedging, performance} {
		if err := draw().save("../../docs/img"); err != nil {
			log.Fatal(err)
		}
	}
}

// must returns x of a run that can't fail.
func must[T any](x T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return x
}

func run(s sim.Scenario) *sim.Result { return must(s.Run(context.Background())) }

// with returns s with a preset.
func with(s sim.Scenario, preset string) sim.Scenario {
	s.Policy = must(sim.Preset(preset, s.Policy.Retry))
	return s
}

// inWords returns the name of a preset or a contender in a reader's words.
func inWords(name string) string {
	switch name {
	case "equal", "full", "decorrelated":
		return name + " jitter"
	case "gaussian":
		return "Gaussian jitter"
	case "no-backoff":
		return "no waits"
	case "envoy":
		return "Envoy's retry budget"
	case "aws-standard":
		return "AWS SDKs, standard mode"
	case "grpc":
		return "gRPC's retry throttling"
	}
	return strings.ReplaceAll(name, "-", " ")
}

// series is the rate of something per second.
func series(r *sim.Result, of func(sim.Point) int32) (l line) {
	for i, p := range r.Series {
		l.add((time.Duration(i) * r.Bin).Seconds(), float64(of(p))/r.Bin.Seconds())
	}
	return l
}

func waits() *figure {
	f := &figure{name: "waits", unit: "Share of waits that are shorter, in %, by milliseconds, after an outage of 200 ms that hits 1000 clients at once", height: 190}
	p := panel{maxX: 800, maxY: 101}
	short := map[string]float64{}
	for _, name := range []string{"no-jitter", "equal", "full", "decorrelated", "gaussian"} {
		r := run(with(sim.Storm(sim.Herd), name))
		var all, seen int64
		for _, n := range r.Waits {
			all += n
		}
		var l line
		l.add(0, 0)
		for i, n := range r.Waits {
			if i == 5 {
				short[name] = float64(seen) / float64(all)
			}
			seen += n
			l.add(float64(i+1)*float64(r.WaitBin/time.Millisecond), 100*float64(seen)/float64(all))
		}
		l.add(p.maxX, 100)
		p.lines, f.keys = append(p.lines, l), append(f.keys, inWords(name))
	}
	f.title = fmt.Sprintf("With full jitter, %.0f %% of the waits are shorter than 50 ms; with equal jitter, none is", 100*short["full"])
	if short["equal"] > 0 {
		log.Fatal("equal jitter has short waits, too")
	}
	f.panels = []panel{p}
	return f
}

func storm() *figure {
	s := sim.Storm(sim.Continuing)
	f := &figure{name: "storm", unit: "Answers per second, by seconds. Shaded: an outage of 200 ms", height: 80}
	least := math.Inf(1) // of the peaks with retries
	for _, name := range []string{"no-retries", "no-jitter", "equal", "full", "decorrelated", "gaussian"} {
		r := run(with(s, name))
		if name != "no-retries" {
			least = min(least, r.PeakServed)
		}
		f.panels = append(f.panels, panel{name: inWords(name), note: fmt.Sprintf("at most %.0f/s", r.PeakServed),
			lines: []line{series(r, func(p sim.Point) int32 { return p.Served })}, minX: 1.5, maxX: 3.5, from: 2, to: 2.2})
	}
	f.title = fmt.Sprintf("If callers keep arriving, their retries make the load after an outage at least %.1f times the usual, with any jitter", least/s.Arrivals.Rate)
	return f
}

func overload() *figure {
	f := &figure{name: "overload", unit: "Attempts per second of 1000 clients, or 10 000 with the same load, by seconds. Shaded: the server is slow. Dashed: what it can serve"}
	for _, c := range []struct {
		name, preset string
		clients      int
	}{
		{inWords("no-budget"), "no-budget", 1000}, {inWords("envoy"), "envoy", 1000}, {inWords("aws-standard"), "aws-standard", 1000}, {"retrip", "retrip", 1000},
		{"retrip, 10 000 clients", "retrip", 10_000}, {"10 000, with a fleet account", "account", 10_000},
	} {
		s := sim.Overload()
		s.Fleet.Clients = c.clients
		r := run(with(s, c.preset))
		note := "has not recovered 80 s later"
		if r.Recovery != sim.Never {
			note = fmt.Sprintf("recovers in %.0f s", r.Recovery.Seconds())
		}
		f.panels = append(f.panels, panel{name: c.name, note: note, level: 1000, maxX: 120, from: 30, to: 40,
			lines: []line{series(r, func(p sim.Point) int32 { return p.Attempts })}})
	}
	f.title = "After the overload, retries without a budget keep the server down; with retrip it " + f.panels[3].note +
		", with ten times as many clients " + strings.TrimPrefix(f.panels[4].note, "recovers ")
	return f
}

// parts is the overload of a keyspace of a host of which four in five requests succeed.
func parts() *figure {
	f := &figure{name: "parts", unit: "Requests to the keyspace that are answered, per second, by seconds. Shaded: the keyspace is slow. 40 clients; for each request to the keyspace, four to the rest of the host succeed"}
	s := sim.Overload()
	s.Fleet.Clients, s.Fleet.Timeout = 40, time.Second
	s.Backend = sim.Backend{Workers: 1, Service: 20 * time.Millisecond, Queue: 100, Well: 0.8}
	s = s.LoadOf(0.7)
	for _, name := range []string{"no-retries", "aws-standard", "grpc", "retrip"} {
		r := run(with(s, name))
		note := "has not recovered 80 s later"
		if r.Recovery != sim.Never {
			note = fmt.Sprintf("recovers in %.0f s", r.Recovery.Seconds())
		}
		f.panels = append(f.panels, panel{name: inWords(name), note: note, maxX: 120, from: 30, to: 40,
			lines: []line{series(r, func(p sim.Point) int32 { return p.Good })}})
	}
	f.title = "After the overload of a part of a host, the retries of the AWS SDKs keep it down; with retrip it " + f.panels[3].note + ", and without retries " + strings.TrimPrefix(f.panels[0].note, "recovers ")
	if f.panels[1].note == f.panels[3].note {
		log.Fatal("the figure shows no difference")
	}
	return f
}

func stadium() *figure {
	m := sim.CupFinal()
	m.Policy = must(sim.Preset("retrip", m.Policy.Retry))
	r := must(m.Run(context.Background(), nil))
	p := panel{minX: 5, maxX: 10, from: m.At.Seconds(), to: (m.At + m.For).Seconds()}
	var all, retries line
	for i, point := range r.Series {
		at, perSecond := (time.Duration(i) * r.Bin).Seconds(), 1e-6/r.Bin.Seconds()
		all.add(at, float64(point.Fetches+point.Retries)*perSecond)
		retries.add(at, float64(point.Retries)*perSecond)
	}
	p.lines = []line{all, retries}
	return &figure{name: "stadium", title: fmt.Sprintf("An outage of 100 ms for 25 million players: the retries more than double the load, to %.0f million/s", r.PeakLoad/1e6),
		unit: "Millions of attempts per second, by seconds; the first window of waits is 100 ms", keys: []string{"all attempts", "of these, retries"}, panels: []panel{p}, height: 170}
}

func fleet() *figure {
	var m struct {
		Clients, Processes int
		Capacity, From, To float64
		Runs               []struct {
			Rule     string
			Recovery int
			Attempts []float64
		}
	}
	read("fleet.json", &m)
	f := &figure{name: "fleet", unit: fmt.Sprintf("Attempts per second of %d processes with %d clients, measured, by seconds. Shaded: the server is slow. Dashed: what it can serve", m.Processes, m.Clients), height: 90}
	found := map[string]string{}
	for _, r := range m.Runs {
		var l line
		for i, n := range r.Attempts {
			l.add(float64(i), n)
		}
		note := fmt.Sprintf("recovers in %d s", r.Recovery)
		if r.Recovery < 0 {
			note = fmt.Sprintf("has not recovered %.0f s later", float64(len(r.Attempts))-m.To-3)
		}
		found[r.Rule] = note
		f.panels = append(f.panels, panel{name: r.Rule, note: note, level: m.Capacity, maxX: float64(len(r.Attempts) - 1), from: m.From, to: m.To, lines: []line{l}})
	}
	f.title = fmt.Sprintf("With one account for all processes, the server %s; with budgets alone, it %s", found["with the account"], found["budgets alone"])
	return f
}

func hedging() *figure {
	f := &figure{name: "hedging-tail", unit: "Requests of 10 000 that take longer, by milliseconds. Answers take 20 ms at the median; 1 % of them stall", height: 190,
		keys: []string{"no hedges", "Hedge: 0.05"}}
	busy := sim.Overload().LoadOf(0.95)
	busy.Fleet.Clients, busy.Trigger, busy.WarmUp, busy.Horizon = 100, sim.Trigger{}, 150*time.Second, 300*time.Second
	busy.Backend.Latency = sim.Latency{Median: 20 * time.Millisecond, Spread: 0.4, StallShare: 0.01, StallMedian: 200 * time.Millisecond, StallSpread: 0.3}
	var tail []float64
	var extra, fail float64
	for _, c := range []struct {
		name  string
		s     sim.Scenario
		seeds int
		maxX  float64
	}{{"a server that isn't busy", sim.Stalls(10), 1, 800}, {"at 95 % load, the worst of 5 runs", busy, 5, 400}} {
		hedged, plain := c.s, c.s
		hedged.Policy.Retry.Hedge = 0.05
		worst := run(hedged)
		for ; c.seeds > 1; c.seeds-- {
			hedged.Seed++
			if r := run(hedged); r.SuccessRate() < worst.SuccessRate() {
				worst, plain.Seed = r, hedged.Seed
			}
		}
		without := run(plain)
		p := panel{name: c.name, maxX: c.maxX, minY: 1, maxY: 10_000,
			note: fmt.Sprintf("succeed: %.1f %%, with hedges %.1f %%", 100*without.SuccessRate(), 100*worst.SuccessRate())}
		for _, r := range []*sim.Result{without, worst} {
			var l line
			for n := 9999; n > 0; n = min(n-1, n*99/100) {
				l.add(r.Percentile(1-float64(n)/10_000).Seconds()*1000, float64(n))
			}
			p.lines, tail = append(p.lines, l), append(tail, r.Percentile(0.999).Seconds()*1000)
		}
		if extra == 0 {
			extra = 100 * float64(worst.Hedges) / float64(worst.Requests)
		}
		fail = 100 * (1 - worst.SuccessRate())
		f.panels = append(f.panels, p)
	}
	f.title = fmt.Sprintf("For %.0f %% more requests, the slowest of a thousand takes %.0f ms, not %.0f ms; near the server's capacity, hedges make up to %.0f %% fail", extra, tail[1], tail[0], fail)
	return f
}

func performance() *figure {
	var r struct {
		Runs []struct {
			Case, Peer string
			Ns         float64
		}
		Loopback map[string]map[string][]float64
	}
	read("../bench/results/results.json", &r)
	peers := []string{"retrip", "retrip-metrics", "retrip-timeouts", "bare-timeout", "rehttp", "httpretry", "failsafe-go", "go-retryablehttp", "heimdall"}
	median := func(list []float64) float64 {
		slices.Sort(list)
		return list[len(list)/2]
	}
	socket := panel{name: "A GET: % longer than net/http", maxX: 11.5}
	retry := panel{name: "Two retries: µs of CPU", maxX: 3.4}
	var get, two line
	for _, peer := range peers {
		name := map[string]string{"retrip-metrics": "retrip, metrics", "retrip-timeouts": "retrip, timeouts too", "bare-timeout": "WithTimeout alone"}[peer]
		if name == "" {
			name = peer
		}
		get.add(0, 100*(median(r.Loopback["HTTP/1.1"][peer])-1))
		socket.bars = append(socket.bars, name)
		var list []float64
		for _, one := range r.Runs {
			if one.Case == "Client/retry-GET" && one.Peer == peer {
				list = append(list, one.Ns/1000)
			}
		}
		if list != nil {
			two.add(0, median(list))
			retry.bars = append(retry.bars, name)
		}
	}
	socket.lines, retry.lines = []line{get}, []line{two}
	return &figure{name: "performance", title: fmt.Sprintf("Over a socket, a GET takes %.0f %% longer with retrip, and %.0f %% with timeouts; context.WithTimeout alone costs %.0f %%", get.y[0], get.y[2], get.y[3]),
		unit: "What a GET over a socket costs more than with bare net/http, and two retries without waits (503, 503, 200)", panels: []panel{socket, retry}, height: 190}
}

func read(file string, into any) {
	if err := json.Unmarshal(must(os.ReadFile(file)), into); err != nil {
		log.Fatal(err)
	}
}
