// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

// steps is how many random steps a model is compared for.
func steps(n int) int {
	if testing.Short() || raceEnabled {
		return n / 20
	}
	return n
}

// The queue against a sorted list that really forgets who has left.
func TestGate_QueueModel(t *testing.T) {
	testenv.Slow(t)
	random := rand.New(rand.NewPCG(1, 2))
	var q gateQueue
	var model []gateWaiter
	var away []gateWaiter // were released, and may come back
	last := int64(0)
	for step := range steps(1_000_000) {
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
		case k < 7 && len(model) > 0: // the one at the front goes
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
		case k < 9 && len(model) > 0: // someone leaves
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

// modelGate is the rule as docs/rate-limits.md has it, in seconds and requests
// per second, without a queue.
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

// The pace against the rule as it is written.
func TestGate_PaceModel(t *testing.T) {
	testenv.Slow(t)
	random := rand.New(rand.NewPCG(3, 4))
	r := defaultRules(t, Policy{Gate: On, MaxWait: 24 * time.Hour, MaxAttempts: math.MaxInt32, Budget: Unlimited})
	n := steps(400_000)
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
				break // gaps of hours
			}
			if m.shut {
				// Sendings are the pace's to say, and a refusal comes the sooner
				// the further it is above the limit.
				c := &Call{}
				asked := now
				for {
					d := h.First(r, c, now, 0)
					require.True(t, d.Retry, d.Reason)
					if d.Wait == 0 {
						break
					}
					now += d.Wait
				}
				out = append(out, sent{c, max(1e-5, min(86400, 1/m.rate())), true, now > asked})
				require.InEpsilon(t, out[len(out)-1].gap, c.gap.Seconds(), 1e-3)
				require.Equal(t, now > asked, c.limited)
				require.GreaterOrEqual(t, now.Seconds(), m.closed-1e-6, "within a pause")
			} else {
				c := &Call{}
				require.Zero(t, h.First(r, c, now, 0).Wait)
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
				require.InEpsilon(t, m.rate(), g.rate(), 1e-3)
				require.InDelta(t, m.closed, g.closed.Seconds(), 1e-6)
				require.Equal(t, m.misses, g.misses)
			}
		}
	}
}

// gateCaller is one who drives a Call as Transport does.
type gateCaller struct {
	call    Call
	timer   time.Duration // noLimit is none
	called  bool          // was woken
	sending bool
	passed  int // by later ones
}

// Millions of random steps of callers that come, are answered in every way,
// and go: nothing is released in a pause, nobody is passed more often than may
// be, no wake-up is lost, nobody waits past its deadline, and when all have
// left nothing is left.
func TestGate_Invariants(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			runGateInvariants(t, seed, steps(300_000))
		})
	}
}

