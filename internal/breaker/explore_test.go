// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package breaker

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/retrip/retrip/internal/explore"
	"github.com/retrip/retrip/internal/span"
	"github.com/retrip/retrip/internal/testenv"
)

// Three callers make every sequence of calls, with every outcome and at every instant
// from which on the breaker may decide otherwise, and a nanosecond before. The rules have so short
// durations that these are few.
//
//retrip:promise P10 P14
func TestBreaker_EveryState(t *testing.T) {
	testenv.OneGoroutine(t)
	const steps = 4
	for _, tt := range []struct {
		name string
		rule Rule
	}{
		{"one probe", Rule{Ratio: 1, Window: 10, MinVolume: 1, OpenFor: 4, Probes: 1}},
		{"two probes", Rule{Ratio: 0.5, Window: 10, MinVolume: 2, OpenFor: 4, Probes: Probes}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := explore.All(t, func() *ward {
				w := &ward{rule: tt.rule}
				for i := range w.callers {
					w.callers[i].left = steps
				}
				return w
			})
			t.Logf("%d states of 3 callers with %d steps each", n, steps)
		})
	}
}

// ward is a breaker and its callers, with what they know of it.
type ward struct {
	rule    Rule
	breaker Breaker
	now     time.Duration
	callers [3]patient
	wrong   error

	results   []result      // since the breaker last changed its state
	opened    time.Duration // when it last opened
	probed    time.Duration // when the last probe began
	good, bad int           // results of probes since then
}

// patient is a caller of a breaker.
type patient struct {
	left int // calls of the breaker that it may still make
	pass Pass
	out  bool // its attempt is under way
}

// order returns a number that differs between callers that differ, within the same
// or an earlier period.
func (c *patient) order() int {
	n := 8*c.left + 4*int(c.pass.Period)
	if c.out {
		n += 2
	}
	if c.pass.Probe {
		n++
	}
	return n
}

type result struct {
	at     time.Duration
	failed bool
}

// event is what may happen next.
type event struct {
	what string
	who  int
	draw uint64
	wait time.Duration // of "waits"
}

func (e event) String() string {
	return fmt.Sprintf("%c %s %v (draw %x)", 'A'+e.who, e.what, e.wait, e.draw)
}

// The shortest and the longest time for which a breaker may be open.
var shortest, longest = drawing(2), drawing(6)

// drawing returns a draw by which a breaker is open for d, of OpenFor 4.
func drawing(d time.Duration) (draw uint64) {
	for span.Draw(2, 6, span.Remix(draw)) != d {
		draw++
	}
	return draw
}

// State leaves out what has no effect: which caller is which, the numbers of the
// periods, and how many whole windows have passed.
func (w *ward) State() []any {
	n := *w
	past := w.now / w.rule.Window * w.rule.Window
	if w.breaker.state != Closed || w.breaker.ring == [slots]results{} {
		// The slots begin anew with the next result.
		past, n.breaker.ring, n.breaker.slot, n.breaker.width = w.now, [slots]results{}, 0, 0
	}
	n.now, n.opened, n.probed, n.results = n.now-past, n.opened-past, n.probed-past, nil
	b := &n.breaker
	b.until, b.probed, b.closed, b.last = b.until-past, b.probed-past, b.closed-past, b.last-past
	b.period = 0
	if b.width > 0 {
		b.slot -= int64(past / b.width)
	}
	if b.state == Closed {
		b.until = 0
	}
	if b.state != Open {
		n.opened = 0
	}
	if b.out == 0 {
		b.probed, n.probed = 0, 0
	}
	if !b.tripped || b.Healed(n.now) {
		b.closed, b.tripped = 0, false
	}
	if b.run == 0 {
		b.last = 0
	}
	_, row := w.row()
	for i, r := range w.results {
		if w.recent(r) || i >= len(w.results)-row {
			n.results = append(n.results, result{r.at - past, r.failed})
		}
	}
	for i := range n.callers {
		c := &n.callers[i]
		if !c.out || c.pass.Period != w.breaker.period {
			c.pass.Probe = false
		}
		c.pass.Period -= w.breaker.period
		if !c.out || c.pass.Period != 0 {
			c.pass.Period = 1
		}
	}
	slices.SortFunc(n.callers[:], func(a, b patient) int { return cmp.Compare(a.order(), b.order()) })
	return []any{&n}
}

