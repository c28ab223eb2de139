// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package breaker is the rule that stops attempts to a host that is down. It has no
// clock and no lock. Instants are durations since an epoch of the caller's choice.
package breaker

import (
	"time"

	"github.com/retrip/retrip/internal/span"
)

// Rule says when a breaker opens and closes. The fields but the last are those of
// the policy, whose comments describe them.
type Rule struct {
	Ratio     float64
	Window    time.Duration
	MinVolume int
	OpenFor   time.Duration
	Probes    int // number of attempts that decide, by Ratio, whether the breaker closes or opens again
}

// Probes is the number of probes in programs.
const Probes = 2

const (
	slots  = 10 // slots of the sliding window
	memory = 6  // windows for which successes count after the breaker has closed

	// Idle is how long failures in a row, and an open breaker that nobody
	// probes, are remembered.
	Idle = time.Hour
)

// Pass is what a request has from the breaker that let it through. The
// zero Pass is that of a request which has not asked.
type Pass struct {
	Period uint32 // period of the breaker in which it allowed the last attempt
	Probe  bool   // the last attempt is a probe
}

// Change is what the result of an attempt, or the beginning of one,
// changed.
type Change uint8

const (
	Same Change = iota
	Opened
	Probing
	Shut
)

type State uint8

const (
	Closed State = iota
	Open
	HalfOpen
)

var Names = [...]string{"closed", "open", "half-open"}

// Breaker is the state of a Breaker. Its owner must lock it.
type Breaker struct {
	State   State         // the owner may read it
	period  uint32        // counts changes of state, and first failures: attempts begun before are stale
	until   time.Duration // instant of the first probe if open, of the next probe if half-open
	probed  time.Duration // instant of the last probe
	out     int           // probes in flight
	good    int           // probes that succeeded
	bad     int           // probes that failed
	closed  time.Duration // instant at which the breaker last closed, if tripped
	tripped bool          // the breaker has been open

	run  int           // failures in a row
	last time.Duration // instant of the last failure, also of a stale attempt

	width time.Duration // width of a slot of the window
	slot  int64         // the newest slot, counted from the epoch
	ring  [slots]results
}

type results struct{ good, failed uint32 }

// Admit asks for an attempt of c at the instant now, and reports whether it is
// allowed.
func (b *Breaker) Admit(p *Rule, c *Pass, now time.Duration, draw uint64) (allowed bool, change Change) {
	if b.State == Closed {
		c.Period = b.period
		return true, Same
	}
	if b.State == Open && now >= b.until {
		b.enter(HalfOpen)
		change = Probing
	}
	if b.out > 0 && span.Sub(now, b.probed) >= p.OpenFor {
		// The probes in flight have hung for longer than the breaker stays
		// open, so stop waiting for their results.
		b.enter(HalfOpen)
	}
	// Allow one probe in any case: a new policy may have fewer Probes than have
	// ended already.
	if now < b.until || b.out > 0 && b.out >= p.Probes-b.good-b.bad {
		return false, change
	}
	b.out++
	b.probed = now
	b.until = span.Add(now, span.Draw(0, p.OpenFor/2/time.Duration(p.Probes), draw))
	c.Period, c.Probe = b.period, true
	return true, change
}

// Refuses reports whether b, in its current state, allows no attempt at the
// instant at.
func (b *Breaker) Refuses(at time.Duration) bool { return b.State != Closed && at < b.until }

// Record counts the result of an attempt.
func (b *Breaker) Record(p *Rule, c *Pass, failed bool, now time.Duration, draw uint64) Change {
	stale := c.Period != b.period
	switch b.State {
	case Closed:
		if b.count(p.Window, failed, stale, now) && b.tooBad(p) {
			b.trip(p, now, draw)
			return Opened
		}
	case HalfOpen:
		if stale || !c.Probe {
			return Same
		}
		b.out--
		if failed {
			b.bad++
		} else {
			b.good++
		}
		// The breaker decides as soon as the remaining probes can't change
		// which side of Ratio the failures are on.
		switch {
		case !p.reached(p.Probes-b.good, p.Probes):
			b.enter(Closed)
			b.closed, b.tripped = now, true
			b.ring = [slots]results{}
			return Shut
		case p.reached(b.bad, p.Probes):
			b.trip(p, now, draw)
			return Opened
		}
	}
	return Same
}

// EndRun ends the run of failures after a success of a request that doesn't
// follow the breaker, for example because a policy has switched it off.
func (b *Breaker) EndRun() { b.run = 0 }

