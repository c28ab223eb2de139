// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The caller chooses the epoch. Decisions are the same for instants long after
// the epoch, before it and around it.
func TestHost_EpochDoesNotMatter(t *testing.T) {
	for name, p := range map[string]Policy{
		"pause":          {Budget: Unlimited},
		"breaker":        {Breaker: Breaker{MinVolume: 3}},
		"gate":           {Gate: On},
		"gate, breaker":  {Gate: On, Breaker: Breaker{MinVolume: 3, Probes: math.MaxInt}},
		"all at a limit": {Backoff: Backoff{Base: math.MaxInt64 / 8, Cap: math.MaxInt64 / 8}, MaxWait: math.MaxInt64 / 8, Breaker: Breaker{MinVolume: 1, OpenFor: math.MaxInt64 / 8, Window: math.MaxInt64 / 8}},
	} {
		t.Run(name, func(t *testing.T) {
			r := defaultRules(t, p)
			for seed := range uint64(50) {
				// 50 s are a multiple of a slot of the breaker's window.
				want := story(r, seed, 100*time.Hour)
				for _, epoch := range []time.Duration{-50 * time.Second, -100 * time.Hour, -100 * 365 * 24 * time.Hour} {
					require.Equal(t, want, story(r, seed, epoch), "seed %d, from %v on", seed, epoch)
				}
			}
		})
	}
}

// story describes what a host decides about a series of requests that begin at
// an instant.
func story(r *Rules, seed uint64, from time.Duration) []string {
	random := rand.New(rand.NewPCG(seed, 0))
	var h Host
	var told []string
	tell := func(d Decision) Decision {
		told = append(told, fmt.Sprint(d.Retry, d.Wait, d.Reason, d.AtGate, d.Wakes))
		for h.Woken() != nil {
		}
		return d
	}
	at := func(now time.Duration) time.Duration { return from + now }
	now := time.Duration(0)
	for range 40 {
		now += time.Duration(random.Int64N(int64(4 * time.Second)))
		var c Call
		d := tell(h.First(r, &c, at(now), random.Uint64()))
		for d.Retry && c.Attempts < 5 {
			now += min(d.Wait, time.Second)
			if d.Wait > 0 {
				h.Return(r, &c)
				break
			}
			c.Attempts++
			o := Outcome{Status: []int{200, 503, 429, 503}[random.IntN(4)], Idempotent: true, Replay: true}
			if random.IntN(4) == 0 {
				o.RetryAfter = time.Duration(1 + random.Int64N(int64(3*time.Second)))
			}
			d = tell(h.Next(r, &c, o, at(now), random.Uint64()))
			if !d.Retry {
				break
			}
			now += min(d.Wait, 2*time.Second)
			d = tell(h.Wake(r, &c, at(now), random.Uint64()))
		}
		s := h.State(r, at(now))
		told = append(told, s.String())
	}
	return told
}

func TestHost_PauseBeforeTheEpoch(t *testing.T) {
	r := defaultRules(t, Policy{Budget: Unlimited})
	var h Host
	require.Zero(t, h.record.PausedFor(-time.Hour), "a healthy host isn't paused until the epoch")
	o := refusal
	o.RetryAfter = time.Second
	h.Next(r, &Call{}, o, -time.Hour, 0)
	require.Equal(t, time.Second, h.record.PausedFor(-time.Hour))
	require.Zero(t, h.record.PausedFor(-time.Hour+time.Second))
	h.Next(r, &Call{}, o, -time.Second, 0)
	require.Positive(t, h.record.PausedFor(-time.Second), "a pause that ends at the epoch")
}
