// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/testenv"
)

// The same seed gives the same bytes on any machine: if these sums change, the
// results have changed.
func TestSameBytesEverywhere(t *testing.T) {
	unequal := of(Overload(), 200)
	unequal.Fleet.Unequal = true
	for _, c := range []struct {
		name string
		s    Scenario
		want string
	}{
		{"overload", Overload(), "7b85cf8a5819d8c6"},
		{"envoy", as(t, Overload(), "envoy"), "6f637f6a4d62debe"},
		{"unequal", unequal, "6dad434b4f66dbd6"},
		{"gaussian", as(t, Storm(Herd), "gaussian"), "d225c232596a449d"},
		{"faults", Faults(0.3), "fb96d715e5c0db39"},
	} {
		b, err := json.Marshal(ran(t, c.s))
		require.NoError(t, err)
		h := fnv.New64a()
		h.Write(b)
		assert.Equal(t, c.want, fmt.Sprintf("%016x", h.Sum64()), c.name)
	}
}

func TestRunAllDoesNotDependOnProcessors(t *testing.T) {
	s := Overload()
	s.Horizon = 40 * time.Second
	list := s.Seeds(3)
	together := ranAll(t, list)
	for i, s := range list {
		assert.Equal(t, ran(t, s), together[i])
	}
	assert.NotEqual(t, together[0].Attempts, together[1].Attempts)
}

// RunAll returns the first error, not the cancellations that follow from it.
func TestParallelErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wrong := errors.New("wrong")
		// The second scenario fails while the first is in progress.
		err := parallel(t.Context(), 2, nil, func(ctx context.Context, i int) error {
			if i == 0 && runtime.GOMAXPROCS(0) > 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return wrong
		})
		assert.Equal(t, wrong, err)
	})
	ctx, cancel := context.WithCancel(t.Context())
	err := parallel(ctx, 2, nil, func(ctx context.Context, _ int) error { cancel(); return ctx.Err() })
	assert.Equal(t, context.Canceled, err)
}

func TestRunInterrupted(t *testing.T) {
	s := as(t, Overload(), "no-budget")
	ctx, cancel := context.WithCancel(t.Context())
	run, err := newRun(&s)
	require.NoError(t, err)
	run.traceAttempt = func(now time.Duration) {
		if now > 36*time.Second {
			cancel()
		}
	}
	r, err := run.run(ctx)
	require.ErrorIs(t, err, context.Canceled)
	assert.True(t, r.Partial)
	assert.Greater(t, r.Until, 30*time.Second)
	assert.Less(t, r.Until, 100*time.Second)
	assert.Len(t, r.Series, int(r.Until/r.Bin))
	assert.Positive(t, r.Requests)
}

// Every request ends, exactly once.
func TestNothingIsLost(t *testing.T) {
	requests := testenv.Size(25_000, 50_000)
	for _, preset := range PresetNames() {
		s := as(t, Overload(), preset)
		s.Arrivals.Count = requests
		s.Horizon = 200 * time.Second
		run, err := newRun(&s)
		require.NoError(t, err)
		r, err := run.run(t.Context())
		require.NoError(t, err)
		assert.EqualValues(t, requests, r.Requests, preset)
		gaveUp, arrived, waits := int64(0), 0, int64(0)
		for _, g := range r.GaveUp {
			gaveUp += g.Count
		}
		for _, p := range r.Series {
			arrived += int(p.Requests)
		}
		for _, n := range r.Waits {
			waits += n
		}
		assert.EqualValues(t, requests, r.Succeeded+gaveUp, preset)
		assert.Equal(t, requests, arrived, preset)
		assert.GreaterOrEqual(t, waits, r.Retries, preset)
		assert.Len(t, run.free, len(run.requests), preset)
		assert.Zero(t, run.stations[0].busy, preset)
		assert.Len(t, run.idle, len(run.working), preset)
		if e, ok := run.limit.(*envoy); ok {
			assert.Equal(t, make([]int32, len(e.retries)), e.retries, "retries in flight")
		}
	}
}

// The simulator makes no decisions of its own: every decision of a run is the
// answer of a separate record that is asked the same with the same draw.
//
//retrip:promise P14
func TestDecisionsAreTheHosts(t *testing.T) {
	s := of(Overload(), 50)
	s.Policy.Retry.Breaker.Ratio = 0.9
	s.Policy.Retry.Deadline = 700 * time.Millisecond
	s.Policy.Retry.AttemptTimeout = s.Fleet.Timeout
	r, err := newRun(&s)
	require.NoError(t, err)
	rules, _, err := s.Policy.rules()
	require.NoError(t, err)
	hosts := make([]host.Record, 50)
	decisions, retries := 0, 0
	r.traceForget = func(client int32) { hosts[client] = host.Record{} }
	r.traceStep = func(client int32, call decide.Call, e decide.Event, now time.Duration, draw uint64, a decide.Action) {
		var got decide.Action
		call.Step(rules, &hosts[client], &e, &got, now, draw)
		require.Equal(t, a, got)
		if e.Kind == decide.Ended {
			decisions++
		}
		if a.Do == decide.Send && call.Attempts > 1 {
			retries++
		}
	}
	_, err = r.run(t.Context())
	require.NoError(t, err)
	assert.Greater(t, decisions, 50_000)
	assert.Greater(t, retries, 100)
}

// The queue returns events by time, and events of the same time in the order
// of scheduling.
func TestQueue(t *testing.T) {
	q := &queue{}
	draws := newSource(1, 1)
	type item struct {
		at  int64
		who int32
	}
	var want, got []item
	var now int64
	for i := range int32(200_000) {
		if draws.below(2) == 0 {
			if e, ok := q.pop(); ok {
				got = append(got, item{e.at, e.who})
				now = e.at
			}
			continue
		}
		// Near, far and very far events, and many at the same time.
		at := now + int64(draws.below(1<<draws.below(24)))&^7
		q.push(at, i, 0)
		want = append(want, item{at, i})
	}
	for e, ok := q.pop(); ok; e, ok = q.pop() {
		got = append(got, item{e.at, e.who})
	}
	slices.SortStableFunc(want, func(a, b item) int { return int(a.at - b.at) })
	require.Equal(t, want, got)
}
