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

// fifo is a list to which is appended, and whose first element is taken.
type fifo[T any] struct {
	list  []T
	taken int // elements of list
}

func (l *fifo[T]) len() int { return len(l.list) - l.taken }

// first returns the first element, which must exist.
func (l *fifo[T]) first() *T { return &l.list[l.taken] }

// shift removes and returns the first element, which must exist.
func (l *fifo[T]) shift() T {
	l.taken++
	return l.list[l.taken-1]
}

// push appends an element, in place of those that were taken if there are many.
func (l *fifo[T]) push(e T) {
	if len(l.list) == cap(l.list) && l.taken >= l.len() {
		l.list, l.taken = l.list[:copy(l.list, l.list[l.taken:])], 0
	}
	l.list = append(l.list, e)
}
