// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package shed is the server's half of a contract about retries. A client that
// sends less than about one request per second can't tell an outage from bad
// luck by its own observations. The server can, by the length of its queue.
//
//	server := &http.Server{Handler: &shed.Handler{Handler: mux, Limit: 64}}
//
// A [Handler] serves a limited number of requests at a time, makes others wait
// for a short time, and refuses requests that have waited too long, retries
// first. That alone ends the storms that retries would keep alive; docs/shed.md
// has figures.
package shed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/incoming"
	"github.com/retrip/retrip/internal/syntax"
)

// Handler sheds load for another http.Handler: it bounds how many requests are
// served at a time and how long others wait for their turn.
//
// A refused request gets a 503 with "X-Should-Retry: false", which clients with
// retrip obey. The 503 has no Retry-After, because a client would then hold back
// its other retries to the host too, and with a Gate all its requests. It doesn't
// wait for an upload: over HTTP/1.1 it says "Connection: close" if the body of
// the request hasn't arrived yet. The Handler then goes on reading that body, of up
// to 100 such requests at a time, for up to 5 s and 32 MiB, because a reset would
// lose the answer.
//
// If an incoming request is itself a retry, Transports of package retrip don't
// retry the calls that are made with its context until it ends. With Policy.RetryHeader,
// those calls also pass on the number of the incoming attempt. Three layers
// that make 4 attempts each therefore make 10 calls at the lowest layer instead
// of 64. A policy that the program sets for such a call with retrip.WithPolicy
// takes precedence.
//
// A Handler is also a [github.com/prometheus/client_golang/prometheus.Collector] that
// reports how many requests arrived, how many were refused and how long the queue took.
// To register several Handlers, give each a label with prometheus.WrapRegistererWith.
//
// Limit must be set; the zero value of every other field is a default. Fields
// must not be changed after the first request. A Handler is safe for concurrent
// use and must not be copied. A request that is served at once allocates nothing but the
// ResponseWriter that its handler gets, unless it is a retry or has a deadline.
type Handler struct {
	// Handler serves the requests that are admitted. If nil, it is
	// http.DefaultServeMux.
	Handler http.Handler

	// Limit is how many requests are served at a time. It must be set to what keeps
	// the server busy: the requests per second that it can do, times the seconds that
	// one takes while the server keeps up, and a little more. Below that, the server
	// does less than it can; above it, requests wait inside the server, where QueueTime
	// doesn't bound the wait. Off means no limit: only requests without time left are
	// refused. With 0, every request gets a 500 that says how to choose Limit.
	//
	// All requests share the Limit, so a route that becomes slow takes the places
	// of the others. Wrap such a route in a Handler of its own.
	Limit int

	// QueueTime is how long a request may wait for its turn before it is refused.
	// QueueTime plus the time to serve a request must be shorter than clients wait;
	// otherwise the server works for clients that have gone. If 0, it is 100 ms. With
	// Off, no request waits.
	QueueTime time.Duration

	// RetryShare is the share of QueueTime that a retry may wait, at most 1. Retries are
	// refused at once while the oldest waiting request has waited longer than that. If 0,
	// RetryShare is 0.2. With Off, retries never wait.
	RetryShare float64

	// HoldTime is how long a request counts towards Limit. A request that runs longer
	// continues, but another may start. A long response, or a client that sends or reads
	// slowly, thus blocks others for at most HoldTime. Connections that are taken over, CONNECT
	// and streams (by their Content-Type: events, JSON lines, gRPC, multipart/mixed and the like)
	// stop counting as soon as they begin. If 0, it is 10 s. With Off, every other request counts
	// until it ends; then set the timeouts of http.Server.
	HoldTime time.Duration

	// RetryHeader names the header in which a retry states its attempt number,
	// 2 or more. If empty, it is "Retry-Attempt".
	RetryHeader string

	// DeadlineHeader names a header in which a client states how many milliseconds it
	// will still wait, as a decimal number, like Envoy's X-Envoy-Expected-Rq-Timeout-Ms.
	// The context of the request ends then. A request with no time left, on arrival or in
	// the queue, is refused. Malformed values are ignored. If empty, no header is read.
	DeadlineHeader string

	// Exempt, if not nil, reports whether a request must be served regardless of load,
	// such as a health check, and without being counted. It must be safe for concurrent
	// use. If nil, a GET or HEAD without a body for /healthz, /livez or /readyz is exempt,
	// while fewer than 16 such requests are being served.
	Exempt func(*http.Request) bool

	once  sync.Once
	state state
}

