// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
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
	"github.com/retrip/retrip/internal/testenv"
)

// The effects of a hostile store, on the Fleet's goroutines and on what it
// knows, end when the store has recovered.
//
//retrip:promise P22
func TestFleet_StoreIsWellAgain(t *testing.T) {
	for name, hostile := range map[string]storeFunc{
		"panics": func(context.Context, string, float64, float64) (float64, error) { panic("store") },
		"ends its goroutine": func(context.Context, string, float64, float64) (float64, error) {
			runtime.Goexit()
			return 0, nil
		},
		"nil pointer": func(context.Context, string, float64, float64) (float64, error) {
			*map[int]*int{}[0] = 1
			return 0, nil
		},
		"hangs":    hangingStore,
		"negative": fixedStore(-1),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sick atomic.Bool
				sick.Store(true)
				fleet := opened(t, storeFunc(func(ctx context.Context, host string, tokens, size float64) (float64, error) {
					if sick.Load() {
						return hostile(ctx, host, tokens, size)
					}
					return 0, nil
				}))
				tr := &retrip.Transport{Fleet: fleet, Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: time.Millisecond, Cap: time.Millisecond}}, Base: alwaysAnswers(503)}
				requests := func(n int) (forbidden int) {
					for i := range n {
						host := fmt.Sprintf("%d.example", i)
						tr.Trace = &retrip.Trace{GiveUp: func(e retrip.Event) {
							if e.Reason == retrip.ReasonFleetBudget {
								forbidden++
							}
						}}
						began := time.Now()
						_, err := get(t, tr, "http://"+host+"/")
						require.NoError(t, err)
						require.LessOrEqual(t, time.Since(began), account.OpTimeout+time.Millisecond)
						time.Sleep(time.Second)
					}
					return forbidden
				}
				assert.Zero(t, requests(10*4*5), "the budgets alone")
				sick.Store(false)
				time.Sleep(20 * time.Second)
				assert.Equal(t, 20, requests(20), "the store is asked again")
			})
		})
	}
}

// An answer that arrives after Close has no effect, and nothing waits for it.
//
//retrip:promise P22
func TestFleet_StoreAnswersAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		fleet := retrip.NewFleet(storeFunc(func(context.Context, string, float64, float64) (float64, error) {
			<-release
			return 0, nil // forbids every retry
		}))
		attempts := 0
		tr := &retrip.Transport{Fleet: fleet, Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			attempts++
			return answer(r, 503), nil
		})}
		go func() {
			time.Sleep(10 * time.Millisecond)
			fleet.Close()
		}()
		began := time.Now()
		_, err := get(t, tr, "http://a.example/")
		require.NoError(t, err)
		assert.Equal(t, 4, attempts)
		assert.LessOrEqual(t, time.Since(began), account.OpTimeout)
		close(release)
		time.Sleep(2 * time.Second)
		attempts = 0
		_, err = get(t, tr, "http://b.example/")
		require.NoError(t, err)
		assert.Equal(t, 4, attempts, "it forbids nothing")
		assert.NoError(t, fleet.Close())
	})
}

// A store may ignore the end of its context and never return.
//
//retrip:promise P22
func TestFleet_StoreBlocksForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		fleet := retrip.NewFleet(storeFunc(func(context.Context, string, float64, float64) (float64, error) {
			<-release
			return 0, nil
		}))
		tr := &retrip.Transport{Fleet: fleet, Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}, Base: alwaysAnswers(503)}
		for i := range 100 {
			began := time.Now()
			_, err := get(t, tr, fmt.Sprintf("http://%d.example/", i))
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(began), account.OpTimeout)
			time.Sleep(time.Second)
		}
		began := time.Now()
		assert.ErrorContains(t, fleet.Close(), "hasn't returned")
		assert.Equal(t, time.Second, time.Since(began))
		close(release)
	})
}

// A store may itself make requests through a Transport of the same Fleet.
//
//retrip:promise P22
func TestFleet_StoreUsesItsFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &retrip.Transport{Policy: retrip.Policy{Backoff: retrip.Backoff{Base: time.Millisecond, Cap: time.Millisecond}}, Base: alwaysAnswers(503)}
		tr.Fleet = opened(t, storeFunc(func(ctx context.Context, host string, _, size float64) (float64, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://store.example/"+host, nil)
			if err != nil {
				return 0, err
			}
			resp, err := tr.RoundTrip(req)
			if err != nil {
				return 0, err
			}
			defer resp.Body.Close()
			return size, nil
		}))
		for i := range 20 {
			began := time.Now()
			_, err := get(t, tr, fmt.Sprintf("http://%d.example/", i))
			require.NoError(t, err)
			assert.LessOrEqual(t, time.Since(began), 3*(account.OpTimeout+time.Millisecond))
			time.Sleep(time.Second)
		}
	})
}

// A Fleet that NewFleet hasn't made, and a store that is a nil pointer.
//
//retrip:promise P22
func TestFleet_Zero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var none storeFunc
		for name, fleet := range map[string]*retrip.Fleet{"zero": {}, "nil store": opened(t, none)} {
			attempts, status := 0, 503
			tr := &retrip.Transport{Fleet: fleet, Policy: steady, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				attempts++
				return answer(r, status), nil
			})}
			_, err := get(t, tr, "http://a.example/")
			require.NoError(t, err, name)
			assert.Equal(t, 4, attempts, name)
			status = 200
			for range 1000 { // of which some ten pay into the account
				_, err := get(t, tr, "http://a.example/")
				require.NoError(t, err, name)
			}
			tr.HostStates()
			assert.NoError(t, fleet.Close(), name)
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
		err  error
		want string
	}{
		"long":   {errors.New(strings.Repeat("x\n\x1b[31m", 1<<20)), "x; "},
		"cut":    {errors.New(strings.Repeat("…", 1000)), "…"},
		"panics": {none, "panicked"},
		"panic":  {nil, "panicked"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fleet := opened(t, storeFunc(func(context.Context, string, float64, float64) (float64, error) {
					if test.err == nil {
						panic(none)
					}
					return 0, test.err
				}))
				var log strings.Builder
				tr := &retrip.Transport{Fleet: fleet, Policy: steady, Base: alwaysAnswers(503), Logger: slog.New(slog.NewTextHandler(&log, nil))}
				_, err := get(t, tr, "http://a.example/")
				require.NoError(t, err)
				assert.Contains(t, log.String(), "the fleet's store is away")
				assert.Contains(t, log.String(), test.want)
				assert.Less(t, log.Len(), 4*500)
				assert.NotContains(t, log.String(), "\x1b")
				assert.True(t, utf8.ValidString(log.String()))
			})
		})
	}
}
