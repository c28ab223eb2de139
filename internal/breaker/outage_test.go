// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package breaker_test

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// The cost of a breaker for a host that alternates between up and down, for one
// that recovers slowly, and for one that fails 60 % of the attempts.
func TestBreaker_UpAndDown(t *testing.T) {
	testenv.OneGoroutine(t)
	testenv.Slow(t)
	alternates := func(now time.Duration) float64 { return float64(now / (5 * time.Second) % 2) }
	slowly := func(now time.Duration) float64 { return max(0, min(1, 1-((now%time.Minute).Seconds()-5)/30)) }
	most := func(time.Duration) float64 { return .6 }
	for _, tt := range []struct {
		name     string
		fails    func(now time.Duration) float64
		attempts int
		off, on  float64 // % of the requests that succeed without a breaker and with one
	}{
		{"5 s up, 5 s down", alternates, 1, 50.5, 50.0},
		{"5 s up, 5 s down", alternates, 4, 49.7, 49.0},
		{"each minute down for 5 s, and back within 30 s", slowly, 1, 66.2, 63.1},
		{"each minute down for 5 s, and back within 30 s", slowly, 4, 73.8, 68.4},
		{"60 % of the attempts fail", most, 1, 40.0, 37.7},
		{"60 % of the attempts fail", most, 4, 62.0, 59.0},
	} {
		load := outage{fails: tt.fails, perSecond: 2, clients: 50, lasts: 300 * time.Second, took: 5 * time.Millisecond, seed: 1}
		policy := retrip.Policy{MaxAttempts: tt.attempts}
		off, _ := load.run(play.Rules(t, policy))
		policy.Breaker.Ratio = .8
		on, _ := load.run(play.Rules(t, policy))
		t.Logf("%s, up to %d attempts: %.1f %% succeed, %.1f %% with a breaker", tt.name, tt.attempts, off, on)
		assert.InDelta(t, tt.off, off, 1, tt.name)
		assert.InDelta(t, tt.on, on, 1.5, tt.name)
	}
}

// How many attempts per minute a host that is down gets while its breaker is
// open: at most Probes per OpenFor, even if they hang.
func TestBreaker_DeadHost(t *testing.T) {
	testenv.OneGoroutine(t)
	testenv.Slow(t)
	for _, tt := range []struct {
		name        string
		fails       float64
		perSecond   float64
		clients     int
		took        time.Duration
		least, most float64
	}{
		{"fails at once", 1, 2, 15, 5 * time.Millisecond, 17, 20},
		{"fails at once", 1, 20, 4, 5 * time.Millisecond, 20, 23},
		{"fails at once", 1, 200, 2, 5 * time.Millisecond, 19, 23},
		{"hangs for 10 s", 1, 20, 4, 10 * time.Second, 20, 23},
		{"95 % hang for longer than Window", .95, 20, 4, 15 * time.Second, 240, 420},
		{"95 % fail at once", .95, 20, 6, 5 * time.Millisecond, 33, 55},
	} {
		load := outage{fails: func(time.Duration) float64 { return tt.fails }, perSecond: tt.perSecond, clients: tt.clients, lasts: 300 * time.Second, took: tt.took, seed: 1}
		for _, attempts := range []int{1, 4} {
			_, on := load.run(play.Rules(t, retrip.Policy{MaxAttempts: attempts, Breaker: retrip.Breaker{Ratio: .8}}))
			t.Logf("%s, %v requests a second of up to %d attempts: %.1f attempts a minute", tt.name, tt.perSecond, attempts, on)
			assert.GreaterOrEqual(t, on, tt.least)
			assert.LessOrEqual(t, on, tt.most)
		}
	}
}

// How soon the breaker of a host that is down opens, and how much it then refuses, by the
// interval between requests. docs/retry-storms.md has the results.
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

// With the documented ratio, independent failures don't open the breaker. A lower one makes
// a partial outage worse.
func TestBreaker_IndependentFailures(t *testing.T) {
	for _, tt := range []struct {
		ratio, fail, perSecond float64
		least, most            float64 // what a breaker adds to the percentage that succeeds
	}{
		// When the breaker opens, the same draws fall on other requests.
		{.8, .1, 7, -.1, .1},
		{.8, .5, 7, -.1, .1},
		{.5, .1, 7, -.02, .1},
		{.5, .5, 7, -100, -10},
		{.1, .1, 7, -100, -10},
		{.8, .3, .05, -.02, .1},
		{.8, .5, .2, -.02, .1},
		{.8, .3, .5, -.02, .1},
		{.8, .5, .5, -.6, .1}, // so many follow that the ratio of a window opens it now and then
	} {
		off, _ := play.IndependentFailures(play.Rules(t, retrip.Policy{}), tt.fail, tt.perSecond)
		on, _ := play.IndependentFailures(play.Rules(t, retrip.Policy{Breaker: retrip.Breaker{Ratio: tt.ratio}}), tt.fail, tt.perSecond)
		t.Logf("%+v: %.2f %% succeed, %.2f %% with a breaker", tt, off, on)
		assert.GreaterOrEqual(t, on-off, tt.least, "%+v", tt)
		assert.LessOrEqual(t, on-off, tt.most, "%+v", tt)
	}
}

// outage is a load on a host in trouble.
type outage struct {
	fails     func(now time.Duration) float64 // share of attempts that fail
	perSecond float64                         // requests per second and client
	clients   int                             // each has a breaker of its own
	lasts     time.Duration
	took      time.Duration // duration of a failed attempt
	seed      uint64
}

// run returns the percentage of requests that succeed, and the attempts per client and
// minute in the second half.
func (l outage) run(r play.Judge) (success, perMinute float64) {
	w := play.NewWorld(l.seed)
	requests, good, late := 0, 0, 0
	pause := func() time.Duration { return time.Duration(w.Random.ExpFloat64() / l.perSecond * float64(time.Second)) }
	for range l.clients {
		h, underWay := new(host.Record), 0
		var arrive func()
		arrive = func() {
			requests++
			underWay++
			w.Request(h, r, func() decide.Outcome {
				if w.Now >= l.lasts/2 {
					late++
				}
				if w.Random.Float64() < l.fails(w.Now) {
					return play.Took(http.StatusServiceUnavailable, l.took)
				}
				return play.Took(http.StatusOK, 5*time.Millisecond)
			}, func(o decide.Outcome, _ decide.Reason) {
				if o.Status == http.StatusOK {
					good++
				}
				// Like a Transport.
				if underWay--; underWay == 0 && h.Healed(w.Now) {
					h = new(host.Record)
				}
			})
			if next := w.Now + pause(); next < l.lasts {
				w.At(next, arrive)
			}
		}
		w.At(pause(), arrive)
	}
	w.Run(math.MaxInt64)
	return 100 * float64(good) / float64(requests), float64(late) / (l.lasts / 2).Minutes() / float64(l.clients)
}
