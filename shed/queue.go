// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed

import "time"

// reason is why a request was refused: the word in metrics.
type reason string

const (
	retry     reason = "retry"      // a retry while requests queue for longer than a retry may
	queueTime reason = "queue_time" // waited in vain
	deadline  reason = "deadline"   // no time left
	canceled  reason = "canceled"   // the client went while its request waited
)

// queue decides who is served, who waits and who is refused. It is pure: it
// gets instants as durations since an epoch of the caller's choice, and waits
// for nothing. It is not safe for concurrent use.
type queue struct {
	limit                         int
	patience, retryPatience, hold time.Duration

	running        int   // slots that are held
	oldest, newest *slot // of those, by since
	spare          *slot // a list of slots to use again
	spares         int

	waiting     int
	first, last *waiter // in the order of their arrival
}

// slot is the right of a request to be served. Whoever is let through gets one
// and finishes it.
type slot struct {
	since        time.Duration
	held         bool // counts towards the limit
	older, newer *slot
}

// waiter is a request in the queue.
type waiter struct {
	since         time.Duration
	slot          *slot         // nil until it is granted one
	ready         chan struct{} // gets a value then
	before, after *waiter
}

// arrive takes in a request that has the given time left. It returns a slot, or
// a place in the queue and how long to wait there at most, or why there is
// neither.
func (q *queue) arrive(now time.Duration, isRetry bool, left time.Duration) (*slot, *waiter, time.Duration, reason) {
	if left <= 0 {
		return nil, nil, 0, deadline
	}
	if q.running >= q.limit {
		q.releaseOverdue(now)
	}
	if q.running < q.limit {
		// Whoever waits has been granted what there was.
		return q.hand(now), nil, 0, ""
	}
	most, why := q.patience, queueTime
	if isRetry {
		most, why = q.retryPatience, retry
		if q.first != nil && now-q.first.since >= most {
			return nil, nil, 0, retry
		}
	}
	if most <= 0 {
		return nil, nil, 0, why
	}
	w := &waiter{since: now, ready: make(chan struct{}, 1), before: q.last}
	if q.last == nil {
		q.first = w
	} else {
		q.last.after = w
	}
	q.last = w
	q.waiting++
	return nil, w, min(most, left), ""
}

// giveUp takes a request out of the queue that was not granted a slot.
func (q *queue) giveUp(w *waiter) {
	if w.before == nil {
		q.first = w.after
	} else {
		w.before.after = w.after
	}
	if w.after == nil {
		q.last = w.before
	} else {
		w.after.before = w.before
	}
	q.waiting--
}

// finish takes back a slot for good.
func (q *queue) finish(s *slot, now time.Duration) {
	q.release(s, now)
	// One that was released long ago may be one of many: keep no more than can
	// be held at a time.
	if q.spares < q.limit {
		*s = slot{newer: q.spare}
		q.spare = s
		q.spares++
	}
}

// release makes room for another request, if s still holds a place. Its own
// goes on.
func (q *queue) release(s *slot, now time.Duration) {
	if !s.held {
		return
	}
	s.held = false
	if s.older == nil {
		q.oldest = s.newer
	} else {
		s.older.newer = s.newer
	}
	if s.newer == nil {
		q.newest = s.older
	} else {
		s.newer.older = s.older
	}
	s.older, s.newer = nil, nil
	q.running--
	if w := q.first; w != nil && q.running < q.limit {
		q.giveUp(w)
		w.slot = q.hand(now)
		w.ready <- struct{}{}
	}
}

// releaseOverdue releases all slots that have been held for too long.
func (q *queue) releaseOverdue(now time.Duration) {
	for s := q.oldest; s != nil && now-s.since >= q.hold; s = q.oldest {
		q.release(s, now)
	}
}

// hand makes a slot that is held from now on.
func (q *queue) hand(now time.Duration) *slot {
	s := q.spare
	if s == nil {
		s = new(slot)
	} else {
		q.spare = s.newer
		q.spares--
	}
	*s = slot{since: now, held: true, older: q.newest}
	if q.newest == nil {
		q.oldest = s
	} else {
		q.newest.newer = s
	}
	q.newest = s
	q.running++
	return s
}
