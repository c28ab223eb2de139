// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

// event is a scheduled event. Events with the same time run in the order in
// which they were scheduled.
type event struct {
	at   int64 // nanoseconds
	seq  uint32
	who  int32
	what uint32
}

func (e *event) before(f *event) bool {
	return e.at < f.at || e.at == f.at && int32(e.seq-f.seq) < 0
}

// queue is a heap of events, in which each has four below it.
type queue struct {
	heap []event
	seq  uint32
}

func (q *queue) push(at int64, who int32, what uint32) {
	e := q.stamp(at, who, what)
	q.heap = append(q.heap, e)
	i := len(q.heap) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !e.before(&q.heap[up]) {
			break
		}
		q.heap[i] = q.heap[up]
		i = up
	}
	q.heap[i] = e
}

// stamp returns an event with the sequence number it would get if it were
// scheduled now, for keeping in a separate list.
func (q *queue) stamp(at int64, who int32, what uint32) event {
	q.seq++
	return event{at: at, seq: q.seq, who: who, what: what}
}

// first returns the next event without removing it. It reports false if there
// is none.
func (q *queue) first() (*event, bool) {
	if len(q.heap) == 0 {
		return nil, false
	}
	return &q.heap[0], true
}

// pop removes and returns the next event. It reports false if there is none.
func (q *queue) pop() (event, bool) {
	n := len(q.heap) - 1
	if n < 0 {
		return event{}, false
	}
	e, last := q.heap[0], q.heap[n]
	q.heap = q.heap[:n]
	i := 0
	for {
		least := 4*i + 1
		if least >= n {
			break
		}
		for k := least + 1; k < min(n, 4*i+5); k++ {
			if q.heap[k].before(&q.heap[least]) {
				least = k
			}
		}
		if !q.heap[least].before(&last) {
			break
		}
		q.heap[i] = q.heap[least]
		i = least
	}
	if n > 0 {
		q.heap[i] = last
	}
	return e, true
}

// ring is a list to which is added at one end, and from which is taken at the other.
type ring[T any] struct {
	list []T // of a length that is a power of two
	head int
	n    int
}

func (l *ring[T]) add(e T) {
	if l.n == len(l.list) {
		grown := make([]T, max(16, 2*l.n))
		n := copy(grown, l.list[l.head:])
		copy(grown[n:], l.list[:l.head])
		l.list, l.head = grown, 0
	}
	l.list[(l.head+l.n)&(len(l.list)-1)] = e
	l.n++
}

// first returns the first element, which must exist.
func (l *ring[T]) first() *T { return &l.list[l.head] }

// shift removes and returns the first element, which must exist.
func (l *ring[T]) shift() T {
	e := l.list[l.head]
	l.head = (l.head + 1) & (len(l.list) - 1)
	l.n--
	return e
}