func (w *ward) Moves() (all []event) {
	left := false
	for i, c := range w.callers {
		if c.left == 0 || slices.Contains(w.callers[:i], c) {
			continue
		}
		left = true
		if c.out {
			all = append(all, event{what: "succeeds", who: i}, event{what: "gives up", who: i}, event{what: "fails", who: i, draw: shortest})
			if b := w.breaker; b.Record(&w.rule, &c.pass, true, w.now, 0) == Opened {
				all = append(all, event{what: "fails", who: i, draw: longest})
			}
		} else {
			all = append(all, event{what: "asks", who: i})
			if b := w.breaker; b.state != Closed && !b.Refuses(w.now) {
				all = append(all, event{what: "asks", who: i, draw: math.MaxUint64})
			}
		}
	}
	if wait := w.next(); left && wait > 0 {
		all = append(all, event{what: "waits", wait: wait})
	}
	return all
}

// next returns how long to wait until just before an instant that may matter, or then
// until that instant. It is not positive if none is left.
func (w *ward) next() time.Duration {
	b, r := &w.breaker, &w.rule
	var all []time.Duration
	switch {
	case b.state != Closed:
		all = append(all, b.until, b.until+1)
		if b.out > 0 {
			all = append(all, b.probed+r.OpenFor)
		}
	default:
		for _, r := range w.results {
			all = append(all, r.at+w.rule.Window) // a slot is as short as the clock is exact
			if r.failed {
				all = append(all, r.at+Idle, r.at+Idle+1)
			}
		}
	}
	wait := time.Duration(math.MaxInt64)
	for _, at := range all {
		if d := at - w.now; d == 1 {
			return 1
		} else if d > 1 {
			wait = min(wait, d-1)
		}
	}
	if wait == math.MaxInt64 {
		return 0
	}
	return wait
}

func (w *ward) fail(format string, args ...any) {
	if w.wrong == nil {
		w.wrong = fmt.Errorf(format, args...)
	}
}

func (w *ward) Do(e event) {
	c := &w.callers[e.who]
	switch e.what {
	case "waits":
		w.now += e.wait
		return
	case "asks":
		w.ask(c, e.draw)
	case "gives up":
		if c.out = false; c.pass.Probe {
			w.breaker.ReturnProbe(&c.pass)
		}
	default:
		w.answer(c, e.what == "fails", e.draw)
	}
	c.left--
}

func (w *ward) ask(c *patient, draw uint64) {
	before, refuses, flying := w.breaker, w.breaker.Refuses(w.now), w.flying()
	allowed, change := w.breaker.Admit(&w.rule, &c.pass, w.now, draw)
	since := w.now - w.opened
	switch {
	case before.state == Closed && (!allowed || c.pass.Probe):
		w.fail("closed, and lets nothing through")
	case allowed && refuses:
		w.fail("lets an attempt through that it said it would refuse")
	case before.state == Open && allowed && since < w.rule.OpenFor/2:
		w.fail("lets an attempt through %v after it opened", since)
	case before.state == Open && !allowed && since >= w.rule.OpenFor*3/2:
		w.fail("stays open for %v", since)
	case before.state == Open && allowed != (change == Probing):
		w.fail("a change that nobody tells")
	case before.state == HalfOpen && allowed && flying >= max(1, w.rule.Probes-w.good-w.bad):
		w.fail("%d probes under way", flying+1)
	case before.state == HalfOpen && !allowed && flying == 0 && !refuses:
		w.fail("no probe under way, and allows none")
	}
	if before.state == HalfOpen && w.breaker.period != before.period || change == Probing {
		w.good, w.bad = 0, 0
	}
	if allowed {
		c.out = true
		if c.pass.Probe {
			w.probed = w.now
		}
	}
}

// flying returns the number of probes under way that haven't hung.
func (w *ward) flying() (n int) {
	if w.now-w.probed >= w.rule.OpenFor {
		return 0
	}
	for _, c := range w.callers {
		if w.probes(&c) {
			n++
		}
	}
	return n
}

