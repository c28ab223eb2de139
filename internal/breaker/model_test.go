// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package breaker_test

import (
	"math/bits"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/span"
	"github.com/retrip/retrip/internal/testenv"
)

// model is the breaker as documented: it keeps a list of results and
// searches it each time, where the breaker keeps counters.
type model struct {
	state   breaker.State
	since   int  // number of the current state, and first failures
	watched bool // a failure has been counted: successes before it don't count
	results []modelResult
	until   time.Duration   // open: instant of the first probe; half-open: instant of the next probe
	probes  []*modelAttempt // in flight
	probed  time.Duration   // instant of the last probe
	said    []bool          // for each probe that has ended, whether it failed
	closed  time.Duration   // instant at which it last closed
	tripped bool            // it has been open: its successes count for a while
	last    time.Duration   // instant of the last failure, if watched
}

type modelResult struct {
	at     time.Duration
	failed bool
	stale  bool // it doesn't count
}

// modelAttempt is an attempt in flight.
type modelAttempt struct {
	since int // number of the state in which it was allowed
	call  decide.Call
}

// between returns the point of [lo, hi] to which a draw corresponds.
func between(lo, hi time.Duration, draw uint64) time.Duration {
	offset, _ := bits.Mul64(draw, uint64(hi-lo+1))
	return lo + time.Duration(offset)
}

func (m *model) enter(state breaker.State) {
	m.state, m.probes, m.said, m.results = state, nil, nil, nil
	m.since++
}

// admit reports whether an attempt is allowed at the instant now.
func (m *model) admit(p *breaker.Rule, a *modelAttempt, now time.Duration, draw uint64) bool {
	a.since = m.since
	if m.state == breaker.Closed {
		return true
	}
	if m.state == breaker.Open {
		if now < m.until {
			return false
		}
		m.enter(breaker.HalfOpen)
	}
	if len(m.probes) > 0 && now-m.probed >= p.OpenFor {
		m.enter(breaker.HalfOpen) // they have hung
	}
	if now < m.until || len(m.probes) > 0 && len(m.probes)+len(m.said) >= p.Probes {
		return false
	}
	a.since = m.since
	m.probes = append(m.probes, a)
	m.probed = now
	m.until = now + between(0, p.OpenFor/time.Duration(2*p.Probes), draw)
	return true
}

// settle ends a probe in flight, and reports whether a is one.
func (m *model) settle(a *modelAttempt) bool {
	for i, probe := range m.probes {
		if probe == a {
			m.probes = append(m.probes[:i:i], m.probes[i+1:]...)
			return true
		}
	}
	return false
}

// result records how an attempt ended.
func (m *model) result(p *breaker.Rule, a *modelAttempt, failed bool, now time.Duration, draw uint64) {
	stale := a.since != m.since
	switch m.state {
	case breaker.Closed:
		first := m.healed(p, now)
		if m.watched = m.watched || failed; !m.watched {
			return
		}
		if m.results = append(m.results, modelResult{now, failed, failed && stale}); !failed {
			return
		}
		if m.last = now; stale {
			return
		}
		if first {
			m.since++ // what is in flight shares its cause
		}
		if m.tooBad(p, now) {
			m.open(p, now, draw)
		}
	case breaker.HalfOpen:
		if stale || !m.settle(a) {
			return
		}
		m.said = append(m.said, failed)
		// It closes if even failures of all remaining probes would close it,
		// and opens if even their successes would open it.
		if best, worst := m.verdict(p, false), m.verdict(p, true); best == worst {
			if best {
				m.enter(breaker.Closed)
				m.closed, m.tripped = now, true
			} else {
				m.open(p, now, draw)
			}
		}
	}
}

// verdict reports whether fewer than Ratio of the probes fail, if all remaining
// probes end in the same way.
func (m *model) verdict(p *breaker.Rule, fail bool) (closes bool) {
	failures := 0
	for i := range p.Probes {
		if i < len(m.said) && m.said[i] || i >= len(m.said) && fail {
			failures++
		}
	}
	return float64(failures) < p.Ratio*float64(p.Probes)*(1-1e-12)
}

func (m *model) open(p *breaker.Rule, now time.Duration, draw uint64) {
	m.enter(breaker.Open)
	m.until = now + between(p.OpenFor/2, p.OpenFor+p.OpenFor/2, span.Remix(draw))
}

// window returns the results that count for the ratio at the instant now: those
// in the last ten tenths of Window.
func (m *model) window(p *breaker.Rule, now time.Duration) (results, failures int) {
	tenth := max(1, p.Window/10)
	for _, r := range m.results {
		if r.at/tenth+10 > now/tenth && !r.stale {
			results++
			if r.failed {
				failures++
			}
		}
	}
	return results, failures
}

// row returns the number of failures in a row that count at the instant now.
func (m *model) row(now time.Duration) int {
	n := 0
	for i := len(m.results) - 1; i >= 0 && m.results[i].failed && now-m.results[i].at <= time.Hour; i-- {
		if now = m.results[i].at; !m.results[i].stale {
			n++
		}
	}
	return n
}

func (m *model) tooBad(p *breaker.Rule, now time.Duration) bool {
	results, failures := m.window(p, now)
	if results < p.MinVolume {
		return m.row(now) >= p.MinVolume
	}
	return float64(failures) >= p.Ratio*float64(results)*(1-1e-12)
}

