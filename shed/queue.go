// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"math"
	"time"
)

// reason is why a request was refused, as a label value of the metrics.
type reason string

const (
	retry     reason = "retry"      // a retry, while requests queue for longer than a retry may
	queueTime reason = "queue_time" // waited for QueueTime
	deadline  reason = "deadline"   // no time left
	canceled  reason = "canceled"   // the client went away while its request waited
)

// queue decides which requests are served, wait or are refused. It has no side
// effects: it gets times as durations since an epoch that the caller chooses,
// and never blocks. It is not safe for concurrent use.
type queue struct {
	limit                         int
	patience, retryPatience, hold time.Duration

	running int   // slots in use
	slots   slot  // the ring of the slots in use: newer is the oldest one, older the newest
	spare   *slot // free list of slots
	spares  int

	waiting int
	waiters waiter // the ring of the waiters: after is the first one, before the last
}

// slot is the right of a request to be served. Every admitted request gets one
// and must finish it.
type slot struct {
	since        time.Duration
	held         bool // counts towards the limit
	older, newer *slot
}

// waiter is a request in the queue.
type waiter struct {
	since         time.Duration
	slot          *slot         // nil until a slot is granted
	ready         chan struct{} // receives a value when a slot is granted
	before, after *waiter
}

// first returns the request that has waited longest, or nil.
func (q *queue) first() *waiter {
	if q.waiting == 0 {
		return nil
	}
	return q.waiters.after
}

// arrive handles a request that has the given time left. It returns a slot, or
// a place in the queue with the maximum wait, or the reason for a refusal.
func (q *queue) arrive(now time.Duration, isRetry bool, left time.Duration) (*slot, *waiter, time.Duration, reason) {
	if left <= 0 {
		return nil, nil, 0, deadline
	}
	if q.running >= q.limit {
		q.releaseOverdue(now)
	}
	if q.running < q.limit {
		// The waiters have already been granted the free slots.
		return q.hand(now), nil, 0, ""
	}
	most, why := q.patience, queueTime
	if isRetry {
		most, why = q.retryPatience, retry
		if first := q.first(); first != nil && now-first.since >= most {
			return nil, nil, 0, retry
		}
	}
	if most <= 0 {
		return nil, nil, 0, why
	}
	if q.waiting == 0 {
		q.waiters.before, q.waiters.after = &q.waiters, &q.waiters
	}
	w := &waiter{since: now, ready: make(chan struct{}, 1), before: q.waiters.before, after: &q.waiters}
	w.before.after, w.after.before = w, w
	q.waiting++
	return nil, w, min(most, left), ""
}

// remove takes out of the queue a request that was granted a slot or gives up.
func (q *queue) remove(w *waiter) {
	w.before.after, w.after.before = w.after, w.before
	q.waiting--
}

// finish returns a slot for good.
func (q *queue) finish(s *slot, now time.Duration) {
	q.release(s, now)
	// A slot that was released long ago may be one of many: keep no more than
	// can be in use at a time.
	if q.spares < q.limit {
		*s = slot{newer: q.spare}
		q.spare = s
		q.spares++
	}
}

// release frees the place of s for another request, if s still holds one. The
// request of s continues.
func (q *queue) release(s *slot, now time.Duration) {
	if !s.held {
		return
	}
	s.held = false
	s.older.newer, s.newer.older = s.newer, s.older
	s.older, s.newer = nil, nil
	q.running--
	if w := q.first(); w != nil {
		q.remove(w)
		w.slot = q.hand(now)
		w.ready <- struct{}{}
	}
}

// releaseOverdue releases all slots that have been held for too long.
func (q *queue) releaseOverdue(now time.Duration) {
	for q.running > 0 && now-q.slots.newer.since >= q.hold {
		q.release(q.slots.newer, now)
	}
}

// due returns when the oldest slot will have been held for too long, or the
// longest duration if that never happens.
func (q *queue) due() time.Duration {
	if q.running == 0 || q.hold > math.MaxInt64-q.slots.newer.since {
		return math.MaxInt64
	}
	return q.slots.newer.since + q.hold
}

// hand returns a slot that is held from now on.
func (q *queue) hand(now time.Duration) *slot {
	s := q.spare
	if s == nil {
		s = new(slot)
	} else {
		q.spare = s.newer
		q.spares--
	}
	if q.running == 0 {
		q.slots.older, q.slots.newer = &q.slots, &q.slots
	}
	*s = slot{since: now, held: true, older: q.slots.older, newer: &q.slots}
	s.older.newer, s.newer.older = s, s
	q.running++
	return s
}
