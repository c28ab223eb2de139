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
	"github.com/retrip/retrip/internal/chance"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/hedge"
	"github.com/retrip/retrip/internal/host"
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
	good  bool          // the first attempt has ended in an answer that nothing should replace
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

// sendHedged is send for an attempt that gets a hedge if it is late.
func (x *exchange) sendHedged(base http.RoundTripper, req *http.Request) {
	c := x.race(base)
	x.last.race = c
	joined := false
	defer func() {
		if !joined { // the attempt has panicked
			x.abandonRace(c)
		}
	}()
	x.bound()
	x.use(base, req)
	x.classify()
	joined = true
	x.endRace(c)
}

// race begins a race for the attempt that is about to be made with base.
func (x *exchange) race(base http.RoundTripper) *race {
	c := &race{clock: x.clock, r: x.r, req: x.req, first: x.last.attempt, began: x.last.began}
	c.at, _ = base.(*spare.Turn)
	c.known = x.env.Hedges.Host(hostkey.Of(x.req.URL), x.last.began)
	if c.delay = c.known.Begin(x.last.began, x.most()); c.delay > 0 {
		c.alarm = alarm.Set(x.start(), c.delay, c)
	}
	return c
}

// Ring implements [alarm.Ringer]: the first attempt is late.
func (c *race) Ring(*alarm.Alarm) {
	var h *exchange
	defer func() { c.hedgeEnded(h, recover()) }()
	if h = c.newHedge(); h != nil {
		base, req := h.beside(c), c.requestOf(h)
		h.bound()
		h.use(base, req)
		if !c.decided() {
			h.classify()
			h.obeyAtOnce()
		}
		h.done = true
	}
}

