// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/retrip/retrip/internal/span"
)

// State tells times from now, and leaves out what has no effect any more: which of the
// callers with equal requests is which, how many there were before, instants that are
// over, what a caller has that can do nothing more, and the intervals in which a pace is
// judged, as these are longer than any story.
func (h *house) State() []any {
	if h.over {
		return []any{h.wrong != nil}
	}
	var guests []shown
	for i := range h.guests {
		guests = append(guests, h.show(i))
	}
	slices.SortFunc(guests, func(a, b shown) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.rank, b.rank), cmp.Compare(a.does, b.does), cmp.Compare(a.left, b.left), cmp.Compare(a.timer, b.timer),
			cmp.Compare(a.sent, b.sent), cmp.Compare(a.gap, b.gap), cmp.Compare(a.refused, b.refused), cmp.Compare(a.flags.order(), b.flags.order()))
	})
	var place [3]int // of the guests in this order
	for i := range guests {
		place[guests[i].who], guests[i].who = i, 0
	}
	all := []any{h.wrong != nil, guests, h.until(h.paused, 0)}
	for _, key := range append([]string{""}, slices.Sorted(maps.Keys(h.gates.keyed))...) {
		g := &h.gates.own
		if key != "" {
			g = h.gates.keyed[key]
		}
		all = append(all, h.until(h.told[key], 0), h.recent(key, g), h.relate(key, g, &place))
	}
	return all
}

// until returns how long it is from now until an instant, at least least.
func (h *house) until(at, least time.Duration) time.Duration {
	if at == span.Forever {
		return at
	}
	return max(at-h.now, least)
}

// shown is what State tells of a guest.
type shown struct {
	who, kind               int
	rank                    int // of its number
	left                    int
	does                    doing
	refused, passed, behind uint8
	timer, sent, gap        time.Duration
	deadline, took          time.Duration
	flags                   flags
}

type flags struct{ out, current, probe, known, held, due, limited bool }

func (f flags) order() (n int) {
	for i, set := range []bool{f.out, f.current, f.probe, f.known, f.held, f.due, f.limited} {
		if set {
			n |= 1 << i
		}
	}
	return n
}

func (h *house) show(i int) shown {
	c := &h.guests[i]
	t, q, g := &c.ticket, &c.request, c.ticket.gate
	s := shown{who: i, does: c.does, kind: slices.IndexFunc(h.guests[:], func(o guest) bool {
		return o.request.Key == q.Key && o.request.Patience == q.Patience && o.request.Deadline == q.Deadline
	})}
	f := &s.flags
	if c.does == sends {
		f.out, f.current = t.Out, h.current(c)
		if f.current {
			f.probe = g.probes(t)
			if !g.fresh {
				s.sent = h.until(c.sent, -max(hangs, g.pause))
			}
		}
	}
	if !h.lives(c) {
		return s
	}
	s.left, s.passed, s.behind = c.left, t.passed, c.passed
	if !h.tame() {
		s.refused = t.refused
	}
	if f.held, f.known = t.Held, g != nil && !g.dropped; g != nil {
		s.rank = h.rank(g, t.number)
	}
	if q.Deadline != 0 {
		s.deadline, s.took = h.until(q.Deadline, -1), q.Took
	}
	switch c.does {
	case waits:
		if f.due = c.due(h.now); !f.due {
			s.timer = h.until(c.timer, 0)
		}
	case sends:
		s.sent = h.until(c.sent, -patience)
		if f.current {
			if f.limited = t.limited; !g.pace.free {
				s.gap = t.gap
			}
		}
	}
	return s
}

// current reports whether the gate has released c's attempt since its last pause.
func (h *house) current(c *guest) bool {
	t := &c.ticket
	return c.does == sends && t.gate != nil && t.gate.shut && t.Out && t.epoch == t.gate.epoch
}

// lives reports whether anything can still happen to c.
func (h *house) lives(c *guest) bool {
	return c.does == waits || c.left > 0 && (c.does == idles || h.now-c.sent <= patience)
}

