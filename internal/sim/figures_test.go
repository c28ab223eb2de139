// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip/internal/testenv"
)

// figure is a result of a scenario, as the median over some seeds, and its bounds.
type figure struct {
	name   string
	s      Scenario
	of     func(*Result) float64
	bounds bounds
}

type bounds struct{ least, most float64 }

func about(want, within float64) bounds { return bounds{want - within, want + within} }
func atLeast(want float64) bounds       { return bounds{want, math.Inf(1)} }
func atMost(want float64) bounds        { return bounds{0, want} }

func success(r *Result) float64         { return 100 * r.SuccessRate() }
func alive(r *Result) float64           { return 100 * r.AliveRate() }
func perCall(r *Result) float64         { return r.Amplification }
func retriesOfClient(r *Result) float64 { return float64(r.Retries) / 100 }
func goodput(r *Result) float64         { return r.Goodput }
func recoverySeconds(r *Result) float64 {
	if r.Recovery == Never {
		return never
	}
	return r.Recovery.Seconds()
}

// never is longer than any recovery.
const never = 1e9

// The figures for which retrip's budget was designed, and those of other policies.
//
//retrip:promise P14
func TestFigures(t *testing.T) {
	var figures []figure
	add := func(s Scenario, preset string, of func(*Result) float64, b bounds, name string, args ...any) {
		name = fmt.Sprintf(name, args...)
		figures = append(figures, figure{fmt.Sprintf("%s, %d clients of %s", name, s.Fleet.Clients, preset), as(t, s, preset), of, b})
	}
	overloads(add)
	outages(add)
	faults(add)
	for _, f := range figures {
		if brief {
			// Of the policies to compare with, two cheap rows each.
			ours := f.s.Policy.Name == "retrip" || f.s.Policy.Name == "account"
			telling := strings.HasPrefix(f.name, "10 s, 100 ") || strings.HasPrefix(f.name, "0.3 fail: success")
			if f.s.Fleet.Clients > 100 || !ours && !telling {
				continue
			}
			f.s.Horizon = min(f.s.Horizon, max(60*time.Second, f.s.Trigger.end()+20*time.Second))
		}
		got := middle(ranAll(t, f.s.Seeds(testenv.Size(1, 5))), f.of)
		assert.True(t, got >= f.bounds.least && got <= f.bounds.most, "%s: %v, want %v", f.name, got, f.bounds)
	}
}

type addFigure func(s Scenario, preset string, of func(*Result) float64, b bounds, name string, args ...any)

