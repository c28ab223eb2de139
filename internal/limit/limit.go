// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package limit finds how many requests a server should work on at a time: as
// many as keep it busy, and not so many that they wait inside it. Nothing but
// the time that requests take tells the two apart. With too many, the time
// grows with their number; with too few, it doesn't.
package limit

import (
	"math"
	"slices"
	"time"
)

// Rule is a limit that follows the server. While there are enough requests, it
// measures how long requests take at the limit and, now and then, at a lower
// level. The differences tell how likely each number of workers is, and the
// limit is a little above that number. It learns nothing, and doesn't change,
// while fewer requests are in progress than it allows.
//
// It has no side effects, and is not safe for concurrent use.
type Rule struct {
	calm      float64 // requests that take less than this many nanoseconds may be more
	workers   belief
	high, low int
	isLow     bool
	rising    bool // the limit doubles
	slowed    bool // requests have become much slower, and the lower level isn't measured yet
	rest      int  // how often to measure at the limit before the lower level

	id      uint32
	cohorts [4]cohort // the last ones, by id
	at      summary   // of the requests at the limit
	rate    float64   // requests per nanosecond at the limit

	variance average // of the times over the square of their mean
	whole    average // the mean of all times over that of the quickest
	waiting  average // requests outside
}

const (
	// start is the limit before anything is known. It doubles as fast as
	// requests end, so a large server soon has what it needs; a small one needs
	// long to work off what is too much.
	start    = 6
	smallest = 2
	largest  = 1 << 20

	safe   = 0.8  // how likely the limit is enough for all workers
	uneven = 0.5  // more than that if the times differ much
	stock  = 2    // requests inside that keep workers busy while few wait outside
	fall   = 0.45 // the least that a limit becomes at once

	shallow             = 0.8   // the most that the lower level is of the limit
	deep                = 0.5   // the least that it is of the workers
	cost                = 0.004 // of the capacity, that the lower level may cost
	leastRest, mostRest = 2, 6 * time.Second

	fewest, most = 8, 75 // requests of a cohort
	slowFew      = 5     // the same if they need longer than a second
	slowAfter    = time.Second
	quickest     = 0.8 // of a cohort decide: the last ones take long
	patience     = 100 // times as many later requests show that some of a cohort hang
	memory       = 300 // requests that averages remember
	together     = 200 // requests at the limit whose mean is compared with the lower level

	drift    = 0.04 // how likely the server changes between two measurements
	surprise = 5    // standard deviations that show that it has changed
	shaken   = 0.3  // how likely other numbers are then
	alike    = 0.85 // share of the requests above the lower level whose wait shows that it is too high
	slower   = 3.5  // times as slow shows that it has changed at once
	missed   = 15   // requests that should have begun meanwhile
)

// cohort is a number of requests that began at the same level.
type cohort struct {
	id                  uint32
	isLow, rising, slow bool
	judged              bool
	want, begun, stride int
	seen, later         int // requests that began during and after the cohort
	from                time.Duration
	running             float64 // sum, when they began
	took                []float64
}

// summary is what is known of a cohort that has ended: the mean time of the
// quickest of n requests.
type summary struct{ level, mean, n float64 }

// average is a mean that forgets.
type average struct{ mean, n float64 }

func (a *average) add(x, n, most float64) {
	a.n = min(a.n+n, most)
	a.mean += (x - a.mean) * min(1, n/a.n)
}

// New returns a Rule for a server on which nobody minds if requests take calm.
func New(calm time.Duration) Rule {
	r := Rule{calm: float64(calm), workers: anything(), high: start, rising: true, variance: average{1, fewest}, whole: average{1.3, fewest}}
	for i := range r.cohorts {
		r.cohorts[i].took = make([]float64, 0, most)
	}
	r.measure(false)
	return r
}

// Limit returns how many requests may be in progress.
func (r *Rule) Limit() int {
	if r.isLow {
		return r.low
	}
	return r.high
}

// Begin says that a request has begun at the time now, as the last of running,
// while others are waiting. It returns a tag for End or Drop, which needn't be
// called if it is 0.
func (r *Rule) Begin(now time.Duration, running, waiting int) uint32 {
	r.waiting.add(float64(waiting), 1, 30)
	level := r.Limit()
	if r.rising && running <= level/2 || !r.rising && running < level-level/8 {
		return 0
	}
	c := r.cohort(r.id)
	if c.begun == c.want {
		if c.later++; c.later > patience*c.want {
			r.measure(false)
		}
		return 0
	}
	if c.seen == 0 {
		c.from = now
	}
	c.seen++
	if r.slows(c, now-c.from) {
		return 0
	}
	if (c.seen-1)%c.stride != 0 {
		return 0
	}
	c.begun++
	c.running += float64(running)
	if c.begun >= slowFew && now-c.from > slowAfter {
		c.want = c.begun
	}
	tag := c.id
	if c.begun == c.want && !c.isLow && !r.rising && r.rest <= 0 {
		r.measure(true)
	}
	return tag
}

// Drop takes a request out of its cohort.
func (r *Rule) Drop(tag uint32) {
	c := r.cohort(tag)
	if c.id != tag || c.judged {
		return
	}
	c.running -= c.running / float64(c.begun)
	c.begun--
	c.want--
	if c.want == 0 {
		r.measure(false)
	}
}

