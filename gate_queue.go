// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"cmp"
	"slices"
	"time"
)

// gateQueue holds the requests that wait at a gate, by number: the order in
// which they first came. A request that comes again keeps its number, so it
// goes back to where it was. The zero gateQueue is empty. Its owner locks.
type gateQueue struct {
	list  []gateWaiter // ascending by number; list[:first] have left
	first int          // the oldest that waits
	gone  int          // left from the middle of list
	last  int64        // the newest number given
}

// gateWaiter is what the gate has to know of a request that waits.
type gateWaiter struct {
	number   int64
	until    time.Duration // instant by which it must go to make its deadline
	patience time.Duration // MaxWait: how long a pause may last that it waits for
	who      any           // Call.Waiter; nil once the waiter is gone
	refused  uint8         // how often it has been refused
	passed   uint8         // how often a probe from behind it has gone first
	gone     bool
}

func (q *gateQueue) len() int { return len(q.list) - q.first - q.gone }

// search returns the index of the first waiter whose number is not below n.
func (q *gateQueue) search(n int64) (int, bool) {
	i, found := slices.BinarySearchFunc(q.list[q.first:], n, func(w gateWaiter, n int64) int { return cmp.Compare(w.number, n) })
	return q.first + i, found
}

func (q *gateQueue) has(n int64) bool {
	i, found := q.search(n)
	return found && !q.list[i].gone
}

// ahead returns how many wait before the one with number n, about: those who
// left from the middle may have been before it or behind it.
func (q *gateQueue) ahead(n int64) int {
	i, _ := q.search(n)
	return min(i-q.first, q.len())
}

func (q *gateQueue) insert(w gateWaiter) {
	i, found := q.search(w.number)
	switch {
	case found:
		// It has left, and nobody has passed its place.
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

// remove takes the waiter with number n out, if it is there.
func (q *gateQueue) remove(n int64) {
	i, found := q.search(n)
	if !found || q.list[i].gone {
		return
	}
	q.list[i] = gateWaiter{number: n, gone: true}
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

// compact drops the places of those who have left.
func (q *gateQueue) compact() {
	q.list = slices.Delete(q.list, 0, q.first)
	q.list = slices.DeleteFunc(q.list, func(w gateWaiter) bool { return w.gone })
	q.first, q.gone = 0, 0
}

// keep takes out all for which f, told how many stay before, doesn't hold.
func (q *gateQueue) keep(f func(w *gateWaiter, ahead int) bool) {
	q.compact()
	kept := 0
	for i := range q.list {
		if w := q.list[i]; f(&w, kept) {
			q.list[kept] = w
			kept++
		}
	}
	clear(q.list[kept:])
	q.list = q.list[:kept]
}

const (
	// A request that has been refused so often leaves the probe after the next
	// pause to one behind it, if there is one among the first so many that has
	// been refused less. Else the request at the front, which every probe would
	// fall to, would use up its attempts on what all of them want to know.
	probeRefusals = 2
	probeAmong    = 8

	// Nobody is passed more often than this.
	maxPassed = 16
)

// front returns the waiter that goes next, nil if nobody waits.
func (q *gateQueue) front(probe bool) *gateWaiter {
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

// release takes the waiter with number n out, if it is there, and returns how
// often it has been passed. Those before it are passed by it.
func (q *gateQueue) release(n int64) (passed uint8) {
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
