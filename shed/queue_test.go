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
)

const (
	ms      = time.Millisecond
	forever = time.Duration(math.MaxInt64)
)

func TestQueue_RetriesAreRefusedFirst(t *testing.T) {
	q := queue{limit: 1, patience: 100 * ms, retryPatience: 20 * ms, hold: forever}
	served, _, _, _ := q.arrive(0, true, forever)
	require.NotNil(t, served, "a retry is served where there is room")

	_, first, most, _ := q.arrive(0, false, forever)
	assert.Equal(t, 100*ms, most)
	_, second, most, _ := q.arrive(19*ms, true, forever)
	require.NotNil(t, second, "the oldest request is young")
	assert.Equal(t, 20*ms, most)
	_, w, _, why := q.arrive(20*ms, true, forever)
	assert.Nil(t, w)
	assert.Equal(t, retry, why)
	_, third, most, _ := q.arrive(20*ms, false, 50*ms)
	assert.Equal(t, 50*ms, most, "no longer than the time left")

	q.finish(served, 30*ms)
	require.NotNil(t, first.slot, "in the order of arrival")
	assert.Nil(t, second.slot)
	q.remove(second)
	q.finish(first.slot, 40*ms)
	require.NotNil(t, third.slot)
	assert.Equal(t, 40*ms, third.slot.since)
	q.finish(third.slot, 50*ms)
	assert.Zero(t, q.running)
	assert.Zero(t, q.waiting)
}

func TestQueue_Off(t *testing.T) {
	q := queue{limit: 1, hold: forever}
	q.arrive(0, false, forever)
	for isRetry, want := range map[bool]reason{false: queueTime, true: retry} {
		s, w, _, why := q.arrive(0, isRetry, forever)
		assert.Nil(t, s)
		assert.Nil(t, w)
		assert.Equal(t, want, why)
	}
	for _, left := range []time.Duration{0, -1, math.MinInt64} {
		_, _, _, why := q.arrive(0, false, left)
		assert.Equal(t, deadline, why)
	}
}

// A request that has run for too long makes room, for waiting requests first.
func TestQueue_Hold(t *testing.T) {
	q := queue{limit: 2, patience: 100 * ms, hold: time.Second}
	old, _, _, _ := q.arrive(0, false, forever)
	young, _, _, _ := q.arrive(500*ms, false, forever)
	_, waits, _, _ := q.arrive(950*ms, false, forever)
	_, later, _, _ := q.arrive(time.Second, false, forever)
	require.NotNil(t, waits.slot)
	require.NotNil(t, later, "earlier requests go first")
	assert.Equal(t, 2, q.running)
	q.finish(old, time.Second)
	assert.Equal(t, 2, q.running, "it gave its place up already")
	assert.Nil(t, later.slot)
	q.finish(young, time.Second)
	assert.NotNil(t, later.slot)
}

// modelled is a naive implementation of the queue: plain lists, and no reuse of
// slots.
type modelled struct {
	limit   int
	hold    time.Duration
	held    []*slot
	waiters []*waiter
}

// A random walk: the queue agrees with the model, never serves more than the
// limit, and never makes a request wait while a place is free.
func TestQueue_Model(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 1))
		limit := 1 + random.IntN(4)
		q := queue{limit: limit, patience: 100 * ms, retryPatience: 20 * ms, hold: []time.Duration{forever, 300 * ms}[seed%2]}
		m := modelled{limit: limit, hold: q.hold}
		var running []*slot // their handlers have not returned
		var now time.Duration
		settle := func() {
			for len(m.held) < m.limit && len(m.waiters) > 0 {
				w := m.waiters[0]
				require.NotNil(t, w.slot, "seed %d", seed)
				m.held, m.waiters, running = append(m.held, w.slot), m.waiters[1:], append(running, w.slot)
			}
		}
		for range 2000 {
			now += time.Duration(random.ExpFloat64() * float64(15*ms))
			switch what := random.IntN(10); {
			case what < 5:
				isRetry := random.IntN(2) == 0
				var wantServed, wantRefused bool
				if len(m.held) >= m.limit {
					m.held = slices.DeleteFunc(m.held, func(s *slot) bool { return now-s.since >= m.hold })
				}
				wasFirst := time.Duration(-1)
				// Waiting requests get free slots before a new request does.
				free := m.limit - len(m.held) - len(m.waiters)
				if n := len(m.waiters) - (m.limit - len(m.held)); n > 0 && len(m.waiters) > 0 {
					wasFirst = m.waiters[len(m.waiters)-n].since
				}
				wantServed = free > 0
				wantRefused = !wantServed && isRetry && wasFirst >= 0 && now-wasFirst >= q.retryPatience
				s, w, _, why := q.arrive(now, isRetry, forever)
				settle()
				require.Equal(t, wantServed, s != nil, "seed %d", seed)
				require.Equal(t, wantRefused, why != "", "seed %d", seed)
				if s != nil {
					require.NotContains(t, running, s, "the slot of a request that still runs")
					m.held, running = append(m.held, s), append(running, s)
				}
				if w != nil {
					m.waiters = append(m.waiters, w)
				}
			case what < 7 && len(running) > 0:
				i := random.IntN(len(running))
				s := running[i]
				running = slices.Delete(running, i, i+1)
				m.held = slices.DeleteFunc(m.held, func(h *slot) bool { return h == s })
				q.finish(s, now)
				settle()
			case what == 7 && len(running) > 0:
				s := running[random.IntN(len(running))]
				m.held = slices.DeleteFunc(m.held, func(h *slot) bool { return h == s })
				q.release(s, now)
				settle()
			case len(m.waiters) > 0:
				i := random.IntN(len(m.waiters))
				q.remove(m.waiters[i])
				m.waiters = slices.Delete(m.waiters, i, i+1)
			}
			require.Equal(t, len(m.held), q.running, "seed %d", seed)
			require.Equal(t, len(m.waiters), q.waiting, "seed %d", seed)
			require.LessOrEqual(t, q.running, limit)
			require.LessOrEqual(t, q.spares, limit)
			require.True(t, q.waiting == 0 || q.running == limit, "no request waits while a place is free")
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
			s.leave(held, nil)
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
		{[]string{"99999999999999999999999999"}, maxAttempt}, {[]string{"2.5"}, 1},
	} {
		assert.Equal(t, tt.want, attemptOf(tt.values), "%q", tt.values)
	}
	for _, tt := range []struct {
		values []string
		want   time.Duration
	}{
		{nil, forever}, {[]string{"1500"}, 1500 * ms}, {[]string{"0.5"}, 500 * time.Microsecond}, {[]string{"0"}, 0}, {[]string{"-7"}, 0},
		{[]string{"soon"}, forever}, {[]string{""}, forever}, {[]string{"NaN"}, forever}, {[]string{"+Inf"}, forever}, {[]string{"-Inf"}, 0},
		{[]string{"1e300"}, forever}, {[]string{"90", "80", "x"}, 80 * ms}, {[]string{"9e15"}, forever},
	} {
		assert.Equal(t, tt.want, deadlineOf(tt.values), "%q", tt.values)
	}
}
