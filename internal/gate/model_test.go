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
	shut, slow, fresh                        bool
	low, top, unit, gaps, x, since, accepted float64
	misses                                   int
	closed                                   float64
}

func (m *model) rate() float64 {
	if m.slow {
		return m.low
	}
	if progress := m.x / (16 * m.unit); progress < 1 {
		return m.top - (m.top-m.low)*math.Pow(1-progress, 3)
	}
	d := m.x/m.unit - 16
	return m.top * (1 + 0.005*min(10, math.Sqrt(10/(m.top*m.unit)))*math.Pow(d, 4))
}

func (m *model) accept(gap float64, current, limited bool) {
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

func (m *model) refuse(now, gap, word float64) {
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
				out = append(out, sent{c, max(1e-5, min(86400, 1/m.rate())), true, now > asked})
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
				out = append(out, sent{c, 0, true, false})
			}
			if random.IntN(2) == 0 && len(out) < 5 && m.fresh {
				continue
			}
			i := random.IntN(len(out))
			s := out[i]
			out = slices.Delete(out, i, i+1)
			now += time.Duration(random.Int64N(1e8))
			refused := !m.shut && random.IntN(5) == 0 || m.shut && m.rate() > limit*(0.9+random.Float64()/5)
			if !refused {
				gates.Accept(s.c, "", now, never)
				if m.shut {
					m.accept(s.gap, s.current, s.limited)
				}
			} else {
				gates.Refuse(s.c, "", word, now, never, 0)
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
				g := &gates.own
				if !near(m.rate(), g.pace.rate()) || math.Abs(m.closed-g.closed.Seconds()) > 1e-6 || m.misses != g.misses {
					t.Fatalf("%v a second, closed until %v, %d misses; the model says %v, %v, %d",
						g.pace.rate(), g.closed, g.misses, m.rate(), m.closed, m.misses)
				}
			}
		}
	}
}
