// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/caller"
	"github.com/retrip/retrip/internal/chance"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/meter"
	"github.com/retrip/retrip/internal/tell"
)

// hedgeEnded ends the hedge h, unless it is nil. A panic of the hedge continues in the
// goroutine of RoundTrip.
func (r *race) hedgeEnded(h *exchange, broke any) {
	r.mu.Lock()
	lost := r.over
	switch {
	case lost:
	case broke != nil:
		r.over, r.broke = true, broke
	default:
		r.hedge = h
		r.won = h != nil && h.done && h.good()
		r.over = r.won
	}
	decides := r.over && !lost
	if r.ended != nil {
		close(r.ended)
	}
	r.mu.Unlock()
	if decides {
		r.first.Cut()
	}
	if h != nil && (lost || broke != nil) {
		h.drop()
	}
}

// decided reports whether the hedge has decided the race.
func (r *race) decided() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.over
}

// endRace makes one outcome of the first attempt and of the hedge, if there is one: that
// of the first good answer. A failure waits for the other attempt.
func (x *exchange) endRace(r *race) {
	o := &x.event.Outcome
	out := r.stop()
	r.good = x.good()
	if x.last.resp == nil && (o.Canceled || o.Timeout) {
		r.hung()
	}
	waited := out && !r.good && !o.Canceled
	if waited {
		x.obeyAtOnce()
		o.Canceled = caller.Sleep(x.req, time.NewTimer(hedgePatience*r.delay), r.ended) != nil
	}
	second := r.close()
	x.last.race = nil
	if r.ended == nil {
		if r.broke != nil {
			panic(r.broke)
		}
		r.recordFirst(o)
		return
	}
	x.call.Attempts, x.tell.Attempts, x.call.Hedged = 2, 2, true
	l := loser{x.last.attempt, meter.Superseded, *o}
	result := meter.HedgeLost
	switch {
	case r.won:
		result = meter.HedgeWon
		if waited {
			l.result = tell.ResultOf(o, decide.None)
		} else {
			r.avoid()
		}
		x.follow(r.hedge)
	case r.broke != nil:
		result, l.attempt, l.result = meter.HedgeFailed, second, meter.Error
	case r.hedge != nil:
		result = meter.HedgeFailed
		l = x.mergeFailure(r)
	default:
		l.attempt = second
		switch {
		case waited && !o.Canceled:
			result, l.result = meter.HedgeFailed, meter.Timeout
		case !r.good:
			l.result = meter.Canceled
		}
		if second != nil {
			second.Cut()
		}
	}
	r.countHedge(result, &l)
	if r.broke != nil {
		panic(r.broke)
	}
	s := x.last.show()
	x.tell.Hedged(result, r.delay, o, &s)
	x.obey(&l.outcome)
}

// hedgePatience is for how many delays a failed first attempt waits for its hedge. Nearly
// no answer takes one. The hedge may hang, or wait for the connection that the
// response of the first attempt still holds.
const hedgePatience = 16

