// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package limit finds how many requests a server should work on at a time: as
// many as keep it busy, and not so many that they wait inside it. Nothing but
// the time that requests take tells the two apart. With too many, the time
// grows with their number; with too few, it doesn't.
package limit

import (
	"math"
	"time"
)

// Rule is a limit that follows the server. While there are enough requests, it
// measures how long they take, and sees in which order they end. From that, it
// infers how likely each number of workers is, together with the time that
// requests take if they needn't wait; the limit is a little above that number.
// Now and then, and more often while the server may as well be much smaller, it
// measures at a lower level, if more requests come than it lets in. It learns
// nothing, and doesn't change, while fewer are in progress than it allows.
// Before it has learned anything, it lets in what comes for a moment.
//
// It has no side effects, and is not safe for concurrent use.
type Rule struct {
	calm      float64 // requests that take less than this many nanoseconds may be more
	workers   belief  // by the times of requests
	likely    belief  // by their order, too
	order     order
	high, low int
	isLow     bool
	isDeep    bool          // the last lower level was much lower
	spent     float64       // nanoseconds at lower levels of late, fewer if times hardly differ
	rising    bool          // the limit grows as fast as it may
	opened    time.Duration // when the limit was reached, while nothing is known
	raised    time.Duration // when the limit last was, while nothing is known

	busy  int           // requests that began at the limit, all while others waited or were refused
	since time.Duration // when the first of them did

	id      uint32
	cohorts [4]cohort // the last ones, by id
	at      summary   // of the last cohort at the limit
	rate    float64   // its requests per nanosecond

	next        time.Duration // when to measure at the lower level
	now, judged time.Duration // of the last request that began, and when a cohort was judged

	variance average // of the times over the square of their mean
	whole    average // the mean of all times over that of the quickest
	scatter  average // variance, of requests that may wait
	alone    float64 // how many requests variance and whole have learned of that didn't wait
	waiting  average // requests outside
	pressed  average // the share of requests that began while others were waiting, or after others were refused
	left     average // the share of requests that end early
	usual    average // the nanoseconds that the others take
	typical  average // the logarithm of that, also of those that were overdue

	hanging time.Duration // how long one was in progress, if none has been completed since

	completed             time.Duration // when a request last was
	earlySince, lastEarly time.Duration // when requests began to end early, and none otherwise; when one last did
}

const (
	// start is the limit until it is reached. Then every request up to widest
	// is let in for the time of opening, unless enough have ended before: a new
	// process that is large enough refuses few, and one that isn't has no more
	// to work off than what comes in that time. After it, one more is let in per
	// slowAfter until one has been completed: a process whose requests take many
	// seconds isn't judged by four.
	start    = 4
	opening  = 250 * time.Millisecond
	widest   = 32
	smallest = 2
	largest  = 1 << 20

	safe   = 0.8  // how likely the limit is enough for all workers
	sparse = 0.65 // the same if 1/hurry of the clients leave, or more: to let too many in costs more then
	margin = 0.05 // more than that, to see whether requests wait
	uneven = 0.5  // more than that if the times differ much
	extra  = 0.6  // requests more than workers at least, so that more workers show
	stock  = 3.5  // requests that wait, inside or outside, if the times differ much; twice as many if few are refused
	hurry  = 5    // times the share of clients that leave: margin, uneven, extra and stock are smaller by this part
	double = 2.2  // times the level of the cohort that is judged, at most: its mean is a little below the limit
	grown  = 1.25 // times as much as before: the order in which requests end must be seen anew
	apart  = 2    // times as many as it may be: the limit, and what it may be as well

	below    = 0.8             // the lower level, of the number that workers exceed
	deep     = 0.6             // of that, every other time, if the limit is large
	pause    = 2 * time.Second // the least between two measurements at the lower level
	often    = 60              // times as long as one takes, the same
	burst    = 4               // how long they may last at once, in times of a request, while the server may be much smaller
	share    = 0.03            // of the time, how long they may last then
	demand   = 0.5             // of the requests must begin while others wait or are refused, or no lower level is measured
	bounding = 0.02            // the same, or the limit bounds nothing and doesn't rise

	fewest, most = 8, 75                          // requests of a cohort
	further      = 3                              // times the level of a cohort, before anything is known: the next one begins
	shortest     = float64(20 * time.Millisecond) // that a cohort takes, if requests are quick: to judge it takes time
	slowFew      = 5                              // the same if they need longer than a second
	slowAfter    = time.Second
	soon         = 0.25 // of the usual time: a request that ends early before tells nothing
	patience     = 100  // times as many completed requests show that some of a cohort hang
	muchLonger   = 5    // times the geometric mean: a request that takes longer may hang
	nearly       = 1.2  // times the workers: so many requests hardly wait
	memory       = 300  // requests that averages remember
	recent       = 50   // the same of averages that follow the limit
	first        = 5    // requests that count as much as what is assumed of averages
	mostLess     = 4    // times less may their variance be because they wait
	enough       = 4    // requests that didn't wait count as much as those that did

	changes                 = 0.1 // per second, of the workers and of the time that requests take
	leastChange, mostChange = 0.001, 0.08
	shaken                  = 0.3 // how likely a change is if requests begin slowly
	slower                  = 3.5 // times as slow is slowly
	missed                  = 10  // requests that should have begun meanwhile

	// long is a time of requests from which on the limit isn't raised while
	// the server may be much smaller: they would take as long again.
	long = float64(300 * time.Millisecond)
)

