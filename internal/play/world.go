// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package play

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
)

// World drives the decision core through simulated time, one event after
// another. The same seed gives the same run.
type World struct {
	Now    time.Duration
	Random *rand.Rand
	events events
	made   int
}

func (w *World) At(instant time.Duration, f func()) {
	w.made++
	w.events.push(event{instant, w.made, f})
}

// Run runs the world until the instant end or until no event is left.
func (w *World) Run(end time.Duration) {
	for len(w.events) > 0 && w.events[0].at <= end {
		e := w.events.pop()
		w.Now = e.at
		e.happen()
	}
}

// Request makes a request to h like a Transport. serve makes an attempt and
// returns its outcome, which arrives Took later. done gets the last outcome,
// zero if there was none, and the reason why it was the last.
func (w *World) Request(h *host.Record, r Judge, serve func() decide.Outcome, done func(decide.Outcome, decide.Reason)) {
	w.Call(h, r, new(decide.Call), func(answer func(decide.Outcome)) {
		o := serve()
		w.At(w.Now+o.Took, func() { answer(o) })
	}, done)
}

// Call is Request for a call with some fields set, and attempts whose outcome isn't known
// when they begin: send makes one, and later calls answer.
func (w *World) Call(h *host.Record, r Judge, call *decide.Call, send func(answer func(decide.Outcome)), done func(decide.Outcome, decide.Reason)) {
	var last decide.Outcome
	var ask func()
	turn := 0
	sleep := func(wait time.Duration) {
		turn++
		mine := turn
		if wait < math.MaxInt64-w.Now {
			w.At(w.Now+wait, func() {
				if turn == mine {
					ask()
				}
			})
		}
	}
	call.Waiter = func() { sleep(0) }
	answer := func(o decide.Outcome) {
		last = o
		d := r.Next(h, call, o, w.Now, w.Random.Uint64())
		wakeOthers(h, d.Wakes)
		switch {
		case !d.Retry:
			done(last, d.Reason)
		case d.AtGate:
			sleep(0)
		default:
			sleep(d.Wait)
		}
	}
	ask = func() {
		ask := r.First
		if call.Attempts > 0 {
			ask = r.Wake
		}
		d := ask(h, call, w.Now, w.Random.Uint64())
		wakeOthers(h, d.Wakes)
		switch {
		case !d.Retry:
			done(last, d.Reason)
		case d.Wait > 0:
			sleep(d.Wait)
		default:
			turn++
			call.Attempts++
			send(answer)
		}
	}
	ask()
}

// wakeOthers calls the Waiters of calls that must ask again. In these tests,
// Waiters are functions.
func wakeOthers(h *host.Record, any bool) {
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

func (e event) before(other event) bool {
	return e.at < other.at || e.at == other.at && e.nth < other.nth
}

// events is a binary heap: the next event comes first. Unlike container/heap, it
// allocates nothing for an event.
type events []event

func (q *events) push(e event) {
	*q = append(*q, e)
	list := *q
	i := len(list) - 1
	for i > 0 && e.before(list[(i-1)/2]) {
		list[i] = list[(i-1)/2]
		i = (i - 1) / 2
	}
	list[i] = e
}

func (q *events) pop() event {
	list := *q
	first, last := list[0], list[len(list)-1]
	list[len(list)-1] = event{}
	list = list[:len(list)-1]
	*q = list
	for i := 0; len(list) > 0; {
		child := 2*i + 1
		if child+1 < len(list) && list[child+1].before(list[child]) {
			child++
		}
		if child >= len(list) || last.before(list[child]) {
			list[i] = last
			break
		}
		list[i] = list[child]
		i = child
	}
	return first
}

func NewWorld(seed uint64) *World { return &World{Random: rand.New(rand.NewPCG(seed, 0))} }
