// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/sim"
)

// checked is the result of check for one policy.
type checked struct {
	Policy   string        `json:"policy"`
	OK       bool          `json:"ok"`
	Sentence string        `json:"sentence"`
	Cases    []checkedCase `json:"cases"`
	Price    []priced      `json:"price,omitempty"`
	Hedges   *hedgeCost    `json:"hedges,omitempty"`
}

// checkedCase is a case with times in seconds. A time that was not seen to end is null.
type checkedCase struct {
	Load            float64  `json:"load"`
	Brownout        float64  `json:"brownout_seconds"`
	Recovery        *float64 `json:"recovery_seconds"`
	Without         *float64 `json:"recovery_seconds_without_retries"`
	Answered        float64  `json:"answered"`
	AnsweredWithout float64  `json:"answered_without_retries"`
	OK              bool     `json:"ok"`
}

func newCheckedCase(c sim.RecoveryCase) checkedCase {
	seconds := func(d time.Duration) *float64 {
		if d == sim.Never {
			return nil
		}
		return new(d.Seconds())
	}
	share := func(x float64) float64 { return math.Round(x*1e4) / 1e4 }
	return checkedCase{share(c.Load), c.Trigger.For.Seconds(), seconds(c.Recovery), seconds(c.Without), share(c.Good), share(c.GoodWithout), c.OK}
}

// leastWorkers is the number of workers below which a backend is too small for
// statistics of seconds. A smaller fleet stands for a part of a larger one.
const leastWorkers = 10

// mostClients is the number of clients that a simulation may have.
const mostClients = 1_000_000

