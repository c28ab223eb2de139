// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/account"
	"github.com/retrip/retrip/internal/fleet"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// After a wait of more than a second, an account that has become empty forbids
// the retry that it allowed. The response is gone by then, so the caller gets an
// Error with its status and header.
//
//retrip:promise P22
func TestFleet_LooksAgainAfterALongWait(t *testing.T) {
	for _, test := range []struct {
		name string
		says play.Step
		gate retrip.Switch
		asks int
	}{
		{"long", play.Reply(503, "Request-Id: 7", "Retry-After: 10"), retrip.Off, 2},
		{"a second", play.Reply(503), retrip.Off, 1},
		{"at a gate", play.Reply(503, "Request-Id: 7", "Retry-After: 10"), retrip.On, 2},
	} {
		testenv.Bubble(t, test.name, func(t *testing.T) {
			l := &ledger{took: 10 * time.Millisecond}
			time.AfterFunc(500*time.Millisecond, func() { l.empty.Store(true) })
			base := play.Base(test.says)
			tr := &retrip.Transport{Fleet: opened(t, l.add), Metrics: &retrip.Metrics{}, Policy: twice(time.Second), Base: base}
			tr.Policy.Gate.Enabled = test.gate
			req := play.MustRequest(t, http.MethodPost, "http://a.example/", strings.NewReader("body"))
			req.Header.Set("Idempotency-Key", "1")
			began := time.Now()
			resp, err := tr.RoundTrip(req)
			took := time.Since(began)
			time.Sleep(time.Second)
			asks, adds, _ := l.noted()
			assert.Equal(t, test.asks, asks)
			if test.asks == 1 {
				require.NoError(t, err)
				assert.Equal(t, 503, resp.StatusCode)
				assert.Equal(t, 2, base.Attempts())
				assert.Equal(t, 1, adds)
				return
			}
			e := play.AsError(t, err)
			assert.Equal(t, retrip.ReasonFleetBudget, e.Reason)
			assert.Equal(t, 1, e.Attempts)
			assert.Equal(t, 503, e.StatusCode)
			assert.Equal(t, "7", e.Header.Get("Request-Id"))
			assert.ErrorContains(t, err, "fleet_budget")
			assert.ErrorContains(t, err, "503")
			assert.Equal(t, 1, base.Attempts())
			assert.Equal(t, 1, base.ClosedBodies())
			assert.GreaterOrEqual(t, took, 10*time.Second)
			assert.LessOrEqual(t, took, 15*time.Second+account.OpTimeout)
			assert.Contains(t, play.Counted(t, tr.Metrics), "fleet_checks_total{default,forbidden} 1")
			assertUntouched(t, tr)
			assert.Zero(t, adds, "what isn't sent costs nothing")
		})
	}
}

// The second look uses the draw of the first, so that looking twice forbids no
// more retries than looking once.
func TestFleet_SecondLookForbidsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Base(play.Reply(502, "Retry-After: 5"))
		tr := &retrip.Transport{Fleet: opened(t, fixedStore(62.5)), Policy: retrip.Policy{MaxAttempts: 2, Budget: 1e6, FleetBudget: 500}, Base: base}
		const n = 2000
		var work sync.WaitGroup
		for range n {
			work.Go(func() { testenv.Drop(t, tr, requestTo(t, "a")) })
		}
		work.Wait()
		assert.InDelta(t, n/2, base.Attempts()-n, 120, "five standard deviations")
	})
}

// The caller may go, or the store may hang, while the account is asked again.
//
//retrip:promise P22
func TestFleet_SecondLookHoldsUpNobody(t *testing.T) {
	for _, goes := range []time.Duration{time.Hour, 3020 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			f := opened(t, func(ctx context.Context, host string, tokens, size float64) (float64, error) {
				if time.Since(began) > time.Second {
					return fleet.HangingStore(ctx, host, tokens, size)
				}
				return size, nil
			})
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(goes, cancel)
			tr := &retrip.Transport{Fleet: f, Policy: twice(3 * time.Second), Base: play.Base(play.Reply(503))}
			resp, err := tr.RoundTrip(requestTo(t, "a").WithContext(ctx))
			if goes == time.Hour {
				require.NoError(t, err)
				assert.Equal(t, 503, resp.StatusCode)
				assert.Equal(t, 3*time.Second+account.OpTimeout, time.Since(began))
			} else {
				assert.ErrorIs(t, err, context.Canceled)
				assert.Equal(t, goes, time.Since(began))
			}
		})
	}
}

