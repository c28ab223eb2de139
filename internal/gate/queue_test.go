// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

// The queue behaves like a sorted list without gaps.
//
//retrip:promise P23
func TestQueue_Model(t *testing.T) {
	testenv.OneGoroutine(t)
	random := rand.New(rand.NewPCG(1, 2))
	var q queue
	var model []waiter
	var away []waiter // released, and may come back
	last := int64(0)
	for step := range testenv.Size(50_000, 1_000_000) {
		switch k := random.IntN(10); {
		case k < 4 && len(model) < 300:
			last++
			w := waiter{number: last, refused: uint8(random.IntN(3)), patience: time.Duration(random.IntN(100))}
			q.insert(w)
			model = append(model, w)
		case k < 5 && len(away) > 0:
			i := random.IntN(len(away))
			w := away[i]
			away = slices.Delete(away, i, i+1)
			q.insert(w)
			at, _ := slices.BinarySearchFunc(model, w.number, func(a waiter, n int64) int { return int(a.number - n) })
			model = slices.Insert(model, at, w)
		case k < 7 && len(model) > 0: // the request at the front is released
			probe := random.IntN(4) == 0
			i := 0
			if probe && model[0].refused >= probeRefusals {
				for j, w := range model[:min(len(model), probeAmong)] {
					if w.refused < model[i].refused {
						i = j
					}
					if w.passed >= maxPassed {
						break
					}
				}
			}
			front := q.front(probe)
			require.Equal(t, model[i].number, front.number)
			require.Equal(t, model[i].passed, q.release(front.number))
			for j := range i {
				model[j].passed++
			}
			w := model[i]
			w.refused = uint8(random.IntN(4))
			model = slices.Delete(model, i, i+1)
			if away = append(away, w); len(away) > 50 {
				away = away[1:]
			}
		case k < 9 && len(model) > 0: // a request leaves
			i := random.IntN(len(model))
			require.True(t, q.has(model[i].number))
			q.remove(model[i].number)
			require.False(t, q.has(model[i].number))
			q.remove(model[i].number)
			model = slices.Delete(model, i, i+1)
		case k == 9 && step%100 == 0: // a pause
			seen := 0
			q.keep(func(w *waiter, ahead int) bool {
				require.Equal(t, seen, ahead)
				if w.number%7 == 0 {
					return false
				}
				seen++
				return true
			})
			model = slices.DeleteFunc(model, func(w waiter) bool { return w.number%7 == 0 })
		}
		if len(model) != q.len() || len(q.list) > 4*300 {
			t.Fatalf("%d wait, not %d, in %d places", q.len(), len(model), len(q.list))
		}
		if len(model) == 0 {
			require.Nil(t, q.front(false))
			continue
		}
		if slices.ContainsFunc(model, func(w waiter) bool { return w.patience < q.patience }) {
			t.Fatal("one is less patient")
		}
		if q.front(false).number != model[0].number || q.ahead(model[0].number) != 0 || q.ahead(last+1) != len(model) {
			t.Fatal("the queue is in another order")
		}
	}
}

// When a probe has no response for a second, another one goes. If the first then ends
// without a word about the pace, that one is still the probe, and the others wait for it.
//
//retrip:promise P23
func TestGate_OverdueProbeEnds(t *testing.T) {
	for name, end := range map[string]func(*Table, *Ticket, time.Duration){
		"canceled":            func(s *Table, c *Ticket, _ time.Duration) { s.Leave(c, 0) },
		"500":                 func(s *Table, c *Ticket, now time.Duration) { s.Pass(c, "", false, now, 0) },
		"429 without a wait":  func(s *Table, c *Ticket, now time.Duration) { s.Refuse(c, "", 0, now, 0, 0) },
		"an answer, at least": nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := Table{Made: new(atomic.Int64)}
			s.Refuse(new(Ticket), "", time.Second, 0, 0, 0)
			var now time.Duration
			release := func() *Ticket {
				c := new(Ticket)
				for {
					a := s.Admit(c, &Request{Patience: time.Hour}, now, 0, 0)
					require.Zero(t, a.Refusal)
					if !a.Waits {
						return c
					}
					now += a.Wait
				}
			}
			first := release()
			began := now
			release()
			require.Equal(t, time.Second, now-began)
			second := now
			now += time.Second / 2
			if end == nil {
				s.Pass(first, "", true, now, 0)
				release()
				assert.Equal(t, time.Second/2, now-second)
				return
			}
			end(&s, first, now)
			release()
			assert.Equal(t, time.Second, now-second)
		})
	}
}

// A request that was sent before a pause makes it longer. Those that don't wait so long
// give up at once, also if it is only a little longer.
//
//retrip:promise P9 P23
func TestGate_PauseALittleLonger(t *testing.T) {
	s := Table{Made: new(atomic.Int64)}
	var sent [3]Ticket
	for i := range sent {
		require.False(t, s.Admit(&sent[i], &Request{Patience: time.Minute}, 0, 0, 0).Waits)
	}
	s.Refuse(&sent[0], "", time.Second, 0, 0, 0)
	now := time.Second * 3 / 4
	waits := func(who string, patience time.Duration) {
		require.True(t, s.Admit(new(Ticket), &Request{Who: who, Patience: patience}, now, 0, 0).Waits)
	}
	waits("patient", time.Minute)
	waits("hasty", time.Second/2)
	waits("hastier", time.Second/4)
	_, wakes := s.Refuse(&sent[1], "", time.Second/4+1, now, 0, 0)
	assert.True(t, wakes)
	assert.Equal(t, []any{"hastier", nil}, []any{s.NextWoken(), s.NextWoken()})
	_, wakes = s.Refuse(&sent[2], "", time.Second, now, 0, 0)
	assert.True(t, wakes)
	assert.Equal(t, []any{"hasty", nil}, []any{s.NextWoken(), s.NextWoken()})
	waiting, _ := s.Waiting(now)
	assert.Equal(t, 1, waiting)
}
