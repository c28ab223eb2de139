// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"math"
	"time"
)

// gate releases the requests to a host that has refused one. The requests wait
// in one queue, in the order in which they first came. The gate releases one
// after another, at a rate that it learns from what the server accepts and
// refuses. After each pause one request goes alone, as a probe, and the others
// wait for its result. The zero gate is open: the server has refused nothing
// yet. Its owner must lock it.
type gate struct {
	queue gateQueue
	pace  gatePace

	closed  time.Duration // end of the pause
	told    time.Duration // end of the wait that the server asked for; never after closed
	next    time.Duration // the next release that the pace allows
	probed  time.Duration // when the current probe was released
	probe   probe
	shut    bool // a request was refused: the fields below are valid
	dropped bool // the gate no longer belongs to its key

	epoch    uint32        // number of the pause before which the rate was set
	fresh    bool          // a request of this epoch was accepted
	news     time.Duration // when that pause began
	accepted float64       // requests accepted since then, whenever they were sent
	pause    time.Duration // planned length of that pause
	misses   int           // pauses in a row after which nothing was accepted
	took     time.Duration // usual duration of an attempt
	busy     time.Duration // when a request last waited

	asker int64         // number of the request that was last told when to ask again
	askAt time.Duration // the instant it was told, which may be in the past
}

// probe is the state of the single request that goes alone after a pause.
type probe uint8

const (
	probeNone probe = iota
	probeDue
	probeAway
)

const (
	// The shortest and longest pause if the server names none.
	gatePauseLow  = 250 * time.Millisecond
	gatePauseHigh = 30 * time.Second

	// No pause is longer, whatever the server asks for. Requests that wait at
	// most MaxWait fail at once either way, and a mistake of the server doesn't
	// last forever.
	gatePauseMost = 24 * time.Hour

	// A gate at which no request waits is forgotten after this time, or after
	// the plateau if that is longer. Until then the rate is worth keeping.
	gateIdle = time.Minute

	// A second probe joins one that has no result after this time, after the
	// length of the pause, and after four times the usual duration of an
	// attempt.
	gateHangs = time.Second
)

// opens returns the instant at which pause and pace allow the next release, for
// a host that is paused until paused.
func (g *gate) opens(paused time.Duration) time.Duration {
	if !g.shut {
		return paused
	}
	return max(g.next, g.closed, paused)
}

// ready is like opens, but also waits for the result of the probe for as long
// as one can be expected.
func (g *gate) ready(paused time.Duration) time.Duration {
	at := g.opens(paused)
	if g.probe == probeAway {
		at = max(at, addCapped(g.probed, max(gateHangs, g.pause, 4*g.took)))
	}
	return at
}

// unfit returns the reason why a request must not wait behind ahead others, or
// "" if it may.
func (g *gate) unfit(w *gateWaiter, ahead int, now, paused time.Duration) Reason {
	told := max(g.told, paused)
	at := g.opens(paused)
	switch {
	case told-now > w.patience:
		return ReasonWaitTooLong
	case told > now && told > w.until:
		return ReasonHostPaused
	case max(at, now) > w.until:
		return ReasonDeadline
	case g.shut && !g.pace.slow && float64(max(at, now))+float64(float64(ahead)*float64(g.pace.gap())) > float64(w.until):
		// While the rate is slow only the pause is known.
		return ReasonDeadline
	}
	return ""
}

// until returns the instant by which an attempt must begin to end before the
// deadline, if the attempt takes as long as the last one, or as usual.
func (c *Call) until(usual time.Duration) time.Duration {
	if c.Deadline == 0 {
		return noLimit
	}
	return c.Deadline - max(c.took, usual)
}

// ask releases c if it is c's turn; otherwise it makes c wait or give up.
func (g *gate) ask(p *Policy, c *Call, now, paused time.Duration) Decision {
	w := gateWaiter{number: c.number, until: c.until(g.took), patience: p.MaxWait, who: c.Waiter, refused: c.refused, passed: c.passed}
	waits := c.number != 0 && g.queue.has(c.number)
	at := g.ready(paused)
	if c.Deadline != 0 && now > c.Deadline {
		return Decision{Reason: ReasonDeadline}
	}
	if !waits {
		if g.queue.len() == 0 && at <= now {
			g.release(c, now)
			return Decision{Retry: true}
		}
		if c.number == 0 {
			g.queue.last++
			c.number, w.number = g.queue.last, g.queue.last
		}
		if reason := g.unfit(&w, g.queue.ahead(w.number), now, paused); reason != "" {
			return Decision{Reason: reason}
		}
		g.queue.insert(w)
	}
	g.busy, c.held = now, true
	d := Decision{Retry: true, Wait: noLimit, AtGate: true}
	if g.queue.front(g.probe == probeDue).number == c.number {
		if at <= now {
			g.release(c, now)
			return Decision{Retry: true}
		}
		if reason := g.unfit(&w, 0, now, paused); reason != "" {
			return Decision{Reason: reason}
		}
		g.asker, g.askAt = c.number, at
		d.Wait = at - now
	}
	if w.until < noLimit {
		if now >= w.until {
			return Decision{Reason: ReasonDeadline}
		}
		d.Wait = min(d.Wait, w.until-now)
	}
	return d
}

