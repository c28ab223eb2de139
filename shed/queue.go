// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"math"
	"time"

	"github.com/retrip/retrip/internal/limit"
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
	rule                          *limit.Rule // of limit; nil if it is fixed
	patience, retryPatience, hold time.Duration

	running        int   // slots in use
	oldest, newest *slot // the slots in use, ordered by since
	spare          *slot // free list of slots
	spares         int

	waiting     int
	missed      int     // requests that were refused since one was admitted
	first, last *waiter // in order of arrival
}

// slot is the right of a request to be served. Every admitted request gets one
// and must finish it.
type slot struct {
	since        time.Duration
	held         bool   // counts towards the limit
	overdue      bool   // was held for too long
	gone         bool   // the client has left; known only if there is a rule
	tag          uint32 // of the rule
	older, newer *slot
}

// waiter is a request in the queue.
type waiter struct {
	since         time.Duration
	slot          *slot         // nil until a slot is granted
	ready         chan struct{} // receives a value when a slot is granted
	before, after *waiter
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
		if q.first != nil && now-q.first.since >= most {
			q.missed++
			return nil, nil, 0, retry
		}
	}
	if most <= 0 {
		q.missed++
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

// giveUp removes from the queue a request that was not granted a slot.
func (q *queue) giveUp(w *waiter) {
	q.remove(w)
	q.missed++
}

func (q *queue) remove(w *waiter) {
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

// finish returns a slot for good.
func (q *queue) finish(s *slot, now time.Duration) {
	q.release(s, now)
	if s.overdue && s.tag != 0 && !s.gone {
		q.rule.EndOverdue(now - s.since)
	}
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
	if s.tag != 0 {
		if s.overdue {
			q.rule.Overdue(s.tag, s.since, now)
		} else {
			q.rule.End(s.tag, now-s.since, s.gone)
		}
		q.limit = q.rule.Limit()
	}
	for q.first != nil && q.running < q.limit {
		w := q.first
		q.remove(w)
		w.slot = q.hand(now)
		w.ready <- struct{}{}
	}
}

// releaseStream is release for a request whose end says nothing about the
// server.
func (q *queue) releaseStream(s *slot, now time.Duration) {
	if s.held && s.tag != 0 {
		q.rule.Drop(s.tag)
	}
	s.tag = 0 // also if it was overdue before the stream began
	q.release(s, now)
}

// needsTime reports whether finish and release need to know the time.
func (q *queue) needsTime(s *slot) bool { return q.first != nil || s.tag != 0 }

// mostHolds times HoldTime is how long a slot may be held at most, so that slow
// clients can't make themselves the usual ones and block others for as long as
// they like.
const mostHolds = 10

// most returns how long a slot may be held.
func (q *queue) most() time.Duration {
	if q.rule == nil || q.hold > math.MaxInt64/mostHolds {
		return q.hold
	}
	return min(max(q.hold, q.rule.Long()), mostHolds*q.hold)
}

// releaseOverdue releases all slots that have been held for too long.
func (q *queue) releaseOverdue(now time.Duration) {
	for s := q.oldest; s != nil && now-s.since >= q.most(); s = q.oldest {
		s.overdue = true
		q.release(s, now)
	}
}

// due returns when the oldest slot will have been held for too long, or the
// longest duration if that never happens.
func (q *queue) due() time.Duration {
	most := q.most()
	if q.oldest == nil || most > math.MaxInt64-q.oldest.since {
		return math.MaxInt64
	}
	return q.oldest.since + most
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
	*s = slot{since: now, held: true, older: q.newest}
	if q.newest == nil {
		q.oldest = s
	} else {
		q.newest.newer = s
	}
	q.newest = s
	q.running++
	if q.rule != nil {
		s.tag = q.rule.Begin(now, q.running, q.waiting, q.missed)
		q.limit = q.rule.Limit()
		q.missed = 0
	}
	return s
}
