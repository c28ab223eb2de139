// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package gate is the rule by which requests wait for a host that has refused one:
// one queue, at a pace that it learns. It has no clock and no lock, and makes nobody
// wait: callers come back. Instants are durations since an epoch of their choice.
package gate

import (
	"math"
	"time"

	"github.com/retrip/retrip/internal/span"
)

// gate releases the requests to a host that has refused one. The requests wait
// in one queue, in the order in which they first came. The gate releases one
// after another, at a rate that it learns from what the server accepts and
// refuses. After each pause one request goes alone, as a probe, and the others
// wait for its result. The zero gate is open: the server has refused nothing
// yet. Its owner must lock it.
type gate struct {
	queue queue
	pace  pace

	closedUntil     time.Duration // end of the pause
	retryAfterUntil time.Duration // end of the wait that the server asked for; never after closedUntil
	nextRelease     time.Duration // the earliest that the pace allows
	lastRelease     time.Duration // if there is a probe, its own
	probe           probe
	begun           bool // the server has refused a request: before, only the queue is valid
	dropped         bool // the gate no longer belongs to its key

	// Of the last pause of this gate's own making:
	epoch    uint32        // its number: requests released before have an earlier one
	pausedAt time.Duration // when it began
	planned  time.Duration // its length, as planned
	fresh    bool          // a request released since then was accepted
	accepted float64       // requests accepted since then, whenever they were sent

	misses   int           // pauses in a row after which nothing was accepted
	took     time.Duration // usual duration of an attempt
	lastWait time.Duration // when a request last waited

	asker  int64         // number of the request that was last told when to ask again
	asksAt time.Duration // the instant it was told, which may be in the past
}

// Ticket is what a gate keeps about a request. The zero Ticket is that of a
// new request.
type Ticket struct {
	gate    *gate         // the gate at which the request has been; nil if none yet
	number  int64         // its number in the queue, from when it first has to wait there; 0 before
	gap     time.Duration // gap of the gate when it released the last attempt
	sent    time.Duration // instant of that release
	epoch   uint32        // epoch of the gate then
	refused uint8         // how often the server has refused the request
	passed  uint8         // how often a later request was released first, as a probe
	Waited  bool          // the request waits, or has waited, for its next attempt
	Out     bool          // the gate has released it and doesn't know the outcome yet
	Alone   bool          // its last refusal says nothing about the other requests
	limited bool          // it or others had to wait: if it is accepted, the pace may be higher
}

// RetryAfterLeft returns how much longer the server has asked to wait at the gate at which c has
// been, or 0.
func (c *Ticket) RetryAfterLeft(now time.Duration) time.Duration {
	if c.gate == nil || !c.gate.begun {
		return 0
	}
	return max(0, span.Sub(c.gate.retryAfterUntil, now))
}

// Request is a request at the gates of a host.
type Request struct {
	Key      string        // names its gate; empty: the host's own
	Who      any           // NextWoken returns it when the request must ask again; nil: never
	Deadline time.Duration // instant by which its response must arrive; 0: none
	Needed   time.Duration // how long its next attempt needs
	Patience time.Duration // the longest pause that it waits for
}

// Answer is what a gate says to a request that asks for a release.
type Answer struct {
	Refusal Refusal       // why the request must not wait; 0 if it may go or wait
	Waits   bool          // ask again after Wait, or when woken; otherwise go now
	Wakes   bool          // other requests must ask again now: see NextWoken
	Wait    time.Duration // the longest duration if only a wake-up ends it
}

// Refusal is why a request must not wait at a gate.
type Refusal uint8

const (
	TooLong Refusal = iota + 1 // longer than its Patience
	Paused                     // the server asked for a pause beyond its deadline
	Late                       // its turn would come after its deadline
)

// probe is the state of the single request that goes alone after a pause.
type probe uint8

const (
	probeNone probe = iota
	probeDue
	probeAway
)

const (
	// The shortest and longest pause if the server names none.
	pauseLow  = 250 * time.Millisecond
	pauseHigh = 30 * time.Second

	// No pause is longer, whatever the server asks for. Requests that wait at
	// most MaxWait fail at once either way, and a mistake of the server doesn't
	// last forever.
	PauseMost = 24 * time.Hour

	// A gate at which no request waits is forgotten after this time, or after
	// the plateau if that is longer. Until then the rate is worth keeping.
	idleAfter = time.Minute

	// A second probe joins one that has no result after this time, after the
	// length of the pause, and after four times the usual duration of an
	// attempt.
	hangs = time.Second

	// A request that waits alone waits no longer for the pace than for the length of
	// the pause and this: a pace is for those who would otherwise go together.
	alone = time.Second
)