// healed reports whether there is no state worth keeping.
func (m *model) healed(p *breaker.Rule, now time.Duration) bool {
	if m.tripped && now < m.closed+60*max(1, p.Window/10) {
		return false
	}
	return m.state == breaker.Closed && (!m.watched || now >= m.last+10*max(1, p.Window/10) && m.row(now) == 0)
}

// change returns what must be reported if the model goes from a state to
// another, or keeps its own.
func change(from, to breaker.State) host.Change {
	switch {
	case from == to:
		return 0
	case to == breaker.Open:
		return host.Opened
	case to == breaker.HalfOpen:
		return host.Probed
	default:
		return host.Closed
	}
}

// The breaker of a host, as decisions use it, behaves like its model in random steps.
func TestBreaker_Model(t *testing.T) {
	testenv.OneGoroutine(t)
	const steps = 2500
	runs := testenv.Size(60, 500)
	states, rows, forgotten := map[breaker.State]int{}, 0, 0
	for seed := range uint64(runs) {
		random := rand.New(rand.NewPCG(seed, 1))
		r := play.Rules(t, retrip.Policy{MaxAttempts: 1, Budget: retrip.Off, Breaker: retrip.Breaker{
			Ratio:     float64(1+random.IntN(100)) / 100,
			Window:    []time.Duration{time.Nanosecond, time.Second, 10 * time.Second}[random.IntN(3)],
			MinVolume: 1 + random.IntN(8),
			OpenFor:   []time.Duration{time.Nanosecond, time.Second, 5 * time.Second, time.Minute}[random.IntN(4)],
		}})
		p := r.Breaker
		p.Probes = 1 + random.IntN(6)
		// The maximum duration of a step, and the failure rate; both change
		// from time to time.
		pace, failing := time.Second, 0.5
		h, m := new(host.Record), &model{}
		var now time.Duration
		var out []*modelAttempt
		for step := range steps {
			if random.IntN(100) == 0 {
				pace = []time.Duration{1, 10 * time.Millisecond, time.Second, 20 * time.Second, 45 * time.Minute, 2 * time.Hour}[random.IntN(6)]
				failing = []float64{0, .1, .5, .9, 1}[random.IntN(5)]
			}
			now += time.Duration(random.Int64N(int64(pace) + 1))
			draw := random.Uint64()
			before := m.state
			var did string
			var d play.Decision
			switch choice := random.IntN(16); {
			case choice < 8 && len(out) < 12:
				a := &modelAttempt{}
				did = "an attempt"
				d = r.First(h, &a.call, now, draw)
				want := m.admit(p, a, now, draw)
				if d.Retry != want || !want && d.Reason != decide.BreakerOpen {
					t.Fatalf("run %d, step %d: %+v, the model says %v: %+v at %v: %+v", seed, step, d, want, p, now, m)
				}
				if a.call.Attempts = 1; want {
					out = append(out, a)
				}
			case len(out) == 0:
				continue
			default:
				i := random.IntN(len(out))
				a := out[i]
				out = append(out[:i], out[i+1:]...)
				switch choice {
				case 8:
					did = "given back"
					r.Return(h, &a.call)
					m.settle(a)
				case 9:
					did = "nothing learned"
					why := []decide.Outcome{{Canceled: true}, {Hopeless: true}, {Verdict: decide.Final}}[random.IntN(3)]
					r.Next(h, &a.call, why, now, draw)
					m.settle(a)
				default:
					failed := random.Float64() < failing
					did = "answered"
					results, _ := m.window(p, now)
					status := http.StatusOK
					if failed {
						status = http.StatusServiceUnavailable
					}
					d = r.Next(h, &a.call, play.Repeatable(status), now, draw)
					m.result(p, a, failed, now, draw)
					if before == breaker.Closed && m.state == breaker.Open && results+1 < p.MinVolume {
						rows++
					}
				}
			}
			states[m.state]++
			is := r.State(h, now)
			healed := m.healed(p, now)
			if is.Breaker != m.state || m.state != breaker.Closed && is.OpenFor != max(0, m.until-now) || h.Healed(now) != healed || d.Change != change(before, m.state) {
				t.Fatalf("run %d, step %d: %s: %s, open for %v, change %v, healed: %v; the model: healed: %v, %+v; %+v at %v",
					seed, step, did, breaker.Names[is.Breaker], is.OpenFor, d.Change, h.Healed(now), healed, m, p, now)
			}
			// Forgetting the breaker has no effect if no attempt is in flight.
			if healed && len(out) == 0 && random.IntN(2) == 0 {
				h, m = new(host.Record), &model{}
				forgotten++
			}
			// Drop results that are too old for any rule.
			if n := len(m.results); n > 2000 {
				m.results = m.results[n-1000:]
			}
		}
	}
	t.Logf("steps by state: %v; opened by failures in a row %d times; forgotten %d times", states, rows, forgotten)
	for _, state := range []breaker.State{breaker.Closed, breaker.Open, breaker.HalfOpen} {
		require.Greater(t, states[state], runs*steps/50, breaker.Names[state])
	}
	require.Greater(t, rows, 2*runs)
	require.Greater(t, forgotten, 5*runs)
}
