// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retrip/retrip/internal/explore"
	"github.com/retrip/retrip/internal/span"
	"github.com/retrip/retrip/internal/testenv"
)

// Three callers come, wait, leave and get every kind of response, in every order, at the
// instants from which on a gate may decide otherwise. A caller may also come a nanosecond
// before such an instant, as the last one.
//
//retrip:promise P9 P23
func TestGate_EveryState(t *testing.T) {
	testenv.OneGoroutine(t)
	testenv.Slow(t)
	refused := func(c *guest, passed uint8) { c.ticket.refused, c.ticket.passed = probeRefusals, passed }
	for _, tt := range []struct {
		name       string
		rules      bool // the pace is known
		ends       []string
		set        func(*[3]guest)
		steps, all int // of each caller, and the same if RETRIP_EXPLORE is set
	}{
		{"a free pace", false, []string{accepts, worded, leaves}, func(*[3]guest) {}, 3, 4},
		{"every response", false, []string{accepts, fails, bare, worded, down}, func(*[3]guest) {}, 3, 4},
		{"refusals that name a wait", false, []string{accepts, worded}, func(*[3]guest) {}, 3, 4},
		{"a pace that rules", true, []string{accepts, bare, worded}, func(*[3]guest) {}, 3, 4},
		{"a caller refused twice", true, []string{accepts, worded}, func(all *[3]guest) { refused(&all[0], 0) }, 2, 4},
		{"a caller passed often", true, []string{accepts, worded}, func(all *[3]guest) { refused(&all[0], maxPassed) }, 2, 4},
		{"callers in a hurry", false, []string{accepts, worded}, func(all *[3]guest) {
			all[0].request.Patience = time.Second / 2
			all[1].request.Deadline = 2 * time.Second
		}, 3, 4},
		{"keys", false, []string{accepts, worded, down}, func(all *[3]guest) { all[2].request.Key = "b" }, 3, 4},
		{"a key of two callers", false, []string{accepts, worded, down}, func(all *[3]guest) { all[1].request.Key, all[2].request.Key = "b", "b" }, 3, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			steps := testenv.Depth(tt.steps, tt.all)
			n := explore.All(t, func() *house { return open(steps, tt.rules, tt.ends, tt.set) })
			t.Logf("%d states of 3 callers with %d steps each", n, steps)
		})
	}
}

// house is the gates of a host with their callers, and what they know.
type house struct {
	gates  Table
	now    time.Duration
	paused time.Duration            // end of the pause of the host
	told   map[string]time.Duration // by key: end of the wait that the server asked for
	last   map[string]time.Duration // by key: when its gate last released a request
	guests [3]guest
	ends   []string // how their attempts may end
	over   bool
	wrong  error
}

// guest is a caller of a gate.
type guest struct {
	left    int // steps that it may still make
	does    doing
	called  bool
	timer   time.Duration // span.Forever: none
	sent    time.Duration
	passed  uint8 // how often later requests went first while it waits
	ticket  Ticket
	request Request
}

// due reports whether c must ask again now.
func (c *guest) due(now time.Duration) bool { return c.does == waits && (c.called || c.timer <= now) }

type doing uint8

const (
	idles doing = iota
	waits
	sends
)

// event is what may happen next.
type event struct {
	what string
	who  int
	wait time.Duration
}

func (e event) String() string {
	if e.what == passes {
		return fmt.Sprint(e.wait, " pass")
	}
	if e.what == hurries {
		return fmt.Sprintf("%c %s %v", 'A'+e.who, e.what, e.wait)
	}
	return fmt.Sprintf("%c %s", 'A'+e.who, e.what)
}

const (
	asks    = "asks"
	hurries = "asks a nanosecond before anything can change, after" // and then the story ends
	leaves  = "is canceled"
	accepts = "gets 200"
	fails   = "gets 500"
	bare    = "gets 429"
	worded  = "gets 429 and a second"
	down    = "gets 503 and a second"
	passes  = "time passes"
)

// An attempt that takes longer gets no response.
const patience = time.Second

// noDraw is a draw from which [span.Remix] makes 0: a pace begins with the end of a pause.
const noDraw = -0x9e3779b97f4a7c15 & math.MaxUint64

