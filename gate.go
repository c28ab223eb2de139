// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"math"
	"time"
)

// gate releases the requests to a host that has refused one. They wait in one
// queue, in the order in which they first came, and are released one after
// another at a rate that is learnt from what was accepted and what was refused.
// After each pause one request goes alone, a probe, and the others wait for its
// answer. The zero gate is open: nothing was refused yet. Its owner locks.
//
// A refusal of a request that was sent since the last pause is news. The rate
// after it is the geometric mean of two bounds: what was accepted per second
// since the refusal before, which the limit is not below, and the rate that was
// refused, which the limit is not above. The client can't see which of them is
// the limit: for a bucket that is emptied and refilled it is the first, for one
// without a burst it is the second. The mean halves the error each time,
// whichever it is. From there the rate climbs on a concave curve to just below
// the rate that was refused, stays there, and then grows ever faster, until the
// next refusal.
type gate struct {
	queue gateQueue

	closed  time.Duration // end of the pause
	told    time.Duration // end of what the server asked for; never after closed
	next    time.Duration // the next release by the pace
	probed  time.Duration // when the probe under way was released
	probe   probe
	shut    bool // something was refused: the fields below mean something
	dropped bool // it is not the gate of its key any more

	low   float64 // rate right after the last news, per second
	top   float64 // rate aimed at
	slow  bool    // no rate was refused yet: top is unknown, and low grows
	fresh bool    // a request of this epoch was accepted
	unit  float64 // of progress, in seconds
	gaps  float64 // the least unit, in gaps
	x     float64 // progress since the last news, in seconds of full use

	epoch    uint32        // the pause before which the rate was set
	news     time.Duration // when that began
	accepted float64       // since then, whenever they were sent
	pause    time.Duration // how long that pause was to last
	misses   int           // pauses in a row after which nothing was accepted
	took     time.Duration // usual duration of an attempt
	busy     time.Duration // when somebody last waited

	asker int64         // who was last told to ask again
	askAt time.Duration // and when; that may be in the past
}

// probe is where the one request is that goes alone after a pause.
type probe uint8

const (
	probeNone probe = iota
	probeDue
	probeAway
)

const (
	// A refusal costs about one pause in gatePlateau+1, at most 6 % of what the
	// limit allows; 16 units and about 8 of growth are less than the 30 s after
	// which a limit that has risen should be found.
	gatePlateau = 16

	// After the plateau the rate grows by half a percent in the first unit, so
	// that it overshoots little, and tenfold in 6 to 9.
	gateSteep = 0.005

	// A unit of three gaps is 48 requests per refusal: 2 to 3 % at slow limits.
	// A refusal in the first quarter of the plateau is likely to be another
	// client's doing, and then the gaps are long because that one has the
	// larger share: each one halves the number of gaps, down to one, with which
	// this client grows as fast as the other. A later refusal restores it.
	gateGaps     = 3
	gateGapsLow  = 1
	gateEarly    = 1.0 / 4
	gateUnitLow  = 0.5 // seconds
	gateUnitHigh = 30

	// Each news lowers the rate by so much at least: it lets other clients in.
	gateBack = 0.05

	// The plateau lies so much below what was refused.
	gateUnder = 0.99

	// After a longer pause the limit may be a window, of which the rate that
	// was refused says nothing: the rate aimed at is at most three times what
	// was accepted.
	gateLong    = 5 * time.Second
	gateLongTop = 3

	// The pauses of a server that names none.
	gatePauseLow  = 250 * time.Millisecond
	gatePauseHigh = 30 * time.Second

	// No pause is longer, whatever the server asks for. Who waits at most
	// MaxWait is told at once either way, and a mistake of the server's isn't
	// for good.
	gatePauseMost = 24 * time.Hour

	// The first rate is so many in a pause: a server that names a second, or a
	// minute, is likely to allow more than one request in it.
	gateFirst = 8

	gateGapLow  = 10 * time.Microsecond
	gateGapHigh = 24 * time.Hour

	// A gate at which nobody waits is forgotten after so long, or after the
	// plateau if that is longer: until then the rate is worth keeping.
	gateIdle = time.Minute

	// A probe that has no answer for so long, or for as long as the pause, or
	// for four times the usual duration of an attempt, is joined by another.
	gateHangs = time.Second
)

// rate returns the pace in requests per second. Products within sums are
// converted explicitly, here and elsewhere in the gate: the compiler must not
// fuse them, or simulations would come out different on other machines.
func (g *gate) rate() float64 {
	plateau := gatePlateau * g.unit
	switch {
	case g.slow:
		return g.low
	case g.x < plateau:
		d := 1 - g.x/plateau
		return g.top - float64((g.top-g.low)*d*d*d)
	default:
		// Relative growth falls with the root of the rate, so that clients
		// with unequal shares draw level.
		d := (g.x - plateau) / g.unit
		f := min(10, math.Sqrt(10/(g.top*g.unit)))
		return g.top * (1 + float64(gateSteep*f*d*d*d*d))
	}
}

// gap returns the time between two releases.
func (g *gate) gap() time.Duration {
	return time.Duration(min(max(float64(time.Second)/g.rate(), float64(gateGapLow)), float64(gateGapHigh)))
}

// opens returns the instant at which the next may go as far as pause and pace
// are concerned, of a host that is paused until the instant given.
func (g *gate) opens(paused time.Duration) time.Duration {
	if !g.shut {
		return paused
	}
	return max(g.next, g.closed, paused)
}