// check runs a sim.RecoveryCheck for a backend of which the caller knows little.
func check(f *flags) work {
	s := sim.Overload()
	loads := []float64{0.7, 0.9}
	lengths := []time.Duration{time.Second, 10 * time.Second, time.Minute}
	var full time.Duration
	f.IntVar(&s.Fleet.Clients, f.field("clients", "Fleet.Clients"), s.Fleet.Clients, "processes with a Transport, each with a budget of its own")
	f.Float64Var(&s.Arrivals.Rate, f.field("rate", "Arrivals.Rate"), s.Arrivals.Rate, "requests per second of all clients to this host, at the first of the loads")
	f.DurationVar(&s.Backend.Service, f.field("service", "Backend.Service"), s.Backend.Service, "mean time to serve a request")
	f.DurationVar(&full, "queue", full, "how long a full queue takes to work off; if 0, three times as long as an attempt may take, and at least 1s")
	f.DurationVar(&s.Fleet.Timeout, f.field("timeout", "Fleet.Timeout"), s.Fleet.Timeout, "timeout of an attempt, if the policy sets none")
	f.Var(&numbers[float64]{&loads, parseFloat, "number"}, f.field("loads", "Loads"), "`shares` of the backend's capacity that arrive")
	f.Var(&numbers[time.Duration]{&lengths, time.ParseDuration, "duration"}, f.field("lengths", "Brownouts"), "lengths of the brownouts: `durations`")
	f.Uint64Var(&s.Seed, "seed", s.Seed, "seed of the random numbers")
	costs := f.Bool("price", true, "also measure what the policy costs where no overload ends: some seconds")
	f.timeouts()
	f.choice("retrip")
	f.first = strings.Fields("policy host clients rate service queue json")
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		if !(full >= 0 && full <= time.Minute) {
			return nil, fmt.Errorf("-queue is %v: it must be 0 to 1m", full)
		}
		if !(loads[0] > 0 && loads[0] < 1) {
			return nil, fmt.Errorf("-loads is %v: it must be less than 1", loads[0])
		}
		capacity := s.Arrivals.Rate / loads[0]
		clients, perClient := s.Fleet.Clients, s.Arrivals.Rate/float64(s.Fleet.Clients)
		title := fmt.Sprintf("clients: %d, with %.3g requests/s each; seconds to recover from a backend that works three times as slowly",
			clients, perClient)
		// What follows changes the numbers that the user gave.
		if err := s.Validate(); err != nil {
			return nil, err
		}
		times := max(1, int(math.Ceil(leastWorkers/(capacity*s.Backend.Service.Seconds()))))
		if least := float64(clients) * float64(times) / mostClients; least > 1 {
			return nil, fmt.Errorf("-rate is %s: with %d clients it must be at least %.3g", f.typed("rate", s.Arrivals.Rate), clients, least*s.Arrivals.Rate)
		}
		capacity *= float64(times)
		s.Arrivals.Rate *= float64(times)
		s.Fleet.Clients *= times
		s.Backend.Workers = int(math.Ceil(capacity * s.Backend.Service.Seconds()))
		s.Backend.Service = time.Duration(float64(s.Backend.Workers) / capacity * float64(time.Second))
		s.Trigger.For = 0
		policies, err := f.load(s.Policy.Retry)
		if err != nil {
			return nil, err
		}
		c := sim.RecoveryCheck{Loads: loads[1:], Brownouts: lengths}
		r := &report{
			title: title,
			notes: slices.Clone(f.remarks),
			table: [][]string{{"policy", "load", "brownout", "recovers after", "without retries", "answered until 20 s after", "without retries", ""}},
		}
		var all []checked
		r.json = all
		for i, p := range policies {
			s.Policy = p
			// A queue that is worked off while clients still wait is no test.
			queue := cmp.Or(full, min(time.Minute, max(time.Second, 3*cmp.Or(max(0, p.Retry.AttemptTimeout), s.Fleet.Timeout))))
			s.Backend.Queue = max(1, int(capacity*queue.Seconds()))
			cases, err := c.Cases(ctx, s, func(done float64) { progress((float64(i) + done) / float64(len(policies))) })
			var bad *sim.RecoveryError
			var idle *sim.ParameterError // a case in which no policy could fail
			harmless := errors.As(err, &idle) && idle.Field == "Backend.Queue"
			if err != nil && !errors.As(err, &bad) && !harmless {
				if ctx.Err() == nil || len(r.table) == 1 && len(cases) == 0 {
					return nil, err
				}
				for _, c := range cases {
					r.table = append(r.table, caseRow(p.Name, c))
				}
				return r, err
			}
			one := checked{Policy: p.Name, OK: bad == nil}
			for _, c := range cases {
				one.Cases = append(one.Cases, newCheckedCase(c))
				r.table = append(r.table, caseRow(p.Name, c))
			}
			switch {
			case bad != nil:
				bad.Clients, bad.Recovers, bad.WithoutBreaker = clients, bad.Recovers/times, bad.WithoutBreaker/times
				one.Sentence = strings.TrimPrefix(bad.Error(), "sim: ")
			case harmless:
				one.Sentence = fmt.Sprintf("any policy recovers here: a full queue of %v is worked off while clients still wait", full)
			default:
				one.Sentence = p.Name + " recovers as fast as without retries, or at most 5 s later"
			}
			r.notes = append(r.notes, one.Sentence)
			if p.Retry.AttemptTimeout <= 0 {
				r.notes = append(r.notes, fmt.Sprintf("%s sets no AttemptTimeout: an attempt is taken to end after %v, as -timeout says", p.Name, s.Fleet.Timeout))
			}
			if *costs && p.Retry.MaxAttempts != 1 {
				if one.Price, err = priceOf(ctx, p, perClient, s.Seed); err != nil && ctx.Err() == nil {
					return nil, err
				}
			}
			if one.Price != nil {
				r.notes = append(r.notes, priceSentence(one.Price, perClient))
			}
			if p.Retry.Hedge > 0 && p.Retry.MaxAttempts != 1 {
				if one.Hedges, err = hedgesOf(ctx, s, slices.Max(loads)); err != nil && ctx.Err() == nil {
					return nil, err
				}
				r.notes = append(r.notes, one.Hedges.sentence(p, perClient))
			}
			all = append(all, one)
			r.json, r.failed = all, r.failed || bad != nil
			if err := ctx.Err(); err != nil {
				return r, err
			}
		}
		return r, nil
	}
}

func caseRow(policy string, c sim.RecoveryCase) []string {
	row := []string{policy, fmt.Sprintf("%.0f %%", 100*c.Load), fmt.Sprint(c.Trigger.For)}
	share := func(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }
	switch {
	case c.Without == sim.Never:
		return append(row, "–", "more than 30 s", "–", share(c.GoodWithout), "not due to retries")
	case c.OK:
		return append(row, after(c.Recovery), after(c.Without), share(c.Good), share(c.GoodWithout), "")
	default:
		return append(row, after(c.Recovery), after(c.Without), share(c.Good), share(c.GoodWithout), "FAILS")
	}
}

func after(d time.Duration) string {
	if d == sim.Never {
		return "more than 60 s"
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}
