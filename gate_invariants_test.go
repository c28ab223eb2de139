// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/gate"
	"github.com/retrip/retrip/internal/span"
	"github.com/retrip/retrip/internal/testenv"
)

// gateCaller drives a Call like Transport.
type gateCaller struct {
	call    Call
	timer   time.Duration // span.Forever means none
	called  bool          // it was woken
	sending bool
	passed  int // how often later requests passed it
}

// Millions of random steps: requests arrive, get every kind of response, and
// leave. Nothing is released in a pause, no request is passed more often than
// allowed, no wake-up is lost, no request waits past its deadline, and in the
// end no state is left.
func TestGate_Invariants(t *testing.T) {
	steps := testenv.Size(100_000, 300_000)
	if testing.Short() || testenv.Race {
		steps /= 20
	}
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			runGateInvariants(t, seed, steps)
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
	told := map[string]time.Duration{} // by key: the waits that the server asked for
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
		c.called, c.timer = false, span.Forever
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
			if d.Wait < span.Forever {
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
			if g := c.call.ticket.Gate; g != nil {
				for _, other := range callers {
					if other.call.ticket.Gate != g || !g.Queue.Has(other.call.ticket.Number) || other.sending {
						continue
					}
					if c.call.ticket.Number == 0 {
						t.Fatal("it has not even queued")
					}
					if other.call.ticket.Number < c.call.ticket.Number {
						other.passed++
						if other.passed > gate.MaxPassed {
							t.Fatal("passed too often")
						}
					}
				}
			}
		}
	}
	check := func() {
		s := h.record.Guards.Load()
		if s == nil {
			return
		}
		list := []*gate.Gate{&s.Gates.Own}
		for _, g := range s.Gates.Keyed {
			list = append(list, g)
		}
		waiting := 0
		for _, g := range list {
			w := g.Queue.Front(g.Probe == gate.ProbeDue)
			waiting += g.Queue.Len()
			if w == nil {
				continue
			}
			c := w.Who.(*gateCaller)
			if of[c] == nil {
				t.Fatal("the one to go next has gone")
			}
			if !c.called && c.timer > max(now, g.Ready(h.record.PausedUntil())) {
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
			case c.timer < span.Forever && (first == nil || c.timer < first.timer):
				first = c
			}
		}
		return first
	}
	crowd := 3 + int(seed)*5
	for range steps {
		switch k := random.IntN(100); {
		case k < 25 && len(callers) < crowd:
			c := &gateCaller{timer: span.Forever}
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
		case k < 60: // a response
			i := slices.IndexFunc(callers, func(c *gateCaller) bool { return c.sending })
			if i < 0 {
				break
			}
			for random.IntN(3) == 0 { // not always the oldest request
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
		case k < 65 && len(callers) > 0: // a caller leaves
			if c := callers[random.IntN(len(callers))]; !c.sending || random.IntN(5) == 0 {
				leave(c)
			}
		case k < 66:
			now += time.Duration(random.Int64N(1e10))
			for _, c := range slices.Clone(callers) { // timers that have expired
				if of[c] != nil && !c.sending && c.timer <= now {
					ask(c)
				}
			}
		default: // the next timer, or a request that was woken
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
	assert.True(t, h.Healed(now+48*time.Hour) || h.record.Debt.Missing() > 0)
	if s := h.record.Guards.Load(); s != nil {
		h.record.Debt.Word.Store(0)
		assert.True(t, h.Healed(now+48*time.Hour))
		assert.Empty(t, s.Gates.Keyed)
		assert.Zero(t, s.Gates.Made.Load())
	}
}
