// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import "time"

// Breaker stops attempts to a host that is down, so that it stops costing
// timeouts. It opens when Window holds at least MinVolume results, and at least
// Ratio of them are failures; what counts as a failure is what the policy
// calls retryable. Where Window holds fewer results, as at a low rate of
// requests, it opens when MinVolume results in a row were failures, however
// long that took: a success begins the count anew, and so does an hour without
// a failure. While it is open, requests fail at once with an [Error]
// whose Reason is ReasonBreakerOpen. After OpenFor (jittered, so that a fleet
// doesn't return in step) it lets Probes attempts through, spread out as well.
// If fewer than Ratio of them fail it closes, otherwise it opens again; it does
// so as soon as the probes to come can't change the answer. With the defaults
// one success closes it, and two failures open it again. A caller's
// cancellation, a failure of the caller's own request body, and the result of an
// attempt that was let through in an earlier state count for nothing.
//
// A host is watched from its first failure on, so the ratio is biased high
// until Window has passed. One that was behind an open breaker is watched for six
// Windows more, with its successes: one that is up and down for 5 s each stays
// reachable.
//
// A request that comes once OpenFor is over is a probe, and is let through. So
// an open breaker refuses no request where less than one comes in one and a
// half times OpenFor, 7.5 s by default; it only spares such a request its
// retries. Where one comes every OpenFor it refuses a fifth of them, where five
// come in that time seven tenths. For a host that is called seldom, set OpenFor
// to several times the interval between calls.
//
// The zero Breaker is off. One with any field set is on, with the others at
// their defaults, which are chosen by simulation (TestBreakerIndependentFailures):
// they open for a host that is down, after 0.8 s at 20 requests a second, and
// not for one that fails half the time, for which retries do more. A low ratio
// makes a partial outage worse: where one attempt in ten fails and retries
// bring 99.99 % of the requests through, a ratio of 0.1 leaves half of them.
type Breaker struct {
	// Ratio is the share of failures that opens it, 0.01 to 1. If 0, it is
	// inherited; the default is 0.8. Off switches the breaker off.
	Ratio float64 `json:"ratio"`

	// Window is how far back results count. If 0, it is inherited; the
	// default is 10 s.
	Window time.Duration `json:"window"`

	// MinVolume is how many results Window must hold for Ratio to count, and
	// how many failures in a row open the breaker where it holds fewer. If 0,
	// it is inherited; the default is 20.
	MinVolume int `json:"min_volume"`

	// OpenFor is how long it stays open, on average: the time is drawn
	// uniformly from half to one and a half times as much. If 0, it is
	// inherited; the default is 5 s.
	OpenFor time.Duration `json:"open_for"`

	// Probes is how many attempts decide, by Ratio, whether it closes or opens
	// again. A host that is down gets up to Probes attempts in OpenFor. If 0,
	// it is inherited; the default is 2.
	Probes int `json:"probes"`
}

var defaultBreaker = Breaker{Ratio: 0.8, Window: 10 * time.Second, MinVolume: 20, OpenFor: 5 * time.Second, Probes: 2}

const (
	breakerSlots  = 10 // of the sliding window
	breakerMemory = 6  // windows for which successes count after it has closed
)

type breakerState uint8

const (
	breakerClosed breakerState = iota
	breakerOpen
	breakerHalfOpen
)

var breakerNames = [...]string{"closed", "open", "half-open"}

// breaker is the state of a Breaker; its owner locks.
type breaker struct {
	state   breakerState
	period  uint32        // counts changes of state: results of an earlier one are stale
	until   time.Duration // open: when it may be probed; half-open: when the next probe may go
	probed  time.Duration // when the last probe went
	out     int           // probes under way
	good    int           // probes that succeeded
	bad     int           // probes that failed
	closed  time.Duration // when it last closed, if tripped
	tripped bool          // it has been open

	run  int           // results since the last success, all of them failures
	last time.Duration // when the newest of run came

	width time.Duration // of a slot of the window
	slot  int64         // the newest slot, counted from the epoch
	ring  [breakerSlots]breakerSlot
}

type breakerSlot struct{ good, failed uint32 }

// admit asks for an attempt at the instant now.
func (b *breaker) admit(p *Breaker, c *Call, now time.Duration, draw uint64) Decision {
	d := Decision{Retry: true}
	if b.state == breakerClosed {
		c.period = b.period
		return d
	}
	if b.state == breakerOpen && now >= b.until {
		b.enter(breakerHalfOpen)
		d.change = hostProbed
	}
	if b.out > 0 && now-b.probed >= p.OpenFor {
		// The probes under way have hung longer than the breaker would have
		// stayed open: they have said enough.
		b.enter(breakerHalfOpen)
	}
	// One may always go: Probes may be fewer by now than those that have ended.
	if now < b.until || b.out > 0 && b.out >= p.Probes-b.good-b.bad {
		return Decision{Reason: ReasonBreakerOpen, change: d.change}
	}
	b.out++
	b.probed = now
	b.until = addCapped(now, uniform(0, p.OpenFor/2/time.Duration(p.Probes), draw))
	c.period, c.probe = b.period, true
	return d
}