// probes reports whether c's probe is under way and still counts.
func (w *ward) probes(c *patient) bool {
	return c.out && c.pass.Probe && c.pass.Period == w.breaker.period
}

func (w *ward) answer(c *patient, failed bool, draw uint64) {
	before, probe := w.breaker, w.probes(c)
	change := w.breaker.Record(&w.rule, &c.pass, failed, w.now, draw)
	c.out, c.pass.Probe = false, false
	if c.pass.Period != before.period || before.state == HalfOpen && !probe {
		if w.breaker != before || change != Same {
			w.fail("a result of an earlier state counts")
		}
		return
	}
	want := Same
	switch before.state {
	case Closed:
		w.results = append(w.results, result{w.now, failed})
		if failed && w.tooBad() {
			want = Opened
		}
	case HalfOpen:
		if failed {
			w.bad++
		} else {
			w.good++
		}
		all := float64(w.rule.Probes)
		switch {
		case float64(w.rule.Probes-w.good) < w.rule.Ratio*all:
			want = Shut
		case float64(w.bad) >= w.rule.Ratio*all:
			want = Opened
		}
	}
	if change != want {
		w.fail("change %d, want %d", change, want)
	}
	if state := (map[Change]State{Same: before.state, Opened: Open, Shut: Closed})[want]; w.breaker.state != state {
		w.fail("%s, want %s", Names[w.breaker.state], Names[state])
	}
	if want == Opened {
		w.opened = w.now
	}
	if want != Same {
		w.results, w.good, w.bad = nil, 0, 0
	}
}

// tooBad reports whether the results open a closed breaker, as its documentation says.
func (w *ward) tooBad() bool {
	all, failed := 0, 0
	for _, r := range w.results {
		if w.recent(r) {
			all++
			if r.failed {
				failed++
			}
		}
	}
	if _, row := w.row(); all < w.rule.MinVolume {
		return row >= w.rule.MinVolume
	}
	return float64(failed) >= w.rule.Ratio*float64(all)
}

// recent reports whether r is in the window.
func (w *ward) recent(r result) bool {
	width := w.rule.Window / slots
	return r.at/width > w.now/width-slots
}

// row returns the number of failures in a row, and when the first of them was.
func (w *ward) row() (since time.Duration, n int) {
	since = w.now
	for i := len(w.results) - 1; i >= 0 && w.results[i].failed && since-w.results[i].at <= Idle; i-- {
		since, n = w.results[i].at, n+1
	}
	return since, n
}

func (w *ward) Check() error {
	b := &w.breaker
	flying := 0
	for _, c := range w.callers {
		if w.probes(&c) {
			flying++
		}
	}
	switch {
	case w.wrong != nil:
		return w.wrong
	case b.out != flying:
		return fmt.Errorf("%d places of probes are taken, and %d probes are under way", b.out, flying)
	case b.state == Open && flying > 0:
		return fmt.Errorf("a probe of a breaker that is open")
	case b.state != Closed && b.Healed(w.now):
		return fmt.Errorf("forgotten while %s", Names[b.state])
	case b.Refuses(w.now) && !b.Binding(w.now):
		return fmt.Errorf("forgotten while it refuses attempts")
	}
	return w.recovers()
}

// recovers checks that the breaker closes if the server has recovered, whatever
// becomes of the attempts under way.
func (w *ward) recovers() error {
	for range 2 * w.rule.Probes {
		if w.breaker.state == Closed {
			break
		}
		w.now = max(w.now, w.breaker.until)
		if w.breaker.out > 0 {
			w.now = max(w.now, w.breaker.probed+w.rule.OpenFor)
		}
		var c Pass
		if allowed, _ := w.breaker.Admit(&w.rule, &c, w.now, 0); !allowed {
			return fmt.Errorf("no probe at %v, ever", w.now)
		}
		w.breaker.Record(&w.rule, &c, false, w.now, 0)
	}
	if w.breaker.state != Closed {
		return fmt.Errorf("%s after successes of all probes", Names[w.breaker.state])
	}
	return nil
}
