// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package hedge is the rule of hedged requests: when a request is late, and whether
// a second attempt may race the first one then. Transport and the simulator share it.
// It has no clock, no randomness and no timer. Instants are durations since an epoch
// of the caller's choice.
//
// A request is late if it is still out at the delay of its host, a high percentile of
// the times to an answer. The delay follows that percentile in steps: it learns only whether
// a request has taken as long, so a hedge that wins hides nothing from the estimate, and
// the share of late requests stays the same whatever the latencies do. Of hundreds in flight, most
// began with a shorter delay than the latest one, and are judged by that when they end.
//
// A share of the successes pays for the hedges, up to two ahead. What a hedge costs
// never comes back, whether or not it wins: where a queue makes requests late, hedges
// win and make the queue longer. While fewer than a fifth of the last hedges have won,
// the share is a tenth, and the last hedge saved up is for a host that falls silent, as over a
// connection that freezes: a hedge finds another connection.
//
// The rule follows "The Tail at Scale" (Dean and Barroso, 2013). Its steps are those of
// a stochastic approximation of a quantile (Robbins and Monro, 1951).
package hedge

import (
	"maps"
	"math"
	"math/bits"
	"sync"
	"time"

	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/span"
)

const (
	// MinRate is the number of requests per second below which a host gets no hedges.
	// A slower client knows the delay too late, and together many such clients would
	// have too many hedges saved up.
	MinRate = 2

	// MostSaved is the largest number of hedges saved up for one host.
	MostSaved = 2

	// Warmup is the number of answers before the first delay, which is the largest of
	// their times.
	Warmup = 20

	lateShare = 0.4 // late requests per hedge that Rule.Share pays for; the rest is for stalls

	minStep   = 0.1 // of the logarithm of the delay
	firstStep = 0.5 // the first step; the next ones are a half of it, a third, …
	quietRuns = 3   // answers in time between late requests, in multiples of the mean, that show a fall of latencies
	quietStep = 4   // factor of steps down after that
	far       = 2   // times its delay: so long a late request counts as out, for hedges to get rare soon as a queue grows

	minDelay = float64(time.Millisecond) // timers are no more exact
	maxDelay = float64(time.Hour)

	gapWeight = 0.05             // of the last gap in the mean gap between requests
	maxGap    = 10 * time.Second // longer gaps count as this: after a silence, a busy host is soon busy again

	memory    = 50  // number of hedges whose results count
	fewest    = 20  // results without which nothing follows from them
	winShare  = 0.2 // share of hedges that should win
	lostShare = 0.1 // of Rule.Share, while fewer win
	silent    = 2   // late requests since the last answer after which a host is silent
	whole     = 1e6 // hedges are paid for in millionths
)

// Rule is what a policy says about hedges.
type Rule struct {
	// Share is the largest number of hedges per request: more than 0 and at most 1.
	Share float64
}

// lateShare returns the share of requests that the delay of a host makes late.
func (r Rule) lateShare() float64 { return lateShare * r.Share }

// Skip is why there is no hedge of a late request.
type Skip uint8

const (
	None    Skip = iota // there is a hedge
	Trouble             // the caller doesn't allow one
	LowRate             // the host gets fewer than MinRate requests per second
	Spent               // the hedges of Rule.Share are spent
)

// Host is what the rule knows about one host. The zero Host knows nothing. A Host is
// safe for concurrent use. Only first attempts of requests that may be hedged count.
type Host struct {
	mu    sync.Mutex
	delay float64       // in nanoseconds; the longest time of an answer so far, unless ready
	gap   float64       // mean time between requests, in nanoseconds
	last  time.Duration // instant of the last request, if begun
	wins  uint64        // a bit for each of the last hedges, the last one lowest; 1: it won
	saved uint32        // hedges saved up, in millionths
	quiet uint32        // answers in time since the last late request
	lates uint8         // late requests since the last answer, at most silent
	steps uint8         // answers so far; if ready, steps of the delay, as far as they matter
	known uint8         // number of hedges of which wins knows the result
	begun bool
	ready bool
}

// Begin records a request at the instant now. It returns the delay after which the
// caller must call Late if no attempt has ended. A delay of 0 means not to: the delay
// isn't known yet, or isn't shorter than limit, the time that the attempt has. A limit
// of 0 means no limit.
func (h *Host) Begin(now, limit time.Duration) (delay time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.begun {
		gap := float64(min(max(0, span.Sub(now, h.last)), maxGap))
		if h.gap == 0 {
			h.gap = gap
		}
		h.gap += float64(gapWeight * (gap - h.gap)) // the conversion keeps compilers from fusing
		now = max(now, h.last)
	}
	h.last, h.begun = now, true
	if delay = time.Duration(h.delay); !h.ready || limit > 0 && delay >= limit {
		return 0
	}
	return delay
}

