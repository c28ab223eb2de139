// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/account"
	"github.com/retrip/retrip/internal/fleet"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// The effects of a hostile store, on the Fleet's goroutines and on what it
// knows, end when the store has recovered.
//
//retrip:promise P22
func TestFleet_StoreIsWellAgain(t *testing.T) {
	for name, hostile := range fleet.BrokenStores {
		testenv.Bubble(t, name, func(t *testing.T) {
			var sick atomic.Bool
			sick.Store(true)
			f := opened(t, func(ctx context.Context, host string, tokens, size float64) (float64, error) {
				if sick.Load() {
					return hostile(ctx, host, tokens, size)
				}
				return 0, nil
			})
			tr := &retrip.Transport{Fleet: f, Policy: twice(time.Millisecond), Base: always(play.Reply(503)), Metrics: &retrip.Metrics{}}
			requests := func(n int) (forbidden float64) {
				for i := range n {
					began := time.Now()
					get(t, tr, i)
					require.LessOrEqual(t, time.Since(began), account.OpTimeout+time.Millisecond)
					time.Sleep(time.Second)
				}
				return play.Gather(t, tr.Metrics)["default"]["give_ups_total fleet_budget"]
			}
			// A sick store gets more operations than may be under way at once.
			assert.Zero(t, requests(1200), "the budgets alone")
			sick.Store(false)
			time.Sleep(20 * time.Second)
			assert.Equal(t, 20.0, requests(20), "the store is asked again")
		})
	}
}

// A store may ignore the end of its context and never return. It holds up no request, and
// an answer after Close has no effect.
//
//retrip:promise P22
func TestFleet_StoreBlocks(t *testing.T) {
	for _, requests := range []int{1, 100} { // before Close
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			f := retrip.NewFleet(func(context.Context, string, float64, float64) (float64, error) {
				<-release
				return 0, nil // forbids every retry
			})
			base := play.Base(play.Reply(503))
			tr := &retrip.Transport{Fleet: f, Policy: play.AtOnce, Base: base}
			var closed time.Duration
			for i := range requests {
				if i == requests-1 {
					time.AfterFunc(10*time.Millisecond, func() {
						began := time.Now()
						assert.ErrorContains(t, f.Close(), "hasn't returned")
						closed = time.Since(began)
					})
				}
				began := time.Now()
				get(t, tr, i)
				require.LessOrEqual(t, time.Since(began), account.OpTimeout)
				time.Sleep(2 * time.Second)
			}
			synctest.Wait()
			assert.Equal(t, time.Second, closed)
			close(release)
			time.Sleep(2 * time.Second)
			began := time.Now()
			get(t, tr, requests-1)
			assert.Zero(t, time.Since(began), "nothing is asked")
			assert.Equal(t, 4*(requests+1), base.Attempts(), "and nothing forbidden")
			assert.NoError(t, f.Close())
		})
	}
}

// A store may itself make requests through a Transport of the same Fleet.
//
//retrip:promise P22
func TestFleet_StoreUsesItsFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &retrip.Transport{Policy: retrip.Policy{Backoff: retrip.Backoff{Base: time.Millisecond, Cap: time.Millisecond}}, Base: always(play.Reply(503))}
		tr.Fleet = opened(t, func(ctx context.Context, _ string, _, size float64) (float64, error) {
			return size, testenv.Try(tr, requestTo(t, "store").WithContext(ctx))
		})
		for i := range 20 {
			began := time.Now()
			get(t, tr, i)
			assert.LessOrEqual(t, time.Since(began), 3*(account.OpTimeout+time.Millisecond))
			time.Sleep(time.Second)
		}
	})
}

// A Fleet that NewFleet hasn't made, and a store that is a nil function.
//
//retrip:promise P22
func TestFleet_Zero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var none fleet.StoreFunc
		for name, f := range map[string]*retrip.Fleet{"zero": {}, "nil store": opened(t, none)} {
			attempts, status := 0, 503
			tr := &retrip.Transport{Fleet: f, Policy: steady, Base: always(func(r *http.Request) (*http.Response, error) {
				attempts++
				return play.Reply(status)(r)
			})}
			get(t, tr, "a")
			assert.Equal(t, 4, attempts, name)
			status = 200
			for range 1000 { // of which some ten pay into the account
				get(t, tr, "a")
			}
			tr.HostStates()
			assert.NoError(t, f.Close(), name)
		}
	})
}

// nilError is an error whose methods panic.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

// An error of a store's own type becomes one short line in the log, and its
// code doesn't run in a request.
//
//retrip:promise P22
func TestFleet_StoreErrors(t *testing.T) {
	var none *nilError
	for name, test := range map[string]struct {
		store fleet.StoreFunc
		want  string
	}{
		"long":   {failingStore(errors.New(strings.Repeat("x\n\x1b[31m", 1<<20))), "x; "},
		"cut":    {failingStore(errors.New(strings.Repeat("…", 1000))), "…"},
		"panics": {failingStore(none), "panicked"},
		"panic":  {func(context.Context, string, float64, float64) (float64, error) { panic(none) }, "panicked"},
	} {
		testenv.Bubble(t, name, func(t *testing.T) {
			var log strings.Builder
			get(t, &retrip.Transport{Fleet: opened(t, test.store), Policy: steady, Base: always(play.Reply(503)), Logger: slog.New(slog.NewTextHandler(&log, nil))}, "a")
			assert.Contains(t, log.String(), "the fleet's store is away")
			assert.Contains(t, log.String(), test.want)
			assert.Less(t, log.Len(), 4*500)
			assert.NotContains(t, log.String(), "\x1b")
			assert.True(t, utf8.ValidString(log.String()))
		})
	}
}
