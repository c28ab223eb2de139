// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// server has always more requests than it can serve. Its workers serve one
// request each, in the order in which they began, or share the work on all.
type server struct {
	rule    *Rule
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
			tag := s.rule.Begin(time.Duration(s.now), len(s.jobs)+1, 1000)
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
			s.rule.End(done.tag, time.Duration(s.now-done.begun))
		}
	}
}

func constant(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

func exponential(d time.Duration) func() time.Duration {
	random := rand.New(rand.NewPCG(1, 2))
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
	for _, workers := range []int{1, 3, 10, 60} {
		for _, shared := range []bool{false, true} {
			for name, service := range map[string]func() time.Duration{"constant": constant(100 * ms), "exponential": exponential(100 * ms)} {
				t.Run(fmt.Sprint(workers, shared, name), func(t *testing.T) {
					r := New(0)
					s := &server{rule: &r, service: service, shared: shared}
					changes, most := []float64{1, 5, 0.3, 1}, 2.
					if shared {
						changes, most = []float64{1, 5}, 3.5 // few waits tell less there
					}
					for _, change := range changes {
						s.workers = max(1, int(float64(workers)*change))
						s.serve(100*s.workers + 6000)
						got, n := s.limits(4000), float64(s.workers)
						assert.GreaterOrEqual(t, got, 0.85*n, "× %g", change)
						assert.LessOrEqual(t, got, most*n+6, "× %g", change)
					}
				})
			}
		}
	}
}

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
// have been worked off several times.
func TestRule_FewerWorkers(t *testing.T) {
	r := New(0)
	s := &server{rule: &r, workers: 100, service: constant(100 * ms)}
	s.serve(10_000)
	s.workers = 10
	changed := s.now
	for s.rule.high > 30 {
		s.serve(1)
	}
	assert.Less(t, time.Duration(s.now-changed), 5*time.Second)
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
		assert.Zero(t, r.Begin(0, r.Limit()/2, 0))
	}
	assert.Equal(t, start, r.Limit())
}

// Requests that hang, or say nothing, don't end the search.
func TestRule_Hangs(t *testing.T) {
	r := New(0)
	s := &server{rule: &r, workers: 20, service: constant(100 * ms)}
	for range 200 {
		r.Begin(0, r.Limit(), 1)
	}
	s.serve(4000)
	assert.InDelta(t, 25, s.limits(2000), 8)
	for range 10 * most {
		tag := r.Begin(time.Duration(s.now), r.Limit(), 1)
		r.Drop(tag)
		r.Drop(tag + 1)
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
					tags = append(tags, r.Begin(now, random.IntN(2*r.Limit()+1), random.IntN(10)))
				} else if tag := tags[0]; random.IntN(10) == 0 {
					tags = tags[1:]
					r.Drop(tag)
				} else {
					tags = tags[1:]
					r.End(tag, time.Duration(random.Int64N(int64(longest))))
				}
				require.Positive(t, r.Limit())
				require.LessOrEqual(t, r.Limit(), largest)
				require.Less(t, r.low, r.high)
			}
		}
	}
}
