// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/retrip/retrip/internal/limit"
)

// Shedding models a server behind a shed.Handler: first attempts and retries
// arrive at random, wait up to 100 ms (retries 20 ms) for one of Limit places,
// and then for a worker. It shows what a limit costs, and the limit that the
// Handler finds.
type Shedding struct {
	// Workers is how many requests the server works on at a time, and Service
	// the mean time of one.
	Workers int
	Service time.Duration

	// Times is how that time is distributed.
	Times Times

	// Load is the rate of requests as a share of the server's capacity.
	Load float64

	// Retries is the share of the requests that are retries.
	Retries float64

	// Limit is how many requests the Handler lets in; 0 means that it finds the
	// limit.
	Limit int

	// At is when Workers and Service change by these factors; 0 means no change.
	// The load changes with the capacity.
	At                   time.Duration
	WorkersBy, ServiceBy float64

	// From and Until bound the time that is measured.
	From, Until time.Duration

	// Runs is how many runs with other random numbers count together; 0 means 1.
	Runs int

	// Seed chooses the random numbers.
	Seed uint64
}

// Times is how the times that requests take are distributed.
type Times int

const (
	ConstantTimes    Times = iota
	ExponentialTimes       // a mean of Service
	BimodalTimes           // 90 % take half of Service, the others 5.5 times Service
)

// String returns the name of t: "constant", "exponential" or "bimodal".
func (t Times) String() string { return [...]string{"constant", "exponential", "bimodal"}[t] }

// SheddingResult is the outcome of a [Shedding].
type SheddingResult struct {
	Goodput   float64       // share of the workers' time in which they serve requests
	P99       time.Duration // of the times from the arrival of a first attempt to its answer
	MeanLimit float64
}

// Validate reports the first parameter that is out of bounds, as a
// *[ParameterError]. Run validates too.
func (m Shedding) Validate() error {
	var c checker
	c.count("Workers", m.Workers, 1, 100_000)
	c.duration("Service", m.Service, time.Microsecond, time.Hour)
	c.want(m.Times >= ConstantTimes && m.Times <= BimodalTimes, "Times", int(m.Times), "a constant of type Times")
	c.number("Load", m.Load, 0.001, 1000)
	c.number("Retries", m.Retries, 0, 1)
	c.count("Limit", m.Limit, 0, 1_000_000)
	c.count("Runs", m.Runs, 0, 10_000)
	c.duration("At", m.At, 0, time.Hour)
	c.number("WorkersBy", m.WorkersBy, 0, 1000)
	c.number("ServiceBy", m.ServiceBy, 0, 1000)
	c.duration("Until", m.Until, time.Millisecond, time.Hour)
	c.want(m.From >= 0 && m.From < m.Until, "From", m.From, "before Until, "+m.Until.String())
	return c.err
}

const (
	sheddingPatience      = int64(100 * time.Millisecond)
	sheddingRetryPatience = int64(20 * time.Millisecond)
)

// The kind of an event is in the lowest bits of its tag, the generation of its
// request in the others.
const (
	sheddingArrives = iota
	sheddingExpires
	sheddingEnds
	sheddingKinds = 4
)

type sheddingJob struct {
	arrived, began int64
	gen, tag       uint32
	retry, waits   bool
}

// shedding is a Shedding in progress.
type shedding struct {
	*Shedding
	rule                     limit.Rule
	queue                    *queue
	arrivals, service, draws *source
	jobs                     []sheddingJob
	free                     []int32
	outer, inner             fifo
	now                      int64
	workers, busy, running   int
	outside                  int   // requests that wait
	refused                  int   // requests since the last one entered
	counted                  int64 // the time up to which used is known
	used                     float64
	mean, rate               float64 // of the service, in nanoseconds; of the requests, per second
	took                     []int64 // by first attempts
	served                   int
	limits                   float64
}

type fifo struct {
	list []int32
	head int
}

func (q *fifo) push(i int32) { q.list = append(q.list, i) }

