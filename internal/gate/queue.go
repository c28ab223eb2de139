// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// queue holds the requests that wait at a gate, by number: the order in
// which they first came. A request that comes again keeps its number and so its
// place. The zero queue is empty. Its owner must lock it.
type queue struct {
	list  []waiter // ascending by number; list[:first] have left
	first int      // index of the oldest waiter
	gone  int      // number of waiters that have left from the middle of list
	last  int64    // the newest number given

	patience time.Duration // of the least patient waiter, or less
}

// waiter is what the gate needs to know about a waiting request.
type waiter struct {
	number   int64
	until    time.Duration // instant by which it must be released to meet its deadline
	patience time.Duration // the longest pause that it waits for
	who      any           // Request.Who; nil once the waiter is gone
	refused  uint8         // how often the server has refused it
	passed   uint8         // how often a probe from behind it went first
	gone     bool
}

func (q *queue) len() int { return len(q.list) - q.first - q.gone }

// search returns the index of the first waiter whose number is not below n.
func (q *queue) search(n int64) (int, bool) {
	i, found := slices.BinarySearchFunc(q.list[q.first:], n, func(w waiter, n int64) int { return cmp.Compare(w.number, n) })
	return q.first + i, found
}

func (q *queue) has(n int64) bool {
	i, found := q.search(n)
	return found && !q.list[i].gone
}

// ahead returns about how many waiters are before number n: the ones that left
// from the middle may have been before or behind n.
func (q *queue) ahead(n int64) int {
	i, _ := q.search(n)
	return min(i-q.first, q.len())
}

func (q *queue) insert(w waiter) {
	if q.len() == 0 {
		q.patience = w.patience
	}
	q.patience = min(q.patience, w.patience)
	i, found := q.search(w.number)
	switch {
	case found:
		// The waiter has left, and its place is still there.
		q.gone--
		q.list[i] = w
	case i == q.first && q.first > 0:
		q.first--
		q.list[q.first] = w
	default:
		if len(q.list) == cap(q.list) && q.first+q.gone > len(q.list)/2 {
			q.compact()
			i, _ = q.search(w.number)
		}
		q.list = slices.Insert(q.list, i, w)
	}
}

// remove removes the waiter with number n, if it is in the queue.
func (q *queue) remove(n int64) {
	i, found := q.search(n)
	if !found || q.list[i].gone {
		return
	}
	q.list[i] = waiter{number: n, gone: true}
	q.gone++
	for q.first < len(q.list) && q.list[q.first].gone {
		q.first++
		q.gone--
	}
	for end := len(q.list); end > q.first && q.list[end-1].gone; end-- {
		q.list = q.list[:end-1]
		q.gone--
	}
	if q.first == len(q.list) {
		q.list, q.first = q.list[:0], 0
	}
}

// compact drops the places of the waiters that have left.
func (q *queue) compact() {
	q.list = slices.Delete(q.list, 0, q.first)
	q.list = slices.DeleteFunc(q.list, func(w waiter) bool { return w.gone })
	q.first, q.gone = 0, 0
}

// keep removes all waiters for which f reports false. f also gets the number of
// waiters kept before.
func (q *queue) keep(f func(w *waiter, ahead int) bool) {
	q.compact()
	kept := 0
	q.patience = math.MaxInt64
	for i := range q.list {
		if w := q.list[i]; f(&w, kept) {
			q.patience = min(q.patience, w.patience)
			q.list[kept] = w
			kept++
		}
	}
	clear(q.list[kept:])
	q.list = q.list[:kept]
}

const (
	// A request that the server has refused probeRefusals times leaves the next
	// probe to a request behind it, if one of the first probeAmong has been
	// refused less often. Otherwise every probe would fall to the request at the
	// front, which would use up its attempts on behalf of all.
	probeRefusals = 2
	probeAmong    = 8

	// No request is passed more often than this.
	maxPassed = 16
)

// front returns the waiter that goes next, or nil if the queue is empty.
func (q *queue) front(probe bool) *waiter {
	if q.len() == 0 {
		return nil
	}
	best := &q.list[q.first]
	if !probe || best.refused < probeRefusals {
		return best
	}
	seen := 0
	for i := q.first; i < len(q.list) && seen < probeAmong; i++ {
		w := &q.list[i]
		if w.gone {
			continue
		}
		if seen++; w.refused < best.refused {
			best = w
		}
		if w.passed >= maxPassed {
			break
		}
	}
	return best
}

// release removes the waiter with number n, if it is in the queue, and returns
// how often it has been passed. It passes the waiters before it.
func (q *queue) release(n int64) (passed uint8) {
	i, found := q.search(n)
	if !found || q.list[i].gone {
		return 0
	}
	for j := q.first; j < i; j++ {
		q.list[j].passed++
	}
	passed = q.list[i].passed
	q.remove(n)
	return passed
}
