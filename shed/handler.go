// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package shed is the server's half of a contract about retries. Beyond about
// one request per second and client no client can tell an outage from bad luck
// by what it sees alone; the server can, by its own queue.
//
//	server := &http.Server{Handler: &shed.Handler{Handler: mux, Limit: 64}}
//
// A [Handler] serves a limited number of requests at a time, keeps others
// waiting for a short time, and refuses what waits in vain, retries first. That
// alone ends the storms that retries keep alive: see docs/shed.md for how fast.
package shed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/incoming"
)

// Handler sheds load for another http.Handler: it bounds how many requests are
// served at a time and how long others wait for that.
//
// What it refuses gets a 503 with "X-Should-Retry: false", which clients with
// retrip obey, and no Retry-After: on a 503 that would make a client pause
// everything else that it sends to the host.
//
// Where an incoming request is a retry itself, Transports of package retrip
// make the calls with its context without retries of their own, and with
// Policy.RetryHeader those calls carry the number of the incoming attempt on.
// So three layers that make 4 attempts each come to 10 calls at the lowest one,
// and not to 64. A policy that the handler gives such a call itself, by
// retrip.WithPolicy, counts all the same.
//
// A Handler is also a [github.com/prometheus/client_golang/prometheus.Collector]
// of what arrived, what was refused and how long the queue took. To tell
// several Handlers of one program apart, register each with a label of its own,
// by prometheus.WrapRegistererWith.
//
// The zero value serves http.DefaultServeMux and is ready for use. Fields must
// not be changed after the first request. A Handler is safe for concurrent use
// and must not be copied. A request that is served at once, and is neither a
// retry nor brings a deadline nor asks for a stream, costs no allocation.
type Handler struct {
	// Handler serves the requests that are let through. If nil, it is
	// http.DefaultServeMux.
	Handler http.Handler

	// Limit is how many requests are served at a time. It should be a little
	// more than what keeps the server busy: the requests per second that it can
	// do times the seconds that one takes. Whatever is above that waits inside
	// the server, where QueueTime doesn't bound it. If 0, it is 100 for each
	// CPU (runtime.GOMAXPROCS), which is a guess. Off: no limit, so that
	// nothing ever waits, and only a request without time left is refused.
	Limit int

	// QueueTime is how long a request waits for others to end before it is
	// refused. QueueTime and the time to serve a request together must be
	// shorter than clients wait, or the server works for clients that have
	// gone. If 0, it is 100 ms. Off: what can't be served at once is refused.
	QueueTime time.Duration

	// RetryShare is the share of QueueTime that a retry waits, and the age of
	// the queue from which on retries are refused at once. If 0, it is 0.2. 1
	// treats retries as first attempts. Off: a retry never waits.
	RetryShare float64

	// HoldTime is how long a request counts towards Limit. One that runs for
	// longer goes on, but makes room for another: so neither streams that
	// Handler doesn't know as such nor clients that send or read slowly can
	// lock others out for longer. If 0, it is 10 s. Off: every request counts
	// until it ends; then set the timeouts of http.Server.
	//
	// Upgrades, CONNECT and responses of type text/event-stream make room
	// as soon as they begin.
	HoldTime time.Duration

	// RetryHeader names the header by which a retry brings the number of its
	// attempt, 2 and up. If empty, it is "Retry-Attempt".
	RetryHeader string

	// DeadlineHeader names a header by which a client tells for how many
	// milliseconds from now it will wait: as a decimal number, as in Envoy's
	// X-Envoy-Expected-Rq-Timeout-Ms. The context of the request ends then. A
	// request that has no time left, at once or in the queue, is refused; a
	// malformed value is ignored. If empty, no header is read.
	DeadlineHeader string

	// Exempt, if not nil, reports whether a request is served whatever the load
	// is: health checks, above all. It must be safe for concurrent use. An
	// exempt request isn't counted anywhere. If nil, requests for the paths
	// /healthz, /livez and /readyz are exempt.
	Exempt func(*http.Request) bool

	once  sync.Once
	state state
}

// Defaults of the fields.
const (
	defaultLimitPerCPU = 100
	defaultQueueTime   = 100 * time.Millisecond
	defaultRetryShare  = 0.2
	defaultHoldTime    = 10 * time.Second
	defaultRetryHeader = "Retry-Attempt"
)

// Validate reports what is wrong with the fields of h, nil if nothing. A
// Handler with a wrong field answers every request with a 500 that says the
// same. It is safe for concurrent use.
func (h *Handler) Validate() error {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("shed: Handler.%s is %v: it must be %s", field, value, want))
	}
	if h.Limit < retrip.Off {
		bad("Limit", h.Limit, "positive, 0 for the default or Off")
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
		if name != "" && !isToken(name) {
			bad(field, fmt.Sprintf("%q", name), "the name of a header")
		}
	}
	return errors.Join(errs...)
}

