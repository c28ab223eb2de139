// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

// reach is an attempt that gets to the backend.
func (r *run) reach(i int32, gen uint32) {
	if r.faults.happens(r.failure) || r.trouble != 0 && r.troubled() && r.faults.happens(r.trouble) {
		r.answer(i, gen|happensBad)
		return
	}
	if r.Backend.Workers == 0 || r.busy < r.Backend.Workers {
		r.work(i, gen)
		return
	}
	if !r.waiting.push(job{i, gen}) {
		r.answer(i, gen|happensBad)
	}
}

// work has a worker begin.
func (r *run) work(i int32, gen uint32) {
	r.busy++
	mean := float64(r.Backend.Service)
	if r.Trigger.Slowdown > 0 && r.troubled() {
		mean *= r.Trigger.Slowdown
	}
	took := int64(mean)
	if !r.Backend.Fixed {
		took = int64(r.service.exponential(mean))
	}
	r.queue.push(r.now+took, i, gen|happensServed)
}

// served is a worker that is done, whether anyone waits for it or not.
func (r *run) served(i int32, gen uint32) {
	r.busy--
	r.point().Served++
	for r.Backend.Workers > 0 {
		next, ok := r.waiting.pop()
		if !ok {
			break
		}
		if r.Backend.DropAbandoned && r.requests[next.who].gen != next.gen {
			continue
		}
		r.work(next.who, next.gen)
		break
	}
	r.answer(i, gen|happensGood)
}

// answer sends an answer on its way.
func (r *run) answer(i int32, what uint32) {
	delay := r.Network.Delay
	if r.Trigger.Delay > 0 && r.troubled() {
		delay += r.Trigger.Delay
	}
	// Also without a delay it is an event of its own: an answer within the
	// sending would call itself without end where a policy retries at once.
	r.queue.push(r.now+int64(delay), i, what)
}

// job is an attempt in the backend's queue.
type job struct {
	who int32
	gen uint32
}

// ring is a first-in, first-out queue with a limit.
type ring struct {
	jobs  []job
	first int
	n     int
	limit int
}

func newRing(limit int) ring { return ring{jobs: make([]job, 16), limit: limit} }

func (q *ring) push(j job) bool {
	if q.n >= q.limit {
		return false
	}
	if q.n == len(q.jobs) {
		grown := make([]job, 2*len(q.jobs))
		n := copy(grown, q.jobs[q.first:])
		copy(grown[n:], q.jobs[:q.first])
		q.jobs, q.first = grown, 0
	}
	q.jobs[(q.first+q.n)&(len(q.jobs)-1)] = j
	q.n++
	return true
}

func (q *ring) pop() (job, bool) {
	if q.n == 0 {
		return job{}, false
	}
	j := q.jobs[q.first]
	q.first = (q.first + 1) & (len(q.jobs) - 1)
	q.n--
	return j, true
}
