// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
)

func stepOf(c *decide.Call, r play.Judge, h *host.Record, kind decide.Kind, o decide.Outcome, now time.Duration, draw uint64) decide.Action {
	var a decide.Action
	c.Step(r.Rules, h, &decide.Event{Kind: kind, Outcome: o}, &a, now, draw)
	return a
}

var (
	hung = decide.Outcome{Timeout: true, Repeatable: true, Replay: true, Took: 100 * time.Millisecond}
	lost = decide.Outcome{Repeatable: true, Replay: true, Took: time.Millisecond}
	well = decide.Outcome{Status: 200, Took: time.Millisecond}
	busy = decide.Outcome{Status: 503, Repeatable: true, Replay: true, Took: time.Millisecond}
)

// waits takes c, which is due at the instant at, to the end of its waits.
func waits(c *decide.Call, r play.Judge, h *host.Record, at time.Duration) decide.Deed {
	for {
		a := stepOf(c, r, h, decide.Due, decide.Outcome{}, at, play.Highest)
		if a.Do != decide.Sleep {
			return a.Do
		}
		at += a.Wait
	}
}

func callTo(path string) *decide.Call {
	c := &decide.Call{Attempts: 1}
	c.Goes("GET", path)
	return c
}

// A burst each 0.95 s: the wait for tokens of a burst's request is over after a second.
func TestPayLate_WaitEnds(t *testing.T) {
	r, h, begin := play.Rules(t, retrip.Policy{}), new(host.Record), time.Hour
	burst := func(now time.Duration) {
		for range 7 {
			c := callTo("/a")
			stepOf(c, r, h, decide.Ended, hung, now, play.Lowest)
			stepOf(c, r, h, decide.Due, decide.Outcome{}, now, play.Lowest)
		}
	}
	burst(begin)
	c, now := callTo("/a"), begin
	a := stepOf(c, r, h, decide.Ended, hung, now, play.Highest)
	for a.Do == decide.Sleep && now < begin+time.Minute {
		now += a.Wait
		for range 40 {
			stepOf(callTo("/a"), r, h, decide.Ended, well, now-50*time.Millisecond, 0)
		}
		burst(now - 50*time.Millisecond)
		a = stepOf(c, r, h, decide.Due, decide.Outcome{}, now, play.Highest)
	}
	assert.LessOrEqual(t, now-begin, time.Second)
}

// 100 attempts time out at once, and nothing is answered: their retries leave a fifth of the tokens.
func TestPayLate_LeavesAFifth(t *testing.T) {
	r, h, sent := play.Rules(t, retrip.Policy{}), new(host.Record), 0
	for range 100 {
		c, now := callTo("/a"), time.Hour
		a := stepOf(c, r, h, decide.Ended, hung, now, play.Highest)
		for a.Do == decide.Sleep {
			now += a.Wait
			a = stepOf(c, r, h, decide.Due, decide.Outcome{}, now, play.Highest)
		}
		if a.Do == decide.Send {
			sent++
		}
	}
	assert.Equal(t, 5, sent)
}

// A route whose retries wait for successes gets none without tokens (rule 5).
func TestPayLate_ObeysRoutes(t *testing.T) {
	for name, fail := range map[string]decide.Outcome{"lost": lost, "timeout": hung} {
		r, h, now := play.Rules(t, retrip.Policy{}), new(host.Record), time.Hour
		for range 8 {
			c := callTo("/dead")
			for stepOf(c, r, h, decide.Ended, fail, now, play.Lowest).Do == decide.Sleep &&
				stepOf(c, r, h, decide.Due, decide.Outcome{}, now, play.Lowest).Do == decide.Send {
				now += time.Second
			}
			for range 60 {
				stepOf(callTo("/good"), r, h, decide.Ended, well, now, play.Lowest)
			}
		}
		now += time.Minute
		assert.Equal(t, decide.RetriesFailing, stepOf(callTo("/dead"), r, h, decide.Ended, fail, now, play.Lowest).Reason)
		var late []*decide.Call
		for range 20 {
			c := callTo("/good")
			stepOf(c, r, h, decide.Ended, fail, now, play.Lowest)
			stepOf(c, r, h, decide.Due, decide.Outcome{}, now, play.Lowest)
			if c = callTo("/dead"); stepOf(c, r, h, decide.Ended, fail, now, play.Lowest).Do == decide.Sleep {
				late = append(late, c)
			}
		}
		for range 10 { // the last timeout is forgotten
			stepOf(callTo("/good"), r, h, decide.Ended, well, now+300*time.Millisecond, play.Highest)
		}
		sent := 0
		for _, c := range late {
			if waits(c, r, h, now+900*time.Millisecond) == decide.Send {
				sent++
			}
		}
		assert.Zero(t, sent, name)
	}
}

// 30 attempts time out at once, and the host then refuses others: that is no end of its trouble.
func TestPayLate_RefusalsEndNoTimeouts(t *testing.T) {
	r, h, now, sent := play.Rules(t, retrip.Policy{}), new(host.Record), time.Hour, 0
	calls := make([]*decide.Call, 30)
	for i := range calls {
		calls[i] = callTo("/a")
		stepOf(calls[i], r, h, decide.Ended, hung, now, play.Highest)
	}
	for range 10 {
		stepOf(callTo("/b"), r, h, decide.Ended, busy, now+300*time.Millisecond, play.Highest)
	}
	for _, c := range calls {
		if waits(c, r, h, now+900*time.Millisecond) == decide.Send {
			sent++
		}
	}
	assert.Equal(t, 5, sent, "as many as had tokens")
}

