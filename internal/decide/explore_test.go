// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/lend"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/span"
	"github.com/retrip/retrip/internal/testenv"
)

func TestMain(m *testing.M) { testenv.RareGC(m) }

// All orders of five events (with make tables, six) of three requests at one host, under a sixteenth of all
// policies, which has every combination of any three of the eight switches.
func TestStep_Explored(t *testing.T) {
	const word = time.Second
	timeout, told, limit := play.Repeatable(0), play.Repeatable(503), play.Repeatable(429)
	timeout.Timeout, told.RetryAfter, limit.RetryAfter = true, word, word
	gone, due, nobody := choice{kind: decide.Gone}, choice{kind: decide.Due}, choice{kind: decide.NoBody}
	next := [6][]choice{decide.Sleep: {gone, due, nobody}, decide.Queue: {gone, due, nobody},
		decide.Ask: {gone, {kind: decide.Heard}, {kind: decide.Heard, other: true}}}
	for _, o := range []decide.Outcome{play.Repeatable(200), play.Repeatable(503), play.Repeatable(429), told, limit, timeout,
		{Hopeless: true}, {Canceled: true}, {Status: 500}} {
		next[decide.Send] = append(next[decide.Send], choice{kind: decide.Ended, outcome: o})
	}
	for bits := range 256 {
		b := func(i int) int { return bits >> i & 1 }
		if !testenv.Tables() && (b(4) != b(0)^b(1)^b(2) || b(5) != b(0)^b(1)^b(3) || b(6) != b(0)^b(2)^b(3) || b(7) != b(1)^b(2)^b(3)) {
			continue
		}
		p := retrip.Policy{MaxAttempts: 3 - b(0), MaxWait: []time.Duration{word / 2, 30 * word}[b(1)], Deadline: time.Duration(b(2)) * word * 3 / 2,
			Budget: []float64{1, retrip.Off}[b(3)], Gate: retrip.Gate{Enabled: play.Toggle(b(4) == 1)},
			Breaker: []retrip.Breaker{{}, {Ratio: 0.5, MinVolume: 2, Window: time.Minute, OpenFor: word}}[b(5)]}
		t.Run(fmt.Sprintf("%08b", bits), func(t *testing.T) {
			t.Parallel()
			r, p, err := lend.Rules(p)
			require.NoError(t, err)
			if r.Breaker != nil {
				r.Breaker.Probes = 1
			}
			w := &explorer{t: t, rules: r, policy: p, account: float64(100 * b(6)), draw: []uint64{play.Lowest, play.Highest}[b(7)], next: next}
			w.explore(testenv.Size(5, 6))
		})
	}
}

// choice is an event of a request.
type choice struct {
	who     int
	kind    decide.Kind
	other   bool // of Began: after a while; of Heard: the account is empty
	outcome decide.Outcome
}

// explorer is a host, and requests to it.
type explorer struct {
	t       *testing.T
	rules   *decide.Rules
	policy  retrip.Policy
	account float64
	draw    uint64
	next    [6][]choice // after each deed

	path   []choice
	h      host.Record
	now    time.Duration
	calls  [3]traveler
	begun  int
	told   time.Duration    // nothing may be sent before, by a word of the server to all
	words  [2]time.Duration // when the last two of them came
	well   time.Duration    // when the last good answer came
	probed time.Duration    // when the last probe was sent
}

// traveler is a request, and what it has taken.
type traveler struct {
	decide.Call
	decide.Action   // the last
	sends           int
	sent, due, told time.Duration // told: nothing may be sent before, by the server's word
	paid            int64         // to the host's budget
	charged         float64       // to the fleet's account
	probe           bool
}

func (c *traveler) over() bool { return c.Do >= decide.Answer }

