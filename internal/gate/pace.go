// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"math"
	"time"
)

// pace is the rate at which a gate releases requests, and how the gate
// learns it from what the server accepts and refuses.
//
// A refusal of a request that was sent after the last pause is news. After it,
// the rate is the geometric mean of two bounds. The rate accepted since the
// previous refusal is the lower bound of the limit, and the rate that was
// refused is the upper bound. The client can't tell which of the two is the
// limit: for a bucket that is emptied and refilled it is the lower bound, for a
// limit without a burst the upper one. The mean halves the error each time in
// either case. From there the rate climbs on a concave curve to just below the
// refused rate, stays there, and then grows ever faster until the next refusal.
type pace struct {
	low  float64 // rate right after the last news, per second
	top  float64 // target rate
	slow bool    // no rate was refused yet: top is unknown, and low grows
	unit float64 // unit of progress, in seconds
	gaps float64 // the minimum unit, in gaps
	x    float64 // progress since the last news, in seconds of full use
}

const (
	// The first rate is this many requests per pause: a server that names a
	// second, or a minute, probably allows more than one request in that time.
	firstRate = 8

	// A refusal costs about one pause in plateauUnits+1, at most 6 % of what the
	// limit allows. 16 units, and about 8 of growth, take less than the 30 s
	// within which the gate should find a limit that has risen.
	plateauUnits = 16

	// After the plateau the rate grows by half a percent in the first unit, to
	// overshoot little, and tenfold in 6 to 9 units.
	steep = 0.005

	// A unit of three gaps means 48 requests per refusal: 2 to 3 % at slow
	// limits. A refusal in the first quarter of the plateau is probably the
	// effect of another client, and then the gaps are long because that client
	// has the larger share. Each early refusal halves the number of gaps, down
	// to one, with which this client grows as fast as the other. A later
	// refusal restores the number.
	gapsMost = 3
	gapsLow  = 1
	early    = 1.0 / 4
	unitLow  = 0.5 // seconds
	unitHigh = 30

	// Each news lowers the rate by at least this share, to let other clients
	// in.
	back = 0.05

	// The plateau lies at this share of the refused rate.
	under = 0.99

	// After a longer pause the limit may be a window, about which the refused
	// rate says nothing. The target is then at most three times the accepted
	// rate.
	longPause = 5 * time.Second
	longTop   = 3

	gapLow  = 10 * time.Microsecond
	gapHigh = 24 * time.Hour
)

// firstPace returns the pace after the first pause of a gate.
func firstPace(pause time.Duration) pace {
	return pace{slow: true, gaps: gapsMost, low: min(firstRate/pause.Seconds(), float64(time.Second/gapLow))}
}

// plateau returns the progress at which the rate begins to grow beyond the
// target, in seconds.
func (p *pace) plateau() float64 { return plateauUnits * p.unit }

// rate returns the pace in requests per second. Here and elsewhere in the gate,
// products within sums are converted explicitly: the compiler must not fuse
// them, or simulations would give different results on other machines.
func (p *pace) rate() float64 {
	plateau := p.plateau()
	switch {
	case p.slow:
		return p.low
	case p.x < plateau:
		d := 1 - p.x/plateau
		return p.top - float64((p.top-p.low)*d*d*d)
	default:
		// Relative growth falls with the root of the rate, so that clients
		// with unequal shares draw level.
		d := (p.x - plateau) / p.unit
		f := min(10, math.Sqrt(10/(p.top*p.unit)))
		return p.top * (1 + float64(steep*f*d*d*d*d))
	}
}

// gap returns the time between two releases.
func (p *pace) gap() time.Duration {
	return time.Duration(min(max(float64(time.Second)/p.rate(), float64(gapLow)), float64(gapHigh)))
}

// grow records that the server accepted a request that the pace held back, gap
// after the request before it.
func (p *pace) grow(gap time.Duration) {
	if p.slow {
		// The rate doubles with each response, but grows by no more than a
		// factor of e in an eighth of the unit.
		p.low = min(p.low*(1+min(1, gap.Seconds()/(p.unit/8))), float64(time.Second/gapLow))
	} else {
		p.x += gap.Seconds()
	}
}

// restart begins the curve anew, after a pause.
func (p *pace) restart(pause time.Duration) {
	p.unit = min(max(pause.Seconds(), p.gaps/p.low, unitLow), unitHigh)
	p.x = 0
}

// learn sets the rate after the refusal of a request that was sent gap after
// the request before it. accepted is the number of requests that the server has
// accepted since the previous news, and since is the time since then.
func (p *pace) learn(gap time.Duration, accepted float64, since, pause time.Duration) {
	if !p.slow {
		if p.x < early*p.plateau() {
			p.gaps = max(gapsLow, p.gaps/2)
		} else {
			p.gaps = gapsMost
		}
	}
	upper := 1 / gap.Seconds()
	lower := min(max(1, accepted)/max(since, gapLow).Seconds(), upper)
	p.top = upper
	if pause > longPause && upper > 2*lower {
		p.top = min(upper, longTop*lower)
	}
	p.low = min(math.Sqrt(lower*p.top), (1-back)*under*p.top)
	p.top *= under
	p.slow = false
}
