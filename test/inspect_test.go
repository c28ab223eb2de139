// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

func TestHostState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Base(play.Reply(503, "Retry-After: 10"))
		tr := &retrip.Transport{
			Base:   base,
			Policy: retrip.Policy{MaxAttempts: 2},
			Hosts: map[string]retrip.Policy{
				"*.Example.com":   {Breaker: retrip.Breaker{Ratio: 1, Window: time.Minute, MinVolume: 2, OpenFor: time.Minute}},
				"free.example":    {Budget: retrip.Off},
				"healthy.example": {},
			},
		}
		healthy := retrip.HostState{Host: "healthy.example:443", Policy: "healthy.example", Tokens: 5, Size: 5, Breaker: "closed"}
		assert.Equal(t, healthy, play.Must(tr.HostState("healthy.example:443")))
		assert.Empty(t, tr.HostStates())

		getFrom(t, tr, "https://Api.example.com/")
		getFrom(t, tr, "http://plain.test/")
		getFrom(t, tr, "https://free.example:8443/")

		s := play.Must(tr.HostState("API.example.com:443"))
		assert.Equal(t, "api.example.com:443", s.Host)
		assert.Equal(t, "*.example.com", s.Policy)
		assert.Equal(t, 4.5, s.Tokens)
		assert.Equal(t, retrip.BreakerOpen, s.Breaker)
		assert.GreaterOrEqual(t, s.OpenFor, time.Second)
		_, refused := tr.RoundTrip(play.MustRequest(t, "GET", "https://api.example.com/", nil))
		assert.Equal(t, &retrip.Error{Reason: retrip.ReasonBreakerOpen, RetryAfter: s.OpenFor}, refused)

		other := retrip.HostState{Host: "plain.test:443", Policy: "default", Tokens: 5, Size: 5, Breaker: "closed"}
		assert.Equal(t, other, play.Must(tr.HostState("plain.test:443")), "another port is another host")
		plain := play.Must(tr.HostState("plain.test:80"))
		assert.Equal(t, "default", plain.Policy)
		assert.Equal(t, 4.5, plain.Tokens)
		assert.Equal(t, 1, plain.FailedRetries)
		free := play.Must(tr.HostState("free.example:8443"))
		assert.Zero(t, free.Size)
		assert.Equal(t, 10*time.Second, free.PausedFor)

		var names []string
		for _, s := range tr.HostStates() {
			names = append(names, s.Host)
		}
		assert.Equal(t, []string{"api.example.com:443", "free.example:8443", "plain.test:80"}, names)

		// Time ends pauses, successes fill the budget, and then nothing is left
		// to report.
		time.Sleep(2 * time.Hour)
		base.Steps = []play.Step{play.Reply(200)}
		getFrom(t, tr, "http://plain.test/")
		assert.Empty(t, tr.HostStates())
		assert.Equal(t, healthy, play.Must(tr.HostState("healthy.example:443")))
	})
}

// Hosts without a place share what is known of them, and get their tokens back by
// successes, like other hosts.
//
//retrip:promise P15
func TestHostStates_Others(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := testenv.Status(http.StatusServiceUnavailable)
		tr := &retrip.Transport{
			Base:   testenv.RoundTripper(func(req *http.Request) (*http.Response, error) { return status.RoundTrip(req) }),
			Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}},
		}
		alive := func() retrip.HostState { return play.Must(tr.HostState("alive.example:443")) }
		for i := 0; !alive().Held; i++ {
			require.Less(t, i, 10_000, "the table is full")
			getFrom(t, tr, fmt.Sprintf("https://host%d", i))
		}
		assert.Equal(t, retrip.HostState{Host: "alive.example:443", Policy: "default", Held: true, Tokens: 4.5, Size: 5, FailedRetries: 1, Breaker: "closed"}, alive())
		states := tr.HostStates()
		others := states[len(states)-1]
		assert.Greater(t, others.Size, others.Tokens)
		others.Size, others.Tokens, others.FailedRetries = 0, 0, 0 // those of several entries
		assert.Equal(t, retrip.HostState{Host: "others", Policy: "default", Held: true, Breaker: "closed"}, others)
		status = http.StatusOK
		for range 3 {
			assert.True(t, alive().Held)
			getFrom(t, tr, "https://alive.example")
		}
		assert.False(t, alive().Held)
	})
}

// An invalid policy causes no panic.
func TestHostState_OfWrongPolicy(t *testing.T) {
	tr := &retrip.Transport{Policy: retrip.Policy{MaxAttempts: -1}}
	_, err := tr.HostState("example.com:443")
	assert.ErrorContains(t, err, "MaxAttempts is Off")
	_, err = tr.PolicyFor("example.com:443")
	assert.ErrorContains(t, err, "MaxAttempts is Off")
	_, _, err = tr.Policies()
	assert.ErrorContains(t, err, "MaxAttempts is Off")
	assert.Empty(t, tr.HostStates())
}

