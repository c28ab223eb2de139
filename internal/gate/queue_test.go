// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

// The queue behaves like a sorted list without gaps.
//
//retrip:promise P23
func TestQueue_Model(t *testing.T) {
	testenv.OneGoroutine(t)
	testenv.Slow(t)
	random := rand.New(rand.NewPCG(1, 2))
	var q queue
	var model []waiter
	var away []waiter // released, and may come back
	last := int64(0)
	for step := range testenv.Size(400_000, 1_000_000) {
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