// stop keeps hedges from beginning, and reports whether one is out that may still win.
func (r *race) stop() (out bool) {
	if r.alarm != nil {
		r.alarm.Stop()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended != nil && !r.over
}

// close ends the race, if the hedge hasn't decided it. The fields below mu don't change
// any more, but for second, which it returns.
func (r *race) close() (second *attempt.Attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	return r.second
}

// loser is the attempt that doesn't go on after a race.
type loser struct {
	attempt *attempt.Attempt // nil if it hasn't begun
	result  int              // for metrics
	outcome decide.Outcome
}

// follow makes the outcome of the hedge h that of x, and drops that of the first attempt.
func (x *journey) follow(h *exchange) {
	first := x.last
	x.event.Outcome = h.event.Outcome
	x.last = h.last
	if x.last.resp != nil && x.last.resp.Request == h.req {
		x.last.resp.Request = x.req
	}
	first.attempt.Abandon()
	if first.inHand {
		body.Dismiss(first.resp)
	}
}

// mergeFailure makes the failure of the hedge of r part of the outcome of x, unless the
// first attempt was good. It returns the attempt that doesn't go on.
// All rules count both failures as one. A response in hand comes before an error, and
// whatever a server has said about retries holds.
func (x *exchange) mergeFailure(r *race) (l loser) {
	h := r.hedge
	if !h.done {
		// Its goroutine has ended within the base.
		h.drop()
		h.last, h.event = last{attempt: h.last.attempt, err: fault.ErrNothing}, decide.Event{}
	}
	l = loser{attempt: h.last.attempt, outcome: h.event.Outcome}
	switch {
	case r.good:
		h.drop()
	case x.last.resp == nil && h.last.resp != nil:
		l.attempt, l.outcome = x.last.attempt, x.event.Outcome
		x.tell.Add(tell.Short(x.last.err))
		x.doubts(x.last.err)
		x.follow(h)
	default:
		if err := h.last.failure(); err != nil {
			x.tell.Add(tell.Short(err))
		}
		h.drop()
	}
	l.result = tell.ResultOf(&l.outcome, decide.None)
	if r.good {
		return l
	}
	o := &x.event.Outcome
	o.RetryAfter = max(o.RetryAfter, l.outcome.RetryAfter)
	o.Forbidden = o.Forbidden || l.outcome.Forbidden
	o.Timeout = o.Timeout || l.outcome.Timeout
	o.Canceled = o.Canceled || l.outcome.Canceled
	return l
}

// obeyAtOnce makes the host obey the outcome of an attempt whose race goes on. What comes of
// the race reports that.
//
//go:noinline
func (x *journey) obeyAtOnce() {
	o := &x.event.Outcome
	if !x.cfg.Refused(o) {
		return
	}
	p := x.place
	now := p.pin()
	defer p.env.Hosts.Unpin(p.host, now)
	var wakes bool
	if o.Change, wakes = p.rules.Obey(&p.host.Record, &p.call, o, now, chance.Draw()); wakes {
		wakeOthers(&p.host.Record)
	}
	o.Obeyed = true
}

// recordFirst tells the rule how a first attempt without a hedge has ended: in o.
func (r *race) recordFirst(o *decide.Outcome) {
	switch took := r.env.Now() - r.began; {
	case r.good:
		r.known.RecordAnswer(r.cfg.Hedge, took, r.judged)
	case o.Timeout && !r.judged:
		r.known.RecordTimeout(r.cfg.Hedge, took)
	}
}

// abandonRace ends the race of a first attempt that has panicked, and its request with it.
func (x *exchange) abandonRace(r *race) {
	r.stop()
	second := r.close()
	if r.ended == nil {
		return
	}
	hedge, l := meter.HedgeLost, loser{attempt: second, result: meter.Superseded}
	switch {
	case r.hedge != nil:
		r.hedge.drop()
	case r.broke != nil:
		hedge, l.result = meter.HedgeFailed, meter.Error
	case second != nil:
		second.Cut()
	}
	r.countHedge(hedge, &l)
}

// countHedge counts the hedge and the loser of a race.
func (r *race) countHedge(hedge int, l *loser) {
	r.known.RecordHedge(r.won)
	r.cfg.Metrics.Count(meter.Hedges, hedge, 1)
	r.cfg.Metrics.Count(meter.Attempts, l.result, 1)
	if l.attempt != nil {
		r.cfg.Metrics.Count(meter.Sends, 0, l.attempt.Sends()-1)
	}
}

// avoid makes later requests avoid the base if the hedge, which has won, was at the spare
// while the first attempt was out at the base.
func (r *race) avoid() {
	if r.turn != nil && r.at.AtBase() {
		r.env.Spares.Doubt(hostkey.Of(r.req.URL), r.env.Epoch.Add(r.began), false)
	}
}

// hung makes later requests avoid the connection of the first attempt, whose caller
// has waited for longer than nearly any answer takes. The connection may have delivered
// responses in the first half of that time, and frozen after them.
func (r *race) hung() {
	_, ok := r.env.Base.(*http.Transport)
	if took := r.env.Now() - r.began; ok && r.delay > 0 && took >= hedgePatience*r.delay && r.first.SpokeHTTP2() {
		r.env.Spares.Doubt(hostkey.Of(r.req.URL), time.Now().Add(-took/2), !r.at.AtBase())
	}
}
