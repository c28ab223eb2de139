// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"net/http"
	"sync"
	"time"

	"github.com/retrip/retrip/internal/alarm"
	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/hedge"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/meter"
	"github.com/retrip/retrip/internal/replay"
	"github.com/retrip/retrip/internal/spare"
	"github.com/retrip/retrip/internal/syntax"
)

// race is a first attempt that gets a hedge if it is late: a second attempt beside it.
// Package hedge has the rule. The first attempt runs in the goroutine of RoundTrip, as
// without a race. Until its delay has passed, a race is a timer and nothing else. The
// hedge then runs in the goroutine of the timer, as an exchange of one attempt, with a
// request, a context and a judgement of its own. endRace makes one outcome of the two,
// so the rest of an exchange knows nothing of races.
type race struct {
	clock // of the request
	r     *Rules
	req   *http.Request

	first *attempt.Attempt
	at    *spare.Turn   // of the first attempt; nil if it is at the base
	began time.Duration // instant at which first began
	known *hedge.Host
	delay time.Duration // 0: the first attempt is never late
	alarm *alarm.Alarm  // nil without a delay

	mu     sync.Mutex
	over   bool             // it is known which attempt counts
	won    bool             // the hedge does
	late   bool             // the first attempt was still out at its delay
	ended  chan struct{}    // closed when the hedge has ended; nil if there was none
	second *attempt.Attempt // of the hedge; nil until it begins
	turn   *spare.Turn      // of the hedge; nil if it is at the base
	hedge  *exchange        // the hedge, if it has ended and the first attempt hadn't won
	broke  any              // what the hedge has panicked with
}

// race begins a race for the attempt that is about to be made with base, if it may get a
// hedge.
func (x *exchange) race(base http.RoundTripper) {
	if !x.hedges() {
		return
	}
	c := &race{clock: x.clock, r: x.r, req: x.req, first: x.last.attempt, began: x.last.began}
	c.at, _ = base.(*spare.Turn)
	c.known = x.env.Hedges.Host(hostkey.Of(x.req.URL), x.last.began)
	if c.delay = c.known.Begin(x.last.began, x.most()); c.delay > 0 {
		c.alarm = alarm.Set(x.start(), c.delay, c)
	}
	x.last.race = c
}

// Ring implements [alarm.Ringer]: the first attempt is late.
func (c *race) Ring(*alarm.Alarm) {
	var h *exchange
	defer func() { c.end(h, recover()) }()
	if h = c.begin(); h != nil {
		base, req := h.beside(c), c.enter(h)
		h.last.awaits = h.bound()
		h.use(base, req)
		if !c.decided() {
			h.classify()
		}
		h.ended = true
	}
}

// begin returns the exchange of the hedge, or nil if there is none. RoundTrip doesn't
// return meanwhile. Once it has, the caller may reuse its request, so the hedge's shares
// nothing with it.
func (c *race) begin() *exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil
	}
	c.late = true
	reason, forbidden := c.forbids()
	switch c.known.Late(c.r.Hedge, !forbidden) {
	case hedge.Spent:
		reason, forbidden = meter.SkipSpent, true
	case hedge.LowRate:
		reason, forbidden = meter.SkipLowRate, true
	}
	if forbidden {
		c.r.Metrics.Count(meter.HedgeSkips, reason, 1)
		return nil
	}
	h := &exchange{journey: journey{idempotent: true}}
	h.init(c.env, c.r, c.req, replay.None, nil)
	h.clock, h.call.Attempts, h.last.began = c.clock, 2, c.env.now()
	if h.deadline != 0 {
		h.call.Deadline = h.deadline
	}
	h.req = c.req.Clone(c.req.Context())
	c.ended = make(chan struct{})
	return h
}

// enter returns the request of h, which the first attempt can end from now on.
func (c *race) enter(h *exchange) *http.Request {
	req := h.derive()
	c.mu.Lock()
	c.second = h.last.attempt
	over := c.over
	c.mu.Unlock()
	if over {
		h.last.attempt.Cut()
	}
	return req
}