// attempts returns how many attempts of c may still end.
func (h *house) attempts(c *guest) int {
	switch {
	case !h.lives(c):
		return 0
	case c.does == idles:
		return c.left / 2
	}
	return (c.left + 1) / 2
}

// tame reports whether no guest can wait again after so many refusals that it leaves a
// probe to others.
func (h *house) tame() bool {
	return !slices.ContainsFunc(h.guests[:], func(c guest) bool {
		again := c.left
		if c.does == idles {
			again--
		}
		return h.lives(&c) && int(c.ticket.refused)+max(0, again)/2 >= probeRefusals
	})
}

// rank returns the place of a number among those that g has given and that may return.
func (h *house) rank(g *gate, number int64) int {
	if number == 0 {
		return 0
	}
	n := 1
	for i := range h.guests {
		if t := &h.guests[i].ticket; t.gate == g && t.number != 0 && t.number < number && h.lives(&h.guests[i]) {
			n++
		}
	}
	return n
}

// waitsFor reports whether the guest with a number at g waits for its time to ask.
func (h *house) waitsFor(g *gate, number int64) bool {
	return g.queue.has(number) && slices.ContainsFunc(h.guests[:], func(c guest) bool {
		return c.does == waits && c.ticket.gate == g && c.ticket.number == number && !c.due(h.now)
	})
}

// recent returns when the gate of key last released a request, if that was since its
// last pause and less than a gap ago.
func (h *house) recent(key string, g *gate) time.Duration {
	last, any := h.last[key]
	if !any || !g.shut || last < g.closed {
		return span.Forever
	}
	return h.until(last, -g.pace.gap())
}

// relate returns what State tells of the gate of key.
func (h *house) relate(key string, g *gate, place *[3]int) gate {
	n, hurry, stale, ends := *g, false, false, 0
	for i := range h.guests {
		c := &h.guests[i]
		hurry = hurry || c.request.Deadline != 0 || c.request.Patience < time.Minute
		if c.request.Key == key {
			stale = stale || c.does == sends && h.lives(c) && !h.current(c)
			ends += h.attempts(c)
		}
	}
	p := &n.pace
	n.busy, n.epoch, p.from, p.until, p.good, p.bad = 0, min(n.epoch, 1), 0, 0, 0, 0
	most := n.took
	for range ends {
		most += (patience - most) / 4
	}
	if !hurry && 4*most <= max(hangs, n.pause) {
		n.took = 0 // no probe takes longer than one that hangs
	}
	if n.shut {
		for _, at := range []*time.Duration{&n.closed, &n.told, &n.next, &n.left, &n.probed, &n.news, &n.askAt} {
			*at -= h.now
		}
		n.told, n.left = max(n.told, -1), max(n.left, n.closed)
		if !stale && n.closed <= 0 {
			// Only the refusal of an earlier attempt moves the end of a pause.
			if n.next = max(n.next, 0); n.next == 0 {
				n.left = 0
			}
			n.left = max(n.left, -n.pause-alone)
			n.closed = n.left
		}
		if n.probe != probeAway {
			n.probed = 0
		} else if n.took == 0 {
			n.probed = max(n.probed, -max(hangs, n.pause))
		}
	}
	if p.free {
		n.accepted, n.news, p.unit = 0, 0, 0
	}
	q := &n.queue
	if h.waitsFor(g, n.asker) {
		n.asker = int64(h.rank(g, n.asker))
	} else {
		n.asker, n.askAt = 0, 0
	}
	q.list, q.first, q.last = slices.Clone(q.list[q.first:]), 0, 0
	if !hurry {
		q.list, q.gone = slices.DeleteFunc(q.list, func(w waiter) bool { return w.gone }), 0
	}
	if !hurry || q.len() == 0 {
		q.patience = 0
	}
	for i := range q.list {
		w := &q.list[i]
		if w.number = int64(h.rank(g, w.number)); w.who != nil {
			w.who = place[w.who.(int)]
		}
		if w.until = h.until(w.until, -span.Forever); h.tame() {
			w.refused = 0
		}
	}
	return n
}