func (q *fifo) first() (int32, bool) {
	if q.head == len(q.list) {
		return 0, false
	}
	return q.list[q.head], true
}

func (q *fifo) shift() {
	if q.head++; q.head > 1024 && 2*q.head > len(q.list) {
		q.list, q.head = slices.Delete(q.list, 0, q.head), 0
	}
}

// Run simulates m. It returns early, with the context's error, when ctx is done.
func (m Shedding) Run(ctx context.Context) (*SheddingResult, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	var r SheddingResult
	var all []int64
	runs := max(1, m.Runs)
	for i := range runs {
		one := m
		one.Seed = m.Seed*1_000_003 + uint64(i)
		goodput, limits, took, err := one.run(ctx)
		if err != nil {
			return nil, err
		}
		r.Goodput += goodput / float64(runs)
		r.MeanLimit += limits / float64(runs)
		all = append(all, took...)
	}
	if len(all) > 0 {
		slices.Sort(all)
		r.P99 = time.Duration(all[len(all)*99/100])
	}
	return &r, nil
}

// run returns the outcome of one run, with the times that first attempts took.
func (m Shedding) run(ctx context.Context) (goodput, limits float64, took []int64, err error) {
	s := &shedding{
		Shedding: &m,
		rule:     limit.New(time.Duration(sheddingPatience / 10)),
		arrivals: newSource(m.Seed, streamArrivals),
		service:  newSource(m.Seed, streamService),
		draws:    newSource(m.Seed, streamDraws),
		workers:  m.Workers,
		mean:     float64(m.Service),
	}
	s.adapt()
	shift := uint(12)
	for ; shift < 26 && s.rate*float64(uint(1)<<shift) < 1e9; shift++ {
	}
	s.queue = newQueue(shift)
	s.queue.push(int64(s.arrivals.exponential(1e9/s.rate)), 0, sheddingArrives)
	changed := m.At == 0
	for events := 0; ; events++ {
		if events%cancelCheckEach == 0 && ctx.Err() != nil {
			return 0, 0, nil, ctx.Err()
		}
		e, _ := s.queue.pop()
		if e.at >= int64(m.Until) {
			break
		}
		if s.now = e.at; !changed && s.now >= int64(m.At) {
			changed = true
			s.change()
		}
		s.happens(e)
	}
	s.now = int64(m.Until)
	s.count()
	return s.used / float64(s.workers) / float64(m.Until-m.From), s.limits / float64(max(1, s.served)), s.took, nil
}

func (s *shedding) adapt() { s.rate = s.Load * float64(s.workers) / s.mean * 1e9 }

// count adds up the time in which workers were busy.
func (s *shedding) count() {
	if from := max(s.counted, int64(s.From)); s.now > from {
		s.used += float64(min(s.busy, s.workers)) * float64(s.now-from)
	}
	s.counted = s.now
}

func (s *shedding) change() {
	s.count()
	if s.WorkersBy > 0 {
		s.workers = max(1, int(math.Round(float64(s.workers)*s.WorkersBy)))
	}
	if s.ServiceBy > 0 {
		s.mean *= s.ServiceBy
	}
	s.adapt()
	s.work()
}

func (s *shedding) bound() int {
	if s.Limit > 0 {
		return s.Limit
	}
	return s.rule.Limit()
}

func (s *shedding) happens(e event) {
	switch i := e.who; e.what % sheddingKinds {
	case sheddingArrives:
		s.queue.push(s.now+int64(s.arrivals.exponential(1e9/s.rate)), 0, sheddingArrives)
		s.arrives()
	case sheddingExpires:
		if j := &s.jobs[i]; j.waits && j.gen == e.what/sheddingKinds {
			j.waits = false
			s.outside--
			s.refused++
		}
	case sheddingEnds:
		s.count()
		s.busy--
		s.running--
		s.ends(i)
		s.work()
		for s.running < s.bound() {
			i, ok := s.waiting()
			if !ok {
				break
			}
			s.outer.shift()
			s.enters(i)
		}
	}
}