// average is a mean that forgets.
type average struct{ mean, n float64 }

func (a *average) add(x, n, most float64) {
	a.n = min(a.n+n, most)
	a.mean += (x - a.mean) * min(1, n/a.n)
}

// New returns a Rule for a server on which nobody minds if requests take calm.
func New(calm time.Duration) Rule {
	r := Rule{calm: float64(calm), workers: anything(), likely: anything(), high: start, rising: true, variance: average{1, first}, whole: average{1.3, first}, usual: average{mean: float64(slowAfter) / soon}} // requests may take a second
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
// while others are waiting, and after others were refused. It returns a tag for
// End or Drop, which needn't be called if it is 0.
func (r *Rule) Begin(now time.Duration, running, waiting, refused int) (tag uint32) {
	r.now = now
	r.waiting.add(float64(waiting), 1, 30)
	r.pressed.add(float64(min(1, waiting+refused)), 1, 30)
	if r.judged == 0 {
		r.open(running)
	}
	level := r.Limit()
	isFew := r.rising && running <= level/2 || !r.rising && running < level-level/8
	if isFew || waiting+refused == 0 {
		r.busy = 0
	}
	if isFew {
		return 0
	}
	tag = uint32(r.order.begin(now)) | isTag
	if r.joins(running) {
		tag |= r.id << idShift
	}
	return tag
}

// open lets in requests while nothing is known.
func (r *Rule) open(running int) {
	if running <= start/2 {
		r.opened = 0 // so few don't tell how many will come
	}
	if running < r.high || running >= widest {
		return
	}
	if r.opened == 0 {
		r.opened = r.now
	}
	if r.now-r.opened < opening || r.completed == 0 && r.now-r.raised >= slowAfter {
		r.high = running + 1
		r.raised = r.now
	}
}

// A tag has the number of a request in the lowest bits, then one that is always
// set, and the id of its cohort, or 0, in the highest bits.
const (
	isTag   = 1 << 16
	idShift = 17
	mostIDs = 1 << (32 - idShift)
)

// Drop takes a request out of its cohort.
func (r *Rule) Drop(tag uint32) {
	r.order.leave(uint16(tag))
	c := r.cohortOf(tag)
	if c == nil || c.judged {
		return
	}
	c.running -= c.level()
	c.begun--
	if c.id != r.id {
		c.want-- // or else the next request takes the place
	}
}

// End says how long a request took, and whether it ended early, because its
// client has left: then it isn't known whether a worker had begun it. One that
// ends much earlier than usual tells nothing, unless all do. The limit may change.
func (r *Rule) End(tag uint32, took time.Duration, early bool) {
	nanos := float64(max(1, took))
	if early {
		if r.now-r.lastEarly > slowAfter {
			r.earlySince = r.now
		}
		r.lastEarly = r.now
		if nanos < soon*r.usual.mean && float64(r.now-r.earlySince) < r.usual.mean+float64(slowAfter) {
			r.Drop(tag)
			return
		}
		r.order.leave(uint16(tag))
	} else {
		r.order.end(uint16(tag), r.isLow)
		r.usual.add(nanos, 1, recent)
		r.complete(took)
		r.cohort(r.id).completed++
	}
	c := r.cohortOf(tag)
	if c == nil {
		return
	}
	if early {
		c.early++
		c.lost += nanos
	} else {
		c.took = append(c.took, nanos)
	}
	if c.begun < c.want {
		return
	}
	id := c.id
	if !c.judged && c.decided() {
		switch {
		case len(c.took) > 0 || float64(r.none(c)) > r.usual.mean+float64(slowAfter):
			c.judged = true
			r.judge(c)
		case c.id == r.id:
			c.want++ // until one is completed
		}
	}
	if c.id == id && c.ended() == c.want {
		r.compare(c)
	}
}

// none returns for how long no request at all has been completed, at most since
// the cohort began.
func (r *Rule) none(c *cohort) time.Duration { return r.now - max(r.completed, c.from) }

// learn is told of a cohort, and how likely the server has changed since the
// last one.
func (r *Rule) learn(is summary, changed float64) {
	r.workers.learn(is, r.variance.mean, r.whole.mean, changed)
	r.likely = r.workers
	r.order.weigh(&r.likely, r.variance.mean, r.scatter.mean, r.high)
}

// judge moves the limit by what the cohort tells that has just ended.
func (r *Rule) judge(c *cohort) {
	is := c.summary(r.none(c))
	changed := min(max(changes*(r.now-r.judged).Seconds(), leastChange), mostChange)
	r.spent = max(0, r.spent-share*float64(r.now-r.judged))
	r.judged = r.now
	r.learn(is, changed)
	if !c.isLow {
		r.at, r.rate = is, is.level/is.mean/r.whole.mean
	}
	r.left.add(c.left(), float64(c.want), recent)
	before := float64(r.high)
	r.move(is)
	if c.isLow {
		lasted := r.now - c.from
		r.spent += float64(lasted) * min(1, r.variance.mean)
		r.next = r.now + pause // a much lower limit is looked at again
		if before < max(grown*float64(r.high), float64(r.high)+2) {
			r.next = r.now + max(pause, often*lasted)
		}
	}
	if c.id == r.id {
		now := r.now > r.next || r.unsure() && r.spent <= burst*r.at.mean
		r.measure(now && !c.isLow && !r.rising && r.pressed.mean > demand)
	}
}

// move chooses the limit.
func (r *Rule) move(is summary) {
	deviation := min(1, math.Sqrt(r.variance.mean))
	patient := max(0, 1-hurry*r.left.mean)
	want := r.likely.quantile(sparse+patient*(safe-sparse))*(1+patient*(margin+uneven*deviation)) + max(0, patient*stock*(2-r.pressed.mean)*deviation-r.waiting.mean)
	want = max(want, r.likely.quantile(0.5)+patient*extra)
	if r.pressed.mean < bounding || is.mean > long && r.unsure() && r.likely.quantile(0.5) < float64(r.high) {
		want = min(want, float64(r.high))
	}
	r.rising = want > 1.5*float64(r.high)
	if r.at.n > 0 {
		want = max(want, r.at.level*r.calm/r.at.mean)
	}
	want = min(want, max(float64(r.high), double*is.level))
	if want > grown*float64(r.high) {
		r.order.grow()
	}
	r.high = min(max(smallest, int(math.Round(want))), largest)
	r.low = min(r.low, r.high-1)
}

// unsure reports whether the server may be much smaller than the limit, or not.
func (r *Rule) unsure() bool {
	least := r.likely.quantile(0.1)
	return apart*least < float64(r.high) && apart*least < r.likely.quantile(0.9)
}
