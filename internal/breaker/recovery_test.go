// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package breaker_test

import (
	"fmt"
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

func TestMain(m *testing.M) { testenv.RareGC(m) }

// The cost of a breaker for a host that alternates between up and down, for one
// that recovers slowly, and for one that fails 60 % of the attempts: the table
// of docs/retry-storms.md is from here.
func TestBreaker_UpAndDown(t *testing.T) {
	testenv.OneGoroutine(t)
	testenv.Slow(t)
	rates := []float64{2, 7, 70, 700} // requests per second of a client
	clients := []int{50, 30, 5, 1}
	within := []float64{1.5, 1.5, 3, 6}    // per cent; the more clients, the less
	type percent struct{ off, on float64 } // of the requests succeed, without a breaker and with one
	for _, tt := range []struct {
		name  string
		fails func(now time.Duration) float64
		want  [][2]percent // by rate, with 1 and with 4 attempts
	}{
		{"5 s up, 5 s down", func(now time.Duration) float64 { return float64(now / (5 * time.Second) % 2) }, [][2]percent{
			{{50.5, 50.0}, {49.7, 49.0}},
			{{50.0, 48.6}, {50.1, 48.7}},
			{{49.9, 48.2}, {50.2, 49.3}},
			{{50.1, 49.3}, {50.2, 49.4}},
		}},
		{"each minute down for 5 s, and back within 30 s", func(now time.Duration) float64 {
			return max(0, min(1, 1-((now%time.Minute).Seconds()-5)/30))
		}, [][2]percent{
			{{66.2, 63.1}, {73.8, 68.4}},
			{{66.7, 61.7}, {71.0, 67.1}},
			{{66.7, 61.1}, {72.7, 66.2}},
			{{66.5, 63.7}, {74.6, 66.0}},
		}},
		{"60 % of the attempts fail", func(time.Duration) float64 { return .6 }, [][2]percent{
			{{40.0, 37.7}, {62.0, 59.0}},
			{{39.7, 39.3}, {61.0, 60.6}},
			{{40.0, 39.7}, {60.5, 60.1}},
			{{39.8, 39.8}, {60.4, 60.4}},
		}},
	} {
		for i := range testenv.Size(2, len(rates)) {
			for seed := range uint64(testenv.Size(1, 3)) {
				for j, attempts := range []int{1, 4} {
					load := outage{fails: tt.fails, perSecond: rates[i], clients: clients[i], lasts: 300 * time.Second, took: 5 * time.Millisecond, seed: 1 + seed}
					policy := retrip.Policy{MaxAttempts: attempts}
					off := load.run(play.Rules(t, policy)).success
					policy.Breaker.Ratio = .8
					on := load.run(play.Rules(t, policy)).success
					what := fmt.Sprintf("%s, %v requests a second of up to %d attempts, seed %d", tt.name, rates[i], attempts, seed)
					t.Logf("%s: %.1f %% succeed, %.1f %% with a breaker", what, off, on)
					assert.InDelta(t, tt.want[i][j].off, off, 1, what)
					assert.InDelta(t, tt.want[i][j].on, on, within[i], what)
				}
			}
		}
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
		{"fails at once", 1, 2, 20, 5 * time.Millisecond, 17, 20},
		{"fails at once", 1, 20, 20, 5 * time.Millisecond, 20, 22},
		{"fails at once", 1, 200, 4, 5 * time.Millisecond, 20, 22},
		{"hangs for 10 s", 1, 20, 20, 10 * time.Second, 20, 22},
		{"95 % fail at once", .95, 20, 20, 5 * time.Millisecond, 33, 45},
	} {
		load := outage{fails: func(time.Duration) float64 { return tt.fails }, perSecond: tt.perSecond, clients: tt.clients, lasts: 300 * time.Second, took: tt.took, seed: 1}
		for _, attempts := range []int{1, 4} {
			on := load.run(play.Rules(t, retrip.Policy{MaxAttempts: attempts, Breaker: retrip.Breaker{Ratio: .8}})).perMinute
			t.Logf("%s, %v requests a second of up to %d attempts: %.1f attempts a minute", tt.name, tt.perSecond, attempts, on)
			assert.GreaterOrEqual(t, on, tt.least)
			assert.LessOrEqual(t, on, tt.most)
		}
	}
}

// How long the breaker stays open after the host has recovered.
func TestBreaker_Recovers(t *testing.T) {
	for _, down := range []time.Duration{10 * time.Second, time.Minute} {
		load := outage{fails: func(now time.Duration) float64 {
			if now < down {
				return 1
			}
			return 0
		}, perSecond: 7, clients: 50, lasts: down + time.Minute, took: 5 * time.Millisecond, over: down, seed: 1}
		got := load.run(play.Rules(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: .8}})).recovery
		t.Logf("down for %v: closed %.1f s after it on average", down, got.Seconds())
		assert.Less(t, got, 3500*time.Millisecond)
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
	over      time.Duration // instant at which the host recovers; 0 if it never does
}

type aftermath struct {
	success   float64       // % of the requests that succeed
	perMinute float64       // attempts per client and minute, in the second half
	recovery  time.Duration // average time from over until the breaker has closed
}

func (l outage) run(r play.Judge) aftermath {
	w := play.NewWorld(l.seed)
	requests, good, late, recovered := 0, 0, 0, 0
	var recovery time.Duration
	pause := func() time.Duration { return time.Duration(w.Random.ExpFloat64() / l.perSecond * float64(time.Second)) }
	for range l.clients {
		h, underWay, down := new(host.Record), 0, true
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
				if down && w.Now > l.over && r.State(h, w.Now).Breaker == breaker.Closed {
					down = false
					recovered++
					recovery += w.Now - l.over
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
	return aftermath{
		success:   100 * float64(good) / float64(requests),
		perMinute: float64(late) / (l.lasts / 2).Minutes() / float64(l.clients),
		recovery:  recovery / time.Duration(max(recovered, 1)),
	}
}