func open(steps int, rules bool, ends []string, set func(*[3]guest)) *house {
	h := &house{ends: ends, gates: Table{Made: new(atomic.Int64)}, paused: -1, told: map[string]time.Duration{}, last: map[string]time.Duration{}}
	for i := range h.guests {
		h.guests[i] = guest{left: steps, timer: span.Forever, request: Request{Patience: time.Minute}}
	}
	set(&h.guests)
	for i := range h.guests {
		h.guests[i].request.Who = i
	}
	if rules {
		g := &h.gates.own
		g.begin(time.Second, 0)
		g.pace.free, g.fresh, g.epoch, g.pause = false, true, 1, time.Second
		h.gates.epoch = 1
		g.pace.bound(4, 8)
		g.pace.restart(time.Second)
	}
	return h
}

func (h *house) Moves() (all []event) {
	if h.over || h.wrong != nil {
		return nil
	}
	due := slices.ContainsFunc(h.guests[:], func(c guest) bool { return c.due(h.now) })
	active := false
	for i := range h.guests {
		c := &h.guests[i]
		if c.does == idles && slices.ContainsFunc(h.guests[:i], func(o guest) bool { o.request.Who = i; return o == *c }) {
			continue // callers that have never come are the same
		}
		active = active || c.does != idles || c.left > 0
		if c.due(h.now) {
			all = append(all, event{what: asks, who: i})
		}
		if c.left == 0 {
			continue
		}
		switch c.does {
		case idles:
			all = append(all, event{what: asks, who: i})
			if wait := h.next(); !due && wait > 1 {
				all = append(all, event{what: hurries, who: i, wait: wait - 1})
			}
		case waits:
			if slices.Contains(h.ends, leaves) {
				all = append(all, event{what: leaves, who: i})
			}
		case sends:
			if h.now-c.sent > patience {
				continue // it hangs
			}
			for _, what := range h.ends {
				all = append(all, event{what: what, who: i})
			}
		}
	}
	if wait := h.next(); active && !due && wait > 0 {
		all = append(all, event{what: passes, wait: wait})
	}
	return all
}

// next returns how long to wait until an instant that may matter. It is not positive if
// none is left.
func (h *house) next() time.Duration {
	all := []time.Duration{h.paused}
	h.gates.any(func(g *gate) bool {
		if g.shut {
			all = append(all, g.closed, g.told, g.opens(h.paused), g.ready(h.paused))
		}
		return false
	})
	for _, c := range h.guests {
		if c.does == waits {
			all = append(all, c.timer)
		}
		if c.request.Deadline != 0 && h.lives(&c) {
			all = append(all, c.request.Deadline, c.request.Deadline+1)
		}
	}
	wait := span.Forever
	for _, at := range all {
		if at > h.now && at < span.Forever {
			wait = min(wait, at-h.now)
		}
	}
	if wait == span.Forever {
		return 0
	}
	return wait
}

func (h *house) Do(e event) {
	if e.what == passes {
		h.now += e.wait
		return
	}
	c := &h.guests[e.who]
	if c.does != waits || e.what == leaves {
		c.left--
	}
	switch key := c.request.Key; e.what {
	case asks:
		h.ask(c)
	case hurries:
		h.now += e.wait
		h.ask(c)
		h.wrong, h.over = h.Check(), true
	case leaves:
		if c.ticket.Held || c.ticket.Out {
			h.wake(h.gates.Leave(&c.ticket, h.paused))
		}
		h.end(c)
	case accepts:
		c.request.Took = h.now - c.sent
		h.wake(h.gates.Accept(&c.ticket, key, h.now, h.paused))
		h.end(c)
	case fails:
		h.again(c)
		h.wake(h.gates.Pass(&c.ticket, key, h.now, h.paused))
	case bare:
		h.refuse(c, 0)
	case worded:
		h.told[key] = h.now + time.Second
		h.refuse(c, time.Second)
	case down:
		h.paused = h.now + time.Second
		h.refuse(c, time.Second)
	}
}

// end ends a request: the guest's next one is new.
func (h *house) end(c *guest) {
	c.does, c.called, c.timer, c.passed, c.ticket, c.request.Took = idles, false, span.Forever, 0, Ticket{}, 0
}

func (h *house) again(c *guest) { c.does, c.request.Took = idles, h.now-c.sent }