// howToSetLimit is what Validate wants of Limit. The query is the largest number
// of requests in progress, on average over a minute: their rate times their time.
const howToSetLimit = "set to the requests per second that the server can do times the seconds that one takes while it keeps up, and a little more" +
	" (at 200/s and 0.05 s: 12; with a histogram in Prometheus, it is at least the peak of a week without an overload:" +
	" max(max_over_time(sum by (instance) (rate(http_request_duration_seconds_sum[1m]))[7d:1m])))," +
	" or to Off for no limit"

// Validate returns an error that describes every invalid field of h, or nil; of
// Limit, it says how to choose it. A Handler with an invalid field answers every
// request with a 500 and that error, also health checks, so that a deploy of it
// doesn't get far. Validate is safe for concurrent use.
func (h *Handler) Validate() error {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("shed: Handler.%s is %v: it must be %s", field, value, want))
	}
	if h.Limit == 0 || h.Limit < retrip.Off {
		bad("Limit", h.Limit, howToSetLimit)
	}
	if h.QueueTime < retrip.Off {
		bad("QueueTime", h.QueueTime, "positive, 0 for the default or Off")
	}
	if share := h.RetryShare; !(share >= 0 && share <= 1) && share != retrip.Off {
		bad("RetryShare", share, "above 0 and at most 1, 0 for the default or Off")
	}
	if h.HoldTime < retrip.Off {
		bad("HoldTime", h.HoldTime, "positive, 0 for the default or Off")
	}
	for field, name := range map[string]string{"RetryHeader": h.RetryHeader, "DeadlineHeader": h.DeadlineHeader} {
		switch {
		case name == "":
		case !syntax.IsToken(name):
			bad(field, fmt.Sprintf("%q", name), "the name of a header")
		case syntax.HasMeaning(name):
			bad(field, fmt.Sprintf("%q", name), "the name of a header without another meaning")
		}
	}
	return errors.Join(errs...)
}

// state holds the resolved fields of a Handler and its queue.
type state struct {
	err                         error // result of Validate
	next                        http.Handler
	exempt                      func(*http.Request) bool // nil: health checks are
	retryHeader, deadlineHeader string
	epoch                       time.Time    // all times are durations since epoch
	lingering                   atomic.Int32 // refused uploads that are read on
	checks                      atomic.Int32 // exempt health checks that are being served

	mu sync.Mutex // guards the fields below; never held during a wait
	queue
	counts
}

func (s *state) now() time.Duration { return time.Since(s.epoch) }

// start returns h's state, creating it on first use.
func (h *Handler) start() *state {
	h.once.Do(h.make)
	return &h.state
}

func (h *Handler) make() {
	s := &h.state
	s.epoch = time.Now()
	s.err = h.Validate()
	s.next, s.exempt = h.Handler, h.Exempt
	if s.next == nil {
		s.next = http.DefaultServeMux
	}
	s.retryHeader = http.CanonicalHeaderKey(cmp.Or(h.RetryHeader, "Retry-Attempt"))
	s.deadlineHeader = http.CanonicalHeaderKey(h.DeadlineHeader)
	s.patience = max(0, cmp.Or(h.QueueTime, 100*time.Millisecond))
	if s.limit = h.Limit; s.limit < 0 {
		s.limit = math.MaxInt
	}
	switch share := cmp.Or(h.RetryShare, 0.2); {
	case share == 1: // a float64 can't represent every duration
		s.retryPatience = s.patience
	case share > 0:
		s.retryPatience = time.Duration(float64(s.patience) * share)
	}
	if s.hold = cmp.Or(h.HoldTime, 10*time.Second); s.hold < 0 {
		s.hold = math.MaxInt64
	}
}

// ServeHTTP serves r, at once or after a wait, or refuses it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := h.start()
	if s.err != nil {
		http.Error(w, s.err.Error(), http.StatusInternalServerError)
		return
	}
	attempt, arrived := 1, r
	if values := r.Header[s.retryHeader]; values != nil {
		if attempt = attemptOf(values); attempt > 1 {
			ctx, mark := incoming.WithAttempt(r.Context(), attempt)
			defer mark.End()
			r = r.WithContext(retrip.WithPolicy(ctx, retrip.Policy{}))
		}
	}
	checks := s.exempt == nil && s.beginCheck(r)
	if checks {
		defer s.checks.Add(-1)
	}
	if checks || s.exempt != nil && s.exempt(r) {
		if r != arrived {
			defer handBack(arrived, r)
		}
		s.next.ServeHTTP(w, r)
		return
	}
	left := time.Duration(math.MaxInt64)
	if s.deadlineHeader != "" {
		if left = deadlineOf(r.Header[s.deadlineHeader]); left > 0 && left < math.MaxInt64 {
			ctx, cancel := context.WithTimeout(r.Context(), left)
			defer cancel()
			r = r.WithContext(ctx)
		}
	}
	slot, early, reason := s.enter(w, r, attempt, left)
	if early != nil {
		defer early.wait()
		if r == arrived {
			r = r.WithContext(r.Context())
		}
		r.Body = early
	}
	if reason != "" {
		s.refuse(w, r)
		return
	}
	served := &response{ResponseWriter: w, state: s, slot: slot, tunnel: r.Method == http.MethodConnect, upload: hasUnread(r)}
	defer served.leave()
	if r != arrived {
		defer handBack(arrived, r)
	}
	s.next.ServeHTTP(served, r)
}

