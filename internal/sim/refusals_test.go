// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/internal/testenv"
)

// neverMuchWorse runs m with a gate, without one, and with clients that only obey each
// Retry-After, of which a gate must reach the given share. If the server names no wait, it
// must also reach most of what comes without a gate.
func neverMuchWorse(t *testing.T, m RateLimit, least float64) (gate, none, obeying *RateLimitResult) {
	t.Helper()
	gate = m.run(t)
	assert.Zero(t, gate.Early, "within the time that the server asked for")
	m.Policy.Gate.Enabled = retrip.Off
	if m.Limit.Kind == Unlimited {
		none = m.run(t)
		if m.Limit.Word == NoWord {
			assert.GreaterOrEqual(t, float64(gate.Accepted), .8*float64(none.Accepted), "%+v", m)
		}
	}
	m.Obeys = true
	if obeying = m.run(t); obeying.Accepted >= 20 {
		assert.GreaterOrEqual(t, float64(gate.Accepted), float64(obeying.Accepted)*least, "%+v", m)
	}
	return gate, none, obeying
}

// What docs/rate-limits.md names as out of reach, and what is reached instead: the
// least share of what succeeds with clients that obey, and of a fair share.
var unreached = []struct {
	name           string
	obeying, share float64
}{
	{"10/s, burst 10, and 5 % at random, always 1 s", .4, 0},
	{"10/s, burst 10, and 10 % at random, always 1 s", .12, 0},
	{"1/s, burst 1, 2 processes", .8, 0},
	{"1/s, burst 1, 5 processes", .4, 0},
}

// P23: a gate is never much worse than a client that obeys each Retry-After for the
// whole host, nor, if the server names no wait, than none. A limit that has gone is
// noticed, a lone request isn't held back, and nobody starves.
//
//retrip:promise P23
func TestRefusals(t *testing.T) {
	for _, c := range Refusals() {
		least, share := .5, .2
		for _, u := range unreached {
			if strings.HasPrefix(c.Name, u.name) {
				least, share = u.obeying, u.share
			}
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(testenv.Size(1, 2)) {
				m := c.Model
				m.Seed = 101 + seed
				gate, none, obeying := neverMuchWorse(t, m, least)
				if m.Processes > 1 {
					assert.GreaterOrEqual(t, gate.Least*float64(m.Processes), share)
				}
				if m.Limit.Kind == Unlimited && m.Limit.Every != 2 {
					refusesAsItSays(t, m, none, obeying)
				}
			}
		})
	}
}

// refusesAsItSays checks the server of a case by the clients without a gate.
func refusesAsItSays(t *testing.T, m RateLimit, none, obeying *RateLimitResult) {
	t.Helper()
	share := m.Limit.Random
	if m.Limit.Every > 0 {
		share = 1 / float64(m.Limit.Every)
	}
	for _, r := range []*RateLimitResult{none, obeying} {
		assert.InDelta(t, share/(1-share), r.Refusals, .25*share/(1-share)+.005, "per accepted attempt")
	}
	if m.Limit.Word > 0 && m.Workers > 0 {
		assert.Positive(t, none.Early)
		assert.Less(t, obeying.Accepted, none.Accepted)
	}
}

// The same holds for a server that refuses at random or in turn, up to a third, for
// one with a limit, and for one with a limit that names no wait and also refuses at
// random, whatever the share, the limit, the Retry-After and the clients are.
//
//retrip:promise P23
func TestRefusals_AnyServer(t *testing.T) {
	for seed := range uint64(testenv.Size(8, 60)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 27))
			m := rateLimitCase(t, "10/s, burst 10, always 1 s")
			m.Seed, m.Horizon = seed, 900*time.Second
			m.Limit = ServerLimit{Kind: Unlimited, Random: random.Float64() * .3}
			kind := random.IntN(6)
			if kind == 0 {
				m.Limit.Random, m.Limit.Every = 0, 3+random.IntN(20)
			}
			if kind == 1 || kind == 2 {
				rate := math.Exp(random.Float64()*6 - 1) // per second, 0.4 to 150
				m.Limit = ServerLimit{Rate: rate, Count: 1 + random.IntN(2+int(rate))}
			}
			m.Limit.Word = []Word{NoWord, RoundedWord, Word(random.Int64N(5e9)) + 1}[random.IntN(3)]
			if kind == 3 {
				m.Limit = ServerLimit{Rate: 2 + 50*random.Float64(), Random: random.Float64() / 10, Word: NoWord}
				m.Limit.Count = 1 + int(m.Limit.Rate)
			}
			m.Workers = 1 + random.IntN(50)
			if random.IntN(2) == 0 {
				m.Workers, m.Rate = 0, math.Exp(random.Float64()*5-2) // per second, 0.14 to 20
			}
			if random.IntN(2) == 0 {
				m.Service = time.Duration(math.Exp(random.Float64()*8) * 1e6) // 1 ms to 3 s
				m.Exponential = random.IntN(2) == 0
			}
			neverMuchWorse(t, m, .5)
		})
	}
}