// explore tries all that may follow the events so far.
func (w *explorer) explore(depth int) {
	w.h, w.now, w.begun, w.told, w.calls = host.Record{}, 1, 0, 0, [3]traveler{}
	w.words, w.well = [2]time.Duration{}, 0
	for _, e := range w.path {
		w.step(e)
	}
	var list []choice
	if depth > 0 {
		list = w.open()
	}
	if len(list) == 0 {
		w.end()
		return
	}
	for _, e := range list {
		w.path = append(w.path, e)
		w.explore(depth - 1)
		w.path = w.path[:len(w.path)-1]
	}
}

// open returns the events that may come next.
func (w *explorer) open() (list []choice) {
	for i := range w.begun {
		c := &w.calls[i]
		if i > 0 && c.sent == w.calls[i-1].sent+time.Millisecond && c.Do == decide.Send && w.calls[i-1].Do == decide.Send {
			continue // nothing has happened since both began: either may be the first
		}
		for _, e := range w.next[c.Do] {
			if e.who = i; e.kind == decide.Due && c.due == span.Forever || e.kind == decide.NoBody && c.Reason == decide.None {
				continue
			}
			list = append(list, e)
		}
	}
	if w.begun < len(w.calls) {
		list = append(list, choice{who: w.begun, kind: decide.Began}, choice{who: w.begun, kind: decide.Began, other: true})
	}
	return list
}

// step lets an event happen, and checks what follows.
func (w *explorer) step(e choice) {
	c := &w.calls[e.who]
	w.now += time.Millisecond
	switch {
	case e.kind == decide.Began:
		if w.begun++; e.other {
			w.now += 2 * time.Second
		}
		if *c = (traveler{Call: decide.Call{Account: w.account, Waiter: c}}); w.policy.Deadline > 0 {
			c.Deadline = w.now + w.policy.Deadline
		}
	case e.kind == decide.Due:
		w.now = max(w.now, c.due)
		fallthrough
	case e.kind == decide.Heard:
		if w.policy.Deadline > 0 && w.now >= c.Deadline {
			e.kind = decide.Late
		}
	}
	e.outcome.Took = w.now - c.sent
	event := decide.Event{Kind: e.kind, Outcome: e.outcome, Known: true, Level: w.account}
	if e.other {
		event.Level = 0
	}
	missing := w.h.Debt.Missing
	c.Step(w.rules, &w.h, &event, &c.Action, w.now, w.draw)
	w.pays(c, &e, missing, missing-w.h.Debt.Missing)
	w.must(c.over() || c.Do == decide.Send || c.Reason < decide.MaxAttempts, "a give-up ends the request")
	w.must(c.Do != decide.Refuse || e.kind != decide.Ended, "there is an outcome in hand")
	w.must(e.kind != decide.Gone && e.kind != decide.Late && e.kind != decide.NoBody || c.over(), "nothing follows")
	c.due = w.now
	switch c.Do {
	case decide.Send:
		w.sends(c)
	case decide.Sleep:
		c.due = span.Add(w.now, c.Action.Wait)
		w.must(c.Action.Wait >= 0 && (c.Deadline == 0 || c.due <= c.Deadline), "a wait fits the deadline")
	}
	for c.Wakes {
		woken, ok := w.h.NextWoken().(*traveler)
		if !ok {
			break
		}
		w.must(woken.Do == decide.Sleep && woken.AtGate, "a request that waits is woken")
		woken.due = w.now
	}
	stuck, others := false, false
	for i := range w.begun {
		stuck = stuck || !w.calls[i].over() && w.calls[i].due == span.Forever
		others = others || !w.calls[i].over() && w.calls[i].due < span.Forever
	}
	w.must(!stuck || others, "a wake-up is lost")
}

