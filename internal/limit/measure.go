// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"math"
)

// measure begins a cohort.
func (r *Rule) measure(low bool) {
	if r.isLow = low; low {
		least := r.likely.quantile(0.1)
		level := below * least
		if r.unsure() {
			level = math.Sqrt(least * float64(r.high))
			// If all may end next, the server may share its work. Only a level
			// below what it may be tells it from a larger one.
			if r.order.reach() >= r.high {
				level = min(level, below*r.likely.quantile(0.5))
			}
		}
		// A server may look like a larger one if two levels are both more than
		// it has workers. Where the order doesn't show that, a much lower one does.
		if r.isDeep = !r.isDeep && r.high > few; r.isDeep {
			level *= deep
		}
		r.low = max(1, min(r.high-1, int(math.Round(level))))
	}
	if r.id++; r.id == mostIDs {
		r.id = 2
	}
	c := r.cohort(r.id)
	level := r.Limit()
	r.busy = 0
	*c = cohort{id: r.id, isLow: low, want: min(max(level, fewest), most), took: c.took[:0]}
	if r.rising {
		level /= 2
	}
	c.stride = max(1, (level+c.want-1)/c.want, int(r.rate*shortest/float64(c.want)))
}

// slows looks whether requests begin much more slowly than before, so that
// they needn't first work off as many as before. That doesn't tell whether
// there are fewer workers, or whether requests take longer: the time does that
// requests take if there are few of them.
func (r *Rule) slows(c *cohort) bool {
	elapsed, seen := float64(r.now-r.since), float64(r.busy)
	expected := r.rate * elapsed
	if c.isLow || r.at.n == 0 || expected < missed*(1+2*r.variance.mean) || elapsed < 1.5*r.at.mean || seen > expected/slower {
		return false
	}
	is := summary{float64(r.high), float64(r.high) * elapsed / seen, seen} // by Little's law
	r.learn(is, shaken)
	for i := range r.cohorts {
		r.cohorts[i].judged = true // before and after the change
	}
	r.at, r.rising = summary{}, false
	r.measure(true)
	return true
}

// joins reports whether a request that begins belongs to the cohort.
func (r *Rule) joins(running int) bool {
	c := r.cohort(r.id)
	if c.seen == 0 {
		c.from = r.now
	}
	c.seen++
	if r.busy == 0 {
		r.since = r.now
	}
	r.busy++
	switch {
	case r.slows(c):
		return false
	case c.begun == c.want && r.judged == 0 && float64(running) > further*c.level() && r.id < uint32(len(r.cohorts)):
		r.measure(false) // while the earlier cohorts are in progress
		return r.joins(running)
	case c.begun == c.want:
		if c.completed > (patience+c.stride)*c.want {
			r.measure(false)
		}
		return false
	case c.isLow && c.seen > patience*c.stride*c.want:
		r.measure(false) // nearly all of them are dropped
		return false
	case (c.seen-1)%c.stride != 0:
		return false
	}
	c.begun++
	c.running += float64(running)
	if c.begun >= slowFew && r.now-c.from > slowAfter {
		c.want = c.begun
	}
	return true
}

func (r *Rule) cohort(id uint32) *cohort { return &r.cohorts[id%4] }

// cohortOf returns the cohort that a tag names, or nil if it has gone.
func (r *Rule) cohortOf(tag uint32) *cohort {
	id := tag >> idShift
	if c := r.cohort(id); id > 0 && c.id == id {
		return c
	}
	return nil
}

// compare learns how much the times of requests differ. Those of requests that
// hardly wait tell it best. A request of few that wait for others takes as long
// as several together, which differ less.
func (r *Rule) compare(c *cohort) {
	if len(c.took) <= 2 {
		return
	}
	times := c.times(min(1, r.variance.mean))
	n, m := float64(len(times)), mean(times)
	variance := 0.0
	for _, t := range times {
		variance += (t - m) * (t - m) / ((n - 1) * m * m)
	}
	whole := m / mean(quick(times, len(times)))
	r.scatter.add(variance, n, recent)
	workers := r.likely.quantile(0.5)
	switch longer := c.level() / workers; {
	case longer < nearly:
		r.alone += n
	case c.level() <= few:
		n *= enough / (enough + r.alone)
		less := min(mostLess, longer*longer/(1+(longer-1)/workers))
		variance *= less
		whole = 1 + (whole-1)*math.Sqrt(less)
	default:
		return
	}
	r.whole.add(whole, n, memory)
	r.variance.add(variance, n, memory)
}
