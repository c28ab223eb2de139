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

// besides returns how many requests succeed, after the warm-up, with a gate, without
// one, and with clients that only obey each Retry-After.
func besides(t *testing.T, m RateLimit) (gate, none, obeying float64, result *RateLimitResult) {
	t.Helper()
	result = m.run(t)
	assert.Zero(t, result.Early, "within the time that the server asked for")
	m.Policy.Retry.Gate.Enabled = retrip.Off
	none = float64(m.run(t).Accepted)
	m.Obeys = true
	return float64(result.Accepted), none, float64(m.run(t).Accepted), result
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
			seeds := []uint64{101, 102}
			if brief {
				seeds = seeds[:1]
			}
			for _, seed := range seeds {
				m := c.Model
				m.Seed = seed
				gate, none, obeying, r := besides(t, m)
				assert.GreaterOrEqual(t, gate, obeying*least)
				if m.Limit.Kind == Unlimited && m.Limit.Word == NoWord {
					assert.GreaterOrEqual(t, gate, .8*none)
				}
				if m.Processes > 1 {
					assert.GreaterOrEqual(t, r.Least*float64(m.Processes), share)
				}
			}
		})
	}
}

// The same holds for a server that refuses at random or in turn, up to a third, for
// one with a limit, and for one with a limit that names no wait and also refuses at
// random, whatever the share, the limit, the Retry-After and the clients are.
//
//retrip:promise P23
func TestRefusals_AnyServer(t *testing.T) {
	n := 60
	if brief {
		n = 8
	}
	for seed := range uint64(n) {
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
			gate, none, obeying, r := besides(t, m)
			if obeying < 20 {
				return
			}
			assert.GreaterOrEqual(t, gate, obeying/2, "%+v", m)
			if m.Limit.Kind == Unlimited && m.Limit.Word == NoWord {
				assert.GreaterOrEqual(t, gate, .8*none, "%+v", m)
			}
			t.Logf("%.0f %% of obeying, %.0f %% of no gate, %.1f %% refused", 100*gate/obeying, 100*gate/none, 100*r.Refusals)
		})
	}
}

// A request that arrives alone waits for at most two of the times that the server
// asks for, and a second, until its pace rules nobody else.
func TestRefusals_Alone(t *testing.T) {
	for _, word := range []time.Duration{time.Second, 5 * time.Second, 30 * time.Second} {
		for seed := range uint64(testenv.Size(1, 4)) {
			r := RateLimit{
				Policy:    Policy{Retry: retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, MaxWait: time.Hour}},
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

// The servers of the cases refuse what they say they refuse, whatever the rate is, and a
// client that obeys sends nothing within the time that a server asked for.
func TestRefusals_Servers(t *testing.T) {
	for _, c := range Refusals() {
		if c.Model.Limit.Kind != Unlimited || c.Model.Limit.Every == 2 {
			continue
		}
		share := c.Model.Limit.Random
		if c.Model.Limit.Every > 0 {
			share = 1 / float64(c.Model.Limit.Every)
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			m := c.Model
			m.Policy.Retry.Gate.Enabled = retrip.Off
			none := m.run(t)
			m.Obeys = true
			obeys := m.run(t)
			for _, r := range []*RateLimitResult{none, obeys} {
				// Refusals are per accepted attempt.
				assert.InDelta(t, share/(1-share), r.Refusals, .25*share/(1-share)+.005)
			}
			if strings.Contains(c.Name, "always") && m.Workers > 0 {
				assert.Positive(t, none.Early)
				assert.Less(t, obeys.Accepted, none.Accepted)
			}
			assert.Zero(t, obeys.Early)
		})
	}
}

// A limit that is gone refuses nothing any more, and one that has risen lets through
// several times as much as before, and no more than it says.
func TestRefusals_Gone(t *testing.T) {
	for _, c := range Refusals() {
		m := c.Model
		if m.Limit.To == 0 || m.Rate > 0 {
			continue
		}
		m.Policy.Retry.Gate.Enabled = retrip.Off
		r := m.run(t)
		rate := float64(r.Accepted) / (m.Horizon - m.WarmUp).Seconds()
		assert.Greater(t, rate, 4*m.Limit.Meanwhile, c.Name)
		if strings.Contains(c.Name, "rises") {
			assert.Less(t, rate, 1.1*m.Limit.Rate, c.Name)
		} else {
			assert.Less(t, r.Refusals, .001, c.Name)
		}
	}
}