// refuses reports whether b, as it stands, will let no attempt through at the
// instant at.
func (b *breaker) refuses(at time.Duration) bool { return b.state != breakerClosed && at < b.until }

// record counts the result of an attempt.
func (b *breaker) record(p *Breaker, c *Call, failed bool, now time.Duration, draw uint64) hostChange {
	if c.period != b.period {
		return 0
	}
	switch b.state {
	case breakerClosed:
		b.count(p.Window, failed, now)
		if failed && b.tooBad(p) {
			b.open(p, now, draw)
			return hostOpened
		}
	case breakerHalfOpen:
		if !c.probe {
			return 0
		}
		b.out--
		if failed {
			b.bad++
		} else {
			b.good++
		}
		// The rest of the probes needn't be waited for once they can't change
		// which side of Ratio the failures are on.
		switch {
		case !p.reached(p.Probes-b.good, p.Probes):
			b.enter(breakerClosed)
			b.closed, b.tripped = now, true
			b.ring = [breakerSlots]breakerSlot{}
			return hostClosed
		case p.reached(b.bad, p.Probes):
			b.open(p, now, draw)
			return hostOpened
		}
	}
	return 0
}

// endRun takes in a success of a request that doesn't follow the breaker, which
// may have been switched off: the failures in a row have ended.
func (b *breaker) endRun() { b.run = 0 }

// returnProbe gives up the probe of c, which said nothing.
func (b *breaker) returnProbe(c *Call) {
	if c.period == b.period {
		b.out--
	}
}

// tooBad reports whether the results of a closed breaker open it. Where the
// window holds too few to tell, those before it count as well, but then all
// must have failed: at a low rate results are so old that one success among
// them says more than their share does.
func (b *breaker) tooBad(p *Breaker) bool {
	good, bad := b.sum()
	if good+bad < p.MinVolume {
		return b.run >= p.MinVolume
	}
	return p.reached(bad, good+bad)
}

// reached reports whether so many failures among so many results are Ratio of
// them, or more.
func (p *Breaker) reached(failed, results int) bool {
	return float64(failed)/float64(results) >= p.Ratio
}

func (b *breaker) enter(state breakerState) {
	b.state = state
	b.period++
	b.out, b.good, b.bad = 0, 0, 0
	b.run = 0
}

func (b *breaker) open(p *Breaker, now time.Duration, draw uint64) {
	b.enter(breakerOpen)
	b.until = addCapped(now, uniform(p.OpenFor/2, addCapped(p.OpenFor, p.OpenFor/2), remix(draw)))
}

// count adds a result to the newest slot, after dropping those that the window
// has left behind.
func (b *breaker) count(window time.Duration, failed bool, now time.Duration) {
	width := max(window/breakerSlots, 1)
	slot := slotOf(now, width)
	if width != b.width {
		b.width, b.slot, b.ring = width, slot, [breakerSlots]breakerSlot{}
	}
	b.advance(slot)
	s := &b.ring[b.place()]
	if !failed {
		s.good++
		b.run = 0
		return
	}
	s.failed++
	if b.lapsed(now) {
		b.run = 0
	}
	b.run++
	b.last = now
}

// lapsed reports whether the failures in a row are so long ago that the host
// table may have forgotten them.
func (b *breaker) lapsed(now time.Duration) bool { return now-b.last > hostIdle }

func (b *breaker) advance(slot int64) {
	if slot-b.slot >= breakerSlots {
		b.ring, b.slot = [breakerSlots]breakerSlot{}, slot
	}
	for b.slot < slot {
		b.slot++
		b.ring[b.place()] = breakerSlot{}
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

// place returns where the newest slot is in the ring; slots before the epoch are
// negative.
func (b *breaker) place() int64 { return (b.slot%breakerSlots + breakerSlots) % breakerSlots }

func (b *breaker) sum() (good, failed int) {
	for _, s := range b.ring {
		good += int(s.good)
		failed += int(s.failed)
	}
	return good, failed
}

// healed reports whether b is closed, its window free of failures, and the last
// result no failure that the next one would follow on.
func (b *breaker) healed(now time.Duration) bool {
	if b.state != breakerClosed || b.run > 0 && !b.lapsed(now) {
		return false
	}
	// Of a host that goes up and down the successes must count, too: watched
	// from its next failure on alone, it would seem to be down.
	if b.tripped && now < addCapped(b.closed, mulCapped(b.width, breakerMemory*breakerSlots)) {
		return false
	}
	if b.width > 0 {
		b.advance(slotOf(now, b.width))
	}
	_, failed := b.sum()
	return failed == 0
}

// binding reports whether forgetting b would let requests go that are held back
// now. A breaker that nobody has probed for an hour holds nobody back.
func (b *breaker) binding(now time.Duration) bool {
	return b.state != breakerClosed && now < addCapped(b.until, hostIdle)
}
