// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
)

// A breaker costs little at a host that is up and down for 5 s each. What it
// costs at one that comes back slowly, or of which 60 % fail, is in the log.
func TestBreaker_UpAndDown(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fails func(now time.Duration) float64
		least float64 // per cent that succeed; 0 asks for nothing
	}{
		{"5 s up, 5 s down", func(now time.Duration) float64 { return float64(now / (5 * time.Second) % 2) }, 45},
		{"each minute down for 5 s and back within 30 s", func(now time.Duration) float64 {
			return max(0, min(1, 1-((now%time.Minute).Seconds()-5)/30))
		}, 0},
		{"60 % fail", func(time.Duration) float64 { return .6 }, 0},
	} {
		for _, perSecond := range []float64{2, 7, 20} {
			for _, attempts := range []int{1, 4} {
				policy := retrip.Policy{MaxAttempts: attempts}
				off := upAndDown(rulesOf(t, policy), tt.fails, perSecond)
				policy.Breaker.Ratio = .8
				on := upAndDown(rulesOf(t, policy), tt.fails, perSecond)
				t.Logf("%s, %v requests a second of up to %d attempts: %.1f %% succeed, %.1f %% with a breaker", tt.name, perSecond, attempts, off, on)
				assert.GreaterOrEqual(t, on, tt.least)
			}
		}
	}
}

// upAndDown returns the per cent of requests of 50 clients in 300 s that
// succeed, where each attempt fails with the probability given.
func upAndDown(r *retrip.Rules, fails func(time.Duration) float64, perSecond float64) float64 {
	const clients, horizon = 50, 300 * time.Second
	w := newWorld(1)
	requests, good := 0, 0
	pause := func() time.Duration { return time.Duration(w.random.ExpFloat64() / perSecond * float64(time.Second)) }
	for range clients {
		h, underWay := new(retrip.Host), 0
		var arrive func()
		arrive = func() {
			requests++
			underWay++
			w.request(h, r, func() retrip.Outcome {
				if w.random.Float64() < fails(w.now) {
					return took(http.StatusServiceUnavailable, 5*time.Millisecond)
				}
				return took(http.StatusOK, 5*time.Millisecond)
			}, func(o retrip.Outcome, _ retrip.Reason) {
				if o.Status == http.StatusOK {
					good++
				}
				// As a Transport does.
				if underWay--; underWay == 0 && h.Healed(w.now) {
					h = new(retrip.Host)
				}
			})
			if next := w.now + pause(); next < horizon {
				w.at(next, arrive)
			}
		}
		w.at(pause(), arrive)
	}
	w.run(math.MaxInt64)
	return 100 * float64(good) / float64(requests)
}
