// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"math"
	"time"

	"github.com/retrip/retrip/internal/span"
)

// pace is the rate at which a gate releases requests, and how the gate
// learns it from what the server accepts and refuses.
//
// While it is free, it begins at a few requests per pause and doubles with each accepted request
// that had to wait, and refusals don't lower it, but for the start after each Retry-After, which the
// gate obeys. If many are refused, it rules, and
// learns from news, the refusal of a request sent after the last pause. The next rate
// is the geometric mean of the rate accepted since the previous news and the rate
// refused, as the limit lies between the two. From there it climbs on a concave
// curve to just below the refused rate, stays there, and then grows ever faster.
//
// Refusals may have other causes than the rate, and then each makes the pace slower,
// for nothing. So a pace that costs much of what was accepted before is doubled, and
// one that costs half without making refusals rarer becomes free.
type pace struct {
	low  float64 // rate right after the last news, per second; the rate while free
	top  float64 // target rate
	free bool
	unit float64 // unit of progress, in seconds
	x    float64 // progress since the last news, in seconds of full use

	from      time.Duration // when the current interval began
	good, bad float64       // accepted and refused in it
	best      float64       // requests accepted per second in the best interval not yet missed
	could     float64       // the same in the interval after which the pace began to rule
	was       float64       // share refused in the interval in which the pace changed sides
	until     time.Duration // a free pace rests until then
}

const (
	firstRate = 8 // requests per pause: a server that names a second probably allows more than one in it

	freeInterval, ruledInterval = 32, 16                 // an interval ends with news, after so many outcomes
	leastInterval               = 500 * time.Millisecond // of a free pace, so that its rate means something

	// A free pace begins to rule above this share of refusals, and after long pauses:
	// it would use up a window in a burst. Its target is at most firstTop accepted rates.
	muchRefused = 1.0 / 8
	longPause   = 5 * time.Second
	firstTop    = 8

	// The least pace, and what an interval must accept, as a share of the best rate.
	// If it doesn't, the pace becomes faster times the best.
	kept, faster = 4.0 / 5, 2

	// A ruling pace becomes free if it leaves more than the share helps of the former
	// share refused, unless few are; where most were refused, perhaps because others
	// share the limit, only if it also accepts less than the share lostRate of what the
	// free pace did; and if it accepts less than the share goneRate of that.
	helps, fewRefused, mostRefused = 1.0 / 2, 1.0 / 16, 0.6
	lostRate, goneRate             = 1.0 / 2, 1.0 / 16
	rest                           = 16 // then it is free for so many of the failed intervals, unless twice as many are refused

	// A refusal costs about one pause in 17. 16 units, and about 8 of growth, take
	// two minutes, three gaps or twelve pauses at most, to find a limit that has gone.
	plateauUnits = 16
	unitLow      = 0.5 // seconds
	unitHigh     = 5
	unitMost     = 3       // gaps: 48 requests per refusal
	unitGaps     = 1.0 / 7 // where this many gaps are longer than unitHigh
	unitPauses   = 1.0 / 2 // or so many pauses
	steep        = 0.005   // after the plateau, the rate grows by this share in the first unit, and tenfold in 6 to 9

	back  = 0.05 // each news lowers the rate by at least this share, to let other clients in
	under = 0.99 // the plateau lies at this share of the refused rate

	gapLow, gapHigh = 10 * time.Microsecond, 24 * time.Hour
)

// firstPace returns the pace of a gate after its first refusal, which asked for a
// pause, or for none.
func firstPace(pause, now time.Duration) pace {
	return pace{free: true, from: now, until: now, low: firstRate / max(pause.Seconds(), firstRate*gapLow.Seconds())}
}

// plateau returns the progress, in seconds, from which on the rate exceeds the target.
func (p *pace) plateau() float64 { return plateauUnits * p.unit }

// rate returns the pace in requests per second. Here and elsewhere in the gate,
// products within sums are converted explicitly: the compiler must not fuse
// them, or simulations would give different results on other machines.
func (p *pace) rate() float64 {
	rate, plateau := p.low, p.plateau()
	if d := 1 - p.x/plateau; !p.free && d > 0 {
		rate = p.top - float64((p.top-p.low)*d*d*d)
	} else if !p.free {
		// Relative growth falls with the root of the rate, so that clients
		// with unequal shares draw level.
		d := (p.x - plateau) / p.unit
		rate = p.top * (1 + float64(steep*min(10, math.Sqrt(10/(p.top*p.unit)))*d*d*d*d))
	}
	return max(rate, kept*p.best)
}

// gap returns the time between two releases.
func (p *pace) gap() time.Duration {
	return time.Duration(min(max(float64(time.Second)/p.rate(), float64(gapLow)), float64(gapHigh)))
}

// grow records that the server accepted a request that the pace held back, gap
// after the request before it.
func (p *pace) grow(gap time.Duration) {
	if p.free {
		p.low = min(2*p.low, float64(time.Second/gapLow))
		return
	}
	p.x += min(gap.Seconds(), max(0, p.plateau()-p.x)+p.unit) // slow paces must not overshoot
}

// restart begins the curve anew, after a pause.
func (p *pace) restart(pause time.Duration) {
	p.unit = min(max(pause.Seconds(), unitMost/p.low, unitLow), max(unitHigh, unitGaps/p.low, unitPauses*(pause.Seconds()-1/p.low)))
	p.x = 0
}

// judge counts a refusal, which may have named a wait. If it is news, it may end an
// interval; judge then decides whether the pace rules or is free, and reports whether it
// has set another. A ruling pace isn't judged by other refusals: those of probes, and of
// requests sent earlier.
func (p *pace) judge(news, named bool, pause, usual, now time.Duration) bool {
	if news || p.free {
		p.bad++
	}
	took, n := span.Sub(now, p.from), p.good+p.bad
	outcomes, long := float64(ruledInterval), max(pause, gapLow)
	if p.free {
		outcomes, long = freeInterval, max(long, leastInterval, 4*usual)
	}
	if !news || n < outcomes || took < long {
		return false
	}
	share, rate, best := p.bad/n, p.good/took.Seconds(), p.best
	rested := now >= p.until || share > max(0.5, min(2*p.was, (1+p.was)/2))
	if p.free && !named {
		share -= math.Sqrt(p.bad) / n // that much may be chance, and being free costs no pause
	}
	useless := share > max(fewRefused, helps*p.was)
	costly := p.was < mostRefused || rate < lostRate*p.could
	p.from, p.good, p.bad, p.best = now, 0, 0, max(rate, best)
	switch {
	case p.free && rested && (share > muchRefused || pause > longPause):
		p.best, p.could = rate, rate
		p.bound(rate, max(rate, min(p.low, firstTop*rate)))
	case !p.free && (rate < goneRate*p.could || useless && costly):
		p.low, p.until = p.rate(), span.Add(now, span.Mul(took, rest))
	case !p.free && rate < kept*best:
		p.best = max(rate, kept*best)
		p.bound(faster*best, faster*best)
		return true
	default:
		return false
	}
	p.free, p.was = !p.free, share
	return true
}

// setRate sets the rate after news: of a request that was sent gap after the one
// before it, with so many accepted since the previous news.
func (p *pace) setRate(gap time.Duration, accepted float64, since time.Duration) {
	upper := 1 / gap.Seconds()
	p.bound(min(max(1, accepted)/max(since, gapLow).Seconds(), upper), upper)
}

// bound sets the rate between two bounds of the limit.
func (p *pace) bound(lower, upper float64) {
	p.low = min(math.Sqrt(lower*upper), (1-back)*under*upper)
	p.top = under * upper
}