// beside returns the RoundTripper for the hedge of c. Over HTTP/2, the base would use the
// connection of the first attempt, which may be why that is late. Over HTTP/1, the base
// uses another connection by itself.
func (x *exchange) beside(c *race) http.RoundTripper {
	base, ok := x.env.Base.(*http.Transport)
	if !ok || !c.first.SpokeHTTP2() {
		return x.env.Base
	}
	x.conn.other, x.conn.http2, x.conn.patience = true, true, ready
	c.turn = x.env.Spares.ForHedge(base, hostkey.Of(x.req.URL), c.at, c.env.Epoch.Add(c.began), x.conn.wait(x.most()), c.delay)
	if c.turn != nil {
		return c.turn
	}
	return x.env.Base
}

// avoid makes later requests avoid the base if the hedge, which has won, was at the spare
// while the first attempt was out at the base.
func (c *race) avoid(x *exchange) {
	if c.turn != nil && c.at.AtBase() {
		c.env.Spares.Doubt(hostkey.Of(x.req.URL), c.env.Epoch.Add(c.began), false)
	}
}

// hung makes later requests avoid the connection of the first attempt, whose caller
// has waited for longer than nearly any answer takes. The connection may have delivered
// responses in the first half of that time, and frozen after them.
func (c *race) hung(x *exchange) {
	_, ok := c.env.Base.(*http.Transport)
	if took := c.env.now() - c.began; ok && c.delay > 0 && took >= hedgePatience*c.delay && c.first.SpokeHTTP2() {
		c.env.Spares.Doubt(hostkey.Of(x.req.URL), time.Now().Add(-took/2), !c.at.AtBase())
	}
}

// end ends the hedge h, unless it is nil. A panic of the hedge continues in the goroutine
// of RoundTrip.
func (c *race) end(h *exchange, broke any) {
	c.mu.Lock()
	lost := c.over
	switch {
	case lost:
	case broke != nil:
		c.over, c.broke = true, broke
	default:
		c.hedge = h
		c.won = h != nil && h.ended && h.good()
		c.over = c.won
	}
	decides := c.over && !lost
	if c.ended != nil {
		close(c.ended)
	}
	c.mu.Unlock()
	if decides {
		c.first.Cut()
	}
	if h != nil && (lost || broke != nil) {
		h.drop()
	}
}

// decided reports whether the hedge has decided the race.
func (c *race) decided() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

// hedgePatience is for how many delays a failed first attempt waits for its hedge. Nearly
// no answer takes one. The hedge may hang, or wait for the connection that the
// response of the first attempt still holds.
const hedgePatience = 16