// handBack copies to the request that arrived what the handler has set in its
// copy r: net/http removes the files of the multipart form, and outer handlers
// may read the pattern.
func handBack(arrived, r *http.Request) {
	arrived.MultipartForm, arrived.Pattern = r.MultipartForm, r.Pattern
}

// enter returns a slot for r, waiting for it if necessary, or the reason why r
// is refused. If r has waited, its body may have been read ahead.
func (s *state) enter(w http.ResponseWriter, r *http.Request, attempt int, left time.Duration) (*slot, *ahead, reason) {
	now := s.now()
	s.mu.Lock()
	s.arrived(attempt)
	slot, waiter, most, why := s.arrive(now, attempt > 1, left)
	switch {
	case slot != nil:
		s.waited(0)
	case why != "":
		s.refused(why)
	}
	next := s.due()
	s.mu.Unlock()
	if waiter == nil {
		return slot, nil, why
	}
	early := readAhead(w, r)
	end, atEnd := now+min(most, math.MaxInt64-now), queueTime
	if attempt > 1 {
		atEnd = retry
	}
	if most == left {
		atEnd = deadline
	}
	timer := time.NewTimer(min(end, next) - now)
	defer timer.Stop()
	for {
		select {
		case <-waiter.ready:
		case <-timer.C:
		case <-r.Context().Done():
		}
		if err := r.Context().Err(); errors.Is(err, context.DeadlineExceeded) {
			why = deadline
		} else if err != nil {
			why = canceled
		}
		now = s.now()
		s.mu.Lock()
		s.releaseOverdue(now)
		if waiter.slot != nil || why != "" || now >= end {
			break
		}
		next = s.due()
		s.mu.Unlock()
		timer.Reset(min(end, next) - now)
	}
	defer s.mu.Unlock()
	slot = waiter.slot
	switch {
	case slot == nil:
		s.remove(waiter)
		if why == "" {
			why = atEnd
		}
	case why != "":
		// The slot was granted as the wait ended, and isn't needed any more.
		s.finish(slot, now)
		slot = nil
	}
	if why != "" {
		s.refused(why)
	} else {
		s.waited(slot.since - waiter.since)
	}
	return slot, early, why
}

// nowIfNeeded returns the current time if a request waits, which a free place
// goes to, and 0 otherwise.
func (s *state) nowIfNeeded() time.Duration {
	if s.waiting == 0 {
		return 0
	}
	return s.now()
}

// mostChecks is how many health checks are exempt at a time: anyone may send them.
const mostChecks = 16

// beginCheck reports whether r is a health check that is exempt. The caller must count
// it out of s.checks.
func (s *state) beginCheck(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.ContentLength != 0 ||
		!slices.Contains([]string{"/healthz", "/livez", "/readyz"}, r.URL.Path) {
		return false
	}
	if s.checks.Add(1) > mostChecks {
		s.checks.Add(-1)
		return false
	}
	return true
}

// attemptOf returns the attempt number in the values of a header, or 1 if they
// don't mark a retry. Of several values the largest counts: a sender that marks
// a request as a retry has a reason to.
func attemptOf(values []string) int {
	attempt := 1
	for value := range syntax.Members(values) {
		// Clients may send any number; it is capped because the number is
		// passed on and incremented.
		if n, err := strconv.ParseUint(value, 10, 64); err == nil || n == math.MaxUint64 {
			attempt = max(attempt, int(min(n, maxAttempt)))
		}
	}
	return attempt
}

const maxAttempt = 1_000_000

// deadlineOf returns the time left according to the values of a header, or the
// longest duration if they hold none. Of several values the shortest counts.
func deadlineOf(values []string) time.Duration {
	left := time.Duration(math.MaxInt64)
	for value := range syntax.Members(values) {
		ms, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil || math.IsNaN(ms) || ms > math.MaxInt64/float64(time.Millisecond)/2:
		case ms <= 0:
			left = 0
		default:
			left = min(left, time.Duration(ms*float64(time.Millisecond)))
		}
	}
	return left
}