// release lets c go.
func (g *gate) release(c *Call, now time.Duration) {
	c.passed = max(c.passed, g.queue.release(c.number))
	c.out, c.epoch, c.sent = true, g.epoch, now
	if !g.shut {
		return
	}
	c.gap = g.pace.gap()
	// Only a request that the pace held back is evidence that the pace could be
	// higher.
	c.limited = c.held || g.queue.len() > 0
	c.held = false
	// Unused time doesn't accumulate.
	g.next = addCapped(max(g.next, now), c.gap)
	if g.probe != probeNone {
		g.probe, g.probed = probeAway, now
	}
}

// leave gives up what c has at the gate: its place, or the role of the probe if
// c was the probe and its outcome says nothing about the pace.
func (g *gate) leave(c *Call) {
	if c.number != 0 {
		g.queue.remove(c.number)
	}
	if c.out && c.epoch == g.epoch && g.probe == probeAway {
		g.probe = probeDue
	}
	c.out, c.held = false, false
}

// accept records that the server accepted c.
func (g *gate) accept(c *Call, now time.Duration) {
	out := c.out
	c.out = false
	if !g.shut {
		return
	}
	g.accepted++
	if !out {
		return
	}
	g.took += (now - c.sent - g.took) / 4
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
	g.next -= max(0, before-g.pace.gap())
}

// refuse records that the server refused c and asked for the wait word, or 0 if
// the server named no wait. It reports whether all calls must wait longer, so
// that some may miss their deadlines.
func (g *gate) refuse(c *Call, word, now time.Duration, epoch uint32, draw uint64) bool {
	current := c.out && c.epoch == g.epoch
	c.out = false
	c.refused += min(1, math.MaxUint8-c.refused)
	word = min(word, gatePauseMost)
	if g.shut && !current {
		// The request was sent before the last pause. Its refusal says
		// nothing about the pace, but the gate obeys the wait it names.
		shift := now + word - g.closed
		if word > 0 {
			g.told = max(g.told, now+word)
		}
		if word == 0 || shift <= 0 {
			return false
		}
		g.closed += shift
		g.next = addCapped(g.next, shift)
		return shift > time.Second
	}
	pause := word
	if word == 0 {
		pause = doubled(gatePauseLow, g.misses)
		if g.shut {
			pause = max(pause, min(2*c.gap, time.Second))
		}
	} else if g.misses > 0 {
		pause = max(pause, doubled(word, g.misses-1)) // the last pause was too short
	}
	if !g.shut {
		g.told = now
	}
	g.told = max(g.told, addCapped(now, word))
	switch {
	case !g.shut:
		g.begin(pause, now)
	case !g.fresh:
		// The server refused the probe, which says nothing about the pace.
		g.misses++
	default:
		g.pace.learn(c.gap, g.accepted, now-g.news, pause)
	}
	g.close(pause, now, epoch, draw)
	return true
}

// close begins a pause.
func (g *gate) close(pause, now time.Duration, epoch uint32, draw uint64) {
	g.pace.restart(pause)
	g.fresh, g.accepted, g.news, g.pause = false, 0, now, pause
	g.epoch, g.probe = epoch, probeDue
	g.closed = max(g.closed, addCapped(now, pause))
	// The server told all processes of a fleet the same time, but they must not
	// all start at the same instant.
	g.next = addCapped(g.closed, uniform(0, g.pace.gap(), remix(draw)))
}

// begin sets the first rate of a gate that was open.
func (g *gate) begin(pause, now time.Duration) {
	g.pace = firstPace(pause)
	g.shut, g.closed, g.busy = true, now, now
}

// doubled returns d, doubled n times, but at most the longest pause that the
// gate chooses itself.
func doubled(d time.Duration, n int) time.Duration {
	for ; n > 0 && d < gatePauseHigh; n-- {
		d *= 2
	}
	return min(d, gatePauseHigh)
}

// idle reports whether the gate has no state worth keeping.
func (g *gate) idle(now time.Duration) bool {
	if !g.shut {
		return g.queue.len() == 0
	}
	keep := max(gateIdle, time.Duration(g.pace.plateau()*float64(time.Second)))
	return g.queue.len() == 0 && now > addCapped(max(g.closed, g.busy), keep)
}

// binding reports whether forgetting g would let requests through that it holds
// back now.
func (g *gate) binding(now time.Duration) bool { return g.queue.len() > 0 || g.closed > now }
