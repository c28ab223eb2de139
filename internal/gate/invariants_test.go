// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/span"
	"github.com/retrip/retrip/internal/testenv"
)

// crowd is many requests at the gates of one host.
type crowd struct {
	t       *testing.T
	random  *rand.Rand
	gates   Table
	now     time.Duration
	paused  time.Duration            // end of the pause of the whole host
	told    map[string]time.Duration // by key: end of the waits that the server asked for
	callers []*caller
}

// caller is a request on its way through its attempts, driven like that of a
// Transport.
type caller struct {
	ticket  Ticket
	request Request
	left    int           // attempts that it may still make
	timer   time.Duration // span.Forever means none
	waits   bool          // it was told to wait at its gate
	called  bool          // it was woken
	sending bool
	sent    time.Duration
	passed  int // how often later requests passed it
	gone    bool
}

// Many random steps: requests arrive, get every kind of response, and
// leave. Nothing is released in a pause, no request is passed more often than
// allowed, no wake-up is lost, no request waits past its deadline, and in the
// end no state is left.
//
//retrip:promise P9 P23
func TestGate_Invariants(t *testing.T) {
	steps := testenv.Size(20_000, 300_000)
	if testing.Short() || testenv.Race {
		steps /= 4
	}
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := &crowd{
				t: t, random: rand.New(rand.NewPCG(seed, 5)), told: map[string]time.Duration{},
				gates: Table{Made: new(atomic.Int64)}, paused: -span.Forever / 2,
			}
			w.run(seed, steps)
		})
	}
}

// run makes random steps. The seeds differ in the size of the crowd, in whether all
// callers are patient, and in whether there are keys.
func (w *crowd) run(seed uint64, steps int) {
	size, patient, keyed := 3+int(seed)*5, seed%2 == 0, seed%4 == 3
	for range steps {
		switch k := w.random.IntN(100); {
		case k < 25 && len(w.callers) < size:
			w.arrive(patient, keyed)
		case k < 60:
			if c := w.oneInFlight(); c != nil {
				w.now += time.Duration(w.random.Int64N(3e7))
				w.answer(c)
			}
		case k < 65 && len(w.callers) > 0:
			if c := w.callers[w.random.IntN(len(w.callers))]; !c.sending || w.random.IntN(5) == 0 {
				w.leave(c)
			}
		case k < 66:
			w.pass(time.Duration(w.random.Int64N(1e10)))
		case k < 67 && w.random.IntN(10) == 0: // some gates are forgotten
			w.pass(time.Duration(w.random.Int64N(1e12)))
			w.gates.Sweep(w.now)
		default: // the next timer, or a request that was woken
			if c := w.next(); c != nil {
				if !c.called {
					w.now = max(w.now, c.timer)
				}
				w.ask(c)
			}
		}
		w.check()
	}
	for len(w.callers) > 0 {
		w.leave(w.callers[w.random.IntN(len(w.callers))])
		w.check()
	}
	assert.Zero(w.t, w.waiting())
	assert.Nil(w.t, w.gates.NextWoken())
	assert.True(w.t, w.gates.Idle(w.now+48*time.Hour))
	w.gates.Trim(w.now + 48*time.Hour)
	assert.Empty(w.t, w.gates.keyed)
	assert.Zero(w.t, w.gates.Made.Load())
}

func (w *crowd) arrive(patient, keyed bool) {
	c := &caller{left: 10, timer: span.Forever}
	c.request = Request{Who: c, Patience: time.Hour}
	if !patient {
		switch w.random.IntN(3) {
		case 0:
			c.left, c.request.Patience = 4, 30*time.Second
		case 1:
			c.request.Patience = 2 * time.Second
		}
	}
	if keyed {
		c.request.Key = fmt.Sprint(w.random.IntN(3))
	}
	if w.random.IntN(3) == 0 {
		c.request.Deadline = w.now + time.Duration(w.random.Int64N(2e10)) + 1
	}
	w.callers = append(w.callers, c)
	w.ask(c)
}

// ask asks the gate of c for an attempt.
func (w *crowd) ask(c *caller) {
	c.called, c.waits, c.timer = false, false, span.Forever
	if g := c.ticket.gate; (g == nil || g.dropped) && c.request.Deadline != 0 && w.now > c.request.Deadline {
		w.leave(c) // no gate looks at its deadline
		return
	}
	a := w.gates.Admit(&c.ticket, &c.request, w.now, w.paused, w.random.Uint64())
	w.wake(a.Wakes)
	require.Equal(w.t, a.Waits, a.Wait > 0)
	switch {
	case a.Refusal != 0:
		require.False(w.t, a.Waits || c.ticket.Waited || c.ticket.Out, "nothing is left to give back")
		w.leave(c)
	case a.Waits:
		c.waits = true
		if a.Wait < span.Forever {
			c.timer = w.now + a.Wait
		}
		if c.request.Deadline != 0 {
			require.LessOrEqual(w.t, c.timer, c.request.Deadline-c.request.Needed, "no wait past the deadline")
		}
	default:
		w.send(c)
	}
}

