// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
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
	"github.com/retrip/retrip/internal/memhttp"
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
			for seed := range uint64(testenv.Size(1, 5)) {
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
		for i := range 900 {
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
		for i := range 600 {
			request(i)
		}
		assert.Equal(t, lines+1, away())
		assert.Equal(t, 1, strings.Count(log.String(), "the fleet's store is back"))
	})
}

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
			assert.Zero(t, requests(150), "the budgets alone")
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
			waited := 0
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
				if time.Since(began) > 0 {
					waited++
				}
				time.Sleep(2 * time.Second)
			}
			synctest.Wait()
			assert.LessOrEqual(t, waited, 1+requests/2, "the store is left alone for a while")
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

// An error of a store's own type becomes one short line in the log. Its code may use the Fleet.
//
//retrip:promise P22
func TestFleet_StoreErrors(t *testing.T) {
	var none *nilError
	var tr *retrip.Transport
	looks := fleet.CodeError{Text: func() string { return fmt.Sprint("it knows ", len(tr.HostStates())) }}
	for name, test := range map[string]struct {
		store fleet.StoreFunc
		want  string
	}{
		"long":   {failingStore(errors.New(strings.Repeat("x\n\x1b[31m", 1<<20))), "x; "},
		"cut":    {failingStore(errors.New(strings.Repeat("…", 1000))), "…"},
		"panics": {failingStore(none), "panicked"},
		"panic":  {func(context.Context, string, float64, float64) (float64, error) { panic(none) }, "panicked"},
		"looks":  {func(context.Context, string, float64, float64) (float64, error) { panic(looks) }, "panicked: it knows 1"},
	} {
		testenv.Bubble(t, name, func(t *testing.T) {
			var log strings.Builder
			tr = &retrip.Transport{Fleet: opened(t, test.store), Policy: steady, Base: always(play.Reply(503)), Logger: slog.New(slog.NewTextHandler(&log, nil))}
			get(t, tr, "a")
			assert.Contains(t, log.String(), "the fleet's store is away")
			assert.Contains(t, log.String(), test.want)
			assert.Less(t, log.Len(), 4*500)
			assert.NotContains(t, log.String(), "\x1b")
			assert.True(t, utf8.ValidString(log.String()))
		})
	}
}

// A server may answer before it has read the request's body. If the account
// then forbids the retry, the upload goes on, and the caller can read the
// response, as after a refusal of the budget.
//
//retrip:promise P22
func TestFleet_ForbidsDuringAnUpload(t *testing.T) {
	const pieces, size = 32, 1 << 10
	for _, full := range []bool{false, true} {
		testenv.Bubble(t, fmt.Sprint("full ", full), func(t *testing.T) {
			var got int64
			s := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				control := http.NewResponseController(w)
				assert.NoError(t, control.EnableFullDuplex())
				w.WriteHeader(http.StatusServiceUnavailable)
				assert.NoError(t, control.Flush())
				got, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(w, "in hand")
			}))
			base := s.Transport()
			defer base.CloseIdleConnections()
			tr := &retrip.Transport{Base: base, Policy: steady, Fleet: opened(t, fixedStore(0)), Metrics: &retrip.Metrics{}}
			want := retrip.ReasonFleetBudget
			if full {
				// The account allows the retry, but until its answer the
				// base has read more than is kept.
				want, tr.Policy.MaxReplayBody, tr.Fleet = retrip.ReasonBodyNotReplayable, 2*size, opened(t, fullStore(45*time.Millisecond))
			}
			sent := 0
			body := testenv.Reader(func(p []byte) (int, error) {
				if time.Sleep(10 * time.Millisecond); sent == pieces*size {
					return 0, io.EOF
				}
				n := min(len(p), size-sent%size)
				sent += n
				return n, nil
			})
			resp, text := play.Do(t, tr, play.MustRequest(t, http.MethodPut, s.URL, body))
			assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
			assert.Equal(t, "in hand", text)
			assert.Contains(t, play.Counted(t, tr.Metrics), fmt.Sprintf("give_ups_total{default,%s} 1", want))
			assert.EqualValues(t, pieces*size, got, "bytes that the server got")
		})
	}
}
