// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package turns makes the bodies that wait to be continued ask their host one at a
// time. It keeps no goroutine and no timer: who waits, waits by itself.
package turns

import (
	"sync"
	"time"

	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/span"
)

// Rule is what a policy says about turns.
type Rule struct {
	Cap  time.Duration // longest wait before a turn, while turns don't time out
	Slow time.Duration // a turn that takes so much longer than usual is slow; 0: none is
}

const (
	// CapLeast is what Cap is at least. Without it, a policy whose retries don't
	// wait would ask without end.
	CapLeast = 4 * time.Second

	// SlowShare is the share of the timeout of an attempt that makes a turn slow.
	SlowShare = 0.3

	firstShare  = 4 // the first wait is this fraction of Cap
	crowdedMost = 6 // after timeouts, a wait is at most this many times Cap

	// A queue grows by at most what all clients shorten their waits in one of them, and
	// should stay below a timeout. So after timeouts, a wait is shortened by about step
	// timeouts of an attempt, each counted as at least stepLeast.
	step      = 8
	stepLeast = float64(time.Second / 2)
)

// Result is how a turn ended.
type Result uint8

const (
	Continued Result = iota // the host sends the rest
	Failed
	TimedOut
	Empty // what the host sent broke before its first byte
)

// Pace says how long a host is left alone before the next turn. It is pure. The
// zero Pace is that of a host which nobody has asked yet.
type Pace struct {
	wait    time.Duration // 0: the first
	crowded bool          // the host is overloaded, or was
}

// Wait returns the length of the wait before the next turn.
func (p *Pace) Wait(r Rule) time.Duration {
	if p.wait == 0 {
		return r.Cap / firstShare
	}
	return p.wait
}

// Record records the result of a turn, and how much longer than usual it took. The wait
// doubles while the host fails and halves while it answers. Once the host has been slow
// or silent, the wait shrinks by less, the less the longer it is and the slower the
// host: all clients would otherwise speed up until everything times out.
func (p *Pace) Record(r Rule, result Result, took time.Duration) {
	wait := p.Wait(r)
	longer, most := span.Mul(max(wait, r.Cap/firstShare), 2), span.Mul(r.Cap, crowdedMost)
	slow := r.Slow > 0 && took > r.Slow
	p.crowded = p.crowded || result == TimedOut || result == Continued && slow
	switch {
	case result == TimedOut:
		p.wait = min(most, longer)
	case result == Empty:
		// The turn has counted as a success until now.
		p.wait = max(p.wait, min(r.Cap, span.Mul(longer, 2)))
	case result == Failed:
		p.wait = max(p.wait, min(r.Cap, longer))
	case slow:
		p.wait = min(most, longer/8*5)
	case p.crowded:
		by := step * max(stepLeast, float64(r.Slow)/SlowShare)
		share := min(0.5, by/(float64(wait)+by))
		if r.Slow > 0 {
			share *= 1 - float64(took)/float64(r.Slow)
		}
		p.wait = max(1, wait-time.Duration(share*float64(wait)))
	default:
		p.wait = max(1, wait/2)
	}
}

// PutOff reports whether a turn is put off because other requests to the host time
// out. They come first, but not for ever: each time, the next wait is longer, up to
// Cap.
func (p *Pace) PutOff(r Rule) bool {
	if p.Wait(r) >= r.Cap {
		return false
	}
	p.crowded = true
	p.wait = span.Mul(max(p.Wait(r), r.Cap/10)/5, 6)
	return true
}

// Queue is the bodies that wait for one host. It is safe for concurrent use.
type Queue struct {
	mu          sync.Mutex
	pace        Pace
	pausedUntil time.Duration // instant before which the host wants no request; 0: none
	waiting     int           // guarded by the table
	turn        chan struct{} // holds a value while it is nobody's turn
}

// Turn returns the channel that yields a turn. Who receives from it must call Pass.
func (q *Queue) Turn() <-chan struct{} { return q.turn }

// Pass makes it the turn of the body that has waited longest.
func (q *Queue) Pass() { q.turn <- struct{}{} }

// Wait returns how long the body whose turn it is waits before it asks the host, or
// false if it needs not wait because it couldn't ask before the instant limit. A draw
// spreads the turns of many clients over the second half of the wait.
func (q *Queue) Wait(r Rule, now, limit time.Duration, draw uint64) (time.Duration, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	wait, left := q.pace.Wait(r), span.Sub(limit, now)
	if wait = span.Draw(wait/2, wait, draw); wait >= left {
		// Rather ask earlier than not at all, but not faster and faster.
		if wait = left / 2; wait < r.Cap/firstShare/2 {
			return 0, false
		}
	}
	if q.pausedUntil != 0 {
		wait = max(wait, span.Sub(q.pausedUntil, now))
	}
	return wait, wait < left
}

// PutOff reports whether the turn is put off; see [Pace.PutOff].
func (q *Queue) PutOff(r Rule) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pace.PutOff(r)
}

// Record records the result of a turn that took so much longer than usual.
func (q *Queue) Record(r Rule, result Result, took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pace.Record(r, result, took)
}

// PauseUntil records that the host wants no request before the given instant.
func (q *Queue) PauseUntil(until time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pausedUntil = max(q.pausedUntil, until)
}

// Table has the queues of the hosts for which bodies wait, and of no others. The
// zero Table is empty. It is safe for concurrent use.
type Table struct {
	mu     sync.Mutex
	queues map[hostkey.Key]*Queue
}

// Join returns the queue of a host. The caller must call Leave in the end.
func (t *Table) Join(key hostkey.Key) *Queue {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.queues[key]
	if q == nil {
		if t.queues == nil {
			t.queues = map[hostkey.Key]*Queue{}
		}
		q = &Queue{turn: make(chan struct{}, 1)}
		q.Pass()
		t.queues[key.Clone()] = q
	}
	q.waiting++
	return q
}

// Leave ends what Join began. A queue for which nobody waits is forgotten.
func (t *Table) Leave(key hostkey.Key, q *Queue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.waiting--; q.waiting == 0 {
		delete(t.queues, key)
	}
}
