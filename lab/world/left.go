// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"net/http"
	"runtime"
	"time"
	"weak"

	"github.com/retrip/retrip/internal/testenv"
)

// left checks that nothing of a request goes on once its caller has the response and has
// closed its body.
func (c *checker) left() {
	r := c.r
	over := r.end
	if r.resp != nil {
		if r.closing == 0 {
			return
		}
		over = max(over, r.closing)
		if r.reading.done && c.p.Resume > 0 && r.call.Method == http.MethodGet && r.reading.closed > r.closing+slack+r.call.Pace {
			c.breaks("P20", "a Read returned at %v, and Close was called at %v", r.reading.closed, r.closing)
		}
	}
	for _, e := range c.rest {
		if e.hook == "Attempt" && e.at > over {
			c.breaks("P13", "attempt %d of a continuation at %v, and the body was closed at %v", e.Attempt, e.at, over)
		}
	}
	for _, a := range r.arrivals {
		s := c.w.sites[a.site]
		// A server can't see that the client has gone if a fault hides it, or as long as it
		// hasn't read the whole request, as in the queue of a shed.Handler.
		if len(s.plan.Conns) > 0 || len(s.plan.Outages) > 0 || !a.whole || s.plan.Shed > 0 && r.call.Body != NoBody {
			continue
		}
		late := over + 4*s.plan.Latency + slack
		if !testenv.Go126 {
			late += 50 * time.Millisecond // net/http reads on after Close
		}
		if a.left == 0 || a.left > late {
			c.breaks("P13", "arrival %d was served until %v, and the caller was done at %v", a.number, a.left, over)
		}
	}
}

// checkConnections checks that no connection is in use after the end of all requests.
func (w *world) checkConnections() {
	for _, c := range w.clients {
		c.retrip.CloseIdleConnections()
	}
	time.Sleep(time.Minute)
	for _, s := range w.sites {
		if n := s.front.Open(); n > 0 {
			w.breaks("P13", "%d connections to s%d are in use, and no request is", n, s.number)
		}
	}
}

// held is how many worlds there are for each in which checkHeld collects garbage, which
// takes as long as the rest of a world.
const held = 8

// checkHeld checks that the Transports hold nothing of a request once all that the world
// knows of it is dropped. So no other check may follow.
func (w *world) checkHeld() {
	if w.plan.Salt%held != 0 {
		return
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
