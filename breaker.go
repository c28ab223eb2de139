// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import "time"

// Breaker stops attempts to a host that is down, so that requests to the host
// no longer cost timeouts. A breaker opens when Window holds at least MinVolume
// results and at least Ratio of them are failures. A failure is an outcome that
// the policy calls retryable. If Window holds fewer results, because requests
// are rare, the breaker opens after MinVolume failures in a row, however long
// that takes. A success, or an hour without a failure, restarts that count.
//
// While the breaker is open, requests fail at once with an [Error] whose Reason
// is ReasonBreakerOpen. After OpenFor, with jitter so that a fleet doesn't
// return in step, the breaker lets Probes attempts through, spread out in time.
// If fewer than Ratio of them fail, the breaker closes; otherwise it opens
// again. It decides as soon as the remaining probes can't change the answer:
// with the defaults, one success closes the breaker, and two failures open it
// again. The breaker ignores cancellations by the caller, failures of the
// caller's own request body, and results of attempts that began in an earlier
// state of the breaker.
//
// A breaker starts counting at the first failure, so the ratio is too high
// until Window has passed. After a breaker has closed, it keeps counting
// successes for six more Windows, so that a host that alternates between up and
// down every 5 s stays reachable.
//
// A request that arrives after OpenFor is a probe, and the breaker lets it
// through. An open breaker therefore refuses no request if requests come less
// often than every one and a half times OpenFor (7.5 s by default); it only
// saves the retries. It refuses a fifth of the requests at one request per
// OpenFor, and seven tenths at five requests per OpenFor. For a host with rare
// requests, set OpenFor to several times the interval between them.
//
// The zero Breaker is off. A Breaker with any field set is on, with defaults
// for its other fields. The defaults come from simulation
// (TestBreaker_IndependentFailures): the breaker opens for a host that is down,
// after 0.8 s at 20 requests/s, but not for a host that fails half the time,
// where retries help more. A low Ratio makes a partial outage worse: if one
// attempt in ten fails, retries let 99.99 % of the requests succeed, but a
// Ratio of 0.1 leaves only half of them.
type Breaker struct {
	// Ratio is the share of failures that opens the breaker, 0.01 to 1. Off
	// switches the breaker off. If 0, it is inherited; the default is 0.8.
	Ratio float64 `json:"ratio"`

	// Window is how far back results count. If 0, it is inherited; the default
	// is 10 s.
	Window time.Duration `json:"window"`

	// MinVolume is the number of results that Window must hold for Ratio to
	// count. With fewer results, it is the number of failures in a row that
	// opens the breaker. If 0, it is inherited; the default is 20.
	MinVolume int `json:"min_volume"`

	// OpenFor is the average time for which the breaker stays open. Each time
	// is drawn uniformly from 0.5 to 1.5 times OpenFor. If 0, it is inherited;
	// the default is 5 s.
	OpenFor time.Duration `json:"open_for"`

	// Probes is the number of attempts that decide, by Ratio, whether the
	// breaker closes or opens again. A host that is down gets up to Probes
	// attempts per OpenFor. If 0, it is inherited; the default is 2.
	Probes int `json:"probes"`
}

var defaultBreaker = Breaker{Ratio: 0.8, Window: 10 * time.Second, MinVolume: 20, OpenFor: 5 * time.Second, Probes: 2}

const (
	breakerSlots  = 10 // slots of the sliding window
	breakerMemory = 6  // windows for which successes count after the breaker has closed
)

type breakerState uint8

const (
	breakerClosed breakerState = iota
	breakerOpen
	breakerHalfOpen
)

var breakerNames = [...]string{"closed", "open", "half-open"}

// breaker is the state of a Breaker. Its owner must lock it.
type breaker struct {
	state   breakerState
	period  uint32        // counts changes of state: results of an earlier one are stale
	until   time.Duration // instant of the first probe if open, of the next probe if half-open
	probed  time.Duration // instant of the last probe
	out     int           // probes in flight
	good    int           // probes that succeeded
	bad     int           // probes that failed
	closed  time.Duration // instant at which the breaker last closed, if tripped
	tripped bool          // the breaker has been open

	run  int           // failures in a row
	last time.Duration // instant of the last of them

	width time.Duration // width of a slot of the window
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
		// The probes in flight have hung for longer than the breaker stays
		// open, so stop waiting for their results.
		b.enter(breakerHalfOpen)
	}
	// Allow one probe in any case: a new policy may have fewer Probes than have
	// ended already.
	if now < b.until || b.out > 0 && b.out >= p.Probes-b.good-b.bad {
		return Decision{Reason: ReasonBreakerOpen, change: d.change}
	}
	b.out++
	b.probed = now
	b.until = addCapped(now, uniform(0, p.OpenFor/2/time.Duration(p.Probes), draw))
	c.period, c.probe = b.period, true
	return d
}

// refuses reports whether b, in its current state, allows no attempt at the
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
		// The breaker decides as soon as the remaining probes can't change
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

// endRun ends the run of failures after a success of a request that doesn't
// follow the breaker, for example because a policy has switched it off.
func (b *breaker) endRun() { b.run = 0 }

// returnProbe frees the place of c's probe, which had no result.
func (b *breaker) returnProbe(c *Call) {
	if c.period == b.period {
		b.out--
	}
}

// tooBad reports whether the results of a closed breaker open it. If the window
// holds too few results, earlier ones count as well, but all of them must be
// failures: at a low rate, results are so old that one success among them says
// more than their ratio.
func (b *breaker) tooBad(p *Breaker) bool {
	good, bad := b.sum()
	if good+bad < p.MinVolume {
		return b.run >= p.MinVolume
	}
	return p.reached(bad, good+bad)
}

// reached reports whether the share of failures among the results is at least
// Ratio.
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

// count adds a result to the newest slot, after dropping the slots that have
// left the window.
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

// lapsed reports whether the failures in a row are so old that the host table
// may have forgotten them.
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

// place returns the index of the newest slot in the ring. Slots before the
// epoch are negative.
func (b *breaker) place() int64 { return (b.slot%breakerSlots + breakerSlots) % breakerSlots }

func (b *breaker) sum() (good, failed int) {
	for _, s := range b.ring {
		good += int(s.good)
		failed += int(s.failed)
	}
	return good, failed
}

// healed reports whether b is closed, its window is free of failures, and no
// run of failures is in progress.
func (b *breaker) healed(now time.Duration) bool {
	if b.state != breakerClosed || b.run > 0 && !b.lapsed(now) {
		return false
	}
	// The successes of a host that alternates between up and down must count,
	// too: a breaker that starts counting at the next failure would see a host
	// that is down.
	if b.tripped && now < addCapped(b.closed, mulCapped(b.width, breakerMemory*breakerSlots)) {
		return false
	}
	if b.width > 0 {
		b.advance(slotOf(now, b.width))
	}
	_, failed := b.sum()
	return failed == 0
}

// binding reports whether forgetting b would let requests through that it holds
// back now. A breaker that nobody has probed for an hour holds nothing back.
func (b *breaker) binding(now time.Duration) bool {
	return b.state != breakerClosed && now < addCapped(b.until, hostIdle)
}