// pays checks what a step has given back to the budget and to the account, and its reason.
func (w *explorer) pays(c *traveler, e *choice, missing, gave int64) {
	o, owed, charged := &e.outcome, c.paid, c.charged
	failed := w.rules.Retryable(o)
	gives, gaveUp := min(owed, missing), c.Reason >= decide.MaxAttempts
	switch {
	case e.kind != decide.Ended && c.over():
		w.must(gave == gives && gaveUp, "what ends before its attempt gives back its tokens once")
	case e.kind != decide.Ended:
		w.must(gave == 0, "a wait costs nothing")
		w.must(c.Tokens == 0 || c.Do == decide.Send && c.sends > 0 && w.account > 0, "a retry pays the account")
		c.charged = -c.Tokens
		return
	case c.Do != decide.Answer:
		w.must(failed && o.Repeatable && c.sends < w.rules.MaxAttempts && o.RetryAfter <= w.policy.MaxWait, "a retry is allowed")
		w.must(gave <= 0 && c.Reason != decide.None, "a retry is paid for, and says why")
		gives = -gave
	case failed || o.Canceled:
		w.must(gave == 0 && gaveUp, "a failure keeps its tokens, and has a reason")
	case c.sends == 1 && !o.Hopeless:
		w.must(gave == min(w.rules.Budget.Credit, missing) && !gaveUp || w.rules.Budget.Size == 0, "a success pays")
	default:
		w.must(gave == gives && !gaveUp, "the tokens come back")
	}
	if c.paid, c.charged, c.probe = 0, 0, false; c.Do != decide.Answer && !c.over() {
		c.paid = gives
	}
	if charged > 0 && (e.kind != decide.Ended || failed || o.Canceled) {
		charged--
	}
	w.must(c.Tokens == charged, "the account gets what is left")
	w.must(!c.Pays || w.account > 0 && c.sends == 1 && o.Status == 200, "a success pays the account")
	switch word := w.now + o.RetryAfter; {
	case e.kind == decide.Ended && o.Status == 200:
		w.well = w.now
	case failed && o.RetryAfter > 0:
		c.told = word
		if w.rules.Gated || o.Status == 503 && o.RetryAfter <= w.policy.MaxWait {
			w.told = max(w.told, word)
			w.words = [2]time.Duration{w.now, w.words[0]}
		}
	}
}

// sends checks an attempt.
func (w *explorer) sends(c *traveler) {
	c.sends++
	c.sent = w.now
	w.must(c.sends == c.Attempts && c.sends <= w.rules.MaxAttempts, "at most MaxAttempts")
	lifted := !w.rules.Gated && (c.sends == 1 || c.told == 0 && w.well > w.words[1])
	w.must(w.now >= c.told && (w.now >= w.told || lifted), "not before the server's word")
	w.must(c.Deadline == 0 || w.now <= c.Deadline, "not after the deadline")
	state := breaker.Closed
	if w.h.Guards != nil {
		state = w.h.Guards.Breaker.State
	}
	w.must(state != breaker.Open, "not through an open breaker")
	if c.probe = state == breaker.HalfOpen; c.probe {
		for i := range w.calls {
			w.must(&w.calls[i] == c || !w.calls[i].probe || w.now-w.probed >= w.policy.Breaker.OpenFor, "one probe at a time")
		}
		w.probed = w.now
	}
}

// end ends all requests: everything has then been given back.
func (w *explorer) end() {
	for i := range w.begun {
		for c := &w.calls[i]; !c.over(); {
			e := choice{who: i, kind: decide.Gone}
			if c.Do == decide.Send {
				e = choice{who: i, kind: decide.Ended, outcome: decide.Outcome{Canceled: true}}
			}
			w.step(e)
		}
	}
	t := w.rules.State(&w.h, w.now)
	w.must(t.Waiting == 0 && w.h.NextWoken() == nil, "nobody waits")
	if w.rules.Breaker != nil {
		ungated := *w.rules
		ungated.Gated = false
		var a decide.Action
		new(decide.Call).Step(&ungated, &w.h, &decide.Event{Kind: decide.Began}, &a, w.now+t.OpenFor, 0)
		w.must(a.Do == decide.Send, "the place of a probe is free")
	}
}

func (w *explorer) must(ok bool, rule string) {
	if !ok {
		w.t.Helper()
		w.t.Fatalf("not so: %s, after %+v", rule, w.path)
	}
}