func runGateInvariants(t *testing.T, seed uint64, steps int) {
	random := rand.New(rand.NewPCG(seed, 5))
	var h Host
	keyed := seed%4 == 3
	policies := []*Rules{
		defaultRules(t, Policy{Gate: On}),
		defaultRules(t, Policy{Gate: On, MaxAttempts: 10, MaxWait: 2 * time.Second}),
		defaultRules(t, Policy{Gate: On, MaxAttempts: 10, MaxWait: time.Hour}),
	}
	rules := func() *Rules { return policies[random.IntN(len(policies))] }
	if seed%2 == 0 {
		rules = func() *Rules { return policies[2] }
	}
	var now time.Duration
	told := map[string]time.Duration{} // by key: what the server has said
	var callers []*gateCaller
	of := map[*gateCaller]*Rules{}
	var ask func(c *gateCaller)
	wake := func(wakes bool) {
		for wakes {
			who := h.Woken()
			if who == nil {
				return
			}
			who.(*gateCaller).called = true
		}
	}
	leave := func(c *gateCaller) {
		wake(h.Return(of[c], &c.call))
		delete(of, c)
		callers = slices.DeleteFunc(callers, func(other *gateCaller) bool { return other == c })
	}
	ask = func(c *gateCaller) {
		c.called, c.timer = false, noLimit
		decide := h.First
		if c.call.Attempts > 0 {
			decide = h.Wake
		}
		d := decide(of[c], &c.call, now, random.Uint64())
		wake(d.Wakes)
		switch {
		case !d.Retry:
			leave(c)
		case d.Wait > 0:
			require.True(t, d.AtGate)
			if d.Wait < noLimit {
				c.timer = now + d.Wait
			}
			if c.call.Deadline != 0 {
				require.LessOrEqual(t, c.timer, c.call.Deadline, "no wait past the deadline")
			}
		default:
			require.GreaterOrEqual(t, now, told[c.call.Gate], "released in a pause")
			if c.call.Deadline != 0 {
				require.LessOrEqual(t, now, c.call.Deadline)
			}
			c.sending = true
			c.call.Attempts++
			if g := c.call.gate; g != nil {
				for _, other := range callers {
					if other.call.gate != g || !g.queue.has(other.call.number) || other.sending {
						continue
					}
					if c.call.number == 0 {
						t.Fatal("it has not even queued")
					}
					if other.call.number < c.call.number {
						other.passed++
						if other.passed > maxPassed {
							t.Fatal("passed too often")
						}
					}
				}
			}
		}
	}
	check := func() {
		s := h.guards.Load()
		if s == nil {
			return
		}
		list := []*gate{&s.gates.own}
		for _, g := range s.gates.keyed {
			list = append(list, g)
		}
		waiting := 0
		for _, g := range list {
			w := g.queue.front(g.probe == probeDue)
			waiting += g.queue.len()
			if w == nil {
				continue
			}
			c := w.who.(*gateCaller)
			if of[c] == nil {
				t.Fatal("the one to go next has gone")
			}
			if !c.called && c.timer > max(now, g.ready(h.pausedUntil())) {
				t.Fatal("nobody will ask: a wake-up is lost")
			}
		}
		if n := h.State(policies[0], now).Waiting; n != waiting {
			t.Fatalf("%d wait, not %d", waiting, n)
		}
	}
	next := func() *gateCaller {
		var first *gateCaller
		for _, c := range callers {
			switch {
			case c.sending:
			case c.called:
				return c
			case c.timer < noLimit && (first == nil || c.timer < first.timer):
				first = c
			}
		}
		return first
	}
	crowd := 3 + int(seed)*5
	for range steps {
		switch k := random.IntN(100); {
		case k < 25 && len(callers) < crowd:
			c := &gateCaller{timer: noLimit}
			c.call.Waiter = c
			if keyed {
				c.call.Gate = fmt.Sprint(random.IntN(3))
			}
			if random.IntN(3) == 0 {
				c.call.Deadline = now + time.Duration(random.Int64N(2e10)) + 1
			}
			of[c] = rules()
			callers = append(callers, c)
			ask(c)
		case k < 60: // an answer
			i := slices.IndexFunc(callers, func(c *gateCaller) bool { return c.sending })
			if i < 0 {
				break
			}
			for random.IntN(3) == 0 { // not always of the oldest
				if j := random.IntN(len(callers)); callers[j].sending {
					i = j
				}
			}
			c := callers[i]
			now += time.Duration(random.Int64N(3e7))
			o := Outcome{Status: 200, Idempotent: true, Replay: true}
			switch random.IntN(12) {
			case 0, 1:
				o.Status, o.RetryAfter = 429, time.Duration(random.Int64N(5e9))
			case 2:
				o.Status = 429
			case 3:
				o.Status, o.RetryAfter = 503, time.Duration(random.Int64N(2e9))
			case 4:
				o.Status = 500
			case 5:
				o.Canceled = true
			}
			c.sending = false
			if !o.Canceled && (o.Status == 429 || o.Status == 503) && o.RetryAfter > 0 {
				told[c.call.Gate] = max(told[c.call.Gate], now+o.RetryAfter)
			}
			d := h.Next(of[c], &c.call, o, now, random.Uint64())
			wake(d.Wakes)
			switch {
			case !d.Retry:
				leave(c)
			case d.AtGate:
				ask(c)
			default:
				c.timer = now + d.Wait
			}
		case k < 65 && len(callers) > 0: // a caller goes
			if c := callers[random.IntN(len(callers))]; !c.sending || random.IntN(5) == 0 {
				leave(c)
			}
		case k < 66:
			now += time.Duration(random.Int64N(1e10))
			for _, c := range slices.Clone(callers) { // timers that passed
				if of[c] != nil && !c.sending && c.timer <= now {
					ask(c)
				}
			}
		default: // the next timer, or who was woken
			if c := next(); c != nil {
				if !c.called {
					now = max(now, c.timer)
				}
				ask(c)
			}
		}
		check()
	}
	for len(callers) > 0 {
		leave(callers[random.IntN(len(callers))])
		check()
	}
	assert.Zero(t, h.State(policies[0], now).Waiting)
	assert.Nil(t, h.Woken())
	assert.True(t, h.Healed(now+48*time.Hour) || h.debt.missing() > 0)
	if s := h.guards.Load(); s != nil {
		h.debt.word.Store(0)
		assert.True(t, h.Healed(now+48*time.Hour))
		assert.Empty(t, s.gates.keyed)
		assert.Zero(t, s.gates.made.Load())
	}
}
