// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retrip/retrip/internal/span"
	"github.com/retrip/retrip/internal/testenv"
)

// model is the rule of docs/rate-limits.md, in seconds and requests per
// second, without a queue.
type model struct {
	begun, free, fresh, paused               bool
	low, top, unit, x, since, accepted       float64
	from, good, bad, best, could, was, until float64
	misses                                   int
	closed, pause                            float64
	usual                                    float64 // duration of an attempt
}

func (m *model) rate() float64 {
	rate := m.low
	if progress := m.x / (16 * m.unit); !m.free && progress < 1 {
		rate = m.top - (m.top-m.low)*math.Pow(1-progress, 3)
	} else if !m.free {
		rate = m.top * (1 + 0.005*min(10, math.Sqrt(10/(m.top*m.unit)))*math.Pow(m.x/m.unit-16, 4))
	}
	return max(rate, m.best*4/5)
}

func (m *model) accept(gap, took float64, current, limited bool) {
	m.accepted++
	m.good++
	m.usual += (took - m.usual) / 4
	if !current {
		return
	}
	m.misses, m.fresh = 0, true
	switch {
	case !limited:
	case m.free:
		m.low = min(1e5, 2*m.low)
	default:
		m.x += min(gap, m.unit+max(0, 16*m.unit-m.x))
	}
}

func (m *model) restart(pause float64) {
	m.unit = min(max(pause, 3/m.low, 0.5), max(5, 1/m.low/7, (pause-1/m.low)/2))
	m.x = 0
}

func (m *model) between(lower, upper float64) {
	m.low, m.top = min(math.Sqrt(lower*upper), 0.95*0.99*upper), 0.99*upper
}

// judge decides whether the pace is free, and reports whether it has set another.
func (m *model) judge(now, pause float64, news, named bool) bool {
	took, all := now-m.from, m.good+m.bad
	enough := all >= 16 && took >= max(pause, 1e-5)
	if m.free {
		enough = enough && all >= 32 && took >= max(0.5, 4*m.usual)
	}
	if !news || !enough {
		return false
	}
	share, rate, best := m.bad/all, m.good/took, m.best
	rests := now < m.until && share <= max(0.5, min(2*m.was, (1+m.was)/2))
	if m.free && !named {
		share -= math.Sqrt(m.bad) / all
	}
	m.from, m.good, m.bad, m.best = now, 0, 0, max(rate, m.best)
	if m.free {
		if share <= 1./8 && pause <= 5 || rests {
			return false
		}
		m.best, m.could = rate, rate
		m.between(rate, min(max(m.low, rate), 8*rate))
	} else {
		same := share > max(1./16, m.was/2)
		if rate >= m.could/16 && !(same && (m.was < 0.6 || rate < m.could/2)) {
			if rate < best*4/5 {
				m.best = max(rate, best*4/5)
				m.between(2*best, 2*best)
				return true
			}
			return false
		}
		m.low, m.until = m.rate(), now+16*took
	}
	m.free, m.was = !m.free, share
	return true
}

// refuse reports whether the refusal concerns its own request alone.
func (m *model) refuse(now, gap, retryAfter float64, current bool) bool {
	if !m.begun {
		*m = model{begun: true, free: true, low: 1e5, from: now, until: now, since: now, closed: now}
		if retryAfter > 0 {
			m.low = min(1e5, 8/retryAfter)
		}
		m.restart(retryAfter)
	}
	news := current && m.fresh || retryAfter == 0 && m.free && m.good > 0
	if m.free || news {
		m.bad++
	}
	turned := m.judge(now, max(retryAfter, m.pause), news, retryAfter > 0)
	if retryAfter == 0 && m.free {
		return true
	}
	if turned {
		m.restart(max(retryAfter, m.pause))
	}
	if !current && m.paused {
		if retryAfter > 0 {
			m.closed = max(m.closed, now+retryAfter)
		}
		return false
	}
	pause := retryAfter
	if retryAfter == 0 {
		pause = max(min(30, 0.25*math.Pow(2, float64(m.misses))), min(2*gap, 1))
	} else if m.misses > 0 {
		pause = max(retryAfter, min(30, retryAfter*math.Pow(2, float64(m.misses-1))))
	}
	switch {
	case turned || !m.paused:
	case !m.fresh:
		m.misses++
	case !m.free:
		upper := 1 / gap
		lower := min(max(1, m.accepted)/max(now-m.since, 1e-5), upper)
		m.between(lower, upper)
	}
	m.restart(pause)
	m.fresh, m.accepted, m.since, m.pause, m.paused = false, 0, now, pause, true
	m.closed = max(m.closed, now+pause)
	return false
}

