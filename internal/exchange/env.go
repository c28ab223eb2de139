// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/dialect"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/hedge"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/span"
	"github.com/retrip/retrip/internal/spare"
	"github.com/retrip/retrip/internal/tell"
	"github.com/retrip/retrip/internal/turns"
)

// Env is what all requests of a Transport share. It is immutable.
type Env struct {
	*Tables
	tell.Desk
	Fit   func(*host.Entry, *Env)         // adapts what a host owes to the newest policies, if they are newer than the Env
	Inner func(error) (fault.Inner, bool) // reads an error of Owner.Error of a Transport below
	Base  http.RoundTripper
	Watch attempt.Watch // what every attempt must observe
}

// Tables is what a Transport remembers between requests. The zero Tables is empty. It is
// safe for concurrent use and must not be copied.
type Tables struct {
	Hosts  host.Table
	Spares spare.Pools
	Turns  turns.Table
	Hedges hedge.Table
}

// calm reports whether the host of req is in no trouble. It must not be inlined, to keep the
// stack frames of its callers small.
//
//go:noinline
func (env *Env) calm(req *http.Request) bool { return env.Hosts.Calm(req.URL, new(host.Position)) }

// instant returns the instant of a reading of the clock.
func (env *Env) instant(t time.Time) time.Duration { return t.Sub(env.Epoch) }

// due returns the instant of the deadline at, from 1 on. If at comes from a message, or from the
// clock of another machine, it has no monotonic reading, and Sub compares it with the wall clock.
// That must be the one of now: the clock may have been set since the epoch, and the machine slept.
func (env *Env) due(at, now time.Time) time.Duration {
	return max(1, span.Add(at.Sub(now), env.instant(now))) // 0 would mean no deadline
}

// Config is what a Policy amounts to for the requests that follow it. It is immutable.
type Config struct {
	tell.Policy
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
	Hedge       hedge.Rule // no hedges if its Share is 0
	RetryHeader string     // in canonical form; empty: none
}

// Program is what a policy leaves to the program that uses retrip.
type Program interface {
	Idempotent(*http.Request) bool
	NewKey(http.Header) string    // a key for a request with this header, or "" if it has one
	GateKey(*http.Request) string // the gate at which the request waits
	Classify(*http.Request, *http.Response, error) decide.Verdict
}

// isNetHTTP reports whether base is a transport of net/http.
func isNetHTTP(base http.RoundTripper) bool {
	switch base.(type) {
	case *http.Transport, *spare.Turn:
		return true
	}
	return false
}
