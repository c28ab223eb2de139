// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package play

import (
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
)

// World drives the decision core through simulated time, one event after
// another. The same seed gives the same run.
type World struct {
	Now    time.Duration
	Random *rand.Rand
	events []event // by time; those of one instant in the order in which they were made
	past   int     // events that have happened
}

type event struct {
	at     time.Duration
	happen func()
}

func NewWorld(seed uint64) *World { return &World{Random: rand.New(rand.NewPCG(seed, 0))} }

func (w *World) At(instant time.Duration, f func()) {
	if len(w.events) == cap(w.events) && 2*w.past >= len(w.events) {
		w.events, w.past = w.events[:copy(w.events, w.events[w.past:])], 0
	}
	i, _ := slices.BinarySearchFunc(w.events[w.past:], instant, func(e event, instant time.Duration) int {
		if e.at <= instant {
			return -1
		}
		return 1
	})
	w.events = slices.Insert(w.events, w.past+i, event{instant, f})
}

// Run runs the world until the instant end or until no event is left.
func (w *World) Run(end time.Duration) {
	for w.past < len(w.events) && w.events[w.past].at <= end {
		e := w.events[w.past]
		w.events[w.past] = event{}
		w.past++
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
	var event decide.Event // of the current step, here so that it isn't allocated for each
	var step func(decide.Event)
	turn := 0 // number of the wait that goes on
	sleep := func(wait time.Duration) {
		turn++
		mine := turn
		if wait < math.MaxInt64-w.Now {
			w.At(w.Now+wait, func() {
				if turn == mine {
					step(decide.Event{Kind: decide.Due})
				}
			})
		}
	}
	call.Waiter = func() { sleep(0) }
	step = func(e decide.Event) {
		event = e
		var a decide.Action
		call.Step(r.Rules, h, &event, &a, w.Now, w.Random.Uint64())
		for a.Wakes {
			wake, ok := h.NextWoken().(func())
			if !ok {
				break
			}
			wake()
		}
		switch a.Do {
		case decide.Send:
			turn++
			send(func(o decide.Outcome) {
				last = o
				step(decide.Event{Kind: decide.Ended, Outcome: o})
			})
		case decide.Sleep:
			sleep(a.Wait)
		case decide.Queue:
			sleep(0)
		default:
			done(last, a.Reason)
		}
	}
	step(decide.Event{Kind: decide.Began})
}

// Took returns the outcome of a request that may be repeated, after an attempt as
// long as d.
func Took(status int, d time.Duration) decide.Outcome {
	o := Repeatable(status)
	o.Took = d
	return o
}

// IndependentFailures lets 100 clients make requests to hosts that fail an
// attempt with probability p. It returns the percentage of requests that
// succeed and the attempts per request. Each client makes the given number of
// requests per second, for 100 seconds.
func IndependentFailures(r Judge, p, perSecond float64) (success, attempts float64) {
	const clients, horizon = 100, 100 * time.Second
	w := NewWorld(1)
	var requests, good, sent int
	for range clients {
		h := new(host.Record)
		var arrive func()
		arrive = func() {
			requests++
			w.Request(h, r, func() decide.Outcome {
				sent++
				if w.Random.Float64() < p {
					return Took(http.StatusServiceUnavailable, 5*time.Millisecond)
				}
				return Took(http.StatusOK, 5*time.Millisecond)
			}, func(o decide.Outcome, _ decide.Reason) {
				if o.Status == http.StatusOK {
					good++
				}
			})
			if next := w.Now + time.Duration(w.Random.ExpFloat64()/perSecond*float64(time.Second)); next < horizon {
				w.At(next, arrive)
			}
		}
		w.At(time.Duration(w.Random.ExpFloat64()/perSecond*float64(time.Second)), arrive)
	}
	w.Run(math.MaxInt64)
	return 100 * float64(good) / float64(requests), float64(sent) / float64(requests)
}
