// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/retrip/retrip"
)

// event is a call of a hook.
type event struct {
	at   time.Duration
	hook string
	retrip.Event
	host retrip.HostState // at an attempt, a retry or a give-up
}

// panics panics if it is p that panics in the call of req.
func (p Panic) panics(req *http.Request) {
	if of, ok := req.Context().Value(callKey{}).(*callOf); ok && of.call.Panics == p {
		panic(aPanic)
	}
}

// place is where an event is.
type place struct {
	r *roundTrip
	i int // in its events
}

// tripsTo yields the round trips of c to host.
func (c *client) tripsTo(host string) iter.Seq[*roundTrip] {
	return func(yield func(*roundTrip) bool) {
		for _, r := range c.w.order {
			if r.client == c && r.host == host && !yield(r) {
				return
			}
		}
	}
}

// eventsOf returns the events of all requests to host, in their order.
func (c *client) eventsOf(host string) (events []place) {
	for r := range c.tripsTo(host) {
		for i := range r.events {
			events = append(events, place{r, i})
		}
	}
	slices.SortStableFunc(events, func(a, b place) int { return cmp.Compare(a.r.events[a.i].at, b.r.events[b.i].at) })
	return events
}

// hooks returns hooks of which one panics.
func (p Panic) hooks() *retrip.Trace {
	t := new(retrip.Trace)
	hook := func(retrip.Event) { panic(aPanic) }
	switch p {
	case AtAttempt:
		t.Attempt = hook
	case AtRetry:
		t.Retry = hook
	case AtGiveUp:
		t.GiveUp = hook
	case AtDone:
		t.Done = hook
	}
	return t
}

// hooks returns the hooks of c.
func (c *client) hooks() *retrip.Trace {
	note := func(hook string) func(retrip.Event) {
		return func(e retrip.Event) {
			id, err := strconv.Atoi(e.Request.Header.Get("World-Id"))
			if err != nil {
				c.estrange(hook, e)
				return
			}
			r := c.w.trip(id)
			n := event{at: c.w.now(), hook: hook, Event: e}
			if hook == "GiveUp" || hook == "Attempt" || hook == "Retry" {
				n.host, _ = c.retrip.HostState(hostport(e.Request))
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, n)
			ctx := e.Request.Context()
			if deadline, ok := ctx.Deadline(); r.end != 0 && (ctx.Err() != nil || ok && !time.Now().Before(deadline)) {
				// The caller has gone while it read. Which of the errors of that instant
				// net/http returns is left to chance.
				return
			}
			c.w.log("%v: %s %d %d %q wait %v err %v", r, hook, e.Attempt, e.StatusCode, e.Reason, e.Wait, kindOf(e.Err))
		}
	}
	return &retrip.Trace{
		Attempt: note("Attempt"), Retry: note("Retry"), GiveUp: note("GiveUp"), Hedge: note("Hedge"), Done: note("Done"), Resume: note("Resume"),
		Host: func(s retrip.HostState) {
			c.w.log("t%d: host %s breaker %v paused %v tokens %.2f", c.number, s.Host, s.Breaker, s.PausedFor, s.Tokens)
		},
	}
}

// estrange notes what happens to a request to a stranger.
func (c *client) estrange(hook string, e retrip.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case hook == "GiveUp":
		if c.strange == nil {
			c.strange = map[string]float64{}
		}
		c.strange[string(e.Reason)]++
	case hook == "Retry":
		if dns, ok := errors.AsType[*net.DNSError](e.Err); ok && dns.IsNotFound {
			c.w.breaks("P8", "a retry after %v", e.Err)
		}
	}
}

// kindOf describes an error without what differs between runs, such as a port.
func kindOf(err error) string {
	switch {
	case err == nil:
		return "none"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, errCause):
		return "cause"
	case errors.Is(err, errOwn):
		return "own"
	}
	return "error"
}