// ReturnProbe frees the place of c's probe, which had no result.
func (b *Breaker) ReturnProbe(c *Pass) {
	c.Probe = false
	if c.Period == b.period {
		b.out--
	}
}

// tooBad reports whether the results of a closed breaker open it. If the window
// holds too few results, earlier ones count as well, but all of them must be
// failures: at a low rate, results are so old that one success among them says
// more than their ratio.
func (b *Breaker) tooBad(p *Rule) bool {
	good, bad := b.sum()
	if good+bad < p.MinVolume {
		return b.run >= p.MinVolume
	}
	return p.reached(bad, good+bad)
}

// reached reports whether the share of failures among the results is at least
// Ratio.
func (p *Rule) reached(failed, results int) bool {
	return float64(failed)/float64(results) >= p.Ratio
}

func (b *Breaker) enter(state State) {
	b.State = state
	b.period++
	b.out, b.good, b.bad = 0, 0, 0
	b.run = 0
}

func (b *Breaker) trip(p *Rule, now time.Duration, draw uint64) {
	b.enter(Open)
	b.until = span.Add(now, span.Draw(p.OpenFor/2, span.Add(p.OpenFor, p.OpenFor/2), span.Remix(draw)))
}

// count adds a result to the newest slot, after dropping the slots that have left the
// window. It reports whether that is a failure that counts. After the first one, those of
// what is in flight don't: they may share its cause, as on a connection that breaks or freezes.
// But they show that the trouble goes on, and the next one isn't a first one.
func (b *Breaker) count(window time.Duration, failed, stale bool, now time.Duration) bool {
	width := max(window/slots, 1)
	slot := slotOf(now, width)
	if b.width == 0 && !failed {
		return false // a calm host has no Breaker
	}
	first := b.Healed(now)
	if width != b.width {
		b.width, b.slot, b.ring = width, slot, [slots]results{}
	}
	b.advance(slot)
	s := &b.ring[b.place()]
	if !failed {
		s.good++
		b.run = 0
		return false
	}
	if b.lapsed(now) {
		b.run = 0
	}
	b.last = now
	if stale {
		return false
	}
	if first {
		b.period++
	}
	s.failed++
	b.run++
	return true
}

// recent reports whether there was a failure within the window.
func (b *Breaker) recent(now time.Duration) bool {
	return b.width > 0 && now < span.Add(b.last, span.Mul(b.width, slots))
}

// lapsed reports whether the failures in a row are so old that the host table
// may have forgotten them.
func (b *Breaker) lapsed(now time.Duration) bool { return span.Sub(now, b.last) > Idle }

func (b *Breaker) advance(slot int64) {
	if slot-b.slot >= slots {
		b.ring, b.slot = [slots]results{}, slot
	}
	for b.slot < slot {
		b.slot++
		b.ring[b.place()] = results{}
	}
}

// slotOf returns the slot of an instant, which may be before the epoch.
func slotOf(now, width time.Duration) int64 {
	slot := int64(now / width)
	if now%width < 0 {
		slot--
	}
	return slot
}

// place returns the index of the newest slot in the ring. Slots before the
// epoch are negative.
func (b *Breaker) place() int64 { return (b.slot%slots + slots) % slots }

func (b *Breaker) sum() (good, failed int) {
	for _, s := range b.ring {
		good += int(s.good)
		failed += int(s.failed)
	}
	return good, failed
}

// Healed reports whether b is closed, its window is free of failures, and no
// run of failures is in progress.
func (b *Breaker) Healed(now time.Duration) bool {
	if b.State != Closed || b.run > 0 && !b.lapsed(now) {
		return false
	}
	// The successes of a host that alternates between up and down must count,
	// too: a breaker that starts counting at the next failure would see a host
	// that is down.
	if b.tripped && now < span.Add(b.closed, span.Mul(b.width, memory*slots)) {
		return false
	}
	return !b.recent(now)
}

// Binding reports whether forgetting b would let requests through that it holds
// back now. A breaker that nobody has probed for an hour holds nothing back.
func (b *Breaker) Binding(now time.Duration) bool {
	return b.State != Closed && now < span.Add(b.until, Idle)
}

// OpenFor returns the time until the next probe, which is 0 if b is closed.
func (b *Breaker) OpenFor(now time.Duration) time.Duration {
	if b.State == Closed {
		return 0
	}
	return max(0, span.Sub(b.until, now))
}