// ready is opens, and the answer of the probe besides, as long as it can be
// expected.
func (g *gate) ready(paused time.Duration) time.Duration {
	at := g.opens(paused)
	if g.probe == probeAway {
		at = max(at, addCapped(g.probed, max(gateHangs, g.pause, 4*g.took)))
	}
	return at
}

// unfit returns why a request is not to wait behind so many others, empty if it
// is to.
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
	case g.shut && !g.slow && float64(max(at, now))+float64(float64(ahead)*float64(g.gap())) > float64(w.until):
		// While the rate is slow only the pause is known.
		return ReasonDeadline
	}
	return ""
}

// until returns the instant by which an attempt must begin to leave room for
// itself before the deadline, if it takes as long as the last one, or as usual.
func (c *Call) until(usual time.Duration) time.Duration {
	if c.Deadline == 0 {
		return noLimit
	}
	return c.Deadline - max(c.took, usual)
}

// ask has c released, if it is its turn, or wait, or leave.
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
	c.gap = g.gap()
	// Only what the pace holds back is evidence that it could be higher.
	c.limited = c.held || g.queue.len() > 0
	c.held = false
	// Time that nobody used is not saved up.
	g.next = addCapped(max(g.next, now), c.gap)
	if g.probe != probeNone {
		g.probe, g.probed = probeAway, now
	}
}

// leave takes back what c has at the gate: its place, or the probe if it was
// one and ended in nothing that says anything about the pace.
func (g *gate) leave(c *Call) {
	if c.number != 0 {
		g.queue.remove(c.number)
	}
	if c.out && c.epoch == g.epoch && g.probe == probeAway {
		g.probe = probeDue
	}
	c.out, c.held = false, false
}

// accept takes in that c was accepted.
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
	before := g.gap()
	if g.slow {
		// It doubles with each answer, but by no more than e-fold in an eighth
		// of the unit.
		g.low = min(g.low*(1+min(1, c.gap.Seconds()/(g.unit/8))), float64(time.Second/gateGapLow))
	} else {
		g.x += c.gap.Seconds()
	}
	// A shorter gap counts from the last release on.
	g.next -= max(0, before-g.gap())
}

// refuse takes in that c was refused with word, 0 if the server named none. It
// reports whether that makes everyone wait for longer, so that some can't make
// their deadlines any more.
func (g *gate) refuse(c *Call, word, now time.Duration, epoch uint32, draw uint64) bool {
	current := c.out && c.epoch == g.epoch
	c.out = false
	c.refused += min(1, math.MaxUint8-c.refused)
	word = min(word, gatePauseMost)
	if g.shut && !current {
		// It was sent before the last pause: it says nothing about the pace,
		// but its word is obeyed.
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
		pause = max(pause, doubled(word, g.misses-1)) // it was too short
	}
	if !g.shut {
		g.told = now
	}
	g.told = max(g.told, addCapped(now, word))
	switch {
	case !g.shut:
		g.begin(pause, now)
	case !g.fresh:
		// The probe was refused: nothing is learnt about the pace.
		g.misses++
	default:
		g.learn(c.gap, pause, now)
	}
	g.close(pause, now, epoch, draw)
	return true
}

// close begins a pause.
func (g *gate) close(pause, now time.Duration, epoch uint32, draw uint64) {
	g.unit = min(max(pause.Seconds(), g.gaps/g.low, gateUnitLow), gateUnitHigh)
	g.x, g.fresh, g.accepted, g.news, g.pause = 0, false, 0, now, pause
	g.epoch, g.probe = epoch, probeDue
	g.closed = max(g.closed, addCapped(now, pause))
	// A fleet was told the same: its processes don't start in one instant.
	g.next = addCapped(g.closed, uniform(0, g.gap(), remix(draw)))
}

// begin sets the rate of a gate that was open.
func (g *gate) begin(pause, now time.Duration) {
	g.shut, g.slow, g.gaps = true, true, gateGaps
	g.low = min(gateFirst/pause.Seconds(), float64(time.Second/gateGapLow))
	g.closed, g.busy = now, now
}

// learn sets the rate after a request that was sent gap after the one before it
// was refused.
func (g *gate) learn(gap, pause, now time.Duration) {
	if !g.slow {
		if g.x < gateEarly*gatePlateau*g.unit {
			g.gaps = max(gateGapsLow, g.gaps/2)
		} else {
			g.gaps = gateGaps
		}
	}
	upper := 1 / gap.Seconds()
	lower := min(max(1, g.accepted)/max(now-g.news, gateGapLow).Seconds(), upper)
	g.top = upper
	if pause > gateLong && upper > 2*lower {
		g.top = min(upper, gateLongTop*lower)
	}
	g.low = min(math.Sqrt(lower*g.top), (1-gateBack)*gateUnder*g.top)
	g.top *= gateUnder
	g.slow = false
}

// doubled returns d, doubled n times, but no more than the longest pause of our
// own.
func doubled(d time.Duration, n int) time.Duration {
	for ; n > 0 && d < gatePauseHigh; n-- {
		d *= 2
	}
	return min(d, gatePauseHigh)
}

// idle reports whether the gate says nothing any more that is worth keeping.
func (g *gate) idle(now time.Duration) bool {
	if !g.shut {
		return g.queue.len() == 0
	}
	keep := max(gateIdle, time.Duration(gatePlateau*g.unit*float64(time.Second)))
	return g.queue.len() == 0 && now > addCapped(max(g.closed, g.busy), keep)
}

// binding reports whether forgetting g would let requests go that are held back
// now.
func (g *gate) binding(now time.Duration) bool { return g.queue.len() > 0 || g.closed > now }