// near reports whether got is within a thousandth of want.
func near(want, got float64) bool { return math.Abs(got-want) <= math.Abs(want)/1000 }

// The pace follows the documented rule.
//
//retrip:promise P23
func TestGate_PaceModel(t *testing.T) {
	testenv.OneGoroutine(t)
	random := rand.New(rand.NewPCG(3, 4))
	const never = -span.Forever / 2 // the end of a pause of the whole host
	request := Request{Patience: 24 * time.Hour}
	n := testenv.Size(200_000, 400_000)
	for n > 0 {
		gates := Table{Made: new(atomic.Int64)}
		var m model
		now := time.Duration(random.Int64N(1e12))
		type sent struct {
			c       *Ticket
			gap     float64
			at      time.Duration
			current bool
			limited bool
		}
		var out []sent
		limit := math.Exp(random.Float64()*12 - 5) // requests per second, 0.007 to 1000
		words := []time.Duration{0, time.Duration(random.Int64N(1e9)), time.Second, 5 * time.Second, 7 * time.Second, time.Minute}
		word := words[random.IntN(len(words))]
		noise := []float64{0, 0, .1, .3, .6}[random.IntN(5)] // refused at random
		for range 400 {
			if n--; now > 1e6*time.Second {
				break // the gaps would last hours
			}
			if m.begun {
				// The pace decides when requests are sent. A refusal is more
				// likely the further the pace is above the limit.
				c := new(Ticket)
				asked := now
				for {
					a := gates.Admit(c, &request, now, never, 0)
					if a.Refusal != 0 {
						t.Fatal(a.Refusal)
					}
					if !a.Waits {
						break
					}
					now += a.Wait
				}
				out = append(out, sent{c, max(1e-5, min(86400, 1/m.rate())), now, true, now > asked})
				if s := out[len(out)-1]; !near(s.gap, c.gap.Seconds()) || c.limited != s.limited {
					t.Fatalf("a gap of %v, limited: %v; the model says %+v", c.gap, c.limited, s)
				}
				if now.Seconds() < m.closed-1e-6 {
					t.Fatalf("released at %v, within a pause that ends at %v", now, m.closed)
				}
			} else {
				c := new(Ticket)
				if a := gates.Admit(c, &request, now, never, 0); a != (Answer{}) {
					t.Fatalf("an open gate makes a request wait: %+v", a)
				}
				out = append(out, sent{c, 0, now, true, false})
			}
			if random.IntN(2) == 0 && len(out) < 5 && m.fresh {
				continue
			}
			i := random.IntN(len(out))
			s := out[i]
			out = slices.Delete(out, i, i+1)
			now += time.Duration(random.Int64N(1e8))
			refused := !m.begun && random.IntN(5) == 0 || m.begun && (m.rate() > limit*(0.9+random.Float64()/5) || random.Float64() < noise)
			if !refused {
				gates.Pass(s.c, "", true, now, never)
				if m.begun {
					m.accept(s.gap, (now - s.at).Seconds(), s.current, s.limited)
				}
			} else {
				gates.Refuse(s.c, "", word, now, never, 0)
				closed := m.closed
				if alone := m.refuse(now.Seconds(), s.gap, word.Seconds(), s.current); alone != s.c.Alone {
					t.Fatalf("alone: %v; the model says %+v", s.c.Alone, m)
				} else if s.current && !alone && m.closed > closed {
					for j := range out {
						out[j].current = false
					}
				}
			}
			if m.begun {
				g := &gates.own
				if !near(m.rate(), g.pace.rate()) || math.Abs(m.closed-g.closedUntil.Seconds()) > 1e-6 || m.misses != g.misses {
					t.Fatalf("%v a second, closed until %v, %d misses; the model says %v, %v, %d",
						g.pace.rate(), g.closedUntil, g.misses, m.rate(), m.closed, m.misses)
				}
			}
		}
	}
}
