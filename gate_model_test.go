// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

// The queue behaves like a sorted list without gaps.
func TestGate_QueueModel(t *testing.T) {
	testenv.OneGoroutine(t)
	testenv.Slow(t)
	random := rand.New(rand.NewPCG(1, 2))
	var q gateQueue
	var model []gateWaiter
	var away []gateWaiter // released, and may come back
	last := int64(0)
	for step := range testenv.Size(400_000, 1_000_000) {
		switch k := random.IntN(10); {
		case k < 4 && len(model) < 300:
			last++
			w := gateWaiter{number: last, refused: uint8(random.IntN(3))}
			q.insert(w)
			model = append(model, w)
		case k < 5 && len(away) > 0:
			i := random.IntN(len(away))
			w := away[i]
			away = slices.Delete(away, i, i+1)
			q.insert(w)
			at, _ := slices.BinarySearchFunc(model, w.number, func(a gateWaiter, n int64) int { return int(a.number - n) })
			model = slices.Insert(model, at, w)
		case k < 7 && len(model) > 0: // the request at the front is released
			probe := random.IntN(4) == 0
			i := 0
			if probe && model[0].refused >= probeRefusals {
				for j, w := range model[:min(len(model), probeAmong)] {
					if w.refused < model[i].refused {
						i = j
					}
					if w.passed >= maxPassed {
						break
					}
				}
			}
			front := q.front(probe)
			require.Equal(t, model[i].number, front.number)
			require.Equal(t, model[i].passed, q.release(front.number))
			for j := range i {
				model[j].passed++
			}
			w := model[i]
			w.refused = uint8(random.IntN(4))
			model = slices.Delete(model, i, i+1)
			if away = append(away, w); len(away) > 50 {
				away = away[1:]
			}
		case k < 9 && len(model) > 0: // a request leaves
			i := random.IntN(len(model))
			require.True(t, q.has(model[i].number))
			q.remove(model[i].number)
			require.False(t, q.has(model[i].number))
			q.remove(model[i].number)
			model = slices.Delete(model, i, i+1)
		case k == 9 && step%100 == 0: // a pause
			seen := 0
			q.keep(func(w *gateWaiter, ahead int) bool {
				require.Equal(t, seen, ahead)
				if w.number%7 == 0 {
					return false
				}
				seen++
				return true
			})
			model = slices.DeleteFunc(model, func(w gateWaiter) bool { return w.number%7 == 0 })
		}
		if len(model) != q.len() || len(q.list) > 4*300 {
			t.Fatalf("%d wait, not %d, in %d places", q.len(), len(model), len(q.list))
		}
		if len(model) == 0 {
			require.Nil(t, q.front(false))
			continue
		}
		if q.front(false).number != model[0].number || q.ahead(model[0].number) != 0 || q.ahead(last+1) != len(model) {
			t.Fatal("the queue is in another order")
		}
	}
}

// modelGate is the rule of docs/rate-limits.md, in seconds and requests per
// second, without a queue.
type modelGate struct {
	shut, slow, fresh                        bool
	low, top, unit, gaps, x, since, accepted float64
	misses                                   int
	closed                                   float64
}

func (m *modelGate) rate() float64 {
	if m.slow {
		return m.low
	}
	if progress := m.x / (16 * m.unit); progress < 1 {
		return m.top - (m.top-m.low)*math.Pow(1-progress, 3)
	}
	d := m.x/m.unit - 16
	return m.top * (1 + 0.005*min(10, math.Sqrt(10/(m.top*m.unit)))*math.Pow(d, 4))
}

func (m *modelGate) accept(gap float64, current, limited bool) {
	m.accepted++
	if !current {
		return
	}
	m.misses, m.fresh = 0, true
	switch {
	case !limited:
	case m.slow:
		m.low = min(1e5, m.low*(1+min(1, 8*gap/m.unit)))
	default:
		m.x += gap
	}
}

