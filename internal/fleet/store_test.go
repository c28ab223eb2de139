// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/fleet"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// Without the store, every decision is that of the local budget.
//
//retrip:promise P22
func TestFleet_StoreDownIsTheLocalRule(t *testing.T) {
	stores := maps.Clone(fleet.BrokenStores)
	stores["full"] = fixedStore(1e300)
	stores["slow"] = func(context.Context, string, float64, float64) (float64, error) {
		time.Sleep(51 * time.Millisecond)
		return 0, nil
	}
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(5) {
				var with, without []string
				synctest.Test(t, func(t *testing.T) { with = decisions(t, seed, opened(t, store)) })
				synctest.Test(t, func(t *testing.T) { without = decisions(t, seed, nil) })
				require.Equal(t, without, with, "seed %d", seed)
			}
		})
	}
}

// decisions records everything that a Transport decides about requests to a few
// hosts that mostly fail.
func decisions(t *testing.T, seed uint64, f *retrip.Fleet) (events []string) {
	r := rand.New(rand.NewPCG(seed, 1))
	began := time.Now()
	note := func(kind string) func(retrip.Event) {
		return func(e retrip.Event) {
			at := fmt.Sprint(time.Since(began))
			if kind == "retry" {
				at = "" // the event comes after the account was asked, which is part of the wait
			}
			events = append(events, fmt.Sprint(at, kind, e.Request.URL.Host, e.Attempt, e.StatusCode, e.Err, e.Reason))
		}
	}
	ok, fails, reset := play.Reply(200), play.Reply(503), play.Err(errors.New("reset"))
	ends := []play.Step{ok, ok, ok, ok, reset, play.Reply(429), fails, fails, fails, fails}
	tr := &retrip.Transport{Fleet: f, Policy: steady, Trace: &retrip.Trace{Attempt: note("attempt"), Retry: note("retry"), GiveUp: note("give up"), Done: note("done")},
		Base: always(func(req *http.Request) (*http.Response, error) { return ends[r.IntN(len(ends))](req) })}
	for range 200 {
		_ = testenv.Try(tr, requestTo(t, r.IntN(3)))
		time.Sleep(time.Duration(r.IntN(2000)) * time.Millisecond)
	}
	return events
}

// A process leaves a store that is away alone, and says so in the log, but not too often.
//
//retrip:promise P22
func TestFleet_AwayForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []time.Duration
		began, down := time.Now(), true
		f := opened(t, func(_ context.Context, _ string, _, size float64) (float64, error) {
			if down {
				asked = append(asked, time.Since(began))
				return 0, fleet.ErrRefused
			}
			return size, nil
		})
		var log strings.Builder
		tr := &retrip.Transport{Fleet: f, Policy: steady, Base: always(play.Reply(503)), Logger: slog.New(slog.NewTextHandler(&log, nil))}
		request := func(i int) {
			get(t, tr, i)
			time.Sleep(time.Second)
		}
		away := func() int { return strings.Count(log.String(), "the fleet's store is away") }
		for i := range 3600 {
			request(i)
		}
		for i := range asked[1:] {
			gap := asked[i+1] - asked[i]
			assert.GreaterOrEqual(t, gap, 5*time.Second)
			assert.Less(t, gap, 17*time.Second)
		}
		lines := away()
		assert.LessOrEqual(t, lines, 1+int(time.Since(began)/time.Minute), "at most one line a minute")
		assert.Positive(t, lines)
		assert.Contains(t, log.String(), `level=WARN msg="retrip: the fleet's store is away, budgets decide alone" error="dial tcp: connection refused"`)
		for i := 0; away() == lines; i++ { // until the log says all
			request(4000 + i)
		}
		down = false
		for i := range 3600 {
			request(i)
		}
		assert.Equal(t, lines+1, away())
		assert.Equal(t, 1, strings.Count(log.String(), "the fleet's store is back"))
	})
}