func (h *house) refuse(c *guest, word time.Duration) {
	h.again(c)
	var before, after time.Duration
	free := c.ticket.gate == nil || !c.ticket.gate.shut || c.ticket.gate.pace.free
	current := c.ticket.gate != nil && c.ticket.epoch == c.ticket.gate.epoch
	h.gates.Look(h.now, func(_ int, closed time.Duration) { before = max(before, closed) })
	_, wakes := h.gates.Refuse(&c.ticket, c.request.Key, word, h.now, h.paused, noDraw)
	h.wake(wakes)
	h.gates.Look(h.now, func(_ int, closed time.Duration) { after = max(after, closed) })
	switch {
	case after < max(before, word):
		h.fail("the gate is closed for %v, after %v and a word of %v", after, before, word)
	case word == 0 && free && after != before:
		h.fail("a refusal that says nothing about others closes the gate for %v", after)
	case word == 0 && current && !c.ticket.Alone && after <= 0:
		h.fail("a refusal that concerns all has no effect")
	}
}

func (h *house) fail(format string, args ...any) {
	if h.wrong == nil {
		h.wrong = fmt.Errorf(format, args...)
	}
}

// wake calls the guests that must ask again, if the table says that there are any.
func (h *house) wake(wakes bool) {
	for wakes {
		who := h.gates.NextWoken()
		if who == nil {
			return
		}
		h.guests[who.(int)].called = true
	}
}

func (h *house) ask(c *guest) {
	g := h.gateOf(c)
	var before gate
	if g != nil {
		before = *g
	}
	c.called, c.timer = false, span.Forever
	a := h.gates.Admit(&c.ticket, &c.request, h.now, h.paused, noDraw)
	h.wake(a.Wakes)
	switch {
	case a.Waits != (a.Wait > 0) || a.Waits && a.Refusal != 0:
		h.fail("a wait without length, or a refusal that waits: %+v", a)
	case a.Refusal != 0:
		if c.ticket.Held || c.ticket.Out {
			h.fail("a refused caller keeps its place")
		}
		if c.request.Deadline == 0 && max(h.told[c.request.Key], h.paused)-h.now <= c.request.Patience && (g == nil || g.told-h.now <= c.request.Patience) {
			h.fail("refused for no reason: %d", a.Refusal)
		}
		h.end(c)
	case a.Waits:
		if told := max(h.told[c.request.Key], h.paused); told-h.now > c.request.Patience {
			h.fail("waits for a pause of %v", told-h.now)
		}
		c.does = waits
		if a.Wait < span.Forever {
			c.timer = h.now + a.Wait
		}
		if d := c.request.Deadline; d != 0 && c.timer > d-c.request.Took {
			h.fail("a wait past the deadline")
		}
	default:
		c.does, c.sent, c.passed = sends, h.now, 0
		h.released(c, &before)
	}
}

// gateOf returns the gate at which c asks, or nil if there is none.
func (h *house) gateOf(c *guest) *gate {
	if c.request.Key == "" {
		return &h.gates.own
	}
	return h.gates.keyed[c.request.Key]
}

// released checks the release of c by a gate that was as before.
func (h *house) released(c *guest, before *gate) {
	key := c.request.Key
	last, any := h.last[key]
	switch d := c.request.Deadline; {
	case h.now < h.told[key]:
		h.fail("released %v before the end of the wait that the server asked for", h.told[key]-h.now)
	case h.now < h.paused:
		h.fail("released %v before the end of the pause of the host", h.paused-h.now)
	case d != 0 && h.now > d:
		h.fail("released %v after its deadline", h.now-d)
	}
	if !before.shut {
		return
	}
	h.last[key] = h.now
	for i := range h.guests {
		o := &h.guests[i]
		if o == c || o.request.Key != key || o.does != waits {
			continue
		}
		if o.ticket.number > c.ticket.number {
			if before.probe == probeDue && c.ticket.refused >= probeRefusals && c.ticket.passed < maxPassed && o.ticket.refused < c.ticket.refused {
				h.fail("the probe falls to the request that has been refused %d times", c.ticket.refused)
			}
			continue
		}
		o.passed++
		if before.probe != probeDue || before.queue.list[before.queue.first].refused < probeRefusals || c.ticket.refused >= o.ticket.refused || o.ticket.passed >= maxPassed {
			h.fail("released before a request that came earlier")
		}
	}
	since := h.now - max(last, before.closed)
	alone := before.queue.len() <= 1 && since >= before.pause+alone
	if gap := before.pace.gap(); any && last >= before.closed && since < gap && !alone {
		h.fail("released %v after the last one, at a gap of %v", since, gap)
	}
	for i := range h.guests {
		o := &h.guests[i]
		if o != c && o.request.Key == key && o.does == sends && o.ticket.Out && o.ticket.epoch == before.epoch && before.epoch != 0 && !before.fresh && h.now-o.sent < max(hangs, before.pause) {
			h.fail("released %v after a probe without a result", h.now-o.sent)
		}
	}
}

