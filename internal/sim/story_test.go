// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/decide"
	story "github.com/retrip/retrip/internal/play"
)

// The simulator does what the stories tell, as far as it knows what happens there. Its
// backend is silent: the test ends the attempts.
func TestStories(t *testing.T) {
	for name, s := range story.Stories(t, "../..") {
		if s.NotSim == "" {
			t.Run(name, func(t *testing.T) { replay(t, s) })
		}
	}
}

// generators are the states of a generator of which the next number is that of a story.
var generators = map[uint64]*rand.PCG{
	story.Lowest:       rand.NewPCG(0xdba7208509dc6fbc, 0xf24b0ffac22ab37d),
	story.LowestSecond: rand.NewPCG(0x9477de1538cba04a, 0xf24b0ffac22ab37d),
}

func replay(t *testing.T, s *story.Story) {
	scenario := Scenario{Policy: Policy{Retry: s.Policy, account: s.Account > 0}, Fleet: Fleet{Clients: 1}, Arrivals: Arrivals{Rate: 1, Count: 1},
		Backend: Backend{Service: time.Second, BrokenShare: 1, BrokenSilent: true}, Store: Store{Size: s.Account}, Horizon: time.Hour}
	r, err := newRun(&scenario)
	require.NoError(t, err)

	// who is the request to which something happens.
	var who string
	var told []string
	tell := func(now time.Duration, k decide.Kind, a *decide.Action) {
		told = append(told, now.String()+" "+who+" "+story.Word(k)+" "+story.Format(a, a.Wait, nil))
	}
	r.traceStep = func(_ int32, _ decide.Call, e decide.Event, now time.Duration, _ uint64, a decide.Action) {
		tell(now, e.Kind, &a)
	}
	names, numbers := map[int32]string{}, map[string]int32{}
	var want []string
	for i, l := range s.Lines {
		// Whom an action wakes shows in the next lines.
		then, _, _ := strings.Cut(l.Lowest(), " wakes=")
		want = append(want, l.At.String()+" "+l.Who+" "+story.Word(l.Event.Kind)+" "+then)
		r.draws.PCG = *generators[s.Draw()]
		if r.account != nil {
			r.account.draws.PCG = *generators[s.Draw()]
			r.account.store.answer(s.Lines[i:])
		}
		who = l.Who
		switch l.Event.Kind {
		case decide.Began:
			r.now = int64(l.At)
			numbers[who] = int32(len(r.requests))
			r.free = nil // a number belongs to one request
			names[numbers[who]] = who
			r.begin(0, false)
			if !r.asks {
				tell(l.At, decide.Began, &decide.Action{})
			}
		case decide.Ended:
			r.now = int64(l.At)
			r.ended(numbers[who], l.Event.Outcome)
		case decide.Due:
			e, ok := r.next()
			for ok && e.what&happensMask == happensTimeout {
				e, ok = r.next()
			}
			require.True(t, ok, "nobody is due at %v", l.At)
			r.now, who = e.at, names[e.who]
			r.happen(e)
		}
	}
	assert.Equal(t, want, told)
}

// answer makes the store answer the next question as the story tells.
func (s *store) answer(lines []story.Line) {
	for _, l := range lines[1:] {
		if l.Event.Kind != decide.Heard {
			continue
		}
		s.level, s.Delay, s.DownFor = l.Event.Level, l.At-lines[0].At, 0
		if !l.Event.Known {
			s.DownFor = time.Hour
		}
		return
	}
}
