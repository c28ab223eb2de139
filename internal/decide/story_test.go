// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"cmp"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/lend"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/span"
)

// teller takes the requests of a story through the machine.
type teller struct {
	s     *play.Story
	epoch time.Duration // instant at which the story begins
	r     *decide.Rules
	h     host.Record
	calls map[string]*told
}

// told is a request of a story.
type told struct {
	decide.Call
	do   decide.Deed
	sent time.Duration
	due  time.Duration
}

func newTeller(t *testing.T, s *play.Story, epoch time.Duration) *teller {
	rules, _, err := lend.Rules(s.Policy)
	require.NoError(t, err)
	return &teller{s: s, epoch: epoch, r: rules, calls: map[string]*told{}}
}

// step lets the event of a line happen, and returns the action and whom it wakes.
func (t *teller) step(l play.Line, draw uint64) (a decide.Action, woken []string) {
	c := t.calls[l.Who]
	if c == nil {
		c = &told{Call: decide.Call{Account: t.s.Account, Waiter: l.Who, GateKey: l.Key}}
		if l.Route != "" {
			c.Goes(http.MethodGet, "/"+l.Route+"/")
		}
		if t.s.Policy.Deadline > 0 {
			c.Deadline = cmp.Or(t.epoch+l.At+t.s.Policy.Deadline, 1)
		}
		t.calls[l.Who] = c
	}
	l.Event.Outcome.Took = l.At - c.sent
	c.Step(t.r, &t.h, &l.Event, &a, t.epoch+l.At, draw)
	c.do = a.Do
	switch a.Do {
	case decide.Send:
		c.sent = l.At
	case decide.Sleep:
		c.due = span.Add(l.At, a.Wait)
	case decide.Queue:
		c.due = l.At
	}
	for a.Wakes {
		who, ok := t.h.NextWoken().(string)
		if !ok {
			break
		}
		t.calls[who].due = l.At
		woken = append(woken, who)
	}
	return a, woken
}

// after lists the events that may follow a deed.
var after = map[decide.Deed][]decide.Kind{
	decide.Send:  {decide.Ended},
	decide.Ask:   {decide.Heard, decide.Gone, decide.Late},
	decide.Sleep: {decide.Due, decide.Gone, decide.Late, decide.NoBody},
	decide.Queue: {decide.Due, decide.Gone, decide.Late, decide.NoBody},
}

// The machine does what the stories tell.
func TestStories(t *testing.T) {
	for name, s := range play.Stories(t, "../..") {
		t.Run(name, func(t *testing.T) {
			story := newTeller(t, s, 0)
			for i, l := range s.Lines {
				for who, c := range story.calls {
					if c.do == decide.Sleep || c.do == decide.Queue {
						assert.GreaterOrEqual(t, c.due, l.At, "%q is due", who)
					}
				}
				if c := story.calls[l.Who]; c == nil {
					assert.Equal(t, decide.Began, l.Event.Kind, "%v %s", l.At, l.Who)
				} else {
					assert.Contains(t, after[c.do], l.Event.Kind, "%v %s", l.At, l.Who)
					if l.Event.Kind == decide.Due {
						assert.Equal(t, c.due, l.At, "%s", l.Who)
					}
				}
				other := newTeller(t, s, 0)
				for _, before := range s.Lines[:i] {
					other.step(before, s.Draw())
				}
				// The wait at a gate was drawn when the gate closed.
				highest, _ := other.step(l, play.Highest)
				a, woken := story.step(l, s.Draw())
				most := highest.Wait
				if a.AtGate || s.Draw() != play.Lowest {
					most = a.Wait
				}
				assert.Equal(t, l.Then, play.Format(&a, most, woken), "%v %s", l.At, l.Who)
			}
			for who, c := range story.calls {
				assert.True(t, slices.Contains([]decide.Deed{decide.Answer, decide.Refuse}, c.do), "%q hasn't ended", who)
			}
		})
	}
}

// The caller chooses the epoch. Decisions are the same for instants long after
// the epoch, before it and around it.
func TestStories_EpochDoesNotMatter(t *testing.T) {
	for name, s := range play.Stories(t, "../..") {
		// 50 s are a multiple of a slot of the breaker's window.
		for _, epoch := range []time.Duration{100 * time.Hour, -time.Second, -50 * time.Second, -100 * 365 * 24 * time.Hour} {
			story, same := newTeller(t, s, 0), newTeller(t, s, epoch)
			for _, l := range s.Lines {
				want, _ := story.step(l, s.Draw())
				got, _ := same.step(l, s.Draw())
				require.Equal(t, want, got, "%s from %v on: %s", name, epoch, l.Text)
			}
		}
	}
}

func TestStep_PauseToTheEpoch(t *testing.T) {
	var h host.Record
	o := play.Repeatable(http.StatusServiceUnavailable)
	o.RetryAfter = time.Second
	play.Rules(t, retrip.Policy{Budget: retrip.Off}).Next(&h, &decide.Call{}, o, -time.Second, 0)
	require.Positive(t, h.PausedFor(-time.Second))
}
