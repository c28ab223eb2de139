// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
)

// The caller chooses the epoch. Decisions are the same for instants long after
// the epoch, before it and around it.
func TestStep_EpochDoesNotMatter(t *testing.T) {
	for name, p := range map[string]retrip.Policy{
		"pause":          {Budget: retrip.Off},
		"breaker":        {Breaker: retrip.Breaker{MinVolume: 3}},
		"gate":           {Gate: retrip.Gate{Enabled: retrip.On}},
		"gate, breaker":  {Gate: retrip.Gate{Enabled: retrip.On}, Breaker: retrip.Breaker{MinVolume: 3}},
		"all at a limit": {Backoff: retrip.Backoff{Base: math.MaxInt64 / 8, Cap: math.MaxInt64 / 8}, MaxWait: math.MaxInt64 / 8, Breaker: retrip.Breaker{MinVolume: 1, OpenFor: math.MaxInt64 / 8, Window: math.MaxInt64 / 8}},
	} {
		t.Run(name, func(t *testing.T) {
			r := play.Rules(t, p)
			if name == "gate, breaker" {
				r.Breaker.Probes = math.MaxInt
			}
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
func story(r play.Judge, seed uint64, from time.Duration) []string {
	random := rand.New(rand.NewPCG(seed, 0))
	var h host.Record
	var told []string
	tell := func(d play.Decision) play.Decision {
		told = append(told, fmt.Sprint(d.Retry, d.Wait, d.Reason, d.AtGate, d.Wakes))
		for h.Woken() != nil {
		}
		return d
	}
	at := func(now time.Duration) time.Duration { return from + now }
	now := time.Duration(0)
	for range 40 {
		now += time.Duration(random.Int64N(int64(4 * time.Second)))
		var c decide.Call
		d := tell(r.First(&h, &c, at(now), random.Uint64()))
		for d.Retry && c.Attempts < 5 {
			now += min(d.Wait, time.Second)
			if d.Wait > 0 {
				r.Return(&h, &c)
				break
			}
			c.Attempts++
			o := decide.Outcome{Status: []int{200, 503, 429, 503}[random.IntN(4)], Idempotent: true, Replay: true}
			if random.IntN(4) == 0 {
				o.RetryAfter = time.Duration(1 + random.Int64N(int64(3*time.Second)))
			}
			d = tell(r.Next(&h, &c, o, at(now), random.Uint64()))
			if !d.Retry {
				break
			}
			now += min(d.Wait, 2*time.Second)
			d = tell(r.Wake(&h, &c, at(now), random.Uint64()))
		}
		told = append(told, fmt.Sprintf("%+v", r.State(&h, at(now))))
	}
	return told
}

func TestStep_PauseBeforeTheEpoch(t *testing.T) {
	r := play.Rules(t, retrip.Policy{Budget: retrip.Off})
	var h host.Record
	require.Zero(t, h.PausedFor(-time.Hour), "a healthy host isn't paused until the epoch")
	o := play.Repeatable(http.StatusServiceUnavailable)
	o.RetryAfter = time.Second
	r.Next(&h, &decide.Call{}, o, -time.Hour, 0)
	require.Equal(t, time.Second, h.PausedFor(-time.Hour))
	require.Zero(t, h.PausedFor(-time.Hour+time.Second))
	r.Next(&h, &decide.Call{}, o, -time.Second, 0)
	require.Positive(t, h.PausedFor(-time.Second), "a pause that ends at the epoch")
}