// send makes an attempt of c, which its gate has released.
func (w *crowd) send(c *caller) {
	require.GreaterOrEqual(w.t, w.now, w.told[c.request.Key], "released in a pause")
	require.GreaterOrEqual(w.t, w.now, w.paused, "released in a pause of the host")
	if c.request.Deadline != 0 {
		require.LessOrEqual(w.t, w.now, c.request.Deadline)
	}
	c.sending, c.sent = true, w.now
	c.left--
	g := c.ticket.gate
	if g == nil {
		return
	}
	for _, other := range w.callers {
		if other.ticket.gate != g || !g.queue.has(other.ticket.number) || other.sending {
			continue
		}
		if c.ticket.number == 0 {
			w.t.Fatal("it has not even queued")
		}
		if other.ticket.number < c.ticket.number {
			if other.passed++; other.passed > maxPassed {
				w.t.Fatal("passed too often")
			}
		}
	}
}

// answer ends the attempt of c.
func (w *crowd) answer(c *caller) {
	c.sending, c.request.Needed = false, w.now-c.sent
	key := c.request.Key
	refuse := func(word time.Duration) {
		if word > 0 {
			w.told[key] = max(w.told[key], w.now+word)
		}
		before := w.closed()
		_, wakes := w.gates.Refuse(&c.ticket, key, word, w.now, w.paused, w.random.Uint64())
		w.wake(wakes)
		require.GreaterOrEqual(w.t, w.closed(), max(before, word))
		if word <= c.request.Patience {
			w.again(c, 0)
		} else {
			w.leave(c)
		}
	}
	switch w.random.IntN(12) {
	case 0, 1: // 429
		refuse(time.Duration(w.random.Int64N(5e9)))
	case 2: // 429 without Retry-After
		refuse(0)
	case 3: // 503
		word := 1 + time.Duration(w.random.Int64N(2e9))
		w.paused = max(w.paused, w.now+word)
		refuse(word)
	case 4: // 500
		w.wake(w.gates.Pass(&c.ticket, key, false, w.now, w.paused))
		w.again(c, 1+time.Duration(w.random.Int64N(1e9)))
	case 5: // canceled
		w.leave(c)
	default:
		w.wake(w.gates.Pass(&c.ticket, key, true, w.now, w.paused))
		w.leave(c)
	}
}

// again retries c after wait, if it has an attempt left and its gate gives it hope.
func (w *crowd) again(c *caller, wait time.Duration) {
	_, refusal := w.gates.Outlook(&c.ticket, &c.request, w.now, w.paused)
	switch {
	case c.left == 0 || refusal != 0:
		w.leave(c)
	case wait > 0 && c.request.Deadline != 0 && w.now+wait > c.request.Deadline-c.request.Needed:
		w.leave(c)
	case wait > 0:
		c.timer = w.now + wait
	default:
		w.ask(c)
	}
}

func (w *crowd) leave(c *caller) {
	if c.ticket.Waited || c.ticket.Out {
		w.wake(w.gates.Leave(&c.ticket, w.paused))
	}
	c.gone = true
	w.callers = slices.DeleteFunc(w.callers, func(other *caller) bool { return other == c })
}

// wake tells the requests that must ask again, if the table says that there are any.
func (w *crowd) wake(wakes bool) {
	for wakes {
		who := w.gates.NextWoken()
		if who == nil {
			return
		}
		who.(*caller).called = true
	}
}

// pass lets d pass at once. Timers that expire in it end late.
func (w *crowd) pass(d time.Duration) {
	w.now += d
	for _, c := range slices.Clone(w.callers) {
		if !c.gone && !c.sending && c.timer <= w.now {
			w.ask(c)
		}
	}
}

// oneInFlight returns a request that has no response yet, often the oldest, or nil if
// there is none.
func (w *crowd) oneInFlight() *caller {
	i := slices.IndexFunc(w.callers, func(c *caller) bool { return c.sending })
	if i < 0 {
		return nil
	}
	for w.random.IntN(3) == 0 {
		if j := w.random.IntN(len(w.callers)); w.callers[j].sending {
			i = j
		}
	}
	return w.callers[i]
}

// next returns a request that was woken, or the one whose timer expires first, or nil
// if there is neither.
func (w *crowd) next() *caller {
	var first *caller
	for _, c := range w.callers {
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

// check looks for requests that would wait forever.
func (w *crowd) check() {
	waiting := 0
	for g := range w.gates.all() {
		waiting += g.queue.len()
		front := g.queue.front(g.probe == probeDue)
		if front == nil {
			continue
		}
		c := front.who.(*caller)
		if c.gone {
			w.t.Fatal("the one to go next has gone")
		}
		if !c.called && c.timer > max(w.now, g.ready(w.paused)) {
			w.t.Fatal("nobody will ask: a wake-up is lost")
		}
	}
	if n := w.waiting(); n != waiting {
		w.t.Fatalf("%d wait, not %d", waiting, n)
	}
	for _, c := range w.callers {
		if c.waits && !c.sending && !c.called && !c.ticket.gate.queue.has(c.ticket.number) {
			w.t.Fatal("it has lost its place, and nobody has told it")
		}
	}
}

// waiting returns how many requests wait at all gates.
func (w *crowd) waiting() int {
	waiting, _ := w.gates.Waiting(w.now)
	return waiting
}

// closed returns how much longer a gate stays closed.
func (w *crowd) closed() time.Duration {
	_, closed := w.gates.Waiting(w.now)
	return closed
}
