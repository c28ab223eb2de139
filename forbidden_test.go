// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/incoming"
	"github.com/retrip/retrip/internal/testenv"
)

// P8: every host may forbid a retry. The outcome is still a failure, costs as
// much as one, and has a reason of its own.
func TestForbidden(t *testing.T) {
	policies := map[string]Policy{
		"zero":                 {},
		"should-retry":         {Dialects: []string{"should-retry"}},
		"stripe":               {Dialects: []string{"stripe"}},
		"gate":                 {Gate: On},
		"a failure costs more": {Breaker: Breaker{Ratio: 1, MinVolume: 2}},
	}
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			policy.Backoff.Base = Off
			var attempts int
			base := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				if attempts++; attempts == 1 {
					return answer(r, 503), nil
				}
				return answer(r, 503, "X-Should-Retry: false"), nil
			})
			metrics := NewMetrics()
			var gaveUp []Event
			tr := &Transport{Base: base, Policy: policy, Metrics: metrics, Trace: &Trace{GiveUp: func(e Event) { gaveUp = append(gaveUp, e) }}}
			resp, err := get(t, tr, "http://example.com/")
			require.NoError(t, err)
			assert.Equal(t, 503, resp.StatusCode, "the caller gets the answer")
			assert.Equal(t, 2, attempts)
			require.Len(t, gaveUp, 1)
			assert.Equal(t, ReasonRetryForbidden, gaveUp[0].Reason)
			states := tr.HostStates()
			require.Len(t, states, 1)
			assert.Equal(t, 4.5, states[0].Tokens, "the retry has failed, so its tokens are spent")
		})
	}
}

// The header applies to failures. Other responses aren't retried anyway.
func TestForbidden_OnlyFailures(t *testing.T) {
	for _, tt := range []struct {
		status int
		policy Policy
		want   Reason
	}{
		{200, Policy{}, ""},
		{301, Policy{}, ""},
		{404, Policy{}, ""},
		{404, Policy{Dialects: []string{"openai"}}, ""},
		{404, Policy{RetryOn: []int{404}}, ReasonRetryForbidden},
		{503, Policy{FailOn: []int{503}}, ""},
		{429, Policy{}, ReasonRetryForbidden},
		{503, Policy{MaxAttempts: 1}, ReasonRetryForbidden},
		{503, Policy{Classify: func(*http.Request, *http.Response, error) Verdict { return Final }}, ""},
		{503, Policy{Classify: func(*http.Request, *http.Response, error) Verdict { return ByRule }}, ReasonRetryForbidden},
	} {
		var attempts int
		base := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			attempts++
			return answer(r, tt.status, "X-Should-Retry: false"), nil
		})
		var reason Reason
		tr := &Transport{Base: base, Policy: tt.policy, Trace: &Trace{GiveUp: func(e Event) { reason = e.Reason }}}
		_, err := get(t, tr, "http://example.com/")
		require.NoError(t, err)
		assert.Equal(t, tt.want, reason, "%d with %+v", tt.status, tt.policy)
		assert.Equal(t, 1, attempts)
	}
}

// Classify decides first: it is the caller's own code, and sees the header.
func TestForbidden_ClassifySpeaksFirst(t *testing.T) {
	var attempts int
	base := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
		attempts++
		return answer(r, 503, "X-Should-Retry: false"), nil
	})
	tr := &Transport{Base: base, Policy: Policy{
		Backoff:  Backoff{Base: Off},
		Classify: func(*http.Request, *http.Response, error) Verdict { return Retryable },
	}}
	_, err := get(t, tr, "http://example.com/")
	require.NoError(t, err)
	assert.Equal(t, 4, attempts)
}

// A request made on behalf of an incoming retry says so to the next server,
// from its first attempt on.
func TestRetryHeader_CountsOnFromTheIncomingAttempt(t *testing.T) {
	for _, tt := range []struct {
		incoming int
		policy   Policy
		want     []string
	}{
		{1, Policy{RetryHeader: "retry-attempt"}, []string{"", "2", "3", "4"}},
		{3, Policy{RetryHeader: "retry-attempt"}, []string{"3", "4", "5", "6"}},
		{3, Policy{RetryHeader: "retry-attempt", MaxAttempts: 1}, []string{"3"}},
		{3, Policy{MaxAttempts: 1}, []string{""}},
	} {
		var seen []string
		base := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			seen = append(seen, strings.Join(r.Header["Retry-Attempt"], "+"))
			return answer(r, 503), nil
		})
		tt.policy.Backoff.Base = Off
		tr := &Transport{Base: base, Policy: tt.policy}
		ctx := incoming.WithAttempt(WithPolicy(t.Context(), Policy{}), tt.incoming)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://example.com/", nil)
		require.NoError(t, err)
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, tt.want, seen)
		assert.Empty(t, req.Header, "the caller's request is unchanged")
	}
}