// End says how long a request took. The limit may change.
func (r *Rule) End(tag uint32, took time.Duration) {
	c := r.cohort(tag)
	if c.id != tag {
		return
	}
	c.took = append(c.took, float64(max(1, took)))
	if !c.judged && c.begun == c.want && float64(len(c.took)) >= quickest*float64(c.want) {
		c.judged = true
		r.judge(c)
	}
}

func (r *Rule) cohort(id uint32) *cohort { return &r.cohorts[id%4] }

// measure begins a cohort.
func (r *Rule) measure(low bool) {
	r.isLow = low
	if r.id++; r.id == 0 {
		r.id = 2
	}
	c := r.cohort(r.id)
	if len(c.took) > 0 && len(c.took) == c.want && (c.isLow || c.rising) {
		slices.Sort(c.took)
		quick := c.took[:int(math.Ceil(quickest*float64(c.want)))]
		r.whole.add(mean(c.took)/mean(quick), float64(c.want), memory)
	}
	level := r.Limit()
	*c = cohort{id: r.id, isLow: low, rising: r.rising, want: min(max(level, fewest), most), took: c.took[:0]}
	if r.rising {
		level /= 2
	}
	c.stride = max(1, level/c.want)
}

// slows looks whether requests begin much more slowly than before. That doesn't
// tell whether there are fewer workers, or whether requests take longer: the
// time does that requests take if there are few of them. They mustn't first
// work off as many as before.
func (r *Rule) slows(c *cohort, elapsed time.Duration) bool {
	expected := r.rate * float64(elapsed)
	if c.isLow || c.slow || r.rising || r.at.n == 0 || expected < missed || float64(elapsed) < 1.5*r.at.mean || float64(c.seen) > expected/slower {
		return false
	}
	r.low = max(1, min(r.high-1, int(math.Round(r.workers.quantile(0.5)*float64(c.seen)/expected))))
	r.workers.loosen(shaken)
	r.at, r.rest, r.slowed = summary{}, 0, true
	r.measure(false)
	c = r.cohort(r.id)
	c.want, c.stride, c.slow = slowFew, 1, true
	return true
}

// judge moves the limit by what the cohort tells that has just ended.
func (r *Rule) judge(c *cohort) {
	slices.Sort(c.took)
	is, was := summary{c.running / float64(c.begun), mean(c.took), float64(c.want)}, r.at
	if c.isLow || r.rising {
		squares := 0.0
		for _, t := range c.took {
			squares += t * t
		}
		n := float64(len(c.took))
		r.variance.add(max(0, squares/n/(is.mean*is.mean)-1), n, memory)
	}
	changed := drift
	switch {
	case was.n == 0:
	case c.isLow || math.Abs(math.Log(is.level/was.level)) > 0.2:
		if waited := r.workers.learn(was, is, r.variance.mean, r.whole.mean); c.isLow && waited > alike {
			r.workers.loosen(drift) // they may be much fewer than the lower level
		}
	case math.Abs(math.Log(is.mean/was.mean)) > surprise*math.Sqrt(wide*r.variance.mean*(1/is.n+1/was.n)+noise*noise):
		changed, r.rest = shaken, 0
	}
	if c.isLow || r.rising || changed > drift {
		r.workers.loosen(changed)
	}
	if !c.isLow {
		if was.n > 0 && changed == drift && math.Abs(math.Log(is.level/was.level)) < 0.05 {
			n := min(was.n, together)
			is.mean += (was.mean - is.mean) * n / (n + is.n)
			is.level += (was.level - is.level) * n / (n + is.n)
			is.n += n
		}
		r.at, r.rate = is, is.level/is.mean/r.whole.mean
	}
	r.move(c, is)
	switch {
	case c.id == r.id:
		if !c.isLow {
			r.rest--
		}
		r.measure(false)
	case r.isLow && r.rising && r.cohort(r.id).begun < r.cohort(r.id).want:
		r.measure(false)
	}
}

// move chooses the limit and the lower level.
func (r *Rule) move(c *cohort, is summary) {
	deviation := min(1, math.Sqrt(r.variance.mean))
	want := r.workers.quantile(safe)*(1+uneven*deviation) + max(stock*deviation, stock-r.waiting.mean)
	r.rising = want > 1.5*float64(r.high)
	most, least := 2*float64(r.high), fall*float64(r.high)
	switch {
	case c.slow:
		want = float64(r.high) // until the lower level is measured
	case c.isLow && r.slowed:
		least, r.slowed = 0, false
	}
	want = max(min(want, most), least)
	if !c.isLow && is.mean < r.calm {
		want = max(want, min(most, is.level*r.calm/is.mean))
	}
	r.high = min(max(smallest, int(math.Round(want))), largest)
	if c.slow {
		return
	}
	low := min(shallow*float64(r.high), r.workers.quantile(1-safe))
	r.low = max(1, min(r.high-1, int(math.Round(max(low, deep*r.workers.quantile(0.5))))))
	if c.isLow {
		took := is.mean*1.3 + is.mean/is.level*float64(c.want*c.stride)
		r.rest = int(min(r.workers.idle(r.low)/cost, max(leastRest, float64(mostRest)/took)))
		if r.workers.quantile(0.9) > 2*r.workers.quantile(0.1) {
			r.rest = min(r.rest, leastRest)
		}
	}
}

func mean(times []float64) (m float64) {
	for _, t := range times {
		m += t / float64(len(times))
	}
	return m
}
