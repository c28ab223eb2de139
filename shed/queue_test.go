// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"context"
	"math"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

const (
	ms      = time.Millisecond
	forever = time.Duration(math.MaxInt64)
)

// A random walk: the queue agrees with plain lists, never serves more than the limit, and
// never makes a request wait while a place is free.
func TestQueue_Model(t *testing.T) {
	for seed := range uint64(testenv.Size(16, 40)) {
		random := rand.New(rand.NewPCG(seed, 1))
		q := queue{limit: 1 + random.IntN(4), patience: 100 * ms, retryPatience: 20 * ms, hold: []time.Duration{forever, 300 * ms}[seed%2]}
		if seed%8 > 5 {
			q.patience, q.retryPatience = 0, 0
		}
		var held, running []*slot // with a place; with a handler that has not returned
		var waiters []*waiter
		var now time.Duration
		settle := func() {
			for len(held) < q.limit && len(waiters) > 0 {
				w := waiters[0]
				require.NotNil(t, w.slot, "seed %d", seed)
				require.Equal(t, now, w.slot.since)
				held, waiters, running = append(held, w.slot), waiters[1:], append(running, w.slot)
			}
		}
		release := func(s *slot, give func(*slot, time.Duration)) {
			held = slices.DeleteFunc(held, func(h *slot) bool { return h == s })
			give(s, now)
			settle()
		}
		for range 2000 {
			now += time.Duration(random.ExpFloat64() * float64(15*ms)).Truncate(5 * ms) // also just at a bound
			switch what := random.IntN(10); {
			case what < 5:
				isRetry, left := random.IntN(2) == 0, []time.Duration{forever, forever, forever, 10 * ms, 0, math.MinInt64}[random.IntN(6)]
				if left > 0 && len(held) >= q.limit {
					held = slices.DeleteFunc(held, func(s *slot) bool { return now-s.since >= q.hold })
				}
				// Waiting requests get free slots before a new request does.
				free, most, why := q.limit-len(held), q.patience, queueTime
				if isRetry {
					most, why = q.retryPatience, retry
				}
				switch {
				case left <= 0:
					most, why = 0, deadline
				case free > len(waiters):
					most, why = 0, ""
				case isRetry && free < len(waiters) && now-waiters[free].since >= most:
					most = 0
				case most > 0:
					most, why = min(most, left), ""
				}
				s, w, gotMost, gotWhy := q.arrive(now, isRetry, left)
				settle()
				require.Equal(t, why, gotWhy, "seed %d", seed)
				require.Equal(t, most, gotMost, "seed %d", seed)
				require.Equal(t, why == "" && most == 0, s != nil, "seed %d", seed)
				require.Equal(t, most > 0, w != nil, "seed %d", seed)
				if s != nil {
					require.Equal(t, now, s.since)
					require.NotContains(t, running, s, "the slot of a request that still runs")
					held, running = append(held, s), append(running, s)
				} else if w != nil {
					waiters = append(waiters, w)
				}
			case what < 7 && len(running) > 0:
				i := random.IntN(len(running))
				s := running[i]
				running = slices.Delete(running, i, i+1)
				release(s, q.finish)
			case what == 7 && len(running) > 0:
				release(running[random.IntN(len(running))], q.release)
			case len(waiters) > 0:
				i := random.IntN(len(waiters))
				q.remove(waiters[i])
				waiters = slices.Delete(waiters, i, i+1)
			}
			require.Equal(t, []int{len(held), len(waiters)}, []int{q.running, q.waiting}, "seed %d", seed)
			require.LessOrEqual(t, max(q.running, q.spares), q.limit)
			require.True(t, q.waiting == 0 || q.running == q.limit, "no request waits while a place is free")
		}
	}
}

// A place that is granted to a client just as it leaves is passed on.
func TestEnter_GrantedToOneWhoGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 200 {
			h := &Handler{Limit: 1}
			s := h.start()
			held, _, why := s.enter(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil), 1, forever)
			require.Empty(t, why)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				slot, _, why := s.enter(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil), 1, forever)
				assert.Nil(t, slot)
				assert.Equal(t, canceled, why)
			}()
			synctest.Wait()
			cancel()
			(&response{state: s, slot: held}).leave()
			<-done
			require.Zero(t, s.running)
		}
	})
}

func TestHeaders(t *testing.T) {
	for _, tt := range []struct {
		values []string
		want   int
	}{
		{nil, 1}, {[]string{"1"}, 1}, {[]string{"2"}, 2}, {[]string{" 3 "}, 3}, {[]string{"0"}, 1}, {[]string{"-3"}, 1}, {[]string{""}, 1},
		{[]string{"two"}, 1}, {[]string{"1", "4", "2"}, 4}, {[]string{"999999"}, 999999}, {[]string{"1000001"}, maxAttempt},
		{[]string{"99999999999999999999999999"}, maxAttempt}, {[]string{"2.5"}, 1}, {[]string{"2, 3"}, 3}, {[]string{",1 ,\t4"}, 4},
	} {
		assert.Equal(t, tt.want, attemptOf(tt.values), "%q", tt.values)
	}
	for _, tt := range []struct {
		values []string
		want   time.Duration
	}{
		{nil, forever}, {[]string{"1500"}, 1500 * ms}, {[]string{"0.5"}, 500 * time.Microsecond}, {[]string{"0"}, 0}, {[]string{"-7"}, 0},
		{[]string{"soon"}, forever}, {[]string{""}, forever}, {[]string{"NaN"}, forever}, {[]string{"+Inf"}, forever}, {[]string{"-Inf"}, 0},
		{[]string{"1e300"}, forever}, {[]string{"90", "80", "x"}, 80 * ms}, {[]string{"9e15"}, forever}, {[]string{"90, 0"}, 0},
	} {
		assert.Equal(t, tt.want, deadlineOf(tt.values), "%q", tt.values)
	}
}