// opens returns the instant at which pause and pace allow the next release, for
// a host that is paused until pausedUntil.
func (g *gate) opens(pausedUntil time.Duration) time.Duration {
	if !g.begun {
		return pausedUntil
	}
	next := g.nextRelease
	if g.queue.len() <= 1 {
		next = min(next, span.Add(max(g.lastRelease, g.closedUntil), span.Add(g.planned, alone)))
	}
	return max(next, g.closedUntil, pausedUntil)
}

// ready is like opens, but also waits for the result of the probe for as long
// as one can be expected.
func (g *gate) ready(pausedUntil time.Duration) time.Duration {
	at := g.opens(pausedUntil)
	if g.probe == probeAway {
		at = max(at, span.Add(g.lastRelease, max(hangs, g.planned, span.Mul(g.took, 4))))
	}
	return at
}

// mustNotWait returns why a request must not wait behind ahead others, or 0 if it may.
func (g *gate) mustNotWait(w *waiter, ahead int, now, pausedUntil time.Duration) Refusal {
	retryAfter := max(g.retryAfterUntil, pausedUntil)
	at := g.opens(pausedUntil)
	switch {
	case span.Sub(retryAfter, now) > w.patience:
		return TooLong
	case retryAfter > now && retryAfter > w.until:
		return Paused
	case max(at, now) > w.until:
		return Late
	case !g.begun || g.pace.free:
		// Only the pause is known.
		return 0
	}
	behind := float64(ahead) * float64(g.pace.gap())
	if float64(max(at, now))+behind > float64(w.until) {
		return Late
	}
	return 0
}

// until returns the instant by which an attempt must begin to end before the
// deadline, if the attempt takes as long as its caller expects, or as usual.
func (q *Request) until(usual time.Duration) time.Duration {
	if q.Deadline == 0 {
		return span.Forever
	}
	return span.Sub(q.Deadline, max(q.Needed, usual))
}

// admit releases c if it is c's turn; otherwise it makes c wait or give up.
func (g *gate) admit(c *Ticket, q *Request, now, pausedUntil time.Duration) Answer {
	w := waiter{number: c.number, until: q.until(g.took), patience: q.Patience, who: q.Who, refused: c.refused, passed: c.passed}
	waits := c.number != 0 && g.queue.has(c.number)
	at := g.ready(pausedUntil)
	if q.Deadline != 0 && now > q.Deadline {
		return Answer{Refusal: Late}
	}
	if !waits {
		if g.queue.len() == 0 && at <= now {
			g.release(c, now)
			return Answer{}
		}
		if c.number == 0 {
			g.queue.last++
			c.number, w.number = g.queue.last, g.queue.last
		}
		if refusal := g.mustNotWait(&w, g.queue.ahead(w.number), now, pausedUntil); refusal != 0 {
			return Answer{Refusal: refusal}
		}
		g.queue.insert(w)
	}
	g.lastWait, c.Waited = now, true
	d := Answer{Waits: true, Wait: span.Forever}
	if g.queue.front(g.probe == probeDue).number == c.number {
		if at <= now {
			g.release(c, now)
			return Answer{}
		}
		if refusal := g.mustNotWait(&w, 0, now, pausedUntil); refusal != 0 {
			return Answer{Refusal: refusal}
		}
		g.asker, g.asksAt = c.number, at
		d.Wait = span.Sub(at, now)
	}
	if w.until < span.Forever {
		if now >= w.until {
			return Answer{Refusal: Late}
		}
		d.Wait = min(d.Wait, span.Sub(w.until, now))
	}
	return d
}

// release lets c go.
func (g *gate) release(c *Ticket, now time.Duration) {
	c.passed = max(c.passed, g.queue.release(c.number))
	c.Out, c.epoch, c.sent = true, g.epoch, now
	if !g.begun {
		return
	}
	c.gap, g.lastRelease = g.pace.gap(), now
	// Only a request that the pace held back is evidence that the pace could be
	// higher.
	c.limited = c.Waited || g.queue.len() > 0
	c.Waited = false
	// Unused time doesn't accumulate.
	g.nextRelease = span.Add(now, c.gap)
	if g.probe != probeNone {
		g.probe = probeAway
	}
}

// leave gives up what c has at the gate: its place, or the role of the probe if
// c was the probe and its outcome says nothing about the pace.
func (g *gate) leave(c *Ticket) {
	if c.number != 0 {
		g.queue.remove(c.number)
	}
	if g.probes(c) {
		g.probe = probeDue
	}
	c.Out, c.Waited = false, false
}

// probes reports whether c is the probe: the newest, if more than one has no result.
func (g *gate) probes(c *Ticket) bool {
	return c.Out && c.epoch == g.epoch && g.probe == probeAway && c.sent == g.lastRelease
}

