// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/replay"
	"github.com/retrip/retrip/internal/tell"
)

// Came says how the response to a request has come.
type Came struct {
	Attempts int           // made so far
	Took     time.Duration // the last attempt, if its duration mattered
	Broken   bool          // the body had to be whole and broke: it has been given up
}

// DoWhole is Do for a request whose response body may be continued.
func DoWhole(env *Env, cfg *Config, req *http.Request, override tell.Override) (resp *http.Response, came Came, err error) {
	var x exchange
	x.init(env, cfg, req, replay.KindOf(req), override)
	resp, err = x.run(decide.Began)
	return resp, x.came(), err
}

func (x *exchange) came() Came {
	c := Came{Attempts: x.call.Attempts, Broken: x.last.broken != nil}
	if x.last.began != 0 {
		c.Took = x.env.Now() - x.last.began
	}
	return c
}

// Rest is a request for the rest of a body that has broken.
type Rest struct {
	Broken   error         // how the body broke
	HTTP2    bool          // it came over HTTP/2
	Attempts int           // made so far: the last one has just failed
	Until    time.Duration // instant at which the request ends
	Turn     decide.Reason // of a body that has waited for its turn: why it asks again; else None
	Waited   time.Duration // for the turn
}

// Answer is what has come of a Rest.
type Answer struct {
	Came
	Resp       *http.Response
	Err        error
	Reason     decide.Reason // of a give-up
	Late       bool          // the reason is that Until has passed
	Waits      bool          // the body may wait for a turn, and ask again
	Failure    decide.Reason // why the last attempt failed
	Timeout    bool          // it timed out
	RetryAfter time.Duration // the wait that the server asked for
}

// Do takes r, which is req, through its attempts.
func (r *Rest) Do(env *Env, cfg *Config, req *http.Request, override tell.Override) (a Answer) {
	x := exchange{journey: journey{ofBody: true}}
	x.init(env, cfg, req, replay.None, override)
	x.endBy(r.Until)
	x.last.take(nil, r.Broken)
	x.last.began = env.Now()
	x.call.Attempts, x.route.HTTP2 = r.Attempts, r.HTTP2
	first := decide.Ended
	if r.Turn != decide.None {
		// The turn is the last attempt for now, and the host's budget doesn't apply to it.
		first, x.call.Attempts = decide.Due, max(r.Attempts, cfg.MaxAttempts-1)
		x.tell.Decide(r.Turn, r.Waited)
	}
	x.tell.Attempts = int32(x.call.Attempts)
	a.Resp, a.Err = x.run(first)
	o := &x.event.Outcome
	a.Came, a.Reason, a.Waits = x.came(), x.action.Reason, x.bodyWaits()
	a.Failure, a.Timeout, a.RetryAfter = o.Why(), o.Timeout, o.RetryAfter
	a.Late = a.Reason == decide.Deadline && x.deadline != 0 && req.Context().Err() == nil
	return a
}