// The budget is full again while retries wait for their tokens: what they get later, they owe.
func TestPayLate_CountsInTheRow(t *testing.T) {
	r, h, now := play.Rules(t, retrip.Policy{}), new(host.Record), time.Hour
	calls := make([]*decide.Call, 13)
	for i := range calls {
		calls[i] = callTo("/a")
		stepOf(calls[i], r, h, decide.Ended, lost, now, play.Highest)
	}
	for range 50 {
		stepOf(callTo("/a"), r, h, decide.Ended, well, now+100*time.Millisecond, play.Highest)
	}
	stepOf(callTo("/a"), r, h, decide.Ended, lost, now+200*time.Millisecond, play.Highest)
	for _, c := range calls[10:] {
		assert.Equal(t, decide.Send, stepOf(c, r, h, decide.Due, decide.Outcome{}, now+300*time.Millisecond, play.Highest).Do)
		stepOf(c, r, h, decide.Ended, lost, now+time.Second, play.Highest)
	}
	assert.Equal(t, decide.RetriesFailing, stepOf(callTo("/a"), r, h, decide.Ended, lost, now+time.Second, play.Highest).Reason)
}

// A host answers nothing but 421, also over new connections.
func TestPay_MisdirectedForever(t *testing.T) {
	r, h, retries := play.Rules(t, retrip.Policy{RetryOn: []int{421}}), new(host.Record), 0
	for i := range 100 {
		c, now := callTo("/a"), time.Hour+time.Duration(i)*time.Second
		if stepOf(c, r, h, decide.Ended, play.Repeatable(421), now, play.Lowest).Do == decide.Sleep {
			stepOf(c, r, h, decide.Due, decide.Outcome{}, now, play.Lowest)
			stepOf(c, r, h, decide.Ended, decide.Outcome{Status: 421, Verdict: decide.Final}, now, play.Lowest)
			retries++
		}
	}
	assert.Equal(t, 10, retries, "as many as have tokens")
}

// 100 attempts fail at once, and the host is well: all are made again, unless it has refused them.
func TestPayLate_Saves(t *testing.T) {
	for name, tt := range map[string]struct {
		outcome  decide.Outcome
		deadline time.Duration
		saved    int
		retries  int           // of earlier requests, which are lost with them
		slow     time.Duration // answers take so much longer
	}{
		"lost":                          {outcome: lost, saved: 100},
		"with earlier retries":          {outcome: lost, saved: 110, retries: 10, slow: 2 * time.Second},
		"amid the body":                 {outcome: decide.Outcome{LostStatus: 200, Repeatable: true, Replay: true}, saved: 100},
		"a 421":                         {outcome: decide.Outcome{Status: 421, Verdict: decide.Retryable, Repeatable: true, Replay: true}, saved: 100},
		"amid the body of a refusal":    {outcome: decide.Outcome{LostStatus: 500, Repeatable: true, Replay: true}, saved: 10},
		"hung, little time is left":     {outcome: decide.Outcome{Timeout: true, Took: time.Second, Repeatable: true, Replay: true}, deadline: 1500 * time.Millisecond, saved: 100},
		"hung, and no time for a token": {outcome: decide.Outcome{Timeout: true, Took: time.Second, Repeatable: true, Replay: true}, deadline: 1100 * time.Millisecond, saved: 5},
		"hung, on a dead connection":    {outcome: decide.Outcome{Timeout: true, Dead: true, Took: time.Second, Repeatable: true, Replay: true}, deadline: 1100 * time.Millisecond, saved: 100},
	} {
		w, r, h, saved := play.NewWorld(7), play.Rules(t, retrip.Policy{}), new(host.Record), 0
		for range tt.retries {
			h.Debt = budget.Debt{} // successes pay meanwhile
			c := &decide.Call{}
			w.Call(h, r, c, func(answer func(decide.Outcome)) {
				switch c.Attempts {
				case 1:
					answer(play.Repeatable(503))
				case 2:
					w.At(time.Second, func() { answer(tt.outcome) })
				default:
					w.At(w.Now+tt.slow, func() { answer(play.Took(200, tt.slow)) })
				}
			}, func(o decide.Outcome, _ decide.Reason) {
				if o.Status == 200 {
					saved++
				}
			})
		}
		h.Debt = budget.Debt{}
		for range 100 {
			c := &decide.Call{Deadline: tt.deadline}
			w.Call(h, r, c, func(answer func(decide.Outcome)) {
				took := 20*time.Millisecond + tt.slow
				o := play.Took(200, took)
				if c.Attempts == 1 {
					o, took = tt.outcome, time.Second-1
				}
				w.At(w.Now+took, func() { answer(o) })
			}, func(o decide.Outcome, _ decide.Reason) {
				if o.Status == 200 {
					saved++
				}
			})
		}
		w.Run(time.Minute)
		assert.Equal(t, tt.saved, saved, name)
	}
}
