// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

func getFrom(t *testing.T, tr *retrip.Transport, url string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	if resp, err := tr.RoundTrip(req); err == nil {
		require.NoError(t, resp.Body.Close())
	}
}

// A request that its caller ends says nothing about the host.
func TestHostStates_Canceled(t *testing.T) {
	for _, answered := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		told := false
		tr := &retrip.Transport{
			Base: baseFunc(func(req *http.Request) (*http.Response, error) {
				cancel()
				if answered {
					return &http.Response{StatusCode: 503, Body: http.NoBody, Request: req}, nil
				}
				return nil, ctx.Err()
			}),
		}
		tr.Trace = &retrip.Trace{GiveUp: func(e retrip.Event) {
			told = true
			assert.Equal(t, retrip.ReasonCanceled, e.Reason)
			assert.Empty(t, tr.HostStates())
		}}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://example.com/", nil)
		require.NoError(t, err)
		if resp, err := tr.RoundTrip(req); err == nil {
			require.NoError(t, resp.Body.Close())
		}
		assert.True(t, told)
	}
}

func TestHostState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := 503
		tr := &retrip.Transport{
			Base: baseFunc(func(req *http.Request) (*http.Response, error) {
				h := http.Header{}
				if status == 503 {
					h.Set("Retry-After", "10")
				}
				return &http.Response{StatusCode: status, Header: h, Body: http.NoBody, Request: req}, nil
			}),
			Policy: retrip.Policy{MaxAttempts: 2},
			Hosts: map[string]retrip.Policy{
				"*.Example.com":   {Breaker: retrip.Breaker{Ratio: 1, Window: time.Minute, MinVolume: 2, OpenFor: time.Minute}},
				"free.example":    {Budget: retrip.Unlimited},
				"healthy.example": {},
			},
		}
		healthy := retrip.HostState{Host: "healthy.example:443", Policy: "healthy.example", Tokens: 5, Size: 5, Breaker: "closed"}
		assert.Equal(t, healthy, tr.HostState("healthy.example"))
		assert.Empty(t, tr.HostStates())

		getFrom(t, tr, "https://Api.example.com/")
		getFrom(t, tr, "http://plain.test/")
		getFrom(t, tr, "https://free.example:8443/")

		s := tr.HostState("API.example.com")
		assert.Equal(t, "api.example.com:443", s.Host)
		assert.Equal(t, "*.example.com", s.Policy)
		assert.Equal(t, 4.0, s.Tokens)
		assert.Equal(t, "open", s.Breaker)
		assert.GreaterOrEqual(t, s.OpenFor, time.Second)

		assert.Equal(t, "closed", tr.HostState("plain.test").Breaker)
		assert.Equal(t, 5.0, tr.HostState("plain.test").Tokens, "another port is another host")
		plain := tr.HostState("plain.test:80")
		assert.Equal(t, "default", plain.Policy)
		assert.Equal(t, 4.0, plain.Tokens)
		free := tr.HostState("free.example:8443")
		assert.Zero(t, free.Size)
		assert.Equal(t, 10*time.Second, free.PausedFor)

		var names []string
		for _, s := range tr.HostStates() {
			names = append(names, s.Host)
		}
		assert.Equal(t, []string{"api.example.com:443", "free.example:8443", "plain.test:80"}, names)

		// Time ends pauses, successes fill the budget, and then there is
		// nothing to tell.
		time.Sleep(2 * time.Hour)
		status = 200
		getFrom(t, tr, "http://plain.test/")
		assert.Empty(t, tr.HostStates())
		assert.Equal(t, healthy, tr.HostState("healthy.example"))
	})
}

// A policy that is wrong makes nobody panic.
func TestHostStateOfWrongPolicy(t *testing.T) {
	tr := &retrip.Transport{Policy: retrip.Policy{MaxAttempts: -1}}
	assert.Equal(t, retrip.HostState{Host: "example.com:443"}, tr.HostState("example.com"))
	assert.Empty(t, tr.HostStates())
	assert.Zero(t, tr.PolicyOf("example.com"))
}

func TestPolicyOf(t *testing.T) {
	tr := &retrip.Transport{Policy: retrip.Policy{MaxAttempts: 7}, Hosts: map[string]retrip.Policy{"example.com:443": {MaxWait: time.Second}}}
	assert.Equal(t, 7, tr.PolicyOf("Example.com").MaxAttempts)
	assert.Equal(t, time.Second, tr.PolicyOf("example.com").MaxWait)
	assert.Equal(t, 30*time.Second, tr.PolicyOf("example.com:80").MaxWait)
}

