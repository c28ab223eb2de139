// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

const ms = time.Millisecond

// server has always more requests than it can serve. Its workers serve one
// request each, in the order in which they began, or share the work on all.
type server struct {
	rule    *Rule
	idle    bool // no request waits
	workers int
	shared  bool
	service func() time.Duration
	now     float64
	jobs    []job // in the order in which they began
}

type job struct {
	tag         uint32
	begun, left float64
}

// serve ends n requests.
func (s *server) serve(n int) {
	for range n {
		for len(s.jobs) < s.rule.Limit() {
			waiting := 1000
			if s.idle {
				waiting = 0
			}
			tag := s.rule.Begin(time.Duration(s.now), len(s.jobs)+1, waiting, 0)
			s.jobs = append(s.jobs, job{tag, s.now, float64(max(1, s.service()))})
		}
		active := len(s.jobs)
		if !s.shared {
			active = min(active, s.workers)
		}
		first := 0
		for i := range s.jobs[:active] {
			if s.jobs[i].left < s.jobs[first].left {
				first = i
			}
		}
		speed := min(1, float64(s.workers)/float64(active))
		done := s.jobs[first]
		for i := range s.jobs[:active] {
			s.jobs[i].left -= done.left
		}
		s.now += done.left / speed
		s.jobs = append(s.jobs[:first], s.jobs[first+1:]...)
		if done.tag != 0 {
			s.rule.End(done.tag, time.Duration(s.now-done.begun), false)
		}
	}
}