// A retry costs a token while it is under way, and for good if it fails. While one is
// under way that has waited for more than a second, it costs two.
//
//retrip:promise P22
func TestFleet_ChargesWhatItSends(t *testing.T) {
	for name, test := range map[string]struct {
		ends  play.Step
		spent float64
	}{
		"succeeds":    {play.Reply(200), 0},
		"is refused":  {play.Reply(404), 0},
		"fails":       {play.Reply(503), 1},
		"breaks":      {play.Err(io.ErrUnexpectedEOF), 1},
		"panics":      {func(*http.Request) (*http.Response, error) { panic(http.ErrAbortHandler) }, 1},
		"has no hope": {play.Err(&net.DNSError{Err: "no such host", IsNotFound: true}), 0},
	} {
		for wait, underWay := range map[time.Duration]float64{time.Second: 1, 1001 * time.Millisecond: 2, 5 * time.Second: 2} {
			testenv.Bubble(t, fmt.Sprint(name, wait), func(t *testing.T) {
				var l ledger
				tr := &retrip.Transport{Fleet: opened(t, l.add), Policy: twice(wait), Base: play.Base(play.Reply(503), func(r *http.Request) (*http.Response, error) {
					time.Sleep(time.Second)
					return test.ends(r)
				})}
				go func() {
					defer func() { _ = recover() }()
					_ = testenv.Try(tr, requestTo(t, "a"))
				}()
				time.Sleep(wait - 1)
				for i, want := range []float64{0, underWay, test.spent} {
					synctest.Wait()
					_, _, spent := l.noted()
					assert.Equal(t, want, spent, []string{"it waits", "it is under way", "it has ended"}[i])
					time.Sleep(time.Second)
				}
			})
		}
	}
}

// What the server says while a retry asks the account again holds for that retry.
//
//retrip:promise P9
func TestFleet_SecondLookHeedsTheServer(t *testing.T) {
	const answers = 40 * time.Millisecond
	for _, gate := range []retrip.Switch{retrip.Off, retrip.On} {
		for later := time.Duration(0); later < answers; later += 13 * time.Millisecond {
			testenv.Bubble(t, fmt.Sprint(gate, later), func(t *testing.T) {
				began, again := time.Now(), make(chan struct{})
				f := opened(t, func(_ context.Context, _ string, _, size float64) (float64, error) {
					if at := time.Since(began); at > 3*time.Second && at < 5*time.Second {
						close(again)
					}
					time.Sleep(answers)
					return size, nil
				})
				var said time.Time
				base := play.Base(func(r *http.Request) (*http.Response, error) {
					<-again
					time.Sleep(later)
					said = time.Now()
					return play.Reply(503, "Retry-After: 7")(r)
				}, play.Reply(503, "Retry-After: 3"), func(r *http.Request) (*http.Response, error) {
					assert.GreaterOrEqual(t, time.Since(said), 7*time.Second)
					return play.Reply(200)(r)
				})
				tr := &retrip.Transport{Fleet: f, Policy: retrip.Policy{MaxAttempts: 2, Gate: retrip.Gate{Enabled: gate}}, Base: base}
				var other sync.WaitGroup
				other.Go(func() { testenv.Drop(t, tr, requestTo(t, "a")) })
				synctest.Wait()
				get(t, tr, "a")
				other.Wait()
				assert.Equal(t, 4, base.Attempts())
			})
		}
	}
}

// Many requests of a process end a long wait together. They ask the account once in
// 100 ms.
//
//retrip:promise P22
func TestFleet_ManyLookAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{took: 2 * time.Millisecond}
		tr := &retrip.Transport{Fleet: opened(t, l.add), Policy: twice(3 * time.Second), Base: play.Base(play.Reply(503))}
		tr.Policy.Budget = 1e6
		var work sync.WaitGroup
		for range 1000 {
			time.Sleep(time.Millisecond)
			work.Go(func() { testenv.Drop(t, tr, requestTo(t, "a")) })
		}
		time.Sleep(time.Second)
		synctest.Wait()
		before, _, _ := l.noted()
		assert.LessOrEqual(t, before, 2, "before the waits")
		work.Wait()
		after, _, _ := l.noted()
		assert.InDelta(t, 10, after, 1, "after the waits, for a second")
	})
}
