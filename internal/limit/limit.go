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
// lets in a cohort at the limit and then one at a lower level, compares the
// times that they take, and moves the limit to a little above the knee that
// these times imply. It learns nothing, and doesn't change, while fewer
// requests are in progress than it allows.
//
// It has no side effects, and is not safe for concurrent use.
type Rule struct {
	calm     float64 // requests that take less than this many nanoseconds may be more
	limit    float64
	level    int // what is allowed now: the limit, or less
	low      bool
	starting bool
	steps    int // up in a row, or down in a row if negative
	id       uint32
	cohort   cohort
	before   summary // of the cohort before
}

const (
	// start is the limit before anything is known. It doubles as fast as
	// requests end, so a large server soon has what it needs; a small one needs
	// long to work off what is too much.
	start    = 20
	smallest = 2
	largest  = 1 << 20

	up = 0.12 // a logarithm of a change of the limit that is one of several up

	margin   = 1.3  // the limit over the knee: the lower level is near the knee then
	lower    = 0.75 // the lower level as a share of the limit
	deep     = 0.5  // the same while the limit falls
	falling  = -5   // the steps from which on it falls
	rest     = 2.5  // how often the requests at the limit are replaced before a cohort
	restUp   = 0.5  // the same while the limit rises
	enough   = 0.8  // of a cohort decide while the limit rises: the last ones take long
	patience = 100  // times as many later requests show that some of a cohort hang
	fewest   = 16   // requests of a cohort
	most     = 128
	quickest = 0.25 // the share of a cohort that shows a wait that all requests have

	doubt      = 0.3 // of a share that the quickest requests imply: they may be served first
	confidence = 0.4 // how far the knee is expected to move between two cohorts
)

// cohort is a number of requests that began at the same level.
type cohort struct {
	skip, want, begun, ended int
	later                    int // requests that began after the last of the cohort
	took                     [most]float64
}

// summary is what is known of a cohort that has ended. The variances are of the
// means, not of the requests.
type summary struct {
	level           int
	mean, meanVar   float64
	quick, quickVar float64 // of the quickest
}

// New returns a Rule for a server on which nobody minds if requests take calm.
func New(calm time.Duration) Rule {
	r := Rule{calm: float64(calm), limit: start, starting: true, steps: 1}
	r.begin(false)
	return r
}

// Limit returns how many requests may be in progress.
func (r *Rule) Limit() int { return r.level }

// Begin says that a request has begun, as the last of running. It returns a tag
// for End or Drop, which needn't be called if it is 0.
func (r *Rule) Begin(running int) uint32 {
	c := &r.cohort
	if running < r.level {
		return 0
	}
	if c.begun == c.want {
		if c.later++; c.later > patience*c.want {
			r.begin(r.low)
		}
		return 0
	}
	if c.skip > 0 {
		c.skip--
		return 0
	}
	c.begun++
	return r.id
}

// Drop takes a request out of its cohort.
func (r *Rule) Drop(tag uint32) {
	if tag == r.id {
		r.cohort.begun--
	}
}

// End says how long a request took. The limit may change.
func (r *Rule) End(tag uint32, took time.Duration) {
	if tag != r.id {
		return
	}
	c := &r.cohort
	c.took[c.ended] = float64(max(1, took))
	c.ended++
	if c.begun == c.want && (c.ended == c.want || r.steps > 0 && float64(c.ended) >= enough*float64(c.want)) {
		r.judge()
	}
}

// begin starts a cohort.
func (r *Rule) begin(low bool) {
	r.low, r.level = low, int(math.Round(r.limit))
	if low {
		share := lower
		if r.steps <= falling {
			share = deep
		}
		r.level = max(1, min(r.level-1, int(r.limit*share)))
	}
	if r.id++; r.id == 0 {
		r.id++
	}
	c := &r.cohort
	c.skip, c.want, c.begun, c.ended, c.later = 0, min(max(r.level, fewest), most), 0, 0, 0
	if r.starting {
		c.want = max(c.want, 2*fewest)
	}
	switch {
	case low: // the first of the cohort had to wait for the others to end
	case r.steps > 0:
		c.skip = int(restUp * float64(r.level))
	default:
		c.skip = int(rest * float64(r.level))
	}
}

func (c *cohort) summary(level int) summary {
	list := c.took[:c.ended]
	slices.Sort(list)
	s := summary{level: level}
	n := float64(len(list))
	quick := max(2, int(quickest*n))
	top, capped := list[quick-1], 0.0
	for i, x := range list {
		s.mean += x / n
		capped += min(x, top) / n
		if i < quick {
			s.quick += x / float64(quick)
		}
	}
	for _, x := range list {
		s.meanVar += (x - s.mean) * (x - s.mean) / (n * n)
		x = min(x, top)
		s.quickVar += (x - capped) * (x - capped) / float64(quick*quick)
	}
	return s
}

// judge moves the limit by what the cohort tells that has just ended.
func (r *Rule) judge() {
	is, was := r.cohort.summary(r.level), r.before
	r.before = is
	if was.level == 0 || was.level == is.level {
		r.begin(!r.low)
		return
	}
	high, low := is, was
	if high.level < low.level {
		high, low = low, high
	}
	width := math.Log(float64(high.level) / float64(low.level))
	waits, variance := share(high, low, width)
	step := math.Log(float64(high.level)*margin/r.limit) - waits*width
	gain := confidence * confidence / (confidence*confidence + variance)
	switch {
	case high.mean < r.calm:
		step, gain, r.steps = math.Log(min(2, r.calm/high.mean)), 1, 0
	case waits < 0.4 && step > up, r.starting && waits < 0.6:
		if r.steps = max(1, r.steps+1); r.steps > 1 {
			step = max(step, math.Ln2)
		}
		if r.starting {
			gain = 1
		}
	case waits > 0.8:
		r.steps = min(-1, r.steps-1)
	default:
		r.steps = 0
	}
	r.starting = r.starting && r.steps > 0
	rises := r.steps > 0 && gain*step > 0
	r.limit = min(max(r.limit*math.Exp(gain*step), smallest), largest)
	if rises {
		// The next level is compared with this one: that needs no lower level.
		r.before = high
		r.begin(false)
		return
	}
	r.begin(!r.low)
}

// share returns where the knee is between two levels whose logarithms differ by
// width, and the variance of that: 0 if the server isn't busy at the high one,
// and 1 if requests wait at both. Two estimates make up for each other. The mean
// time grows with the level whatever the order in which a server works, but it
// is uncertain if requests differ. If they wait in a queue, the quickest show
// that with more certainty.
func share(high, low summary, width float64) (waits, variance float64) {
	byMean := math.Log(high.mean/low.mean) / width
	meanVar := (high.meanVar/(high.mean*high.mean) + low.meanVar/(low.mean*low.mean) + 1e-4) / (width * width)
	rate := (float64(high.level)/high.mean + float64(low.level)/low.mean) / 2
	wait := float64(high.level-low.level) / rate
	byQuick := (high.quick - low.quick) / wait
	quickVar := (high.quickVar+low.quickVar)/(wait*wait) + doubt*doubt
	variance = 1 / (1/meanVar + 1/quickVar)
	return min(max((byMean/meanVar+byQuick/quickVar)*variance, -0.2), 1.1), variance
}
