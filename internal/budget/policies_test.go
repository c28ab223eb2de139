// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package budget_test

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// upOrDown is a Base whose hosts are all up or all down.
type upOrDown struct {
	down     atomic.Bool
	attempts atomic.Int64
}

func (b *upOrDown) RoundTrip(r *http.Request) (*http.Response, error) {
	b.attempts.Add(1)
	status := http.StatusOK
	if b.down.Load() {
		status = http.StatusServiceUnavailable
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// get makes a request to a host and returns the number of attempts.
func (b *upOrDown) get(t *testing.T, tr *retrip.Transport, host string) int64 {
	before := b.attempts.Load()
	get(t, tr, "https://"+host+"/")
	return b.attempts.Load() - before
}

// get makes a request, and doesn't read the response.
func get(t *testing.T, tr *retrip.Transport, url string) {
	t.Helper()
	resp, err := tr.RoundTrip(play.MustRequest(t, http.MethodGet, url, nil).WithContext(t.Context()))
	if assert.NoError(t, err) {
		require.NoError(t, resp.Body.Close())
	}
}

// A budget that shrinks misses at most its new size. An unlimited one misses
// nothing.
func TestSetPolicies_Budget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := &upOrDown{}
		base.down.Store(true)
		sized := func(b float64) retrip.Policy {
			return retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}, Budget: b}
		}
		const host = "host.example"
		owe := func() *retrip.Transport {
			tr := &retrip.Transport{Base: base, Policy: sized(200)}
			for range 661 {
				base.down.Store(true)
				base.get(t, tr, host)
				// A success ends the run of failed retries, and pays back less than a
				// retry costs.
				base.down.Store(false)
				base.get(t, tr, host)
			}
			require.Less(t, play.Must(tr.HostState(host+":443")).Tokens, 2.0)
			return tr
		}
		tr := owe()
		require.NoError(t, tr.SetPolicies(sized(0), nil))
		base.down.Store(false)
		successes := 0
		for base.down.Store(true); base.get(t, tr, host) == 1; base.down.Store(true) {
			base.down.Store(false)
			base.get(t, tr, host)
			successes++
			require.Less(t, successes, 1000)
		}
		t.Logf("%d successes to the first retry", successes)
		assert.LessOrEqual(t, successes, 25)

		tr = owe()
		require.Len(t, tr.HostStates(), 1)
		require.NoError(t, tr.SetPolicies(sized(retrip.Off), nil))
		assert.Empty(t, play.Held(tr))
	})
}

// Requests that began before a change of policies leave no more tokens missing
// than the new budget has.
func TestSetPolicies_BudgetOfRequestsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Base(play.Reply(503))
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Budget: 200, MaxAttempts: 4,
			Backoff: retrip.Backoff{Base: time.Second, Cap: time.Second, Jitter: retrip.NoJitter}}}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { get(t, tr, "http://example.com/") })
		}
		time.Sleep(1500 * time.Millisecond)
		require.NoError(t, tr.SetPolicies(retrip.Policy{Budget: retrip.Off}, nil))
		wg.Wait()
		assert.Empty(t, play.Held(tr))
		assert.Greater(t, base.Attempts(), 40, "there are retries after the change")
	})
}
