// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package breaker_test

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// 1000 clients see a host fail at the same instant. Their probes are spread
// out.
func TestBreaker_ProbesOfManyClients(t *testing.T) {
	testenv.OneGoroutine(t)
	testenv.Slow(t)
	const clients = 1000
	const window = 50 * time.Millisecond
	r := play.Rules(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 0.5}})
	w := play.NewWorld(1)
	var probes []time.Duration
	for range clients {
		h := new(host.Record)
		serve := func() decide.Outcome {
			if w.Now > 0 {
				probes = append(probes, w.Now)
			}
			return play.Took(http.StatusServiceUnavailable, time.Millisecond)
		}
		for range 20 {
			w.Request(h, r, serve, func(decide.Outcome, decide.Reason) {})
		}
		// Every client always has a request ready.
		var ask func()
		ask = func() {
			w.Request(h, r, serve, func(decide.Outcome, decide.Reason) {})
			w.At(w.Now+10*time.Millisecond, ask)
		}
		w.At(10*time.Millisecond, ask)
	}
	w.Run(7500 * time.Millisecond)
	require.Greater(t, len(probes), clients, "each has probed at least once")
	assert.GreaterOrEqual(t, probes[0], 2500*time.Millisecond)
	burst := 0
	for i := range probes {
		j := i
		for j < len(probes) && probes[j] < probes[i]+window {
			j++
		}
		burst = max(burst, j-i)
	}
	// Spread evenly over 5 s, there would be 10 probes in each 50 ms.
	t.Logf("%d probes, at most %d in %v", len(probes), burst, window)
	assert.Less(t, burst, 40)
}

// With the documented ratio, independent failures don't open the breaker. A low
// ratio makes a partial outage worse.
func TestBreaker_IndependentFailures(t *testing.T) {
	testenv.OneGoroutine(t)
	testenv.Slow(t)
	rates := []float64{.1, .3, .5}
	if testenv.Tables() {
		rates = []float64{.1, .2, .3, .4, .5}
	}
	last := len(rates) - 1
	success := map[float64][]float64{}
	for _, ratio := range []float64{retrip.Off, .8, .5, .1} {
		for _, p := range rates {
			percent, _ := play.IndependentFailures(play.Rules(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: ratio}}), p, 7)
			success[ratio] = append(success[ratio], percent)
		}
		t.Logf("%% that succeed where %v fail, with a ratio of %v: %.2f", rates, ratio, success[ratio])
	}
	for i, off := range success[retrip.Off] {
		// When the breaker opens, the same draws fall on other requests, so the
		// rates may differ a little.
		assert.GreaterOrEqual(t, success[.8][i], off-0.1, "the default costs next to nothing at %v", rates[i])
	}
	assert.GreaterOrEqual(t, success[.5][0], success[retrip.Off][0]-0.02)
	assert.Less(t, success[.5][last], success[retrip.Off][last]-10, "a lower ratio makes a partial outage worse")
	assert.Less(t, success[.1][0], success[retrip.Off][0]-10)
}

// At a low rate, the number of failures in a row is so high that independent
// failures cost nothing. If half of the attempts fail, so many follow that the ratio
// of a window opens the breaker now and then.
func TestBreaker_IndependentFailuresAtALowRate(t *testing.T) {
	for _, perSecond := range []float64{0.05, 0.2, 0.5} {
		for _, p := range []float64{.1, .3, .5} {
			off, _ := play.IndependentFailures(play.Rules(t, retrip.Policy{}), p, perSecond)
			on, _ := play.IndependentFailures(play.Rules(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: .8}}), p, perSecond)
			within := 0.02
			if perSecond*p == 0.25 {
				within = 0.6
			}
			assert.GreaterOrEqual(t, on, off-within, "%v a second, %v of which fail", perSecond, p)
		}
	}
}

// How soon the breaker of a host that is down opens, and how much it then
// refuses, by the interval between requests. docs/retry-storms.md has the
// results.
func TestBreaker_AtALowRate(t *testing.T) {
	for _, openFor := range []time.Duration{0, time.Minute} {
		r := play.Rules(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: .8, OpenFor: openFor}})
		openFor = r.Breaker.OpenFor
		for _, every := range []time.Duration{50 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second,
			5 * time.Second, 8 * time.Second, 20 * time.Second, 91 * time.Second, 10 * time.Minute} {
			w := play.NewWorld(1)
			var h host.Record
			requests, refused, opened := 0, 0, 0
			for i := range 2000 {
				w.At(time.Duration(i)*every, func() {
					requests++
					sent := false
					w.Request(&h, r, func() decide.Outcome {
						sent = true
						return play.Took(http.StatusServiceUnavailable, 5*time.Millisecond)
					}, func(decide.Outcome, decide.Reason) {})
					if !sent {
						refused++
					}
					if opened == 0 && r.State(&h, w.Now).Breaker != breaker.Closed {
						opened = requests
					}
				})
			}
			w.Run(math.MaxInt64)
			share := float64(refused) / float64(requests)
			t.Logf("open for %v, a request every %v: open before request %d, %.1f %% are refused", openFor, every, opened, 100*share)
			assert.LessOrEqual(t, opened, 20)
			assert.NotZero(t, opened)
			switch {
			case every > openFor*3/2:
				assert.Zero(t, refused, "each is a probe")
			case every <= openFor/5:
				assert.Greater(t, share, .65)
			default:
				assert.NotZero(t, refused)
			}
		}
	}
}

// While its breaker is open, a host that is down costs almost no attempts.
func TestBreaker_SavesAttempts(t *testing.T) {
	testenv.OneGoroutine(t)
	testenv.Slow(t)
	_, off := play.IndependentFailures(play.Rules(t, retrip.Policy{}), 1, 20)
	_, on := play.IndependentFailures(play.Rules(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: 0.5}}), 1, 20)
	t.Logf("%.3f attempts per request without, %.3f with the breaker", off, on)
	assert.Less(t, on, 0.05)
	assert.Greater(t, off, 1.0)
}

// A MinVolume above the highest possible count doesn't open the breaker.
func TestBreaker_VolumeOutOfReach(t *testing.T) {
	r := play.Rules(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 0.01, MinVolume: math.MaxInt}})
	var h host.Record
	for range 1000 {
		attempts(t, &h, r, 0, 503)
	}
	assert.Equal(t, breaker.Closed, r.State(&h, 0).Breaker)
}
