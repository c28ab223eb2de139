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
	cfg   *Config
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
	judged bool             // known knows how late the first attempt is
	ended  chan struct{}    // closed when the hedge has ended; nil if there was none
	second *attempt.Attempt // of the hedge; nil until it begins
	turn   *spare.Turn      // of the hedge; nil if it is at the base
	hedge  *exchange        // the hedge, if it has ended and the first attempt hadn't won
	broke  any              // what the hedge has panicked with
}

// sendHedged is send for an attempt that gets a hedge if it is late.
func (x *exchange) sendHedged(base http.RoundTripper, req *http.Request) {
	r := x.race(base)
	x.last.race = r
	joined := false
	defer func() {
		if !joined { // the attempt has panicked
			x.abandonRace(r)
		}
	}()
	x.bound()
	x.use(base, req)
	x.classify()
	joined = true
	x.endRace(r)
}

// race begins a race for the attempt that is about to be made with base.
func (x *exchange) race(base http.RoundTripper) *race {
	r := &race{clock: x.clock, cfg: x.cfg, req: x.req, first: x.last.attempt, began: x.last.began}
	r.at, _ = base.(*spare.Turn)
	r.known = x.env.Hedges.Host(hostkey.Of(x.req.URL), x.last.began)
	if r.delay = r.known.Begin(x.last.began, x.attemptTime()); r.delay > 0 {
		r.alarm = alarm.Set(x.start(), r.delay, r)
	}
	return r
}

// Ring implements [alarm.Ringer]: the first attempt is late.
func (r *race) Ring(*alarm.Alarm) {
	var h *exchange
	defer func() { r.hedgeEnded(h, recover()) }()
	if h = r.newHedge(); h != nil {
		base, req := h.beside(r), r.requestOf(h)
		h.bound()
		h.use(base, req)
		if !r.decided() {
			h.classify()
			h.obeyAtOnce()
		}
		h.done = true
	}
}

// newHedge returns the exchange of the hedge, or nil if there is none. RoundTrip doesn't
// return meanwhile. Once it has, the caller may reuse its request, so the hedge's shares
// nothing with it.
func (r *race) newHedge() *exchange {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return nil
	}
	reason, forbidden := r.skipReason()
	var skip hedge.Skip
	switch skip, r.judged = r.known.Late(r.cfg.Hedge, r.delay, !forbidden); skip {
	case hedge.Spent:
		reason, forbidden = meter.SkipSpent, true
	case hedge.LowRate:
		reason, forbidden = meter.SkipLowRate, true
	}
	if forbidden {
		r.cfg.Metrics.Count(meter.HedgeSkips, reason, 1)
		return nil
	}
	h := &exchange{journey: journey{idempotent: true}}
	h.init(r.env, r.cfg, r.req, replay.None, nil)
	h.clock, h.call.Attempts, h.tell.Attempts, h.last.began = r.clock, 2, 2, r.env.Now()
	if h.deadline != 0 {
		h.call.Deadline = h.deadline
	}
	h.req = r.req.Clone(r.req.Context())
	r.ended = make(chan struct{})
	return h
}

// skipReasons maps what forbids hedges to a host to the reason for metrics.
var skipReasons = [...]int{decide.OfTokens: meter.SkipTokens, decide.OfPause: meter.SkipPaused, decide.OfGate: meter.SkipGate, decide.OfBreaker: meter.SkipBreaker}

// skipReason says why no hedge is made, if anything but the rule of hedges forbids it.
func (r *race) skipReason() (reason int, forbidden bool) {
	p := place{clock: r.clock, cfg: r.cfg, rules: &r.cfg.Rules, req: r.req}
	key, now := hostkey.Of(r.req.URL), r.env.Now()
	record := new(host.Record)
	if p.setHost(r.env.Hosts.Find(key, now)); p.host != nil {
		record = &p.host.Record
	}
	if hold := p.rules.HoldsHedge(record, p.call.GateKey, now); hold != decide.NoHold {
		return skipReasons[hold], true
	}
	if r.env.Fleet != nil && r.cfg.Fleet != 0 {
		forbidden, _ = r.env.Fleet.Forbids(key, r.cfg.Fleet, chance.Draw())
	}
	return meter.SkipFleet, forbidden
}

// requestOf returns the request of h, which the first attempt can end from now on.
func (r *race) requestOf(h *exchange) *http.Request {
	req := h.derive()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.second = h.last.attempt; r.over {
		r.second.Cut()
	}
	return req
}

// beside returns the RoundTripper for the hedge of r. Over HTTP/2, the base would use the
// connection of the first attempt, which may be why that is late. Over HTTP/1, the base
// uses another connection by itself.
func (x *exchange) beside(r *race) http.RoundTripper {
	base, ok := x.env.Base.(*http.Transport)
	if !ok || !r.first.SpokeHTTP2() {
		return x.env.Base
	}
	began := r.env.Epoch.Add(r.began)
	r.turn = x.route.Beside(&x.env.Spares, base, hostkey.Of(x.req.URL), r.at, began, x.attemptTime(), r.delay)
	if r.turn == nil {
		return base
	}
	return r.turn
}

// hedges reports whether the next attempt may get a hedge. A hedge may be processed at
// the same time as the first attempt, which no retry ever is.
func (x *exchange) hedges() bool {
	switch syntax.Method(x.req) {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
	default:
		return false
	}
	first := x.call.Attempts == 1 && !x.ofBody && x.number() == 1
	harmless := x.idempotent && x.key == "" && x.payload.Kind == replay.None && x.req.Header["Upgrade"] == nil
	return first && harmless
}

// drop releases what the hedge x holds.
func (x *exchange) drop() {
	// Nobody would recover a panic of a body that is closed here.
	defer func() { _ = recover() }()
	x.last.attempt.Abandon()
	if x.last.inHand {
		body.Dismiss(x.last.forget())
	}
}