func (m *modelGate) refuse(now, gap, word float64) {
	pause := word
	if word == 0 {
		if pause = min(30, 0.25*math.Pow(2, float64(m.misses))); m.shut {
			pause = max(pause, min(2*gap, 1))
		}
	} else if m.misses > 0 {
		pause = max(word, min(30, word*math.Pow(2, float64(m.misses-1))))
	}
	switch {
	case !m.shut:
		m.shut, m.slow, m.gaps, m.low = true, true, 3, min(1e5, 8/pause)
	case !m.fresh:
		m.misses++
	default:
		if !m.slow && m.x < 4*m.unit {
			m.gaps = max(1, m.gaps/2)
		} else if !m.slow {
			m.gaps = 3
		}
		upper := 1 / gap
		lower := min(max(1, m.accepted)/max(now-m.since, 1e-5), upper)
		m.top = upper
		if pause > 5 && upper > 2*lower {
			m.top = min(upper, 3*lower)
		}
		m.low = min(math.Sqrt(lower*m.top), 0.95*0.99*m.top)
		m.top *= 0.99
		m.slow = false
	}
	m.unit = min(30, max(pause, m.gaps/m.low, 0.5))
	m.x, m.fresh, m.accepted, m.since = 0, false, 0, now
	m.closed = max(m.closed, now+pause)
}

// near reports whether got is within a thousandth of want.
func near(want, got float64) bool { return math.Abs(got-want) <= math.Abs(want)/1000 }

// The pace follows the documented rule.
func TestGate_PaceModel(t *testing.T) {
	testenv.OneGoroutine(t)
	testenv.Slow(t)
	random := rand.New(rand.NewPCG(3, 4))
	r := defaultRules(t, Policy{Gate: On, MaxWait: 24 * time.Hour, MaxAttempts: math.MaxInt32, Budget: Unlimited})
	n := testenv.Size(200_000, 400_000)
	for n > 0 {
		var h Host
		var m modelGate
		now := time.Duration(random.Int64N(1e12))
		type sent struct {
			c       *Call
			gap     float64
			current bool
			limited bool
		}
		var out []sent
		limit := math.Exp(random.Float64()*12 - 5) // requests per second, 0.007 to 1000
		words := []time.Duration{0, time.Duration(random.Int64N(1e9)), time.Second, 7 * time.Second, time.Minute}
		word := words[random.IntN(len(words))]
		for range 400 {
			if n--; now > 1e6*time.Second {
				break // the gaps would last hours
			}
			if m.shut {
				// The pace decides when requests are sent. A refusal is more
				// likely the further the pace is above the limit.
				c := &Call{}
				asked := now
				for {
					d := h.First(r, c, now, 0)
					if !d.Retry {
						t.Fatal(d.Reason)
					}
					if d.Wait == 0 {
						break
					}
					now += d.Wait
				}
				out = append(out, sent{c, max(1e-5, min(86400, 1/m.rate())), true, now > asked})
				if s := out[len(out)-1]; !near(s.gap, c.gap.Seconds()) || c.limited != s.limited {
					t.Fatalf("a gap of %v, limited: %v; the model says %+v", c.gap, c.limited, s)
				}
				if now.Seconds() < m.closed-1e-6 {
					t.Fatalf("released at %v, within a pause that ends at %v", now, m.closed)
				}
			} else {
				c := &Call{}
				if d := h.First(r, c, now, 0); d.Wait != 0 {
					t.Fatalf("an open gate makes a request wait: %+v", d)
				}
				out = append(out, sent{c, 0, true, false})
			}
			if random.IntN(2) == 0 && len(out) < 5 && m.fresh {
				continue
			}
			i := random.IntN(len(out))
			s := out[i]
			out = slices.Delete(out, i, i+1)
			now += time.Duration(random.Int64N(1e8))
			s.c.Attempts = 1
			refused := !m.shut && random.IntN(5) == 0 || m.shut && m.rate() > limit*(0.9+random.Float64()/5)
			if !refused {
				h.Next(r, s.c, Outcome{Status: 200}, now, 0)
				if m.shut {
					m.accept(s.gap, s.current, s.limited)
				}
			} else {
				h.Next(r, s.c, Outcome{Status: 429, RetryAfter: word, Idempotent: true, Replay: true}, now, 0)
				if s.current {
					m.refuse(now.Seconds(), s.gap, word.Seconds())
					for j := range out {
						out[j].current = false
					}
				} else if word > 0 {
					m.closed = max(m.closed, (now + word).Seconds())
				}
			}
			if m.shut {
				g := &h.guards.Load().gates.own
				if !near(m.rate(), g.pace.rate()) || math.Abs(m.closed-g.closed.Seconds()) > 1e-6 || m.misses != g.misses {
					t.Fatalf("%v a second, closed until %v, %d misses; the model says %v, %v, %d",
						g.pace.rate(), g.closed, g.misses, m.rate(), m.closed, m.misses)
				}
			}
		}
	}
}
