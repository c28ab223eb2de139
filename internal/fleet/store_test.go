// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

// P22: without the store, every decision is that of the local budget.
//
//retrip:promise P22
func TestFleet_StoreDownIsTheLocalRule(t *testing.T) {
	stores := map[string]storeFunc{
		"error":    storeFunc(func(context.Context, string, float64, float64) (float64, error) { return 0, errors.New("down") }),
		"hangs":    storeFunc(hangingStore),
		"panics":   storeFunc(func(context.Context, string, float64, float64) (float64, error) { panic("store") }),
		"negative": fixedStore(-1),
		"NaN":      fixedStore(math.NaN()),
		"infinite": fixedStore(math.Inf(1)),
		"full":     fixedStore(1e300),
		"slow": storeFunc(func(ctx context.Context, _ string, _, _ float64) (float64, error) {
			time.Sleep(51 * time.Millisecond)
			return 0, ctx.Err()
		}),
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
func decisions(t *testing.T, seed uint64, fleet *retrip.Fleet) (events []string) {
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
	tr := &retrip.Transport{Fleet: fleet, Policy: steady, Trace: &retrip.Trace{Attempt: note("attempt"), Retry: note("retry"), GiveUp: note("give up"), Done: note("done")},
		Base: testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
			switch n := r.IntN(10); {
			case n < 4:
				return answer(req, 200), nil
			case n < 5:
				return nil, errors.New("reset")
			case n < 6:
				return answer(req, 429), nil
			default:
				return answer(req, 503), nil
			}
		})}
	for range 200 {
		resp, err := get(t, tr, fmt.Sprintf("http://%c.example/", 'a'+rune(r.IntN(3))))
		if err == nil {
			events = append(events, resp.Status)
		}
		time.Sleep(time.Duration(r.IntN(2000)) * time.Millisecond)
	}
	return events
}

//retrip:promise P22
func TestFleet_AwayForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []time.Duration
		began := time.Now()
		fleet := opened(t, storeFunc(func(context.Context, string, float64, float64) (float64, error) {
			asked = append(asked, time.Since(began))
			return 0, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		}))
		var log bytes.Buffer
		tr := &retrip.Transport{Fleet: fleet, Policy: steady, Base: alwaysAnswers(503), Logger: slog.New(slog.NewTextHandler(&log, nil))}
		const hours = 1
		for range hours * 3600 {
			_, err := get(t, tr, fmt.Sprintf("http://%d.example/", len(asked)))
			require.NoError(t, err)
			time.Sleep(time.Second)
		}
		require.NoError(t, fleet.Close())
		for i := range asked[1:] {
			gap := asked[i+1] - asked[i]
			assert.GreaterOrEqual(t, gap, 5*time.Second)
			assert.Less(t, gap, 17*time.Second)
		}
		lines := strings.Count(log.String(), "the fleet's store is away")
		assert.LessOrEqual(t, lines, hours*60, "at most one line a minute")
		assert.Positive(t, lines)
		assert.Contains(t, log.String(), `level=WARN msg="retrip: the fleet's store is away, budgets decide alone" error="dial tcp: connection refused"`)
	})
}

func TestFleet_LogsThatTheStoreIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := true
		fleet := opened(t, storeFunc(func(_ context.Context, _ string, _, size float64) (float64, error) {
			if down {
				return 0, errors.New("down")
			}
			return size, nil
		}))
		var log bytes.Buffer
		tr := &retrip.Transport{Fleet: fleet, Policy: steady, Base: alwaysAnswers(503), Logger: slog.New(slog.NewTextHandler(&log, nil))}
		for range 600 {
			_, _ = get(t, tr, fmt.Sprintf("http://%d.example/", rand.Int()))
			time.Sleep(time.Second)
			if time.Since(time.Unix(946684800, 0)) > 5*time.Minute {
				down = false
			}
		}
		assert.LessOrEqual(t, strings.Count(log.String(), "the fleet's store is away"), 6)
		assert.Equal(t, 1, strings.Count(log.String(), "the fleet's store is back"))
	})
}
