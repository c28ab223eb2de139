// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package turns

import (
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// turnsAt is a heap of clients by the instant of their next turn.
type turnsAt []*waiter

type waiter struct {
	pace Pace
	at   time.Duration
	left int // bodies
}

func (h turnsAt) Len() int           { return len(h) }
func (h turnsAt) Less(i, j int) bool { return h[i].at < h[j].at }
func (h turnsAt) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *turnsAt) Push(x any)        { *h = append(*h, x.(*waiter)) }
func (h *turnsAt) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// fleet is what happens to a host with one queue, of which other requests use a share,
// when bodies of many clients break because it goes away for a while. Only turns are
// simulated: requests that the budget allows, and what a timeout does to it, are not. With hasty, every
// turn that is answered halves the wait.
func fleet(clients, bodies int, capacity, share float64, away time.Duration, silent, hasty bool) (recovered, done time.Duration) {
	const patience = time.Second // AttemptTimeout
	random := rand.New(rand.NewPCG(1, 2))
	rule := Rule{Cap: 10 * time.Second, Slow: time.Duration(SlowShare * float64(patience))}
	if hasty {
		rule.Slow = 0
	}
	h := turnsAt{}
	next := func(w *waiter, now time.Duration) {
		wait := w.pace.Wait(rule)
		w.at = now + wait/2 + time.Duration(random.Int64N(int64(wait/2)+1))
	}
	for range clients {
		w := &waiter{left: bodies}
		next(w, 0)
		h = append(h, w)
	}
	heap.Init(&h)
	var backlog float64 // requests
	last := away
	for len(h) > 0 && h[0].at < time.Hour {
		w := h[0]
		now := w.at
		if now < away {
			if silent {
				w.pace.Learn(rule, TimedOut, 0)
				now += patience
			} else {
				w.pace.Learn(rule, Failed, 0)
			}
		} else {
			backlog = max(0, backlog-(now-last).Seconds()*capacity*(1-share))
			last = now
			backlog++
			took := time.Duration(backlog / capacity * float64(time.Second))
			if took > patience {
				recovered = now - away
				w.pace.Learn(rule, TimedOut, patience)
				now += patience
			} else {
				w.pace.Learn(rule, Continued, took)
				w.left--
				now += took
			}
		}
		w.pace.crowded = w.pace.crowded && !hasty
		if w.left == 0 {
			done = now - away
			heap.Pop(&h)
			continue
		}
		next(w, now)
		heap.Fix(&h, 0)
	}
	return recovered, done
}

// Turns of 1000 clients with 50 bodies each leave the host to its other requests: soon
// after its return none times out any more, and in the end all bodies are continued. The
// bodies of one client don't wait long for that.
func TestPace_Fleet(t *testing.T) {
	const bodies, capacity = 50, 1000.0
	for _, c := range []struct {
		away   time.Duration
		silent bool
		alone  time.Duration
	}{
		{time.Second, false, 15 * time.Second}, {10 * time.Second, false, 15 * time.Second}, {time.Minute, false, 15 * time.Second},
		{time.Second, true, 15 * time.Second}, {10 * time.Second, true, 40 * time.Second}, {time.Minute, true, 4 * time.Minute},
	} {
		recovered, done := fleet(1000, bodies, capacity, 0.7, c.away, c.silent, false)
		_, alone := fleet(1, bodies, capacity, 0.7, c.away, c.silent, false)
		t.Logf("away %v, silent %t: last timeout %v after the return, the last body is continued %v after it, of one client %v; the capacity allows %v",
			c.away, c.silent, recovered.Round(100*time.Millisecond), done.Round(time.Second), alone.Round(time.Second), time.Duration(1000*bodies*10/3)*time.Millisecond)
		assert.LessOrEqual(t, recovered, 3*time.Second)
		assert.Positive(t, done)
		assert.Less(t, done, 12*time.Minute)
		assert.Less(t, alone, c.alone)
		hasty, _ := fleet(1000, bodies, capacity, 0.7, c.away, c.silent, true)
		assert.Greater(t, hasty, 3*time.Second, "without the slow end of the halving")
	}
}
