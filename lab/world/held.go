// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"runtime"
	"weak"
)

// held is how many worlds there are for each in which checkHeld collects garbage, which
// takes as long as the rest of a world.
const held = 8

// checkHeld checks that the Transports hold nothing of a request once all that the world
// knows of it is dropped. So no other check may follow.
func (w *world) checkHeld() {
	if w.plan.Salt%held != 0 {
		return
	}
	for _, tr := range w.plan.Transports {
		if tr.MaxConns > 0 {
			// In its queue for a connection, net/http keeps a request that has left.
			return
		}
	}
	w.mu.Lock()
	calls := w.calls
	w.calls, w.trips, w.order, w.uploads, w.downloads = nil, nil, nil, nil, nil
	w.mu.Unlock()
	// What lies in a sync.Pool is dropped by the second collection.
	runtime.GC()
	runtime.GC()
	for _, c := range calls {
		if of := c.Value(); of != nil {
			w.breaks("P13", "something holds the context of call %d a day after its end", of.id)
		}
	}
	runtime.KeepAlive(w.clients)
	runtime.KeepAlive(w.fleet)
}

// called notes a call, without holding it.
func (w *world) called(of *callOf) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, weak.Make(of))
}
