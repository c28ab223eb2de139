// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"math/bits"
)

// event is a scheduled event. Events with the same time run in the order in
// which they were scheduled.
type event struct {
	at   int64 // nanoseconds
	seq  uint32
	next int32 // in its bucket; 0 means none
	who  int32
	what uint32
}

func (e *event) before(f *event) bool {
	return e.at < f.at || e.at == f.at && int32(e.seq-f.seq) < 0
}

const queueBuckets = 4096

// queue is a calendar queue: a ring of buckets for the near future, a heap for
// the current bucket, and a list for the far future. Events must not be
// scheduled in the past. Pushing and popping cost the same for any number of
// events, as long as the width of a bucket suits their density.
type queue struct {
	shift  uint
	today  int64   // the current bucket
	due    []event // its events, a heap
	slab   []event // all other events; index 0 is unused
	free   int32
	ring   [queueBuckets]int32
	filled [queueBuckets / 64]uint64
	far    int32
	farMin int64 // the first bucket in far
	seq    uint32
	later  int // events after the current bucket
}

// newQueue returns a queue with buckets of 2^shift nanoseconds.
func newQueue(shift uint) *queue {
	return &queue{shift: shift, slab: make([]event, 1, 1024), farMin: math.MaxInt64}
}

func (q *queue) push(at int64, who int32, what uint32) {
	q.seq++
	e := event{at: at, seq: q.seq, who: who, what: what}
	if at>>q.shift <= q.today {
		q.pushDue(e)
		return
	}
	q.later++
	i := q.free
	if i != 0 {
		q.free = q.slab[i].next
		q.slab[i] = e
	} else {
		i = int32(len(q.slab))
		q.slab = append(q.slab, e)
	}
	q.file(i)
}

// file puts an event of the slab into its bucket or into far. The event must
// lie after today.
func (q *queue) file(i int32) {
	e := &q.slab[i]
	bucket := e.at >> q.shift
	if bucket-q.today < queueBuckets {
		slot := bucket % queueBuckets
		e.next = q.ring[slot]
		q.ring[slot] = i
		q.filled[slot/64] |= 1 << (slot % 64)
		return
	}
	e.next = q.far
	q.far = i
	q.farMin = min(q.farMin, bucket)
}

// pop removes and returns the next event. It reports false if there is none.
func (q *queue) pop() (event, bool) {
	for len(q.due) == 0 {
		if !q.turn() {
			return event{}, false
		}
	}
	e := q.due[0]
	n := len(q.due) - 1
	last := q.due[n]
	q.due = q.due[:n]
	if n > 0 {
		q.sift(last)
	}
	return e, true
}

// turn advances to the next bucket that holds an event.
func (q *queue) turn() bool {
	if q.later == 0 {
		return false
	}
	next := min(q.farMin, q.nextFilled())
	q.today = next
	if q.farMin == next {
		q.bringNear()
	}
	slot := next % queueBuckets
	i := q.ring[slot]
	q.ring[slot] = 0
	q.filled[slot/64] &^= 1 << (slot % 64)
	for i != 0 {
		e := &q.slab[i]
		follow := e.next
		q.pushDue(*e)
		q.later--
		e.next = q.free
		q.free = i
		i = follow
	}
	return true
}

// nextFilled returns the first bucket of the ring after today that holds an
// event.
func (q *queue) nextFilled() int64 {
	start := (q.today + 1) % queueBuckets
	word := start / 64
	if w := q.filled[word] >> (start % 64); w != 0 {
		return q.today + 1 + int64(bits.TrailingZeros64(w))
	}
	for n := int64(1); n <= queueBuckets/64; n++ {
		w := q.filled[(word+n)%(queueBuckets/64)]
		if w != 0 {
			return q.today + 1 + n*64 - start%64 + int64(bits.TrailingZeros64(w))
		}
	}
	return math.MaxInt64
}

// bringNear moves events from far to the ring as soon as the ring covers them.
func (q *queue) bringNear() {
	i := q.far
	q.far, q.farMin = 0, math.MaxInt64
	for i != 0 {
		follow := q.slab[i].next
		q.file(i)
		i = follow
	}
}

func (q *queue) pushDue(e event) {
	q.due = append(q.due, e)
	i := len(q.due) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !e.before(&q.due[up]) {
			break
		}
		q.due[i] = q.due[up]
		i = up
	}
	q.due[i] = e
}

// sift replaces the root of the heap with e.
func (q *queue) sift(e event) {
	i, n := 0, len(q.due)
	for {
		down := 2*i + 1
		if down >= n {
			break
		}
		if down+1 < n && q.due[down+1].before(&q.due[down]) {
			down++
		}
		if !q.due[down].before(&e) {
			break
		}
		q.due[i] = q.due[down]
		i = down
	}
	q.due[i] = e
}

// peek returns the time of the next event. It reports false if there is none.
func (q *queue) peek() (int64, bool) {
	e, ok := q.first()
	if !ok {
		return 0, false
	}
	return e.at, true
}

// first returns the next event without removing it. It reports false if there
// is none.
func (q *queue) first() (*event, bool) {
	for len(q.due) == 0 {
		if !q.turn() {
			return nil, false
		}
	}
	return &q.due[0], true
}

// events is a list of events that are added in order of time.
type events struct {
	list []event // a ring
	head int
	n    int
}

func (l *events) add(e event) {
	if l.n == len(l.list) {
		grown := make([]event, max(1024, 2*l.n))
		n := copy(grown, l.list[l.head:])
		copy(grown[n:], l.list[:l.head])
		l.list, l.head = grown, 0
	}
	l.list[(l.head+l.n)&(len(l.list)-1)] = e
	l.n++
}

func (l *events) first() *event { return &l.list[l.head] }

func (l *events) shift() event {
	e := l.list[l.head]
	l.head = (l.head + 1) & (len(l.list) - 1)
	l.n--
	return e
}

// stamp returns an event with the sequence number it would get if it were
// scheduled now, for keeping in a separate list.
func (q *queue) stamp(at int64, who int32, what uint32) event {
	q.seq++
	return event{at: at, seq: q.seq, who: who, what: what}
}