// overloads adds brownouts: the seconds from their end to 95 % goodput.
func overloads(add addFigure) {
	for preset, seconds := range map[string][]float64{ // with 10, 100, 1000, 3000 and 10 000 clients
		"no-retries":   {3, 3, 3, 3, 3},
		"no-budget":    {never, never, never, never, never},
		"envoy":        {3.5, never, never},
		"aws-standard": {3, 3, 51},
		"plain-budget": {3, 3, 3, 10, 43},
		"retrip":       {3, 3, 3, 5, 25},
	} {
		for i, want := range seconds {
			s := of(Overload(), []int{10, 100, 1000, 3000, 10_000}[i])
			if i > 2 {
				s.Horizon = 300 * time.Second
			}
			b := about(want, 1+0.1*want)
			if preset == "retrip" {
				b.most = []float64{4.3, 4.3, 4.3, 5, 27}[i]
			}
			add(s, preset, recoverySeconds, b, "10 s")
		}
	}
	// A trigger of 1 s is over before larger fleets have emptied their budgets, and
	// what is left of them prolongs the overload. Without retries it ends after 1 s.
	for i, clients := range []int{100, 300, 1000, 3000, 10_000} {
		s := of(Overload(), clients)
		s.Trigger.For, s.Horizon = time.Second, 150*time.Second
		want, most, plain := []float64{3, 4, 7, 13, 32}[i], []float64{4, 5, 7, 13, 33}[i], []float64{3, 4, 8, 19, 55}[i]
		add(s, "retrip", recoverySeconds, bounds{0.9*want - 1, most}, "1 s")
		add(s, "plain-budget", recoverySeconds, about(plain, 1+0.1*plain), "1 s")
		add(s, "no-retries", recoverySeconds, about(1, 1), "1 s")
	}

	// With a deadline, what hangs is tried once more.
	for i, clients := range []int{100, 1000, 10_000} {
		s := of(Overload(), clients)
		s.Backend.Queue, s.Horizon = 5000, 150*time.Second
		s.Fleet.Timeout, s.Policy.Retry.Deadline = time.Second, 1500*time.Millisecond
		add(s, "no-retries", recoverySeconds, about(10, 2), "10 s, deadline of 1.5 timeouts")
		add(s, "retrip", recoverySeconds, about([]float64{11, 14, 30}[i], 2), "10 s, deadline of 1.5 timeouts")
		add(s, "account", recoverySeconds, about(11, 2), "10 s, deadline of 1.5 timeouts")
	}

	// Variations that could break a rule tuned on one model.
	unequal, late, surge, drops := Overload(), Overload(), Overload(), Overload()
	unequal.Fleet.Unequal = true
	late.Trigger.Slowdown, late.Trigger.Delay = 0, time.Second
	surge.Trigger = Trigger{At: 30 * time.Second, For: 30 * time.Second, Surge: 1.6}
	drops.Backend.DropAbandoned = true // wastes no work, so that retries prolong an overload by little
	for _, row := range []struct {
		name    string
		s       Scenario
		preset  string
		seconds [2]float64 // with 100 and 1000 clients
	}{
		{"unequal", unequal, "no-retries", [2]float64{3, 3}},
		{"unequal", unequal, "no-budget", [2]float64{never, never}},
		{"unequal", unequal, "aws-standard", [2]float64{5, 70}},
		{"unequal", unequal, "retrip", [2]float64{3, 4}},
		{"late", late, "no-retries", [2]float64{0, 0}},
		{"late", late, "no-budget", [2]float64{never, never}},
		{"late", late, "aws-standard", [2]float64{0, 46}},
		{"late", late, "retrip", [2]float64{0, 0}},
		{"surge", surge, "no-retries", [2]float64{3, 3}},
		{"surge", surge, "no-budget", [2]float64{never, never}},
		{"surge", surge, "aws-standard", [2]float64{3, 20}},
		{"surge", surge, "retrip", [2]float64{3, 3}},
		{"drops", drops, "no-retries", [2]float64{0, 0}},
		{"drops", drops, "retrip", [2]float64{0, 0}},
	} {
		for i, clients := range []int{100, 1000} {
			add(of(row.s, clients), row.preset, recoverySeconds, about(row.seconds[i], 1+0.25*row.seconds[i]), row.name)
		}
	}

	// Ten backends behind one name: a budget of tokens alone tips over at a load that is
	// sustainable without retries.
	for i, clients := range []int{10, 100, 1000, 3000, 10_000} {
		s := TenBackends(clients).LoadOf(0.9)
		if clients > 1000 {
			s.Horizon = 150 * time.Second
		}
		add(s, "retrip", success, atLeast([]float64{78, 78, 78, 65, 40}[i]), "ten backends at 90 %%")
		if clients <= 100 {
			add(s, "no-retries", success, about(99, 1), "ten backends at 90 %%")
			add(s, "plain-budget", success, atMost(77), "ten backends at 90 %%")
			add(s, "no-budget", success, atMost(30), "ten backends at 90 %%")
		}
	}
}

// outages adds failures that end.
func outages(add addFigure) {
	partly := Overload()
	partly.Trigger.Slowdown, partly.Trigger.FailureRate = 0, 0.34
	for preset, want := range map[string][2]float64{ // with 100 and 1000 clients
		"no-retries":   {463, 463},
		"no-budget":    {684, 684},
		"aws-standard": {669, 669},
		"plain-budget": {649, 690},
		"retrip":       {691, 694},
	} {
		for i, clients := range []int{100, 1000} {
			add(of(partly, clients), preset, goodput, about(want[i], 0.04*want[i]), "34 %% fail for 10 s")
		}
	}
	const blip = 200 * time.Millisecond
	for _, c := range []struct{ size, saved float64 }{{5, 0}, {50, 5}, {200, 90}, {500, 90}} {
		s := of(Overload(), 1)
		s.Trigger, s.Horizon = Trigger{At: 10 * time.Second, For: blip, FailureRate: 1}, 30*time.Second
		s.Policy.Retry.Budget = c.size
		saved := func(r *Result) float64 { return 100 * r.Goodput * blip.Seconds() / float64(r.TriggerRequests) }
		add(s, "retrip", saved, atLeast(c.saved), "all fail for %v, Budget %v", blip, c.size)
	}
}