// endRace makes one outcome of the first attempt and of the hedge, if there is one: that
// of the first good answer. A failure waits for the other attempt. panics says that the
// first attempt has ended in a panic, and the request with it.
func (x *exchange) endRace(panics bool) {
	c := x.last.race
	if c.alarm != nil {
		c.alarm.Stop()
	}
	x.event.Outcome.Canceled = x.event.Outcome.Canceled || panics
	good := x.good()
	if x.last.resp == nil && (x.event.Outcome.Canceled || x.event.Outcome.Timeout) && !panics {
		c.hung(x)
	}
	c.mu.Lock()
	failed := c.ended != nil && !c.over && !good && !x.event.Outcome.Canceled
	if failed {
		c.mu.Unlock()
		x.event.Outcome.Canceled = x.sleep(time.NewTimer(hedgePatience*c.delay), c.ended) != nil
		c.mu.Lock()
	}
	c.over = true
	won, sent, second, h := c.won, c.ended != nil, c.second, c.hedge
	c.mu.Unlock()
	x.last.race = nil
	switch {
	case sent:
	case c.broke != nil && !panics:
		panic(c.broke)
	default:
		x.learnDelay(c, good)
		return
	}
	x.call.Attempts, x.call.Hedged = 2, true
	first, result, loser, other := x.last.attempt, meter.HedgeFailed, meter.Error, x.event.Outcome
	switch {
	case panics && h != nil:
		h.drop()
		result, loser = meter.HedgeLost, meter.Superseded
	case won:
		if result, loser = meter.HedgeWon, meter.Superseded; failed {
			loser = resultOf(&other, decide.None)
		} else {
			c.avoid(x)
		}
		x.follow(h)
		second = first
	case c.broke != nil:
	case h != nil:
		if other = x.mergeFailure(h, good); x.last.attempt != first {
			second = first
		}
		loser = resultOf(&other, decide.None)
	default:
		switch {
		case failed && !x.event.Outcome.Canceled:
			loser = meter.Timeout
		case good || panics:
			result, loser = meter.HedgeLost, meter.Superseded
		default:
			result, loser = meter.HedgeLost, meter.Canceled
		}
		if second != nil {
			second.Cut()
		}
	}
	c.known.Hedged(won)
	x.r.Metrics.Count(meter.Hedges, result, 1)
	x.r.Metrics.Count(meter.Attempts, loser, 1)
	if second != nil {
		x.r.Metrics.Count(meter.Sends, 0, second.Sends()-1)
	}
	switch {
	case panics:
		return
	case c.broke != nil:
		panic(c.broke)
	case x.heard():
		x.tellHedge(result, c.delay)
	}
	x.obey(&other)
}

// follow makes the outcome of the hedge h that of x, and drops that of the first attempt.
func (j *journey) follow(h *exchange) {
	first := j.last
	j.event.Outcome = h.event.Outcome
	if j.last = h.last; j.last.discarded {
		j.seen = h.seen
	}
	if j.last.resp != nil && j.last.resp.Request == h.req {
		j.last.resp.Request = j.req
	}
	first.attempt.Abandon()
	if first.held {
		body.Dismiss(first.resp)
	}
}

// mergeFailure makes the failure of the hedge h part of the outcome of x, unless the
// first attempt was good. It returns the outcome of the attempt that doesn't go on.
// All rules count both failures as one. A response in hand comes before an error, and
// whatever a server has said about retries holds.
func (x *exchange) mergeFailure(h *exchange, good bool) (other decide.Outcome) {
	if !h.ended {
		// Its goroutine has ended within the base.
		h.drop()
		h.last, h.event = last{attempt: h.last.attempt, err: fault.ErrNothing}, decide.Event{}
	}
	other = h.event.Outcome
	switch {
	case good:
		h.drop()
		return other
	case x.last.resp == nil && h.last.resp != nil:
		other = x.event.Outcome
		x.met = append(x.met, x.last.err)
		x.doubts(x.last.err)
		x.follow(h)
	default:
		if err := h.last.failure(); err != nil {
			x.met = append(x.met, err)
		}
		h.drop()
	}
	o := &x.event.Outcome
	o.RetryAfter = max(o.RetryAfter, other.RetryAfter)
	o.Forbidden = o.Forbidden || other.Forbidden
	o.Timeout = o.Timeout || other.Timeout
	o.Canceled = o.Canceled || other.Canceled
	return other
}

// learnDelay tells the rule how a first attempt without a hedge ended.
func (x *exchange) learnDelay(c *race, good bool) {
	var took time.Duration
	if c.delay == 0 || !good {
		took = x.env.now() - x.last.began
	}
	switch {
	case good:
		c.known.Answered(x.r.Hedge, took, c.late)
	case x.event.Outcome.Timeout:
		c.known.TimedOut(took)
	}
}

// hedges reports whether the next attempt may get a hedge. A hedge may be processed at
// the same time as the first attempt, which no retry ever is.
func (x *exchange) hedges() bool {
	if x.r.Hedge.Share == 0 || x.call.Attempts != 1 || x.rest != nil || x.incoming() > 1 || !x.idempotent || x.key != "" || x.payload.kind != replay.None || x.req.Header["Upgrade"] != nil {
		return false
	}
	switch syntax.Method(x.req) {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return true
	}
	return false
}