// A dot at the end of a host makes no difference, neither to what is known of
// it nor to its policy.
func TestHostState_TrailingDot(t *testing.T) {
	tr := &retrip.Transport{
		Base:  answering(503),
		Hosts: map[string]retrip.Policy{"api.example.com": {MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}}},
	}
	for i, host := range []string{"api.example.com.", "api.example.com", "API.example.com.:80"} {
		req := newGet(t)
		req.URL.Host = host
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, host, resp.Request.URL.Host, "the request stays as it is")
		for _, asked := range []string{"api.example.com:80", "api.example.com.:80"} {
			state := tr.HostState(asked)
			assert.Equal(t, "api.example.com:80", state.Host)
			assert.Equal(t, "api.example.com", state.Policy)
			assert.EqualValues(t, 4-i, state.Tokens, "one retry each")
		}
	}
	assert.Len(t, tr.HostStates(), 1)
	assert.Equal(t, 2, tr.PolicyOf("api.example.com.").MaxAttempts)
}

// MaxSends is shown where the bound is the same for every attempt.
func TestPolicyOf_MaxSends(t *testing.T) {
	tr := &retrip.Transport{Hosts: map[string]retrip.Policy{
		"timeout.example":  {AttemptTimeout: time.Second},
		"deadline.example": {Deadline: time.Second},
		"off.example":      {Deadline: time.Second, MaxSends: retrip.Off},
		"set.example":      {MaxSends: 3},
		"both.example":     {AttemptTimeout: time.Second, MaxSends: 3},
	}}
	for host, want := range map[string]int{
		"timeout.example": 10, "deadline.example": 10, "off.example": retrip.Off, "set.example": 3, "both.example": 3,
		"any.example": 0, // by the request
	} {
		assert.Equal(t, want, tr.PolicyOf(host).MaxSends, host)
	}
	traced := &retrip.Transport{Trace: &retrip.Trace{}}
	assert.Equal(t, 10, traced.PolicyOf("any.example").MaxSends, "every attempt has a hook")

	// Rules keep the policy as it was set: taken over by another, a bound of
	// MaxSends would be a setting of its own.
	assert.Zero(t, rulesOf(t, retrip.Policy{Deadline: time.Second}).Policy().MaxSends)
}

type baseFunc func(*http.Request) (*http.Response, error)

func (f baseFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A host is described under the policy that it follows now, whatever the last
// request there asked for.
func TestHostState_PolicyFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &retrip.Transport{Base: plays(replies(503)), Policy: retrip.Policy{MaxAttempts: 2}}
		getFrom(t, tr, "http://example.com/")
		want := retrip.HostState{Host: "example.com:80", Policy: "default", Tokens: 4, Size: 5, Breaker: "closed"}
		require.Equal(t, []retrip.HostState{want}, tr.HostStates())

		req := request(t, "GET", nil)
		ctx := retrip.WithPolicy(req.Context(), retrip.Policy{MaxAttempts: 1, Budget: retrip.Unlimited})
		resp, err := tr.RoundTrip(req.WithContext(ctx))
		require.NoError(t, err)
		finish(t, resp)
		assert.Equal(t, want, tr.HostState("example.com:80"))
		assert.Equal(t, []retrip.HostState{want}, tr.HostStates())

		require.NoError(t, tr.SetPolicies(retrip.Policy{}, map[string]retrip.Policy{"*.com:80": {Budget: retrip.Budget{Size: 7}}}))
		want.Policy, want.Tokens, want.Size = "*.com:80", 6, 7
		assert.Equal(t, want, tr.HostState("example.com:80"))
		assert.Equal(t, []retrip.HostState{want}, tr.HostStates())
	})
}

// A breaker that is switched off while it is open is open no more.
func TestHostState_BreakerSwitchedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		on := retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{MinVolume: 1}}
		tr := &retrip.Transport{Base: plays(replies(503)), Policy: on}
		getFrom(t, tr, "http://example.com/")
		require.Equal(t, "open", tr.HostState("example.com:80").Breaker)
		require.NoError(t, tr.SetPolicies(retrip.Policy{MaxAttempts: 1}, nil))
		want := retrip.HostState{Host: "example.com:80", Policy: "default", Tokens: 5, Size: 5, Breaker: "closed"}
		assert.Equal(t, want, tr.HostState("example.com:80"))
		require.NoError(t, tr.SetPolicies(on, nil))
		assert.Equal(t, "open", tr.HostState("example.com:80").Breaker, "what is remembered isn't lost")
	})
}

// Asking for the state of hosts forgets none that still fails.
func TestHostStates_LongOutage(t *testing.T) {
	for name, policy := range map[string]retrip.Policy{
		"plain":   {},
		"breaker": {Breaker: retrip.Breaker{MinVolume: 1e6}},
		"gate":    {Gate: retrip.On},
	} {
		bubbled(t, name, func(t *testing.T) {
			base := plays(replies(503))
			tr := &retrip.Transport{Base: base, Policy: policy}
			for range 100 {
				getFrom(t, tr, "http://example.com/")
				time.Sleep(time.Minute)
				require.Len(t, tr.HostStates(), 1)
			}
			assert.Equal(t, 100+5, base.attempts())
		})
	}
}
