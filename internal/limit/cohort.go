// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"math"
	"slices"
	"time"
)

// quickest is the share of a cohort that decides: the last ones take long.
const quickest = 0.8

// cohort is a number of requests that began at the same level.
type cohort struct {
	id                  uint32
	isLow               bool
	judged              bool
	want, begun, stride int
	seen, completed     int // requests that began, and that were completed, during and after the cohort
	from                time.Duration
	running             float64   // sum, when they began
	took                []float64 // the times of those that were completed
	early               int       // ended early
	lost                float64   // the sum of the times of those
}

// summary is what is known of a cohort that has ended: the mean time of the
// quickest of n requests.
type summary struct{ level, mean, n float64 }

func (c *cohort) level() float64 { return c.running / float64(c.begun) }

func (c *cohort) ended() int { return len(c.took) + c.early }

// decided reports whether enough have ended. Of those that were in progress
// together, the quickest end first. If few were, the last ones to end may be
// quick too.
func (c *cohort) decided() bool {
	late := int((1 - quickest) * min(float64(c.want), c.level()))
	return c.ended() >= c.want-late
}

// left returns the share that ended early.
func (c *cohort) left() float64 { return float64(c.early) / float64(c.ended()) }

// summary returns what the cohort tells. None is for how long no request at all
// has been completed.
//
// If clients leave, requests may take no longer at a higher level, but fewer are
// completed. The time per completion tells that, by Little's law. But where the
// server works for clients that have left, it grows by more than requests wait.
// The truth is between the two: the mean is the geometric one.
func (c *cohort) summary(none time.Duration) summary {
	if len(c.took) == 0 {
		waited, each := c.lost/float64(c.early), c.level()*float64(none)
		return summary{c.level(), math.Sqrt(waited * each), 0.5}
	}
	// Of those still in progress, as many may leave as of the others.
	n := float64(c.want) * (1 - c.left())
	atMost := (c.want*len(c.took) + c.ended() - 1) / c.ended()
	each := mean(quick(c.took, atMost)) + c.lost/float64(len(c.took))
	return summary{c.level(), each * math.Sqrt(1-c.left()), n}
}

// times returns how long all requests took, or would have taken: those that
// ended early, longer by the share that times differ.
func (c *cohort) times(differ float64) []float64 {
	if c.early == 0 {
		return c.took
	}
	longer := c.lost/float64(c.early) + differ*mean(c.took)
	times := c.took
	for range c.early {
		times = append(times, longer)
	}
	return times
}

// quick returns the quickest of n times, of which it is given most.
func quick(times []float64, n int) []float64 {
	slices.Sort(times)
	return times[:min(len(times), int(math.Ceil(quickest*float64(n))))]
}

func mean(times []float64) (m float64) {
	for _, t := range times {
		m += t / float64(len(times))
	}
	return m
}
