// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package tell is all that people learn about requests: it counts, runs hooks, writes the log,
// remembers which hosts fail, and makes the error that the caller gets. It decides nothing
// about requests. The driver of package exchange tells a Teller what happens to a request, and what follows.
package tell

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fleet"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/meter"
)

// Desk is where all requests of a Transport report. It is immutable.
type Desk struct {
	Owner    Owner
	Failures *host.Failures
	Fleet    *fleet.Accounts // nil: none
	Epoch    time.Time       // instants are durations since then; before all of them, as 0 means none
	Logger   *slog.Logger    // nil: none
	Traced   bool            // there are hooks for all requests
}

// Now returns the current instant.
func (d *Desk) Now() time.Duration { return time.Since(d.Epoch) }

// Policy is what reports need of the policy that a request follows.
type Policy struct {
	decide.Rules
	Name    string        // the pattern in Transport.Hosts, or "default"
	Metrics *meter.Policy // nil counts nothing
}

// Request is a request whose reports go to a desk.
type Request struct {
	*Desk
	*Policy
	Req      *http.Request
	Override Override
}

// Teller tells what happens to one request. A hook may panic, so it counts before it runs hooks.
// Attempts and Entered are the driver's to set.
type Teller struct {
	Request
	Entered time.Duration // instant at which RoundTrip began, if there are hooks or histograms of durations

	gateSince time.Duration // instant at which the wait at the gate began; 0: there is none
	wait      time.Duration // before the retry after the last attempt, or what Error.RetryAfter is

	errs   []error // of attempts, in order; see Add
	status int     // of the last response to an earlier attempt

	// Together these take little space.
	failure    host.Failure  // of the last attempt that failed; zero: none
	Attempts   int32         // made so far
	reason     decide.Reason // of the retry after the last attempt, or why there is none
	do         decide.Deed   // the last
	fromServer bool          // a server asked for the wait before the next retry
	Hooked     bool          // there are hooks
	attempted  bool          // an attempt was made
	pending    bool          // the last attempt isn't counted yet
	counted    bool          // the request is, or it isn't the caller's
}

// Begin begins t, for the caller's own request or for one for the rest of a body.
func (t *Teller) Begin(r Request, own bool) {
	t.Request, t.counted = r, !own
	t.Hooked = t.Traced || r.Override != nil && r.Override.Hooked()
}

// Sending tells that the next attempt begins. last is what was kept of the one before.
func (t *Teller) Sending(attempt int, last *Kept) {
	t.Attempts = int32(attempt)
	t.keep(last.Status)
	if t.Hooked {
		t.report(AttemptBegins, Report{Elapsed: t.Now() - t.Entered})
	}
	if attempt > 1 {
		t.Metrics.Retry(t.Req.Context(), t.reason.String(), t.wait, t.fromServer)
	}
	t.attempted, t.pending = true, true
}

// Sent tells that the first attempt has been made already.
func (t *Teller) Sent() { t.Attempts, t.attempted, t.pending = 1, true, true }

// Decide is Step for a retry that no step has decided.
func (t *Teller) Decide(reason decide.Reason, wait time.Duration) { t.reason, t.wait = reason, wait }

// Step tells that e has happened to the request c, and that a follows. h is
// its host, or nil while that is in no trouble, and sends how often the last attempt was sent.
func (t *Teller) Step(h *host.Entry, c *decide.Call, e *decide.Event, a *decide.Action, sends int) {
	t.do = a.Do
	// A Send, or a wait that goes on, keeps what was decided about the last attempt.
	if a.Reason != decide.None || a.Do >= decide.Answer {
		t.reason, t.wait = a.Reason, a.Wait
	}
	switch e.Kind {
	case decide.Ended:
		if h != nil {
			t.fromServer = a.FromServer && a.Do != decide.Answer && a.Wait > 0
		}
		o := &e.Outcome
		if t.Attempts > 1 || o.Status == 0 || a.Do != decide.Answer || a.Reason != decide.None { // else Done counts the attempt and the request together
			t.count(o, a.Reason, sends)
		}
	case decide.Heard:
		t.Metrics.AskedFleet(a.Reason == decide.FleetBudget, e.Known)
		t.logFleet()
	}
	switch a.Reason {
	case decide.BudgetExhausted, decide.RetriesFailing:
		news := false
		if a.OfRoute {
			news = h.StopRoute(c.Route, t.Req.Method, t.Req.URL.Path)
		} else {
			news = h.RanOut()
		}
		if news {
			h.GaveUp.Store(uint32(a.Reason))
			a.Change |= host.Emptied
		}
	}
	if a.Change != 0 {
		t.Changed(h, a.Change)
	}
	if a.AtGate || t.gateSince != 0 {
		t.timeQueue(a)
	}
}

// Changed tells that the state of h has changed.
func (t *Teller) Changed(h *host.Entry, change host.Change) {
	t.Metrics.HostChanged(change)
	t.Owner.Changed(t.Req, h, change, t.Now())
}

// timeQueue observes how long the request has waited at the gate.
func (t *Teller) timeQueue(a *decide.Action) {
	switch {
	case a.Do == decide.Sleep && a.AtGate:
		if t.gateSince == 0 {
			t.gateSince = t.Now() // not 0: see Epoch
		}
	case t.gateSince != 0 && a.Do != decide.Ask:
		t.Metrics.WaitedAtGate(t.Req.Context(), t.Now()-t.gateSince)
		t.gateSince = 0
	}
}

// Retrying tells that the wait before a retry begins. last is the last attempt, with the outcome
// o, of whose error t keeps what the caller's error shows.
func (t *Teller) Retrying(o *decide.Outcome, last *Shown) {
	if t.observed() {
		t.reportRetry(o, last)
	}
	if last.Err != nil {
		last.Err = Short(last.Err)
		t.Add(last.Err)
	}
}