// HostState describes a host under its current policy, whatever the last
// request used.
func TestHostState_PolicyFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &retrip.Transport{Base: play.Base(play.Reply(503)), Policy: retrip.Policy{MaxAttempts: 2}}
		getFrom(t, tr, "http://example.com/")
		want := retrip.HostState{Host: "example.com:80", Policy: "default", Tokens: 4.5, Size: 5, FailedRetries: 1, Breaker: "closed", LastFailure: "server_error", LastStatus: 503, LastGiveUp: "max_attempts", Failed: 1, MinuteFailed: 1, MinuteAll: 1, Held: true}
		require.Equal(t, []retrip.HostState{want}, tr.HostStates())

		req := play.Request(t, "GET", nil)
		ctx := retrip.WithPolicy(req.Context(), retrip.Policy{MaxAttempts: 1, Budget: retrip.Off})
		play.Finish(t, do(t, tr, req.WithContext(ctx)))
		want.Failed, want.MinuteFailed, want.MinuteAll = 2, 2, 2
		assert.Equal(t, want, play.Must(tr.HostState("example.com:80")))
		assert.Equal(t, []retrip.HostState{want}, tr.HostStates())

		require.NoError(t, tr.SetPolicies(retrip.Policy{}, map[string]retrip.Policy{"*.com:80": {Budget: 7}}))
		want.Policy, want.Tokens, want.Size = "*.com:80", 6.5, 7
		assert.Equal(t, want, play.Must(tr.HostState("example.com:80")))
		assert.Equal(t, []retrip.HostState{want}, tr.HostStates())
	})
}

func TestHostState_WhatCantBeAHost(t *testing.T) {
	tr := &retrip.Transport{}
	for host, want := range map[string]string{
		"https://Example.com/x?y=1":       `it is a URL; its host is "example.com:443"`,
		"example.com":                     `it has no port; for https it is "example.com:443", for http "example.com:80"`,
		"":                                "it is empty",
		":443":                            "the name is missing",
		"example..com:443":                "a label of the name is empty",
		"example.com\n:443":               "contains a character that no host name may",
		"user:secret@example.com:80":      `as in a URL`,
		"*.example.com:443":               "it is a pattern",
		strings.Repeat("a", 254) + ":443": "at most 253 bytes",
	} {
		state, err := tr.HostState(host)
		require.ErrorContains(t, err, want, host)
		assert.ErrorContains(t, err, "retrip: ")
		assert.NotContains(t, err.Error(), "secret")
		assert.Zero(t, state)
		_, other := tr.PolicyFor(host)
		assert.Equal(t, err, other)
	}
	for _, host := range []string{"example.com:443", "[2001:DB8::1]:8080", "[fe80::1%en0]:80", "bücher.example:80", "under_score:1", "127.0.0.1:65535", "a.:1"} {
		state, err := tr.HostState(host)
		require.NoError(t, err, host)
		again, err := tr.HostState(state.Host)
		require.NoError(t, err)
		assert.Equal(t, state, again, "Host of a HostState is a valid host")
	}
}

func TestHostState_JSON(t *testing.T) {
	full := retrip.HostState{Host: "example.com:443", Policy: "*.com", Tokens: 1.5, Size: 5, PausedFor: 1500 * time.Millisecond, Breaker: "open", OpenFor: time.Second,
		Waiting: 3, LastFailure: retrip.ReasonTimeout, LastStatus: 504, LastError: "timeout", LastWait: 30 * time.Second, FailedAgo: time.Minute, LastGiveUp: retrip.ReasonBudgetExhausted,
		Failed: 17, Canceled: 1, Answered: 60, MinuteFailed: 2, MinuteAll: 9, AnsweredAgo: time.Second, FailingFor: 2 * time.Minute, FailingAgo: time.Minute, Recovered: true, Held: true}
	for want, s := range map[string]retrip.HostState{
		`{"host":"example.com:443","policy":"*.com","tokens":1.5,"size":5,"paused_for":"1.5s","breaker":"open","open_for":"1s","waiting":3,"held":true,` +
			`"failed":17,"canceled":1,"answered":60,"minute_failed":2,"minute_all":9,"answered_ago":"1s","failing_for":"2m0s","failing_ago":"1m0s","recovered":true,"last_failure":"timeout","last_status":504,"last_error":"timeout","last_wait":"30s","failed_ago":"1m0s","last_give_up":"budget_exhausted"}`: full,
		`{"host":"a:80","policy":"default","size":"off","paused_for":"0s","breaker":"closed","open_for":"0s","waiting":0,"held":false}`: {Host: "a:80", Policy: "default", Breaker: "closed"},
	} {
		data, err := json.Marshal(s)
		require.NoError(t, err)
		assert.JSONEq(t, want, string(data))
	}
}

// The last failure is that of the last attempt, whether or not a retry could fix it.
func TestHostState_LastFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &retrip.Transport{Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}},
			Base: play.Base(play.Reply(503), play.Reply(502), play.Err(http.ErrSchemeMismatch), play.Reply(500))}
		get := func() retrip.HostState {
			try(tr, play.Request(t, "GET", nil))
			return play.Must(tr.HostState("example.com:80"))
		}
		s := get()
		assert.Equal(t, []any{retrip.ReasonServerError, 502, ""}, []any{s.LastFailure, s.LastStatus, s.LastError})
		time.Sleep(time.Second)
		s = get()
		assert.Equal(t, []any{true, retrip.ReasonError, 0, "tls", time.Duration(0)}, []any{s.Held, s.LastFailure, s.LastStatus, s.LastError, s.FailedAgo})
		time.Sleep(time.Second)
		s = get()
		assert.Equal(t, []any{retrip.ReasonServerError, 500, "", 3}, []any{s.LastFailure, s.LastStatus, s.LastError, s.Failed})
	})
}