// faults adds failures that are independent of the load.
func faults(add addFigure) {
	for _, row := range []struct {
		p, without, attempts, plain float64
		ours                        bounds
	}{
		{0.01, 99.99, 1.01, 100, atLeast(99.5)},
		{0.05, 99.99, 1.05, 100, atLeast(99.5)},
		{0.10, 99.98, 1.11, 99.99, atLeast(99.98)},
		{0.20, 99.84, 1.25, 99.72, atLeast(99.66)},
		{0.30, 99.18, 1.42, 95.41, about(99.15, 0.5)},
		{0.45, 95.92, 1.74, 68.85, bounds{93, 95.8}},
		{0.60, 86.98, 2.18, 45.62, about(62, 1.5)},
		{1.00, 0, 4, 0, about(0, 0)},
	} {
		s, within := Faults(row.p), 0.5
		if row.p > 0.3 {
			within = 1.5
		}
		add(s, "no-budget", success, about(row.without, 0.5), "%v fail: success", row.p)
		add(s, "no-budget", perCall, about(row.attempts, 0.02), "%v fail: attempts", row.p)
		add(s, "plain-budget", success, about(row.plain, within), "%v fail: success", row.p)
		add(s, "retrip", success, row.ours, "%v fail: success", row.p)
	}
	add(Faults(1), "retrip", retriesOfClient, bounds{6, 7}, "all fail: retries of a client")
	for p, least := range map[float64]float64{0.1: 99.97, 0.2: 99.6, 0.3: 95} {
		s := Faults(p)
		s.Backend.Silent = true
		add(s, "retrip", success, atLeast(least), "%v time out", p)
	}
	usual := Faults(0.1)
	usual.Backend.Silent, usual.Backend.Service, usual.Backend.Spread = true, usual.Fleet.Timeout/2, 0.2
	add(usual, "retrip", success, atLeast(99.7), "10 %% time out, answers take half the timeout")

	dead := TenBackends(100).LoadOf(0.5)
	dead.Backend.Dead, dead.Horizon, dead.Fleet.Timeout = 3, 120*time.Second, 300*time.Millisecond
	add(dead, "no-retries", success, about(70, 1), "3 of ten backends are dead, at 50 %%")
	add(dead, "retrip", success, atLeast(95), "3 of ten backends are dead, at 50 %%")
	for clients, least := range map[int]float64{1: 85, 10: 84, 100: 83, 1000: 75} {
		s := TenBackends(clients).LoadOf(0.7)
		s.Backend.Dead = 3
		add(s, "retrip", success, atLeast(least), "3 of ten backends are dead, at 70 %%")
	}
	for share, least := range map[float64]float64{0.05: 99.95, 0.1: 99.9, 0.2: 99.7, 0.3: 97.5} {
		s := Faults(0.1)
		s.Backend.BrokenShare = share
		add(s, "retrip", alive, atLeast(least), "10 %% fail, and %v go to a broken route: success of the others", share)
	}
	silent := Faults(0.1)
	silent.Backend.BrokenShare, silent.Backend.BrokenSilent = 0.2, true
	add(silent, "retrip", alive, atLeast(99.5), "10 %% fail, and 20 %% go to a route that times out: success of the others")
	for word, least := range map[time.Duration]float64{24 * time.Hour: 99.97, 10 * time.Second: 99.9, 2 * time.Second: 99.95} {
		s := Faults(0.03)
		s.Backend.BrokenShare, s.Backend.BrokenRetryAfter = 0.01, word
		s.Policy.Retry.Deadline = 5 * time.Second
		add(s, "retrip", alive, atLeast(least), "3 %% fail, and 1 %% go to a broken route with a Retry-After of %v: success of the others", word)
	}
	for share, least := range map[float64]float64{0.01: 99.9, 0.05: 99.5, 0.2: 95} {
		s := Faults(share)
		s.Backend.Silent, s.Fleet.Timeout = true, 5*time.Second
		s.Policy.Retry.Deadline = 9500 * time.Millisecond
		add(s, "retrip", success, atLeast(least), "%v hang for 5 s, with a deadline of 9.5 s: success", share)
	}

	alone := of(Faults(1), 1)
	alone.Arrivals.Count, alone.Policy.Retry.MaxAttempts = 1, 10
	add(alone, "retrip", perCall, atLeast(10), "MaxAttempts 10, a lone request fails: attempts")
	alone.Backend.Silent = true
	for size, least := range map[float64]float64{5: 3, 10: 5, 22.5: 10} {
		alone.Policy.Retry.Budget = size
		add(alone, "retrip", perCall, atLeast(least), "MaxAttempts 10, Budget %v, a lone request times out: attempts", size)
	}
}

// After the trigger of 10 s, fleets of 100 and 1000 clients recover as fast as
// without retries, at loads of 80 to 95 %.
//
//retrip:promise P14
func TestOverloadByLoad(t *testing.T) {
	for _, clients := range []int{100, 1000} {
		for _, load := range rows([]float64{0.8}, []float64{0.8, 0.85, 0.9, 0.95}) {
			s := of(Overload().LoadOf(load), clients)
			s.Horizon = 180 * time.Second
			without := median(t, as(t, s, "no-retries"))
			assert.Less(t, without, s.Horizon.Seconds())
			assert.InDelta(t, without, median(t, s), 2+0.1*without, "%d clients at %v", clients, load)
		}
	}
}

//retrip:promise P14
func TestPurseTime(t *testing.T) {
	large, small := of(Overload(), 10_000), of(Overload(), 10_000)
	small.Policy.Retry.Budget = 1
	for _, c := range []struct {
		s    Scenario
		want time.Duration
	}{
		{large, 33333 * time.Millisecond}, // 7 retries at 3 a request, one request in 14.3 s
		{small, 19048 * time.Millisecond}, // four retries
		{as(t, Overload(), "no-budget"), Never},
		{as(t, Overload(), "no-retries"), 0},
	} {
		d, err := c.s.PurseTime()
		assert.NoError(t, err)
		assert.InDelta(t, c.want, d, float64(time.Millisecond), c.s.Policy.Name)
	}
}