// A request that arrives alone waits for at most two of the times that the server
// asks for, and a second, until its pace rules nobody else.
func TestRefusals_Alone(t *testing.T) {
	for _, word := range []time.Duration{time.Second, 5 * time.Second, 30 * time.Second} {
		for seed := range uint64(testenv.Size(1, 4)) {
			r := RateLimit{
				Policy:    retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, MaxWait: time.Hour},
				Limit:     ServerLimit{Kind: Unlimited, Every: 2, Word: Word(word)},
				Processes: 1,
				Rate:      1 / (100 * word).Seconds(),
				DelayLow:  10 * time.Millisecond,
				DelayHigh: 20 * time.Millisecond,
				Horizon:   min(24*time.Hour, 10_000*word),
				Seed:      seed,
			}.run(t)
			assert.LessOrEqual(t, r.Waited, time.Duration(r.Accepted)*(2*word+time.Second), "on average")
		}
	}
}

// P23 by the time that answers take, the share of refusals, and the processes that share a
// limit. `go test -v -run Refusals_Rows ./internal/sim` shows the figures.
//
//retrip:promise P23
func TestRefusals_Rows(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	seeds := testenv.Size(1, 8)
	measure := func(m RateLimit, figure func(m RateLimit) float64) (mean, least, most float64) {
		least = math.Inf(1)
		for m.Seed = range uint64(seeds) {
			f := figure(m.shorter(60 * s))
			mean, least, most = mean+f/float64(seeds), min(least, f), max(most, f)
		}
		return mean, least, most
	}
	for _, service := range []time.Duration{50 * ms, 300 * ms, s, 3 * s} {
		for _, share := range []float64{.05, .1, .25, 1. / 3} {
			for _, exponential := range []bool{false, true} {
				if brief && exponential && service < s {
					continue
				}
				t.Run(fmt.Sprintf("answers after %v, exponential %v, %.0f %% refused without a word", service, exponential, 100*share), func(t *testing.T) {
					t.Parallel()
					m := newRateLimitCase("", must{}, ServerLimit{Kind: Unlimited, Random: share, Word: NoWord}, 600*s, 0).Model
					m.Workers, m.Service, m.Exponential = 20, service, exponential
					mean, least, _ := measure(m, func(m RateLimit) float64 {
						gate := m.run(t)
						m.Policy.Gate.Enabled = retrip.Off
						return float64(gate.Accepted) / float64(m.run(t).Accepted)
					})
					t.Logf("%.0f %% of what succeeds without a gate, at least %.0f %%", 100*mean, 100*least)
					assert.GreaterOrEqual(t, least, .8)
				})
			}
		}
	}
	for _, c := range []struct {
		processes, burst, workers int
		most                      float64 // refusals per success
	}{
		{2, 100, 50, .02}, {2, 100, 10, .06}, {5, 100, 50, .04}, {5, 100, 10, .15}, {5, 10, 50, .03}, {5, 10, 5, .06}, {5, 1, 50, .15},
		{10, 100, 50, .05}, {10, 100, 10, .3},
	} {
		if brief && c.processes == 10 {
			continue // they need the whole time to share the limit
		}
		t.Run(fmt.Sprintf("100/s, burst %d, %d processes of %d workers", c.burst, c.processes, c.workers), func(t *testing.T) {
			t.Parallel()
			m := newRateLimitCase("", must{}, ServerLimit{Rate: 100, Count: c.burst}, 600*s, 120*s).Model
			m.Processes, m.Workers = c.processes, c.workers
			used := 0.0
			mean, _, most := measure(m, func(m RateLimit) float64 {
				r := m.run(t)
				used += r.Used / float64(seeds)
				return r.Refusals
			})
			t.Logf("%.0f %% of the limit, %.1f %% refused, at most %.1f", 100*used, 100*mean, 100*most)
			assert.LessOrEqual(t, most, c.most)
		})
	}
	for _, c := range []struct {
		rate    float64
		workers int
		most    float64 // longest wait, × fair
	}{{.1, 5, 2}, {.1, 10, 1.6}, {.1, 50, 1.3}, {.5, 5, 1.6}, {.5, 50, 1.3}, {1, 5, 1.5}, {1, 20, 1.3}, {10, 20, 3}} {
		t.Run(fmt.Sprintf("%g/s, %d workers", c.rate, c.workers), func(t *testing.T) {
			t.Parallel()
			m := newRateLimitCase("", must{}, ServerLimit{Rate: c.rate, Count: 1}, 4000*s, 600*s).Model
			m.Workers = c.workers
			mean, _, most := measure(m, func(m RateLimit) float64 {
				r := m.run(t)
				return float64(r.Worst) / float64(r.Fair)
			})
			t.Logf("the longest wait × fair %.2f, at most %.2f", mean, most)
			assert.LessOrEqual(t, most, c.most)
		})
	}
}
