// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package budget_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// tenants is a Base whose hosts are all up or all down.
type tenants struct {
	down     atomic.Bool
	attempts atomic.Int64
}

func (b *tenants) RoundTrip(r *http.Request) (*http.Response, error) {
	b.attempts.Add(1)
	status := http.StatusOK
	if b.down.Load() {
		status = http.StatusServiceUnavailable
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// get makes a request to a host and returns the number of attempts.
func (b *tenants) get(t *testing.T, tr *retrip.Transport, host string) int64 {
	before := b.attempts.Load()
	resp, err := tr.RoundTrip((&http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "https", Host: host}, Header: http.Header{}}).WithContext(t.Context()))
	if assert.NoError(t, err) {
		resp.Body.Close()
	}
	return b.attempts.Load() - before
}

// get makes a request, and doesn't read the response.
func get(t *testing.T, tr *retrip.Transport, url string) {
	t.Helper()
	resp, err := tr.RoundTrip(play.MustRequest(t, http.MethodGet, url, nil).WithContext(t.Context()))
	if err == nil {
		require.NoError(t, resp.Body.Close())
	}
}

func tenant(i int) string { return fmt.Sprintf("t%d.tenants.example.com", i) }

// Ten thousand names of one backend share a budget. While the backend is down,
// they get its tokens and no more. Afterwards, a success of any name pays back.
//
//retrip:promise P15
func TestBudgetShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := &tenants{}
		metrics := retrip.NewMetrics()
		tr := &retrip.Transport{Base: base, Metrics: metrics, Hosts: map[string]retrip.Policy{
			"*.tenants.example.com": {Budget: retrip.Budget{Shared: 50}, Backoff: retrip.Backoff{Base: retrip.Off}},
		}}
		base.down.Store(true)
		var total int64
		for i := range 10_000 {
			total += base.get(t, tr, tenant(i))
		}
		assert.EqualValues(t, 10_000+3*100, total, "50 tokens, half a token for each request, which makes three retries")
		state := play.Must(tr.HostState(tenant(12345) + ":443"))
		assert.Equal(t, 5.0, state.Tokens)
		assert.Zero(t, state.SharedTokens)
		assert.Equal(t, 50.0, state.SharedSize)
		assert.Contains(t, state.String(), "0 of 50 shared tokens")
		assert.NoError(t, testutil.CollectAndCompare(metrics, strings.NewReader(`
# HELP retrip_shared_budget_tokens_missing Tokens missing from the budgets that the hosts of a policy share, by the policy that sets them.
# TYPE retrip_shared_budget_tokens_missing gauge
retrip_shared_budget_tokens_missing{policy="*.tenants.example.com"} 50
`), "retrip_shared_budget_tokens_missing"))
		assert.EqualValues(t, 4, base.get(t, tr, "elsewhere.example"), "another policy's hosts have their own")

		// Successes of healthy names pay back, even for names without a place
		// in the table.
		base.down.Store(false)
		for range 10 {
			assert.EqualValues(t, 1, base.get(t, tr, tenant(20_000)))
		}
		assert.InDelta(t, 2, play.Must(tr.HostState(tenant(0)+":443")).SharedTokens, 1e-9)
		base.down.Store(true)
		assert.EqualValues(t, 4, base.get(t, tr, tenant(20_000)))

		// After an hour without a failure, all tokens are back.
		time.Sleep(time.Hour + time.Second)
		assert.Equal(t, 50.0, play.Must(tr.HostState(tenant(0)+":443")).SharedTokens)
		assert.EqualValues(t, 4, base.get(t, tr, tenant(0)))
		assert.Equal(t, 49.5, play.Must(tr.HostState(tenant(0)+":443")).SharedTokens)
	})
}

// A retry takes tokens from both budgets or from neither, and gives them back
// to both.
func TestBudgetShared_BesideTheHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Base(play.Reply(503), play.Reply(200), play.Reply(503), play.Reply(503), play.Reply(503), play.Reply(503), play.Reply(503))
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Budget: retrip.Budget{Size: 1, Shared: 1}, MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}}}
		get(t, tr, "http://example.com/")
		assert.Equal(t, 2, base.Attempts())
		state := play.Must(tr.HostState("example.com:80"))
		assert.Equal(t, []float64{1, 1}, []float64{state.Tokens, state.SharedTokens}, "a retry that works costs nothing")
		get(t, tr, "http://example.com/")
		get(t, tr, "http://example.com/")
		assert.Equal(t, 6, base.Attempts())
		state = play.Must(tr.HostState("example.com:80"))
		assert.Equal(t, []float64{0, 0}, []float64{state.Tokens, state.SharedTokens})
		get(t, tr, "http://other.example/")
		assert.Equal(t, 7, base.Attempts())
		state = play.Must(tr.HostState("other.example:80"))
		assert.Equal(t, []float64{1, 0}, []float64{state.Tokens, state.SharedTokens}, "a refused retry takes no token")

		ctx := retrip.WithPolicy(t.Context(), retrip.Policy{Budget: retrip.Unlimited})
		resp, err := tr.RoundTrip(play.Request(t, "GET", nil).WithContext(ctx))
		require.NoError(t, err)
		play.Finish(t, resp)
		assert.Equal(t, 9, base.Attempts(), "one request may be unlimited")
	})
}