// accept records that the server accepted c.
func (g *gate) accept(c *Ticket, now time.Duration) {
	out := c.Out
	c.Out = false
	if !g.begun {
		return
	}
	g.accepted++
	g.pace.good++
	if !out {
		return
	}
	g.took += (span.Sub(now, c.sent) - g.took) / 4
	if c.epoch != g.epoch {
		return
	}
	g.misses, g.fresh = 0, true
	g.probe = probeNone
	if !c.limited {
		return
	}
	before := g.pace.gap()
	g.pace.grow(c.gap)
	// A shorter gap counts from the last release on.
	g.nextRelease -= max(0, before-g.pace.gap())
}

// refuse records that the server refused c and asked for the wait retryAfter, or 0 if
// the server named no wait. It reports whether all calls must wait longer, so
// that some may miss their deadlines.
func (g *gate) refuse(c *Ticket, retryAfter, now time.Duration, epoch uint32, draw uint64) bool {
	current, probe := c.Out && c.epoch == g.epoch, g.probes(c)
	c.Out = false
	c.refused += min(1, math.MaxUint8-c.refused)
	retryAfter = min(retryAfter, PauseMost)
	if !g.begun {
		g.begin(retryAfter, now)
	}
	news := current && g.fresh || retryAfter == 0 && g.pace.free && g.pace.good > 0
	turned := g.pace.judge(news, retryAfter > 0, max(retryAfter, g.planned), g.took, now)
	if c.Alone = retryAfter == 0 && g.pace.free; c.Alone {
		if probe {
			g.probe = probeDue
		}
		return false
	}
	if turned {
		g.pace.restart(max(retryAfter, g.planned))
	}
	if !current && g.epoch != 0 {
		// The request was sent before the last pause. Its refusal says
		// nothing about the pace, but the gate obeys the wait it names.
		until := span.Add(now, retryAfter)
		shift := span.Sub(until, g.closedUntil)
		if retryAfter > 0 {
			g.retryAfterUntil = max(g.retryAfterUntil, until)
		}
		if retryAfter == 0 || shift <= 0 {
			return false
		}
		g.closedUntil = until
		g.nextRelease = span.Add(g.nextRelease, shift)
		return shift > time.Second || retryAfter > g.queue.patience
	}
	pause := retryAfter
	if retryAfter == 0 {
		pause = max(doubled(pauseLow, g.misses), min(2*c.gap, time.Second))
	} else if g.misses > 0 {
		pause = max(pause, doubled(retryAfter, g.misses-1)) // the last pause was too short
	}
	g.retryAfterUntil = max(g.retryAfterUntil, span.Add(now, retryAfter))
	switch {
	case turned || g.epoch == 0:
	case !g.fresh:
		// The server refused the probe, which says nothing about the pace.
		g.misses++
	case !g.pace.free:
		g.pace.setRate(c.gap, g.accepted, now-g.pausedAt)
	}
	g.close(pause, now, epoch, draw)
	return true
}

// close begins a pause.
func (g *gate) close(pause, now time.Duration, epoch uint32, draw uint64) {
	g.pace.restart(pause)
	g.fresh, g.accepted, g.pausedAt, g.planned = false, 0, now, pause
	g.epoch, g.probe = epoch, probeDue
	g.closedUntil = max(g.closedUntil, span.Add(now, pause))
	// The server told all processes of a fleet the same time, but they must not
	// all start at the same instant.
	g.nextRelease = span.Add(g.closedUntil, span.Draw(0, max(g.pace.gap(), pause/16), span.Remix(draw)))
}

// begin sets the first rate of a gate that was open.
func (g *gate) begin(pause, now time.Duration) {
	g.pace = firstPace(pause, now)
	g.pace.restart(pause)
	g.begun, g.retryAfterUntil, g.closedUntil, g.lastWait, g.nextRelease, g.pausedAt = true, now, now, now, now, now
}

// doubled returns d, doubled n times, but at most the longest pause that the
// gate chooses itself.
func doubled(d time.Duration, n int) time.Duration {
	for ; n > 0 && d < pauseHigh; n-- {
		d *= 2
	}
	return min(d, pauseHigh)
}

// idle reports whether the gate has no state worth keeping.
func (g *gate) idle(now time.Duration) bool {
	if !g.begun {
		return g.queue.len() == 0
	}
	keep := max(idleAfter, time.Duration(g.pace.plateau()*float64(time.Second)))
	used := max(g.closedUntil, g.lastWait)
	if now < g.pace.until {
		used = max(used, g.lastRelease) // the pace that has failed must not be tried again yet
	}
	return g.queue.len() == 0 && now > span.Add(used, keep)
}
