// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"time"

	"github.com/retrip/retrip"
)

// world drives the decision core through simulated time, one event after
// another. The same seed gives the same run.
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

// run runs the world until the instant end or until no event is left.
func (w *world) run(end time.Duration) {
	for len(w.events) > 0 && w.events[0].at <= end {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.happen()
	}
}

// request makes a request to h like a Transport. serve makes an attempt and
// returns its outcome, which arrives Took later. done gets the last outcome,
// empty if there was none, and the reason why it was the last.
func (w *world) request(h *retrip.Host, r *retrip.Rules, serve func() retrip.Outcome, done func(retrip.Outcome, retrip.Reason)) {
	w.call(h, r, new(retrip.Call), serve, done)
}

// call is request for a call with some fields set.
func (w *world) call(h *retrip.Host, r *retrip.Rules, call *retrip.Call, serve func() retrip.Outcome, done func(retrip.Outcome, retrip.Reason)) {
	var last retrip.Outcome
	var ask func()
	turn := 0
	sleep := func(wait time.Duration) {
		turn++
		mine := turn
		if wait < math.MaxInt64-w.now {
			w.at(w.now+wait, func() {
				if turn == mine {
					ask()
				}
			})
		}
	}
	call.Waiter = func() { sleep(0) }
	ask = func() {
		decide := h.First
		if call.Attempts > 0 {
			decide = h.Wake
		}
		d := decide(r, call, w.now, w.random.Uint64())
		wakeOthers(h, d.Wakes)
		switch {
		case !d.Retry:
			done(last, d.Reason)
		case d.Wait > 0:
			sleep(d.Wait)
		default:
			turn++
			call.Attempts++
			last = serve()
			w.at(w.now+last.Took, func() {
				d := h.Next(r, call, last, w.now, w.random.Uint64())
				wakeOthers(h, d.Wakes)
				switch {
				case !d.Retry:
					done(last, d.Reason)
				case d.AtGate:
					sleep(0)
				default:
					sleep(d.Wait)
				}
			})
		}
	}
	ask()
}

// wakeOthers calls the Waiters of calls that must ask again. In these tests,
// Waiters are functions.
func wakeOthers(h *retrip.Host, any bool) {
	for any {
		wake, ok := h.Woken().(func())
		if !ok {
			return
		}
		wake()
	}
}

type event struct {
	at     time.Duration
	nth    int // order of events at the same instant
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

func newWorld(seed uint64) *world { return &world{random: rand.New(rand.NewPCG(seed, 0))} }