func (h *house) Check() error {
	if h.wrong != nil {
		return h.wrong
	}
	waiting, lost, rests := 0, false, false
	h.gates.Look(h.now, func(n int, _ time.Duration) { waiting += n })
	probes := map[*gate]int{}
	for i := range h.guests {
		c := &h.guests[i]
		g := c.ticket.gate
		switch c.does {
		case waits:
			if j, _ := g.queue.search(c.ticket.number); g.queue.has(c.ticket.number) {
				waiting--
				if n := g.queue.list[j].passed - c.ticket.passed; n != c.passed {
					return fmt.Errorf("%c was passed %d times, not %d", 'A'+i, c.passed, n)
				}
			} else if !c.called {
				return fmt.Errorf("%c has lost its place, and nobody has told it", 'A'+i)
			}
		case sends:
			if g != nil && c.ticket.Out && c.ticket.epoch == g.epoch {
				probes[g]++
			}
		case idles:
			if c.ticket.Held || c.ticket.Out {
				return fmt.Errorf("%c keeps a place", 'A'+i)
			}
		}
	}
	h.gates.any(func(g *gate) bool {
		if f := g.queue.front(g.probe == probeDue); f != nil {
			c := &h.guests[f.who.(int)]
			lost = lost || !c.called && c.timer > max(h.now, g.ready(h.paused))
		}
		rests = rests || g.queue.len() > 0 && g.idle(h.now+48*time.Hour)
		return false
	})
	switch {
	case lost:
		return errors.New("the request in front isn't called in time")
	case rests:
		return errors.New("a gate is forgotten at which a request waits")
	case waiting != 0:
		return fmt.Errorf("%d places in queues belong to nobody", waiting)
	}
	var err error
	h.gates.any(func(g *gate) bool {
		if g.probe == probeAway && probes[g] == 0 {
			err = errors.New("the probe is lost")
		}
		return false
	})
	return cmp.Or(err, h.drain())
}

// drain checks that all who wait are released or refused in time even if no response
// comes any more, and that then nothing is left.
func (h *house) drain() error {
	end := max(h.now, h.paused)
	h.gates.any(func(g *gate) bool {
		if g.shut {
			end = max(end, g.closed, g.next)
			end += time.Duration(g.queue.len()) * max(hangs, g.pause+alone, 4*g.took+hangs)
		}
		return false
	})
	for range 100 {
		var next *guest
		for i := range h.guests {
			c := &h.guests[i]
			if c.does == waits && c.called {
				next = c
				break
			}
			if c.does == waits && (next == nil || c.timer < next.timer) {
				next = c
			}
		}
		if next == nil {
			break
		}
		if !next.called {
			if next.timer == span.Forever {
				return errors.New("all wait, and nobody will ask")
			}
			h.now = max(h.now, next.timer)
		}
		h.ask(next)
	}
	if h.now > end {
		return fmt.Errorf("the last request waits until %v, longer than %v", h.now, end)
	}
	for i := range h.guests {
		switch c := &h.guests[i]; c.does {
		case waits:
			return fmt.Errorf("%c waits forever", 'A'+i)
		case sends:
			h.wake(h.gates.Accept(&c.ticket, c.request.Key, h.now, h.paused))
			h.end(c)
		}
	}
	h.gates.Sweep(h.now + 48*time.Hour)
	if !h.gates.Idle(h.now+48*time.Hour) || len(h.gates.keyed) > 0 || h.gates.Made.Load() != 0 {
		return errors.New("something is left of a gate without callers")
	}
	return h.wrong
}