// newHedge returns the exchange of the hedge, or nil if there is none. RoundTrip doesn't
// return meanwhile. Once it has, the caller may reuse its request, so the hedge's shares
// nothing with it.
func (c *race) newHedge() *exchange {
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

// holds maps what forbids hedges to a host to the reason for metrics.
var holds = [...]int{decide.OfTokens: meter.SkipTokens, decide.OfPause: meter.SkipPaused, decide.OfGate: meter.SkipGate, decide.OfBreaker: meter.SkipBreaker}

// forbids reports whether anything but the rule forbids a hedge, and what.
func (c *race) forbids() (reason int, forbidden bool) {
	p := place{clock: c.clock, r: c.r, rules: &c.r.Rules, req: c.req}
	key, now := hostkey.Of(c.req.URL), c.env.now()
	record := new(host.Record)
	if p.at(c.env.Hosts.Look(key, now)); p.host != nil {
		record = &p.host.Record
	}
	if hold := p.rules.HoldsHedge(record, p.call.Gate, now); hold != decide.NoHold {
		return holds[hold], true
	}
	if c.env.Fleet != nil && c.r.Fleet != 0 {
		forbidden, _ = c.env.Fleet.Forbids(key, c.r.Fleet, chance.Draw())
	}
	return meter.SkipFleet, forbidden
}

// requestOf returns the request of h, which the first attempt can end from now on.
func (c *race) requestOf(h *exchange) *http.Request {
	req := h.derive()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.second = h.last.attempt; c.over {
		c.second.Cut()
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
	began := c.env.Epoch.Add(c.began)
	c.turn = x.route.Beside(&x.env.Spares, base, hostkey.Of(x.req.URL), c.at, began, x.most(), c.delay)
	if c.turn == nil {
		return base
	}
	return c.turn
}

// avoid makes later requests avoid the base if the hedge, which has won, was at the spare
// while the first attempt was out at the base.
func (c *race) avoid() {
	if c.turn != nil && c.at.AtBase() {
		c.env.Spares.Doubt(hostkey.Of(c.req.URL), c.env.Epoch.Add(c.began), false)
	}
}

// hung makes later requests avoid the connection of the first attempt, whose caller
// has waited for longer than nearly any answer takes. The connection may have delivered
// responses in the first half of that time, and frozen after them.
func (c *race) hung() {
	_, ok := c.env.Base.(*http.Transport)
	if took := c.env.now() - c.began; ok && c.delay > 0 && took >= hedgePatience*c.delay && c.first.SpokeHTTP2() {
		c.env.Spares.Doubt(hostkey.Of(c.req.URL), time.Now().Add(-took/2), !c.at.AtBase())
	}
}

// hedgeEnded ends the hedge h, unless it is nil. A panic of the hedge continues in the
// goroutine of RoundTrip.
func (c *race) hedgeEnded(h *exchange, broke any) {
	c.mu.Lock()
	lost := c.over
	switch {
	case lost:
	case broke != nil:
		c.over, c.broke = true, broke
	default:
		c.hedge = h
		c.won = h != nil && h.done && h.good()
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

// stop keeps hedges from beginning, and reports whether one is out that may still win.
func (c *race) stop() (out bool) {
	if c.alarm != nil {
		c.alarm.Stop()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended != nil && !c.over
}

// close ends the race, if the hedge hasn't decided it. The fields below mu don't change
// any more, but for second, which it returns.
func (c *race) close() (second *attempt.Attempt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	return c.second
}

// endRace makes one outcome of the first attempt and of the hedge, if there is one: that
// of the first good answer. A failure waits for the other attempt.
func (x *exchange) endRace(c *race) {
	o := &x.event.Outcome
	out := c.stop()
	c.good = x.good()
	if x.last.resp == nil && (o.Canceled || o.Timeout) {
		c.hung()
	}
	waited := out && !c.good && !o.Canceled
	if waited {
		x.obeyAtOnce()
		o.Canceled = x.sleep(time.NewTimer(hedgePatience*c.delay), c.ended) != nil
	}
	second := c.close()
	x.last.race = nil
	if c.ended == nil {
		if c.broke != nil {
			panic(c.broke)
		}
		c.learnDelay(o)
		return
	}
	x.call.Attempts, x.call.Hedged = 2, true
	l := loser{x.last.attempt, meter.Superseded, *o}
	result := meter.HedgeLost
	switch {
	case c.won:
		result = meter.HedgeWon
		if waited {
			l.result = resultOf(o, decide.None)
		} else {
			c.avoid()
		}
		x.follow(c.hedge)
	case c.broke != nil:
		result, l.attempt, l.result = meter.HedgeFailed, second, meter.Error
	case c.hedge != nil:
		result = meter.HedgeFailed
		l = x.mergeFailure(c)
	default:
		l.attempt = second
		switch {
		case waited && !o.Canceled:
			result, l.result = meter.HedgeFailed, meter.Timeout
		case !c.good:
			l.result = meter.Canceled
		}
		if second != nil {
			second.Cut()
		}
	}
	c.countHedge(result, &l)
	if c.broke != nil {
		panic(c.broke)
	}
	if x.heard() {
		x.tellHedge(result, c.delay)
	}
	x.obey(&l.outcome)
}

// obeyAtOnce makes the host obey the outcome of an attempt whose race goes on. What comes of
// the race reports that.
//
//go:noinline
func (j *journey) obeyAtOnce() {
	o := &j.event.Outcome
	if !j.r.Refused(o) {
		return
	}
	p := j.place
	now := p.pin()
	defer p.env.Hosts.Unpin(p.host, now)
	var wakes bool
	if o.Change, wakes = p.rules.Obey(&p.host.Record, &p.call, o, now, chance.Draw()); wakes {
		wakeOthers(&p.host.Record)
	}
	o.Obeyed = true
}

// loser is the attempt that doesn't go on after a race.
type loser struct {
	attempt *attempt.Attempt // nil if it hasn't begun
	result  int              // for metrics
	outcome decide.Outcome
}

// countHedge counts the hedge and the loser of a race.
func (c *race) countHedge(hedge int, l *loser) {
	c.known.Hedged(c.won)
	c.r.Metrics.Count(meter.Hedges, hedge, 1)
	c.r.Metrics.Count(meter.Attempts, l.result, 1)
	if l.attempt != nil {
		c.r.Metrics.Count(meter.Sends, 0, l.attempt.Sends()-1)
	}
}

// abandonRace ends the race of a first attempt that has panicked, and its request with it.
func (x *exchange) abandonRace(c *race) {
	c.stop()
	second := c.close()
	if c.ended == nil {
		return
	}
	hedge, l := meter.HedgeLost, loser{attempt: second, result: meter.Superseded}
	switch {
	case c.hedge != nil:
		c.hedge.drop()
	case c.broke != nil:
		hedge, l.result = meter.HedgeFailed, meter.Error
	case second != nil:
		second.Cut()
	}
	c.countHedge(hedge, &l)
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

// mergeFailure makes the failure of the hedge of c part of the outcome of x, unless the
// first attempt was good. It returns the attempt that doesn't go on.
// All rules count both failures as one. A response in hand comes before an error, and
// whatever a server has said about retries holds.
func (x *exchange) mergeFailure(c *race) (l loser) {
	h := c.hedge
	if !h.done {
		// Its goroutine has ended within the base.
		h.drop()
		h.last, h.event = last{attempt: h.last.attempt, err: fault.ErrNothing}, decide.Event{}
	}
	l = loser{attempt: h.last.attempt, outcome: h.event.Outcome}
	switch {
	case c.good:
		h.drop()
	case x.last.resp == nil && h.last.resp != nil:
		l.attempt, l.outcome = x.last.attempt, x.event.Outcome
		x.meet(kept(x.last.err))
		x.doubts(x.last.err)
		x.follow(h)
	default:
		if err := h.last.failure(); err != nil {
			x.meet(kept(err))
		}
		h.drop()
	}
	l.result = resultOf(&l.outcome, decide.None)
	if c.good {
		return l
	}
	o := &x.event.Outcome
	o.RetryAfter = max(o.RetryAfter, l.outcome.RetryAfter)
	o.Forbidden = o.Forbidden || l.outcome.Forbidden
	o.Timeout = o.Timeout || l.outcome.Timeout
	o.Canceled = o.Canceled || l.outcome.Canceled
	return l
}

// learnDelay tells the rule how a first attempt without a hedge has ended: in o.
func (c *race) learnDelay(o *decide.Outcome) {
	var took time.Duration
	if c.delay == 0 || !c.good {
		took = c.env.now() - c.began
	}
	switch {
	case c.good:
		c.known.Answered(c.r.Hedge, took, c.late)
	case o.Timeout:
		c.known.TimedOut(took)
	}
}

// hedges reports whether the next attempt may get a hedge. A hedge may be processed at
// the same time as the first attempt, which no retry ever is.
func (x *exchange) hedges() bool {
	switch syntax.Method(x.req) {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
	default:
		return false
	}
	first := x.call.Attempts == 1 && x.rest == nil && x.number() == 1
	harmless := x.idempotent && x.key == "" && x.payload.kind == replay.None && x.req.Header["Upgrade"] == nil
	return first && harmless
}