func constant(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

func exponential(d time.Duration, seed uint64) func() time.Duration {
	random := rand.New(rand.NewPCG(seed, 2))
	return func() time.Duration { return time.Duration(random.ExpFloat64() * float64(d)) }
}

// limits returns the mean of the limit over the next n requests.
func (s *server) limits(n int) (mean float64) {
	for range n {
		s.serve(1)
		mean += float64(s.rule.high) / float64(n)
	}
	return mean
}

// The limit finds servers of all sizes, whatever the times and the order in
// which they serve, and follows a change of one.
func TestRule_FindsTheKnee(t *testing.T) {
	testenv.OneGoroutine(t)
	for _, workers := range []int{1, 3, 10, 60} {
		for _, shared := range []bool{false, true} {
			for name, service := range map[string]func(seed uint64) func() time.Duration{
				"constant":    func(uint64) func() time.Duration { return constant(100 * ms) },
				"exponential": func(seed uint64) func() time.Duration { return exponential(100*ms, seed) },
			} {
				t.Run(fmt.Sprint(workers, shared, name), func(t *testing.T) {
					changes, most := []float64{1, 5, 0.3, 1}, 2.
					if shared {
						changes, most = []float64{1, 5}, 5 // few waits tell less there, and the order misleads
					}
					runs := 8
					if name == "constant" {
						runs = 1
					}
					var got [4]float64
					for seed := range uint64(runs) {
						r := New(0)
						s := &server{rule: &r, service: service(seed), shared: shared}
						for i, change := range changes {
							s.workers = size(workers, change)
							s.serve(100*s.workers + 6000)
							got[i] += s.limits(4000) / float64(runs)
						}
					}
					for i, change := range changes {
						n := float64(size(workers, change))
						assert.GreaterOrEqual(t, got[i], 0.85*n, "× %g", change)
						assert.LessOrEqual(t, got[i], most*n+6, "× %g", change)
					}
				})
			}
		}
	}
}

func size(workers int, change float64) int { return max(1, int(float64(workers)*change)) }

// If requests take longer, but as many workers serve them, the limit stays.
func TestRule_SlowerRequests(t *testing.T) {
	r := New(0)
	s := &server{rule: &r, workers: 20, service: constant(10 * ms)}
	s.serve(4000)
	s.service = constant(100 * ms)
	s.serve(400)
	assert.InDelta(t, 25, s.limits(2000), 8)
}

// If most workers have gone, requests mustn't wait until all that are too many
// have been worked off several times, whatever the rule was doing at that instant.
func TestRule_FewerWorkers(t *testing.T) {
	testenv.OneGoroutine(t)
	for _, workers := range []int{60, 100, 150, 200} {
		for _, spread := range []float64{0, 0.05, 0.3} {
			random := rand.New(rand.NewPCG(1, 2))
			var took []time.Duration
			for i := range 24 {
				r := New(0)
				s := &server{rule: &r, workers: workers, service: func() time.Duration {
					return time.Duration((1 + spread*(2*random.Float64()-1)) * float64(100*ms))
				}}
				s.serve(100*workers + workers*i/3)
				s.workers = workers / 10
				changed := s.now
				for s.rule.high > 3*s.workers {
					s.serve(1)
				}
				took = append(took, time.Duration(s.now-changed))
			}
			slices.Sort(took)
			assert.Less(t, took[12], 8*time.Second, "%d ± %g", workers, spread)
			assert.Less(t, took[23], 15*time.Second, "%d ± %g", workers, spread)
		}
	}
}

// A large server has what it needs after some rounds of its requests, although
// the order of those that have ended says nothing of workers that had none.
func TestRule_Grows(t *testing.T) {
	testenv.OneGoroutine(t)
	for _, workers := range []int{100, 500} {
		var took []time.Duration
		for seed := range uint64(60) {
			r := New(0)
			s := &server{rule: &r, workers: workers, service: exponential(500*ms, seed)}
			for s.rule.high < workers {
				s.serve(1)
			}
			took = append(took, time.Duration(s.now))
		}
		slices.Sort(took)
		assert.Less(t, took[30], 6*time.Second)
		assert.Less(t, took[50], 9*time.Second)
	}
}

// The order in which requests of different lengths end tells how many workers
// a small server has, without a lower level; of constant times, it tells nothing.
func TestOrder(t *testing.T) {
	for _, workers := range []int{1, 2, 4, 8} {
		r := New(0)
		s := &server{rule: &r, workers: workers, service: exponential(100*ms, 1)}
		s.serve(3000)
		require.Equal(t, workers, r.order.reach())
		b := anything()
		b.normalize()
		r.order.weigh(&b, 1, 1, 2*workers+1)
		assert.Greater(t, b.quantile(0.8)*1.4, float64(workers))
		assert.Less(t, b.quantile(0.5), float64(workers)+0.5)
	}
	var o order
	for i := range time.Duration(100) {
		first, second := o.begin(2*i+1), o.begin(2*i+2)
		o.end(first, false)
		o.end(second, false)
	}
	require.Equal(t, 1, o.reach())
	b, before := anything(), anything()
	o.weigh(&b, 1, 0, 10)
	assert.InDelta(t, before.quantile(0.5), b.quantile(0.5), 1e-6)
}

// A request's rank is its place among those inside, however they end, and also
// if a few of them take very long.
func TestOrder_Ranks(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var o order
	var inside []int // the oldest first
	for begun, ended := 0, 0; ended < 200_000; {
		if len(inside) < 3 || len(inside) < 20 && random.IntN(2) == 0 {
			begun++
			require.Equal(t, uint16(begun), o.begin(time.Duration(begun)))
			inside = append(inside, begun)
			continue
		}
		i := random.IntN(len(inside))
		if i < 2 && random.IntN(100) > 0 {
			continue
		}
		rank := i + 1
		if begun-inside[i] >= 64 {
			rank = 0
		}
		require.Equal(t, rank, o.leave(uint16(inside[i])))
		inside = slices.Delete(inside, i, i+1)
		ended++
	}
}

// Requests that take very long occupy workers, and don't hide them.
func TestRule_LongRequests(t *testing.T) {
	for _, workers := range []int{2, 4, 10} {
		r := New(0)
		random := rand.New(rand.NewPCG(1, 2))
		s := &server{rule: &r, workers: workers, service: func() time.Duration {
			if random.IntN(100) == 0 {
				return 10 * time.Second
			}
			return 50*ms + time.Duration(random.Int64N(int64(100*ms)))
		}}
		s.serve(20_000)
		got, n := s.limits(10_000), float64(workers)
		assert.GreaterOrEqual(t, got, n)
		assert.LessOrEqual(t, got, 3*n+6)
	}
}

// The rank of a request whose client has left tells nothing.
func TestRule_EndsEarly(t *testing.T) {
	for _, early := range []bool{false, true} {
		r := New(0)
		var youngest uint32
		for i := range start {
			youngest = r.Begin(0, i+1, 1, 0)
		}
		r.End(youngest, ms, early)
		assert.Equal(t, early, r.order.reach() == 0)
	}
}

// Of requests that are let in together, any may be served first.
func TestOrder_Together(t *testing.T) {
	var o order
	o.begin(1)
	first, second, third := o.begin(2), o.begin(2), o.begin(2)
	later := o.begin(3)
	assert.Equal(t, 2, o.leave(third))
	assert.Equal(t, 2, o.leave(first))
	assert.Equal(t, 2, o.leave(second))
	assert.Equal(t, 2, o.leave(later))
}

// While all may end next, fewer workers are less likely, but not out of the question.
func TestOrder_Sharing(t *testing.T) {
	var o order
	for i := range time.Duration(100) {
		first, second := o.begin(2*i+1), o.begin(2*i+2)
		o.end(second, false)
		o.end(first, false)
	}
	require.Equal(t, 2, o.reach())
	b, before := anything(), anything()
	o.weigh(&b, 1, 1, 2)
	assert.Less(t, b[0].p, 0.5*before[0].p)
	assert.Greater(t, b[0].p, 0.1*before[0].p)
}

// Requests whose clients leave while they wait inside end early, and out of
// order. They don't hide how small the server is.
func TestRule_ClientsLeave(t *testing.T) {
	testenv.OneGoroutine(t)
	for _, workers := range []int{1, 2, 4, 8} {
		for _, share := range []float64{0.05, 0.2, 0.5} {
			mean := 0.0
			for seed := range uint64(4) {
				random := rand.New(rand.NewPCG(seed, 5))
				r := New(0)
				s := &server{rule: &r, workers: workers, service: exponential(100*ms, seed)}
				for i := range 12_000 {
					s.serve(1)
					if inside := len(s.jobs) - workers; inside > 0 && random.Float64() < share {
						leaves := workers + random.IntN(inside)
						if job := s.jobs[leaves]; job.tag != 0 {
							r.End(job.tag, time.Duration(s.now-job.begun), true)
						}
						s.jobs = slices.Delete(s.jobs, leaves, leaves+1)
					}
					if i >= 4000 {
						mean += float64(r.high) / 8000 / 4
					}
				}
			}
			n := float64(workers)
			assert.GreaterOrEqual(t, mean, n, "%g", share)
			assert.LessOrEqual(t, mean, 2*n+1, "%d, %g", workers, share)
		}
	}
}

// Clients that reset their requests as soon as they are let in don't make the
// server look quicker than it is, whether they do so from the start or later.
func TestRule_ClientsReset(t *testing.T) {
	testenv.OneGoroutine(t)
	for _, workers := range []int{1, 2, 10, 40} {
		for _, share := range []float64{0.5, 0.9, 0.99} {
			for _, from := range []int{0, 4000} {
				random := rand.New(rand.NewPCG(1, 5))
				r := New(10 * ms)
				s := &server{rule: &r, workers: workers, service: exponential(100*ms, 1)}
				// A request has ended, another takes its place, and that is reset.
				reset := func() {
					if tag := r.Begin(time.Duration(s.now), r.Limit(), 1000, 0); tag != 0 {
						r.End(tag, ms/10, true)
					}
				}
				mean := 0.0
				for i := range 12_000 {
					if i == from { // before any other ends
						for range 10_000 {
							reset()
						}
						require.LessOrEqual(t, r.high, max(widest, 3*workers), "%d from %d", workers, from)
					}
					for i >= from && random.Float64() < share {
						reset()
					}
					s.serve(1)
					if i >= 6000 {
						mean += float64(r.high) / 6000
					}
				}
				n := float64(workers)
				assert.GreaterOrEqual(t, mean, 0.95*n, "%g from %d", share, from)
				assert.LessOrEqual(t, mean, 2.5*n+3, "%d, %g from %d", workers, share, from)
			}
		}
	}
}

// If so many are let in that all clients leave before the server has done what
// they want, fewer are let in, although nothing has ever been completed.
func TestRule_AllLeave(t *testing.T) {
	for _, patience := range []time.Duration{250 * ms, 500 * ms, 900 * ms, 3 * time.Second} {
		r := New(10 * ms)
		completed := 0
		for now := time.Duration(0); now < time.Minute; {
			var tags []uint32
			for len(tags) < r.Limit() {
				tags = append(tags, r.Begin(now, len(tags)+1, 100, 1))
			}
			took := time.Duration(len(tags)) * 100 * ms // they share a worker
			now += min(took, patience)
			for _, tag := range tags {
				if tag != 0 {
					r.End(tag, min(took, patience), took > patience)
				}
			}
			if took <= patience && now > 30*time.Second {
				completed += len(tags)
			}
		}
		assert.Greater(t, completed, 250, "%v", patience)
	}
}

// crowd is a server that drops requests whose clients have left before a worker
// has begun them, or works for them too. Clients come at load times its capacity,
// wait outside for 100 ms, and leave after patience.
type crowd struct {
	rule          *Rule // nil: the limit is the number of workers
	workers       int
	service       func() time.Duration
	drops         bool
	load          float64
	patience      time.Duration
	inside, queue []client
}

type client struct {
	tag                         uint32
	refused, leaves, began, end float64 // refused: if it is still in the queue then; end is 0 until a worker has begun the request
}

func (c *crowd) limit() int {
	if c.rule == nil {
		return c.workers
	}
	return c.rule.Limit()
}

// serve returns how many requests are completed between two times while their
// clients wait.
func (c *crowd) serve(t *testing.T, seed uint64, from, until time.Duration) (n int) {
	testenv.OneGoroutine(t)
	random := rand.New(rand.NewPCG(seed, 3))
	now, refused := 0.0, 0
	gap := func() float64 { return random.ExpFloat64() * float64(100*ms) / float64(c.workers) / c.load }
	for next := gap(); now < float64(until); {
		// What happens next: a client comes, or gives up in the queue, or leaves, or
		// a request ends.
		now = next
		first := -1
		for i, x := range c.inside {
			at := x.end
			if at == 0 && c.drops {
				at = x.leaves
			}
			if at > 0 && at < now {
				now, first = at, i
			}
		}
		switch {
		case len(c.queue) > 0 && c.queue[0].refused <= now:
			now = c.queue[0].refused
			c.queue = c.queue[1:]
			refused++
		case first >= 0:
			x := c.inside[first]
			c.inside = slices.Delete(c.inside, first, first+1)
			early := now >= x.leaves
			if !early && now > float64(from) {
				n++
			}
			if x.tag != 0 {
				c.rule.End(x.tag, time.Duration(now-x.began), early)
			}
		default:
			c.queue = append(c.queue, client{refused: now + float64(100*ms), leaves: now + float64(c.patience)})
			next = now + gap()
		}
		for len(c.queue) > 0 && len(c.inside) < c.limit() {
			x := c.queue[0]
			c.queue = c.queue[1:]
			x.began = now
			if c.rule != nil {
				x.tag = c.rule.Begin(time.Duration(now), len(c.inside)+1, len(c.queue), refused)
				refused = 0
			}
			c.inside = append(c.inside, x)
		}
		for i := range min(c.workers, len(c.inside)) {
			if x := &c.inside[i]; x.end == 0 {
				x.end = now + float64(max(1, c.service()))
			}
		}
	}
	return n
}

// Clients that leave don't take the server from those that wait: it serves nearly
// as many as with the best limit, whether it works for them or not.
func TestRule_Crowd(t *testing.T) {
	for name, service := range map[string]func(seed uint64) func() time.Duration{
		"constant":    func(uint64) func() time.Duration { return constant(100 * ms) },
		"exponential": func(seed uint64) func() time.Duration { return exponential(100*ms, seed) },
	} {
		share, cells := 0.0, 0.0
		for _, drops := range []bool{true, false} {
			for _, workers := range []int{2, 4, 10} {
				for _, load := range []float64{4, 10} {
					best, found := 0, 0
					for seed := range uint64(8) {
						serve := func(rule *Rule) int {
							c := crowd{rule: rule, workers: workers, service: service(seed), drops: drops, load: load, patience: 250 * ms}
							return c.serve(t, seed, 10*time.Second, 40*time.Second)
						}
						r := New(10 * ms)
						most, n := serve(nil), serve(&r)
						assert.GreaterOrEqual(t, float64(n), 0.65*float64(most), "%s, %v, %d, %g, %d", name, drops, workers, load, seed)
						best, found = best+most, found+n
					}
					share += float64(found) / float64(best)
					cells++
				}
			}
		}
		assert.GreaterOrEqual(t, share/cells, 0.92, name)
	}
}

// Requests that ended early count by what is expected of them.
func TestCohort_Times(t *testing.T) {
	c := cohort{took: []float64{1, 3}, early: 2, lost: 10}
	assert.Equal(t, []float64{1, 3, 6, 6}, c.times(0.5))
}

// If all requests of a cohort leave while others are completed, it goes on until
// one of it is completed, too.
func TestRule_CohortLeaves(t *testing.T) {
	r := New(0)
	s := &server{rule: &r, workers: 10, service: exponential(100*ms, 1)}
	for s.serve(2000); r.cohort(r.id).seen > 0; {
		s.serve(1)
	}
	c, limit, judged := r.cohort(r.id), r.Limit(), r.judged
	want, now := c.want, time.Duration(s.now)
	for range 5 {
		var tags []uint32
		for c.begun < c.want {
			now += ms
			tags = append(tags, r.Begin(now, limit, 1000, 0))
		}
		r.End(r.Begin(now, limit, 1000, 0), 100*ms, false)
		for _, tag := range tags {
			r.End(tag, 100*ms, true)
		}
	}
	assert.Equal(t, judged, r.judged)
	assert.Greater(t, c.want, want)
	last := uint32(0)
	for c.begun < c.want {
		last = r.Begin(now, limit, 1000, 0)
	}
	r.End(last, 100*ms, false)
	assert.Greater(t, r.judged, judged)
}

// If nothing but streams and resets comes, a lower level ends, although nothing
// is learned.
func TestRule_OnlyDropped(t *testing.T) {
	r := New(0)
	s := &server{rule: &r, workers: 20, service: exponential(100*ms, 1)}
	for s.serve(4000); !r.isLow; {
		s.serve(1)
	}
	for i := range 10_000 {
		r.Drop(r.Begin(time.Duration(s.now)+time.Duration(i)*ms, r.Limit(), 100, 3))
	}
	assert.False(t, r.isLow)
}

// A few requests at once, and nothing after them, don't keep a burst out.
func TestRule_OpensAgain(t *testing.T) {
	r := New(0)
	for i := range start + 1 {
		r.Begin(time.Second, i+1, 0, 0)
	}
	inside := 0
	for inside < r.Limit() {
		inside++
		r.Begin(time.Hour, inside, 0, 0)
	}
	assert.Equal(t, widest, inside)
}

// As long as requests are quick, it doesn't matter that they wait.
func TestRule_Calm(t *testing.T) {
	r := New(25 * ms)
	s := &server{rule: &r, workers: 2, service: constant(ms)}
	s.serve(10_000)
	assert.InDelta(t, 50, s.limits(5000), 15)
}

// Requests that aren't limited say nothing.
func TestRule_Idle(t *testing.T) {
	r := New(25 * ms)
	for range 1000 {
		assert.Zero(t, r.Begin(0, r.Limit()/2, 0, 0))
	}
	assert.Equal(t, start, r.Limit())
}

// As long as no request waits or is refused, the search takes no place from one,
// and a limit that bounds nothing doesn't rise.
func TestRule_NobodyWaits(t *testing.T) {
	for _, workers := range []int{2, 60} {
		r := New(0)
		s := &server{rule: &r, workers: workers, service: exponential(100*ms, 1), idle: true}
		for range 5000 {
			s.serve(1)
			require.False(t, r.isLow)
			require.LessOrEqual(t, r.high, widest)
		}
		s.idle = false
		s.serve(5000)
		assert.GreaterOrEqual(t, s.limits(2000), float64(workers))
	}
}

// Requests that hang, or say nothing, don't end the search.
func TestRule_Hangs(t *testing.T) {
	r := New(0)
	s := &server{rule: &r, workers: 20, service: constant(100 * ms)}
	for range 200 {
		r.Begin(0, r.Limit(), 1, 0)
	}
	s.serve(4000)
	assert.InDelta(t, 25, s.limits(2000), 8)
	for range 10 * most {
		tag := r.Begin(time.Duration(s.now), r.Limit(), 1, 0)
		r.Drop(tag)
		r.Drop(tag + 1<<idShift) // of no cohort
	}
	s.serve(4000)
	assert.InDelta(t, 25, s.limits(2000), 8)
}

// The limit stays within its bounds whatever the times.
func TestRule_Bounds(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, longest := range []time.Duration{1, time.Hour, 1 << 62} {
		for _, calm := range []time.Duration{0, 10 * ms, time.Hour} {
			r := New(calm)
			var now time.Duration
			var tags []uint32
			for range 20_000 {
				if len(tags) == 0 || random.IntN(2) == 0 {
					now += time.Duration(random.Int64N(int64(time.Second)))
					tags = append(tags, r.Begin(now, random.IntN(2*r.Limit()+1), random.IntN(10), random.IntN(2)))
				} else if tag := tags[0]; tag == 0 {
					tags = tags[1:]
				} else if random.IntN(10) == 0 {
					tags = tags[1:]
					r.Drop(tag)
				} else {
					tags = tags[1:]
					r.End(tag, time.Duration(random.Int64N(int64(longest))), random.IntN(5) == 0)
				}
				require.Positive(t, r.Limit())
				require.LessOrEqual(t, r.Limit(), largest)
				require.Less(t, r.low, r.high)
			}
		}
	}
}

// A request is overdue if it takes much longer than others, and if none is
// completed, later and later.
func TestRule_Overdue(t *testing.T) {
	r := New(10 * time.Millisecond)
	assert.Zero(t, r.Long())
	var tags []uint32
	for i := range 8 {
		tags = append(tags, r.Begin(time.Second, i+1, 0, 0))
	}
	r.Overdue(tags[7], time.Second, 11*time.Second)
	assert.Equal(t, 20*time.Second, r.Long())
	r.Overdue(tags[6], time.Second, 21*time.Second)
	assert.Equal(t, 40*time.Second, r.Long())
	r.EndOverdue(100 * time.Second)
	assert.InDelta(t, 500, r.Long().Seconds(), 1e-6, "of one that has ended")
	r.End(tags[5], time.Second, false)
	assert.InDelta(t, 50, r.Long().Seconds(), 1e-6, "five times the geometric mean of 1 and 100 s")
	r.Begin(60*time.Second, 8, 0, 0)
	r.End(tags[4], 10*time.Second, false)
	r.Overdue(tags[3], time.Second, time.Hour)
	assert.InDelta(t, 50, r.Long().Seconds(), 1e-6, "others were completed meanwhile")
}