// Which hosts share which budget.
func TestBudgetShared_Scope(t *testing.T) {
	tr := &retrip.Transport{
		Policy: retrip.Policy{Budget: retrip.Budget{Shared: 100}},
		Hosts: map[string]retrip.Policy{
			"inherits.example": {MaxAttempts: 2}, "own.example": {Budget: retrip.Budget{Shared: 7}}, "off.example": {Budget: retrip.Budget{Shared: retrip.Off}},
			"alone.example": {Budget: retrip.Budget{Size: retrip.Off}}, "unlimited.example": {Budget: retrip.Unlimited},
		},
	}
	require.NoError(t, tr.Validate())
	for host, want := range map[string][2]float64{
		"any.example": {5, 100}, "inherits.example": {5, 100}, "own.example": {5, 7}, "off.example": {5, 0}, "alone.example": {0, 100}, "unlimited.example": {0, 0},
	} {
		s := play.Must(tr.HostState(host + ":443"))
		assert.Equal(t, want, [2]float64{s.Size, s.SharedSize}, host)
		data, err := json.Marshal(s)
		require.NoError(t, err)
		assert.Equal(t, want[1] > 0, bytes.Contains(data, []byte(`"shared_size":`)), host)
	}
	for _, bad := range []float64{0.5, -2, 1e7} {
		err := (&retrip.Transport{Policy: retrip.Policy{Budget: retrip.Budget{Shared: bad}}}).Validate()
		assert.ErrorContains(t, err, fmt.Sprintf("Policy.Budget.Shared is %v: it must be 1 to 1e+06, 0 to inherit or Off", bad))
	}
}

// Missing tokens survive a change of policies, up to the size of the new
// budget.
func TestBudgetShared_SetPolicies(t *testing.T) {
	base := &tenants{}
	base.down.Store(true)
	shared := func(n float64) map[string]retrip.Policy {
		return map[string]retrip.Policy{"*.tenants.example.com": {Budget: retrip.Budget{Shared: n}, Backoff: retrip.Backoff{Base: retrip.Off}}}
	}
	tr := &retrip.Transport{Base: base, Hosts: shared(20)}
	for i := range 100 {
		base.get(t, tr, tenant(i))
	}
	left := func() float64 { return play.Must(tr.HostState(tenant(0) + ":443")).SharedTokens }
	require.Zero(t, left())
	require.NoError(t, tr.SetPolicies(retrip.Policy{}, shared(30)))
	assert.Equal(t, 10.0, left())
	require.NoError(t, tr.SetPolicies(retrip.Policy{}, shared(5)))
	assert.Zero(t, left())
	require.NoError(t, tr.SetPolicies(retrip.Policy{}, shared(20)))
	assert.Equal(t, 15.0, left(), "at most the smaller budget is missing")
	require.NoError(t, tr.SetPolicies(retrip.Policy{}, nil))
	require.NoError(t, tr.SetPolicies(retrip.Policy{}, shared(20)))
	assert.Equal(t, 20.0, left(), "a policy that was removed leaves no state")
}

// No token is lost or created under contention.
func TestBudgetShared_Contention(t *testing.T) {
	base := &tenants{}
	base.down.Store(true)
	tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Budget: retrip.Budget{Size: retrip.Off, Shared: 100}, Backoff: retrip.Backoff{Base: retrip.Off}}}
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := range 50 {
				base.get(t, tr, tenant(g*50+i))
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, 16*50+3*200, base.attempts.Load())
	assert.Empty(t, play.Held(tr), "no state of the hosts is left")
}

// Slow successes pay the shared budget too, as long as the host's failures
// aren't timeouts.
func TestBudgetShared_SlowSuccesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slowly := func(reply play.Step) play.Step {
			return func(r *http.Request) (*http.Response, error) {
				time.Sleep(900 * time.Millisecond)
				return reply(r)
			}
		}
		base := play.Base(slowly(play.Reply(503)), slowly(play.Reply(503)), slowly(play.Reply(200)))
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Budget: retrip.Budget{Shared: 5}, AttemptTimeout: time.Second, MaxAttempts: 2}}
		tokens := func() []float64 {
			state := play.Must(tr.HostState("example.com:80"))
			return []float64{state.Tokens, state.SharedTokens}
		}
		get(t, tr, "http://example.com/")
		require.Equal(t, []float64{4.5, 4.5}, tokens())
		get(t, tr, "http://example.com/")
		assert.Equal(t, []float64{4.7, 4.7}, tokens())
	})
}

// A shared budget that is the only one refills like one beside the budgets of hosts.
func TestBudgetShared_AloneRefills(t *testing.T) {
	base := &tenants{}
	tr := &retrip.Transport{Base: base, Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}, Budget: retrip.Budget{Size: retrip.Off, Shared: 2}}}
	base.down.Store(true)
	for base.get(t, tr, "a.example") == 2 {
	}
	base.down.Store(false)
	for range 10 {
		base.get(t, tr, "a.example")
	}
	assert.Equal(t, 2.0, play.Must(tr.HostState("a.example:443")).SharedTokens)
}
