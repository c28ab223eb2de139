// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"fmt"
	"net/http"
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

// A retry waits for the account's answer if that takes longer than its own wait, but for
// at most 50 ms. The wait is the server's nevertheless, if it asked for one.
//
//retrip:promise P22
func TestFleet_AsksWithinTheWait(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		delay, backoff time.Duration
		says           string
		want           time.Duration
	}{
		{10 * ms, 100 * ms, "Server: x", 100 * ms},
		{30 * ms, 10 * ms, "Server: x", 30 * ms},
		{30 * ms, 10 * ms, "Retry-After-Ms: 5", 30 * ms},
		{300 * ms, 10 * ms, "Server: x", 50 * ms},
		{300 * ms, 100 * ms, "Server: x", 100 * ms},
	} {
		testenv.Bubble(t, fmt.Sprint(test.delay, test.backoff, test.says), func(t *testing.T) {
			base := play.Base(play.Reply(503, test.says))
			tr := &retrip.Transport{Fleet: opened(t, fullStore(test.delay)), Policy: twice(test.backoff), Base: base, Trace: &retrip.Trace{Retry: func(e retrip.Event) {
				assert.Equal(t, test.want-min(test.want, max(test.delay, 0), 50*ms), e.Wait)
				assert.Equal(t, test.says != "Server: x", e.FromServer)
			}}}
			tr.Policy.Dialects = []string{"retry-after-ms"}
			get(t, tr, "a")
			assert.Equal(t, []time.Duration{0, test.want}, base.At)
		})
	}
}

//retrip:promise P22
func TestFleet_DeadlineBoundsTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Base(func(r *http.Request) (*http.Response, error) {
			time.Sleep(5 * time.Millisecond)
			return play.Reply(503)(r)
		}, play.Reply(503))
		tr := &retrip.Transport{Fleet: opened(t, fleet.HangingStore), Policy: twice(retrip.Off), Base: base}
		tr.Policy.Deadline = 20 * time.Millisecond
		get(t, tr, "a")
		assert.Equal(t, []time.Duration{0, 15 * time.Millisecond}, base.At, "there is room for the attempt")
	})
}

// The second look uses the draw of the first, so that looking twice forbids no
// more retries than looking once.
func TestFleet_SecondLookForbidsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Base(play.Reply(502, "Retry-After: 5"))
		tr := &retrip.Transport{Fleet: opened(t, fixedStore(62.5)), Policy: retrip.Policy{MaxAttempts: 2, Budget: 1e6, FleetBudget: 500}, Base: base}
		const n = 1000
		var work sync.WaitGroup
		for range n {
			work.Go(func() { testenv.Drop(t, tr, requestTo(t, "a")) })
		}
		work.Wait()
		assert.InDelta(t, n/2, base.Attempts()-n, 80, "five standard deviations")
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
		for range 200 {
			time.Sleep(5 * time.Millisecond)
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