// state is what the fields of a Handler come to, and what it does.
type state struct {
	err                         error // what Validate says
	next                        http.Handler
	exempt                      func(*http.Request) bool
	retryHeader, deadlineHeader string
	epoch                       time.Time // instants are durations since then

	mu sync.Mutex // guards what follows; never held while anyone waits
	queue
	counts
}

func (s *state) now() time.Duration { return time.Since(s.epoch) }

// start returns h's state, made on first use.
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
	if s.exempt == nil {
		s.exempt = isHealthCheck
	}
	s.retryHeader = http.CanonicalHeaderKey(orDefault(h.RetryHeader, defaultRetryHeader))
	s.deadlineHeader = http.CanonicalHeaderKey(h.DeadlineHeader)
	s.limit = orDefault(h.Limit, defaultLimitPerCPU*runtime.GOMAXPROCS(0))
	if s.limit < 0 {
		s.limit = math.MaxInt
	}
	s.patience = max(0, orDefault(h.QueueTime, defaultQueueTime))
	switch share := orDefault(h.RetryShare, defaultRetryShare); {
	case share == 1: // a float64 doesn't hold every duration
		s.retryPatience = s.patience
	case share > 0:
		s.retryPatience = time.Duration(float64(s.patience) * share)
	}
	if s.hold = orDefault(h.HoldTime, defaultHoldTime); s.hold < 0 {
		s.hold = math.MaxInt64
	}
}

func orDefault[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// ServeHTTP has r served, now or after a wait, or refuses it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := h.start()
	if s.err != nil {
		http.Error(w, s.err.Error(), http.StatusInternalServerError)
		return
	}
	attempt, arrived := 1, r
	if values := r.Header[s.retryHeader]; values != nil {
		if attempt = attemptOf(values); attempt > 1 {
			ctx := retrip.WithPolicy(r.Context(), retrip.Policy{MaxAttempts: 1})
			r = r.WithContext(incoming.WithAttempt(ctx, attempt))
		}
	}
	if s.exempt(r) {
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
	slot, reason := s.enter(r, attempt, left)
	if reason != "" {
		refuse(w)
		return
	}
	var long *stream
	if mayLast(r) {
		long = &stream{ResponseWriter: w, state: s, slot: slot, tunnel: r.Method == http.MethodConnect}
		w = long
	}
	defer s.leave(slot, long)
	if r != arrived {
		defer handBack(arrived, r)
	}
	s.next.ServeHTTP(w, r)
}

// handBack gives the request that arrived what its copy r has got: net/http
// removes the files of its form, and whoever is outside may go by its pattern.
func handBack(arrived, r *http.Request) {
	arrived.MultipartForm, arrived.Pattern = r.MultipartForm, r.Pattern
}

// enter gets a slot for r, waiting for it if need be, or says why there is
// none.
func (s *state) enter(r *http.Request, attempt int, left time.Duration) (*slot, reason) {
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
	s.mu.Unlock()
	if waiter == nil {
		return slot, why
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-waiter.ready:
	case <-timer.C:
		if why = queueTime; attempt > 1 {
			why = retry
		}
		if most == left {
			why = deadline
		}
	case <-r.Context().Done():
		if why = canceled; errors.Is(r.Context().Err(), context.DeadlineExceeded) {
			why = deadline
		}
	}
	then := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	slot = waiter.slot
	switch {
	case why == "":
	case slot == nil:
		s.giveUp(waiter)
	case why == canceled || why == deadline:
		// It was granted in the same instant, and is of no use any more.
		s.finish(slot, then)
		slot = nil
	default:
		why = ""
	}
	if why != "" {
		s.refused(why)
	} else {
		s.waited(slot.since - waiter.since)
	}
	return slot, why
}

// leave gives a slot back. What is left of long doesn't own it any more.
func (s *state) leave(slot *slot, long *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if long != nil {
		long.slot = nil
	}
	s.finish(slot, s.nowIfAnyoneWaits())
}

// nowIfAnyoneWaits returns the instant where it matters.
func (s *state) nowIfAnyoneWaits() time.Duration {
	if s.first == nil {
		return 0
	}
	return s.now()
}

// Headers of a refusal. They are shared: nobody changes values in place.
var (
	refusalNever  = []string{"false"}
	refusalType   = []string{"text/plain; charset=utf-8"}
	refusalLength = []string{"11"}
)

const refusalBody = "overloaded\n"

// refuse answers a request that is not served.
func refuse(w http.ResponseWriter) {
	h := w.Header()
	h["X-Should-Retry"], h["Content-Type"], h["Content-Length"] = refusalNever, refusalType, refusalLength
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, refusalBody)
}

func isHealthCheck(r *http.Request) bool {
	switch r.URL.Path {
	case "/healthz", "/livez", "/readyz":
		return true
	}
	return false
}

// isToken reports whether s can be the name of a header (RFC 9110 §5.6.2).
func isToken(s string) bool {
	for _, c := range []byte(s) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && !('0' <= c && c <= '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}