// waiting returns the oldest request that waits outside.
func (s *shedding) waiting() (int32, bool) {
	for {
		i, ok := s.outer.first()
		if !ok || s.jobs[i].waits {
			return i, ok
		}
		s.outer.shift()
		s.free = append(s.free, i)
	}
}

func (s *shedding) arrives() {
	retry := s.Retries > 0 && s.draws.unit() <= s.Retries
	oldest, waits := s.waiting()
	if retry && waits && s.now-s.jobs[oldest].arrived >= sheddingRetryPatience {
		s.refused++
		return
	}
	i := int32(len(s.jobs))
	if n := len(s.free); n > 0 {
		i = s.free[n-1]
		s.free = s.free[:n-1]
	} else {
		s.jobs = append(s.jobs, sheddingJob{})
	}
	j := &s.jobs[i]
	*j = sheddingJob{arrived: s.now, retry: retry, gen: (j.gen + 1) % (math.MaxUint32 / sheddingKinds)}
	if s.running < s.bound() {
		s.enters(i)
		return
	}
	j.waits = true
	s.outside++
	s.outer.push(i)
	patience := sheddingPatience
	if retry {
		patience = sheddingRetryPatience
	}
	s.queue.push(s.now+patience, i, sheddingExpires+sheddingKinds*j.gen)
}

// enters lets a request in.
func (s *shedding) enters(i int32) {
	j := &s.jobs[i]
	if j.waits {
		s.outside--
	}
	j.waits, j.began = false, s.now
	s.running++
	if s.Limit == 0 {
		j.tag = s.rule.Begin(time.Duration(s.now), s.running, s.outside, s.refused)
	}
	s.refused = 0
	s.inner.push(i)
	s.work()
}

// work gives requests inside to free workers.
func (s *shedding) work() {
	for s.busy < s.workers {
		i, ok := s.inner.first()
		if !ok {
			return
		}
		s.inner.shift()
		s.count()
		s.busy++
		took := s.mean
		switch {
		case s.Times == ExponentialTimes:
			took = float64(s.service.exponential(s.mean))
		case s.Times == BimodalTimes && s.service.unit() <= 0.1:
			took *= 5.5
		case s.Times == BimodalTimes:
			took *= 0.5
		}
		s.queue.push(s.now+max(1, int64(took)), i, sheddingEnds)
	}
}

func (s *shedding) ends(i int32) {
	j := &s.jobs[i]
	if s.now >= int64(s.From) {
		s.served++
		s.limits += float64(s.bound())
		if !j.retry {
			s.took = append(s.took, s.now-j.arrived)
		}
	}
	if j.tag != 0 {
		s.rule.End(j.tag, time.Duration(s.now-j.began), false)
	}
	s.free = append(s.free, i)
}

// Best returns the fixed limit that m should have, and its result: of the
// limits from Workers to six times Workers with which the server does at least
// 99 % of what it does with the best one, the one with the lowest P99. It is
// chosen with other random numbers than the result has, so that it isn't the
// one that suits those of Seed by chance.
func (m Shedding) Best(ctx context.Context) (best int, result *SheddingResult, err error) {
	seed := m.Seed
	m.Seed = ^seed
	workers := float64(m.Workers)
	if m.WorkersBy > 0 {
		workers *= m.WorkersBy
	}
	var limits []int
	var results []*SheddingResult
	var most float64
	for _, times := range []float64{1, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 3, 4, 6} {
		m.Limit = max(1, int(math.Round(workers*times)))
		if n := len(limits); n > 0 {
			m.Limit = max(m.Limit, limits[n-1]+1)
		}
		r, err := m.Run(ctx)
		if err != nil {
			return 0, nil, err
		}
		limits, results = append(limits, m.Limit), append(results, r)
		most = max(most, r.Goodput)
	}
	for i, r := range results {
		if r.Goodput >= 0.99*most && (result == nil || r.P99 < result.P99) {
			best, result = limits[i], r
		}
	}
	m.Seed, m.Limit = seed, best
	result, err = m.Run(ctx)
	return best, result, err
}
