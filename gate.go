// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"math/bits"
	"slices"
	"time"
)

// gate releases requests one after another when a pause is over. Every request
// that must wait takes a ticket; the counter of released tickets runs at one
// per gap and stands still during a pause. The gap follows the answers: it
// shrinks with every success, quickly until the first refusal after it and
// slowly later, and grows with a refusal. Its owner locks.
type gate struct {
	gap    time.Duration // between two releases; 0 is an open gate
	at     time.Duration // instant at which the counter stood at count
	count  int64         // released tickets then, in units of ticket
	last   int64         // the newest ticket
	free   []int64       // tickets given up, in order
	word   time.Duration // the server's last word
	closed time.Duration // instant at which the last pause ends
	epoch  uint32        // counts pauses: refusals of an earlier one say nothing new
	steady bool          // the limit has been met once
}

const (
	ticket = 1 << 20 // fixed-point one

	minGap = 10 * time.Microsecond

	// An open end of the queue is looked at again after half of the estimated
	// time, since the gap may have shrunk; a near one is waited for.
	nearEnough = 100 * time.Millisecond
)

// throughGate asks for a release at the instant now.
func (h *Host) throughGate(r *Rules, c *Call, now time.Duration) Decision {
	s := h.more.Load()
	if s == nil {
		return h.throughPause(r, c, now)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := &s.gate
	c.epoch = g.epoch
	if g.idle(now) {
		*g = gate{epoch: g.epoch}
		return h.throughPause(r, c, now)
	}
	place := c.ticket
	if place == 0 {
		place = g.place(now)
	}
	wait := max(g.due(place)-now, h.pausedFor(now))
	if wait > 0 && wait > c.left(now) {
		// A place for a request that doesn't come would hold back others.
		return Decision{Reason: ReasonHostPaused}
	}
	g.take(place)
	if wait <= 0 {
		c.ticket = 0
		return Decision{Retry: true}
	}
	c.ticket = place
	if wait > nearEnough && wait > 2*h.pausedFor(now) {
		wait /= 2
	}
	return Decision{Retry: true, Wait: wait}
}

// place returns the place in the queue that a newcomer gets: the first of those
// given up, or the one at the end.
func (g *gate) place(now time.Duration) int64 {
	released := g.released(now)
	// Places whose time has passed are gone. Taken all at once they would be
	// the burst that the gate is there to prevent.
	passed, _ := slices.BinarySearch(g.free, released+1)
	g.free = slices.Delete(g.free, 0, passed)
	if len(g.free) > 0 {
		return g.free[0]
	}
	return max(g.last+ticket, released)
}

// take makes a place taken.
func (g *gate) take(place int64) {
	if len(g.free) > 0 && g.free[0] == place {
		g.free = slices.Delete(g.free, 0, 1)
	}
	g.last = max(g.last, place)
}

// returnTicket gives up the place of a request that doesn't wait for it any
// longer, for newcomers: those who wait already have their times.
func (s *hostSide) returnTicket(c *Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := &s.gate
	if i, found := slices.BinarySearch(g.free, c.ticket); !found && c.ticket <= g.last {
		g.free = slices.Insert(g.free, i, c.ticket)
	}
	c.ticket = 0
	for n := len(g.free); n > 0 && g.free[n-1] == g.last; n-- {
		g.free = g.free[:n-1]
		g.last -= ticket
	}
}

// throughPause is the gate of a host that was paused by requests whose policy
// has none.
func (h *Host) throughPause(r *Rules, c *Call, now time.Duration) Decision {
	c.ticket = 0 // of a queue that is no more
	paused := h.pausedFor(now)
	if paused == 0 {
		return Decision{Retry: true}
	}
	if paused > c.left(now) {
		return Decision{Reason: ReasonHostPaused}
	}
	return Decision{Retry: true, Wait: paused}
}

// closeGate takes in a refusal that asked for word.
func (s *hostSide) closeGate(c *Call, word, now time.Duration, draw uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := &s.gate
	released := g.released(now)
	switch {
	case g.gap == 0:
		g.gap = max(minGap, min(word/8, time.Second))
		g.epoch++
	case c.epoch == g.epoch:
		if g.steady {
			g.gap += g.gap / 2
		} else {
			g.gap *= 2
		}
		g.gap = min(g.gap, max(word, minGap))
		g.steady = true
		g.epoch++
	}
	g.word = word
	g.count = released
	g.closed = max(g.closed, addCapped(now, word))
	// A fleet was told the same: its processes don't start in one instant.
	g.at = addCapped(g.closed, uniform(0, g.gap, remix(draw)))
}

// paceUp takes in an accepted answer.
func (h *Host) paceUp(c *Call, now time.Duration) {
	s := h.more.Load()
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := &s.gate
	if g.gap == 0 || c.epoch != g.epoch {
		return
	}
	// Per word of time about word/gap answers come in: the rate grows by
	// half in that time at first, by a sixteenth later.
	share := 2 * g.word / g.gap
	if g.steady {
		share *= 8
	}
	g.count, g.at = g.released(now), max(g.at, now)
	// At least by one, or a gap below the root of the share would never
	// shrink again.
	g.gap = max(minGap, g.gap-max(1, g.gap/max(share, 2)))
}

// released returns the counter at the instant now.
func (g *gate) released(now time.Duration) int64 {
	if g.gap == 0 || now <= g.at {
		return g.count
	}
	elapsed := now - g.at
	// A gap of hours times a ticket is more than 64 bits.
	hi, lo := bits.Mul64(uint64(elapsed%g.gap), ticket)
	part, _ := bits.Div64(hi, lo, uint64(g.gap))
	return g.count + int64(elapsed/g.gap)*ticket + int64(part)
}

// due returns the instant at which the counter reaches t.
func (g *gate) due(t int64) time.Duration {
	whole, part := time.Duration((t-g.count)/ticket), time.Duration((t-g.count)%ticket)
	return g.at + whole*g.gap + part*(g.gap/ticket) + part*(g.gap%ticket)/ticket
}

// waiting returns how many tickets are neither released nor given up.
func (g *gate) waiting(now time.Duration) int {
	released := g.released(now)
	passed, _ := slices.BinarySearch(g.free, released+1)
	return int((max(0, g.last-released)+ticket-1)/ticket) - (len(g.free) - passed)
}

// idle reports whether nobody waits and the last pause is so long over that it
// says nothing any more.
func (g *gate) idle(now time.Duration) bool {
	return g.gap == 0 || g.waiting(now) == 0 && now > g.closed+max(10*g.word, 10*time.Second)
}
