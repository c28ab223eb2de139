// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"container/heap"
	"math/rand/v2"
	"time"

	"github.com/retrip/retrip"
)

// world drives the decision core over simulated time: one event after another,
// the same for the same seed.
type world struct {
	now    time.Duration
	random *rand.Rand
	events events
	made   int
}

func (w *world) at(instant time.Duration, f func()) {
	w.made++
	heap.Push(&w.events, event{instant, w.made, f})
}

// run lets the world run until nothing is left to happen up to the instant
// end.
func (w *world) run(end time.Duration) {
	for len(w.events) > 0 && w.events[0].at <= end {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.happen()
	}
}

// request makes a request to h as a transport would. serve makes an attempt
// and returns its outcome, which comes Took later; done gets the last outcome,
// empty if there was none, and why it was the last.
func (w *world) request(h *retrip.Host, r *retrip.Rules, serve func() retrip.Outcome, done func(retrip.Outcome, retrip.Reason)) {
	var call retrip.Call
	var last retrip.Outcome
	var ask func()
	ask = func() {
		decide := h.First
		if call.Attempts > 0 {
			decide = h.Wake
		}
		switch d := decide(r, &call, w.now, w.random.Uint64()); {
		case !d.Retry:
			done(last, d.Reason)
		case d.Wait > 0:
			w.at(w.now+d.Wait, ask)
		default:
			call.Attempts++
			last = serve()
			w.at(w.now+last.Took, func() {
				if d := h.Next(r, &call, last, w.now, w.random.Uint64()); d.Retry {
					w.at(w.now+d.Wait, ask)
				} else {
					done(last, d.Reason)
				}
			})
		}
	}
	ask()
}

type event struct {
	at     time.Duration
	nth    int // what was asked for first happens first
	happen func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].nth < q[j].nth
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	e := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return e
}
