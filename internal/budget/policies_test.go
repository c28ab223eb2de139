// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package budget_test

import (
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// A budget that shrinks misses at most its new size. An unlimited one misses
// nothing.
//
//retrip:promise P14
func TestSetPolicies_Budget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sized := func(b float64) retrip.Policy {
			return retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}, Budget: b}
		}
		const saved = 0 // by a retry
		status, attempts := 0, 0
		tr := &retrip.Transport{Policy: sized(200), Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			attempts++
			if status == saved {
				return play.Reply([]int{503, 200}[min(attempts, 2)-1])(r)
			}
			return play.Reply(status)(r)
		})}
		get := func(answer int) (made int) {
			status, attempts = answer, 0
			play.Do(t, tr, play.Request(t, http.MethodGet, nil))
			return attempts
		}
		for i := range 661 {
			// A success ends the run of failed retries, and pays back less than a
			// retry costs. A retry that succeeds ends that of the route.
			get(503)
			get(200)
			if i%100 == 0 {
				get(saved)
			}
		}
		get(saved)
		require.Less(t, play.Must(tr.HostState("example.com:80")).Tokens, 2.0)
		require.NoError(t, tr.SetPolicies(sized(0), nil))
		successes := 0
		for get(503) == 1 {
			get(200)
			successes++
		}
		assert.Equal(t, 3, successes, "half a token is enough for a retry")
		for range 5 {
			get(503)
		}
		require.Len(t, play.Held(tr), 1)
		require.NoError(t, tr.SetPolicies(sized(retrip.Off), nil))
		assert.Empty(t, play.Held(tr))
	})
}

// Requests that began before a change of policies leave no more tokens missing
// than the new budget has.
func TestSetPolicies_BudgetOfRequestsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Base(play.Reply(503))
		tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.Budget = 200 })}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { testenv.Drop(t, tr, play.Request(t, http.MethodGet, nil)) })
		}
		time.Sleep(1500 * time.Millisecond)
		require.NoError(t, tr.SetPolicies(retrip.Policy{Budget: retrip.Off}, nil))
		wg.Wait()
		assert.Empty(t, play.Held(tr))
		assert.Greater(t, base.Attempts(), 40, "there are retries after the change")
	})
}
