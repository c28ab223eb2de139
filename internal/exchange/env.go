// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/dialect"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/fleet"
	"github.com/retrip/retrip/internal/hedge"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/meter"
	"github.com/retrip/retrip/internal/span"
	"github.com/retrip/retrip/internal/spare"
	"github.com/retrip/retrip/internal/turns"
)

// Env is what all requests of a Transport share. It is immutable.
type Env struct {
	*Tables
	Owner  Owner
	Inner  func(error) (fault.Inner, bool) // reads an error of Owner.Error of a Transport below
	Base   http.RoundTripper
	Epoch  time.Time       // instants are durations since then; before all of them, as 0 means none
	Watch  attempt.Watch   // what every attempt must observe
	Fleet  *fleet.Accounts // nil: none
	Logger *slog.Logger    // nil: none
	Traced bool            // there are hooks for all requests
}

// Tables is what a Transport remembers between requests. The zero Tables is empty. It is
// safe for concurrent use and must not be copied.
type Tables struct {
	Hosts    host.Table
	Failures host.Failures
	Spares   spare.Pools
	Turns    turns.Table
	Hedges   hedge.Table
}

func (env *Env) now() time.Duration { return time.Since(env.Epoch) }

// recordAnswer remembers that req, of which others to the host failed, has got an answer.
func (env *Env) recordAnswer(req *http.Request) { env.Failures.Answer(hostkey.Of(req.URL), env.now) }

// calm reports whether the host of req is in no trouble. It must not be inlined, to keep the
// stack frames of its callers small.
//
//go:noinline
func (s *Env) calm(req *http.Request) bool { return s.Hosts.Calm(req.URL, new(host.Place)) }

// instant returns the instant of a reading of the clock.
func (env *Env) instant(t time.Time) time.Duration { return t.Sub(env.Epoch) }

// due returns the instant of the deadline at, from 1 on. If at comes from a message, or from the
// clock of another machine, it has no monotonic reading, and Sub compares it with the wall clock.
// That must be the one of now: the clock may have been set since the epoch, and the machine slept.
func (env *Env) due(at, now time.Time) time.Duration {
	return max(1, span.Add(at.Sub(now), env.instant(now))) // 0 would mean no deadline
}

// Owner is the Transport to which a request belongs.
type Owner interface {
	// Fit adapts what e owes to the newest policies, if they are newer than env.
	Fit(e *host.Entry, env *Env)

	// Error returns the error that the caller sees.
	Error(*Error) error

	// Report runs the hooks for a stage of a request and writes its log record. Changed
	// does so for a change of a host, and Unsaid reports whether the log still has
	// something to say.
	Report(override Override, stage Stage, e Report)
	Changed(req *http.Request, e *host.Entry, change host.Change, now time.Duration)
	Unsaid() bool
}

// Config is what a Policy amounts to for the requests that follow it. It is immutable.
type Config struct {
	decide.Rules
	AttemptTimeout, Deadline, BodyIdleTimeout, Resume time.Duration
	WholeBody, MaxReplayBody                          int64

	Program       Program
	Classifies    bool // Program.Classify has an opinion
	GeneratesKeys bool // requests that aren't idempotent get a key

	Timed       bool    // the duration of attempts matters
	Plain       bool    // a first attempt may need nothing but Base
	Derives     bool    // every attempt needs a request and context of its own
	Fleet       float64 // size of the fleet's account; 0 if the policy takes no part in it
	Dialects    dialect.List
	Hedge       hedge.Rule    // no hedges if its Share is 0
	RetryHeader string        // in canonical form; empty: none
	Name        string        // the pattern in Transport.Hosts, or "default"
	Metrics     *meter.Policy // nil counts nothing
}

// Program is what a policy leaves to the program that uses retrip.
type Program interface {
	Idempotent(*http.Request) bool
	NewKey(http.Header) string     // a key for a request with this header, or "" if it has one
	GateName(*http.Request) string // the gate at which the request waits
	Classify(*http.Request, *http.Response, error) decide.Verdict
}

// Override is what the context of a request asks for; nil if nothing.
type Override interface {
	Hooked() bool // there are hooks

	// Incoming returns the number of the incoming attempt on whose behalf the request is
	// made, or 1.
	Incoming(context.Context) int
}

// Stage is a stage of a request, at which hooks run.
type Stage uint8

const (
	AttemptBegins Stage = iota
	Retries
	GivesUp
	Done
	Resumes
	Hedged
	Unread // for the log: Reason names a field that no dialect understands
)

// Report describes a stage of a request; see retrip.Event.
type Report struct {
	Request     *http.Request
	Policy      string
	Attempt     int
	StatusCode  int
	Header      http.Header
	Err         error
	Kind        string // of Err
	Reason, Why string // Why is for the log: why the last attempt that failed did
	Failed      bool   // of Done, for the log: the outcome is failed
	Offset      int64
	Wait        time.Duration
	FromServer  bool
	Sends       int
	Elapsed     time.Duration
	MaxWait     time.Duration // the policy's MaxWait if it is the reason to give up; 0 otherwise
}

// Error is why a request failed; see retrip.Error.
type Error struct {
	Attempts   int
	Reason     decide.Reason
	StatusCode int
	Header     http.Header
	RetryAfter time.Duration
	Errs       []error // of attempts, in order
	Last       error
}

// turns returns the rule for the turns of bodies that wait.
func (cfg *Config) turns() turns.Rule {
	return turns.Rule{
		Cap:  max(1, min(max(turns.CapLeast, cfg.Backoff.Cap), cfg.Resume/4)),
		Slow: time.Duration(turns.SlowShare * float64(max(0, cfg.AttemptTimeout))),
	}
}