// Late records that a request is still out at its delay, that of Begin, and decides whether to
// hedge it. If it returns None, the caller must make the hedge, and must call RecordHedge when the
// request has ended. Judged says that the delay has moved. The caller allows no hedge if the host is
// in trouble: while it is paused, gated or behind a breaker, or while retries to it fail.
func (h *Host) Late(r Rule, delay time.Duration, allowed bool) (skip Skip, judged bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	judged = h.out(r, far*delay)
	h.lates = min(h.lates+1, silent)
	switch {
	case !allowed:
		return Trouble, judged
	case h.gap > float64(time.Second)/MinRate:
		return LowRate, judged
	case h.saved < whole, h.saved < 2*whole && h.lates < silent && h.losing():
		return Spent, judged
	}
	h.saved -= whole
	return None, judged
}

// RecordAnswer records that the first attempt of a request without a hedge has succeeded,
// after took. Judged is Late's, or false.
func (h *Host) RecordAnswer(r Rule, took time.Duration, judged bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.earn(r)
	h.lates = 0
	if !judged && !h.out(r, took) {
		h.inTime(r)
	}
}

// RecordTimeout records that the first attempt of a request that isn't judged has timed out, after
// took.
func (h *Host) RecordTimeout(r Rule, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.out(r, took)
}

// RecordHedge records the result of a hedge: whether the request got its answer from it.
func (h *Host) RecordHedge(won bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wins = h.wins << 1 & (1<<memory - 1)
	if won {
		h.wins |= 1
		h.lates = 0
	}
	h.known = min(h.known+1, memory)
}

// Delay returns the delay of h, or 0 if it isn't known yet.
func (h *Host) Delay() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ready {
		return 0
	}
	return time.Duration(h.delay)
}

// used returns the instant of the last request.
func (h *Host) used() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// warmUp records one of the times before the first delay.
func (h *Host) warmUp(took time.Duration) {
	h.delay = min(max(minDelay, h.delay, float64(took)), maxDelay)
	if h.steps++; h.steps == Warmup {
		h.ready, h.steps = true, 0
	}
}

// out records that a request was out for that time, at least, and reports whether that was news.
func (h *Host) out(r Rule, took time.Duration) (news bool) {
	if news = !h.ready || took >= time.Duration(h.delay); !h.ready {
		h.warmUp(took)
	} else if news {
		h.quiet = 0
		h.step(1 - r.lateShare())
	}
	return news
}

// inTime moves the delay down.
func (h *Host) inTime(r Rule) {
	by := -r.lateShare()
	h.quiet++
	if float64(h.quiet) > math.Round(quietRuns/r.lateShare()) {
		by *= quietStep
	}
	h.step(by)
}

// step moves the logarithm of the delay by a multiple of the length of a step.
func (h *Host) step(by float64) {
	length := max(minStep, firstStep/float64(1+h.steps))
	x := float64(length * by)
	// This is e^x to a ten-thousandth, and unlike math.Exp the same on all machines.
	h.delay = min(max(minDelay, h.delay*(2+x)/(2-x)), maxDelay)
	if h.steps < firstStep/minStep {
		h.steps++
	}
}

// earn pays for hedges.
func (h *Host) earn(r Rule) {
	share := r.Share
	if h.losing() {
		share *= lostShare
	}
	h.saved = min(h.saved+uint32(share*whole+0.5), MostSaved*whole)
}

// losing reports whether too few hedges win.
func (h *Host) losing() bool {
	return h.known >= fewest && float64(bits.OnesCount64(h.wins)) < winShare*float64(h.known)
}

const (
	most     = 3072 // hosts in a Table
	compared = 16   // hosts of which one makes room
)

// Table holds what is known of hosts, at most 3072 of them. If it is full, that one of a few
// hosts goes which has not been used for longest. Whoever uses it still may go on, and a new
// Host has no hedges saved up, so making room never allows a hedge. The zero Table is empty.
// A Table is safe for concurrent use.
type Table struct {
	mu    sync.RWMutex
	hosts map[hostkey.Key]*Host
}

// Host returns what is known of the host with the given key, which gets a request at the
// instant now.
func (t *Table) Host(key hostkey.Key, now time.Duration) *Host {
	t.mu.RLock()
	h := t.hosts[key]
	t.mu.RUnlock()
	if h != nil {
		return h
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.hosts[key]; h != nil {
		return h
	}
	if t.hosts == nil {
		t.hosts = map[hostkey.Key]*Host{}
	}
	if len(t.hosts) >= most {
		t.makeRoom()
	}
	h = &Host{last: now} // until Begin: it is not the host that goes next
	t.hosts[key.Clone()] = h
	return h
}

// makeRoom drops a host. The caller holds t.mu.
func (t *Table) makeRoom() {
	var unused hostkey.Key
	var since time.Duration
	n := 0
	for key, h := range t.hosts { // in an order that differs each time
		if last := h.used(); n == 0 || last < since {
			unused, since = key, last
		}
		if n++; n == compared {
			break
		}
	}
	delete(t.hosts, unused)
}

// All calls f with the key and the delay of each host whose delay is known.
func (t *Table) All(f func(key hostkey.Key, delay time.Duration)) {
	t.mu.RLock()
	hosts := maps.Clone(t.hosts)
	t.mu.RUnlock()
	for key, h := range hosts {
		if delay := h.Delay(); delay > 0 {
			f(key, delay)
		}
	}
}
