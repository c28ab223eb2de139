// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/hedge"
)

// race is what a request knows of its hedge. A hedge is a request of its own, which the
// backend can't tell from a retry, and which ends with one attempt.
type race struct {
	other  int32 // index of the hedge of a request, or of the request of a hedge; none without one
	hedge  bool  // this is a hedge
	judged bool  // the rule knows how late the first attempt is
	failed bool  // the first attempt has failed, and the hedge is still out
}

// watch begins the time until the first attempt of a request is late, if it may have a
// hedge.
func (r *run) watch(i int32, limit time.Duration) {
	q := &r.requests[i]
	delay := r.Policy.Hedging.After
	if delay == 0 {
		delay = r.hedges[q.host].Begin(time.Duration(r.now), limit)
	}
	if delay > 0 && (limit <= 0 || delay < limit) {
		r.queue.push(r.now+int64(delay), i, q.gen|happensLate)
	}
}

// late handles a first attempt that is still out at its delay.
func (r *run) late(i int32) {
	q := &r.requests[i]
	hold := r.rules.HoldsHedge(&r.hosts[q.host], q.call.GateKey, time.Duration(r.now))
	if r.Policy.Hedging.After == 0 {
		var skip hedge.Skip
		skip, q.race.judged = r.hedges[q.host].Late(r.hedging, time.Duration(r.now-q.began), hold == decide.NoHold)
		if skip != hedge.None {
			return
		}
	}
	r.hedge(i)
}

// hedge makes a second attempt beside the first one of a request.
func (r *run) hedge(i int32) {
	h := r.take()
	q, copy := &r.requests[i], &r.requests[h]
	q.call.Attempts++
	q.call.Hedged = true
	gen := copy.gen
	*copy = *q
	copy.gen = gen
	copy.race = race{other: i, hedge: true}
	q.race.other = h
	r.attempt(h)
}

// raced records the end of an attempt that may have another one beside it, and of a
// first attempt. It returns the request whose attempt has ended, or none while the other
// attempt is still out.
func (r *run) raced(i int32, o *decide.Outcome) int32 {
	q := &r.requests[i]
	host := &r.hedges[q.host]
	failed := r.rules.Retryable(o)
	switch h := q.race.other; {
	case q.race.hedge:
		owner := &r.requests[h]
		if failed && !owner.race.failed {
			owner.race.other = none
			r.free = append(r.free, i)
			host.RecordHedge(false)
			return none
		}
		host.RecordHedge(!failed)
		if !failed {
			r.result.HedgesWon++
		}
		owner.race.other = none
		r.free = append(r.free, i)
		if !owner.race.failed {
			owner.gen += generationStep
		}
		o.Took = time.Duration(r.now - owner.began)
		return h
	case h != none && failed:
		q.race.failed = true
		return none
	case h != none:
		r.drop(i)
	case q.call.Attempts > 1: // the hedge has failed, or this is a retry
	case !failed:
		host.RecordAnswer(r.hedging, o.Took, q.race.judged)
	case o.Timeout && !q.race.judged:
		host.RecordTimeout(r.hedging, o.Took)
	}
	return i
}

// drop cancels the hedge of a request.
func (r *run) drop(i int32) {
	q := &r.requests[i]
	h := q.race.other
	q.race.other = none
	r.hedges[q.host].RecordHedge(false)
	r.requests[h].gen += generationStep
	r.free = append(r.free, h)
}
