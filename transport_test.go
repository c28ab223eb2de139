// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

var (
	do   = testenv.Do
	drop = testenv.Drop
	try  = testenv.Try
)

// Twenty requests that get the same Retry-After wait for different times, and
// none for less than it.
//
//retrip:promise P9
func TestTransport_RetryAfterSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := map[time.Duration]bool{}
		for range 20 {
			base := play.Base(play.Reply(429, "Retry-After: 10"), play.Reply(200))
			drop(t, &retrip.Transport{Base: base}, play.Request(t, "GET", nil))
			assert.GreaterOrEqual(t, base.At[1], 10*time.Second)
			waits[base.At[1]] = true
		}
		assert.Len(t, waits, 20)
	})
}

//retrip:promise P4
func TestTransport_CloseIdleConnections(t *testing.T) {
	base := play.Base(play.Reply(503), play.Reply(200))
	tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}}
	play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
	assert.Zero(t, base.Idle, "retrip never closes them by itself")
	(&http.Client{Transport: tr}).CloseIdleConnections()
	assert.Equal(t, 1, base.Idle)
	(&retrip.Transport{Base: testenv.RoundTripper(play.Reply(200))}).CloseIdleConnections() // the base has no such method: no panic
	(&retrip.Transport{}).CloseIdleConnections()
}

func TestTransport_SetPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Base(play.Reply(503))
		tr := &retrip.Transport{Base: base, Policy: play.Steady}
		count := func() int {
			before := base.Attempts()
			play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
			return base.Attempts() - before
		}
		assert.Equal(t, 4, count())
		two := play.With(func(p *retrip.Policy) { p.MaxAttempts = 2 })
		require.NoError(t, tr.SetPolicies(two, nil))
		assert.Equal(t, 2, count())
		require.NoError(t, tr.SetPolicies(two, map[string]retrip.Policy{"EXAMPLE.com:80": {MaxAttempts: 3}}))
		assert.Equal(t, 3, count())
		err := tr.SetPolicies(two, map[string]retrip.Policy{"example.com": {MaxAttempts: -2}})
		assert.ErrorContains(t, err, `Hosts["example.com"].MaxAttempts is -2`)
		assert.Equal(t, 3, count())
		assert.Equal(t, play.Steady.MaxAttempts, tr.Policy.MaxAttempts)

		// A request in flight keeps the policy with which it began.
		done := make(chan int)
		require.NoError(t, tr.SetPolicies(play.Steady, nil))
		before := base.Attempts()
		go func() {
			drop(t, tr, play.Request(t, "GET", nil))
			done <- base.Attempts() - before
		}()
		synctest.Wait()
		require.NoError(t, tr.SetPolicies(two, nil))
		assert.Equal(t, 4, <-done)
	})
	t.Run("heals a Transport that began with a bad one", func(t *testing.T) {
		tr := &retrip.Transport{Base: play.Base(play.Reply(200)), Policy: retrip.Policy{MaxAttempts: -1}}
		_, err := tr.RoundTrip(play.Request(t, "GET", nil))
		assert.ErrorContains(t, err, "Policy.MaxAttempts is Off")
		_, err = tr.HostState("example.com:443")
		assert.ErrorContains(t, err, "Policy.MaxAttempts is Off")
		require.NoError(t, tr.SetPolicies(retrip.Policy{}, nil))
		play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
	})
}

// A program may set Base from a variable that holds nothing.
//
//retrip:promise P2
func TestTransport_NilBase(t *testing.T) {
	var none *http.Transport
	const want = "Base is a nil *http.Transport"
	for _, policy := range []retrip.Policy{{}, {MaxAttempts: -1}, {AttemptTimeout: time.Second}} {
		tr := &retrip.Transport{Base: none, Policy: policy, Metrics: &retrip.Metrics{}}
		assert.ErrorContains(t, tr.Validate(), want)
		tr.CloseIdleConnections()
		for range 2 {
			body := play.NewSend("x")
			_, err := tr.RoundTrip(play.Request(t, "PUT", body))
			assert.ErrorContains(t, err, want)
			assert.EqualValues(t, 1, body.Closed.Load())
			require.NoError(t, tr.SetPolicies(retrip.Policy{}, nil))
		}
		_, err := tr.HostState("example.com:443")
		assert.ErrorContains(t, err, want)
		assert.NotContains(t, fmt.Sprint(tr.Advice()), "wraps")
	}
}

// WithPolicy applies to that request only. An invalid one sends nothing.
//
//retrip:promise P2
func TestTransport_WithPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Base(play.Reply(503))
		tr := &retrip.Transport{Base: base, Policy: play.Steady}
		count := func(ctx context.Context) int {
			before := base.Attempts()
			play.Finish(t, do(t, tr, play.Request(t, "GET", nil).WithContext(ctx)))
			return base.Attempts() - before
		}
		ctx := t.Context()
		two := retrip.WithPolicy(ctx, retrip.Policy{MaxAttempts: 2})
		assert.Equal(t, []int{4, 2, 4}, []int{count(ctx), count(two), count(ctx)})
		traced := 0
		outer := retrip.WithTrace(two, &retrip.Trace{Attempt: func(retrip.Event) { traced++ }})
		inner := retrip.WithPolicy(outer, retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}})
		start := time.Now()
		assert.Equal(t, 2, count(inner), "inherits from the enclosing one")
		assert.Equal(t, 2, traced, "the hooks stay")
		assert.Zero(t, time.Since(start))
		assert.Equal(t, 2, count(outer))
		assert.Positive(t, time.Since(start), "the outer policy is unchanged")
		require.NoError(t, tr.SetPolicies(play.With(func(p *retrip.Policy) { p.Unprocessed = []int{429} }), nil))
		for want, bad := range map[string]retrip.Policy{
			"MaxAttempts is Off": {MaxAttempts: retrip.Off}, "MaxWait is -5ns": {MaxWait: -5}, "Backoff.Base is 1h": {Backoff: retrip.Backoff{Base: time.Hour}},
			"Budget is 10: its state belongs to the host, so WithPolicy accepts only Off": {Budget: 10},
			"Breaker is {Ratio:0.5": {Breaker: retrip.Breaker{Ratio: .5}}, "Breaker is {Ratio:0 ": {Breaker: retrip.Breaker{MinVolume: 1}},
			"Gate.Enabled is on": {Gate: retrip.Gate{Enabled: retrip.On}},
			"FailOn is 500":      {FailOn: []int{500}, RetryOn: []int{500}}, "FailOn is 429": {FailOn: []int{429}},
		} {
			body := play.NewSend("x")
			before := base.Attempts()
			_, err := tr.RoundTrip(play.Request(t, "PUT", body).WithContext(retrip.WithPolicy(ctx, bad)))
			assert.ErrorContains(t, err, "retrip: WithPolicy."+want)
			assert.EqualValues(t, 1, body.Closed.Load())
			assert.Equal(t, before, base.Attempts())
		}
		_, err := tr.RoundTrip(play.Request(t, "GET", nil).WithContext(retrip.WithPolicy(ctx, retrip.Policy{MaxAttempts: -1, Budget: 10, Breaker: retrip.Breaker{Ratio: 0.5}})))
		for _, want := range []string{"MaxAttempts", "Budget", "Breaker"} {
			assert.ErrorContains(t, err, "retrip: WithPolicy."+want, "all at once")
		}
	})
}

// A Transport keeps nothing of requests that have ended, however many there are.
//
//retrip:promise P13 P15
func TestTransport_KeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		tr := &retrip.Transport{
			Metrics: &retrip.Metrics{},
			Policy:  retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, Breaker: retrip.Breaker{Ratio: 0.5}, AttemptTimeout: time.Second, Hedge: 0.1},
			Base: testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				made++
				status := []int{200, 200, 503, 200, 429, 200, 0}[made%7]
				if status == 0 {
					return nil, io.ErrUnexpectedEOF
				}
				return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
			}),
		}
		requests := func(n int) {
			for i := range n {
				try(tr, play.MustRequest(t, http.MethodGet, fmt.Sprintf("http://h%d.test/", i%20), nil))
			}
			time.Sleep(24 * time.Hour)
		}
		requests(1000)
		before := testenv.Heap()
		const more = 20_000
		requests(more)
		assert.Less(t, testenv.Heap()-before, int64(8*more))
		assert.Greater(t, made, more)
		runtime.KeepAlive(tr)
	})
}

// Whatever else is called first, the fields count that a Transport has at its first
// request.
func TestTransport_FieldsUntilTheFirstRequest(t *testing.T) {
	for name, call := range map[string]func(*retrip.Transport){
		"HostStates":           func(tr *retrip.Transport) { assert.Empty(t, tr.HostStates()) },
		"HostState":            func(tr *retrip.Transport) { _, _ = tr.HostState("example.com:80") },
		"PolicyFor":            func(tr *retrip.Transport) { _, _ = tr.PolicyFor("example.com:80") },
		"Policies":             func(tr *retrip.Transport) { _, _, _ = tr.Policies() },
		"SetPolicies":          func(tr *retrip.Transport) { require.NoError(t, tr.SetPolicies(retrip.Policy{MaxAttempts: 3}, nil)) },
		"CloseIdleConnections": (*retrip.Transport).CloseIdleConnections,
		"Validate":             func(tr *retrip.Transport) { require.NoError(t, tr.Validate()) },
		"Advice":               func(tr *retrip.Transport) { tr.Advice() },
	} {
		testenv.Bubble(t, name, func(t *testing.T) {
			never := play.Base(play.Err(http.ErrNotSupported))
			other := &retrip.Metrics{}
			tr := &retrip.Transport{Base: never, Metrics: other}
			call(tr)
			var log bytes.Buffer
			hooks := 0
			base := play.Base(play.Reply(503))
			tr.Base, tr.Metrics, tr.Logger = base, &retrip.Metrics{}, slog.New(slog.NewTextHandler(&log, nil))
			tr.Trace = &retrip.Trace{Attempt: func(retrip.Event) { hooks++ }}
			tr.Policy.MaxAttempts = 3
			play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
			assert.Equal(t, 3, base.Attempts())
			assert.Zero(t, never.Attempts())
			assert.Equal(t, 3, hooks)
			assert.Contains(t, log.String(), "give up")
			assert.Equal(t, 1.0, play.Gather(t, tr.Metrics)["default"]["requests_total"])
			assert.Zero(t, play.Gather(t, other)["default"]["requests_total"])
			assert.NoError(t, tr.Validate())
		})
	}
}

// What changes too late is no secret.
func TestTransport_FieldsAfterTheFirstRequest(t *testing.T) {
	deaf := testenv.RoundTripper(play.Reply(200)) // can't be compared
	for name, tt := range map[string]struct {
		base   http.RoundTripper
		change func(*retrip.Transport)
		want   string // a part of the error; empty for none
	}{
		"nothing":            {nil, func(*retrip.Transport) {}, ""},
		"Base":               {nil, func(tr *retrip.Transport) { tr.Base = play.Base(play.Reply(200)) }, "retrip: Base was changed after the first request"},
		"Base of other type": {nil, func(tr *retrip.Transport) { tr.Base = deaf }, "retrip: Base was"},
		"Base, incomparable": {deaf, func(tr *retrip.Transport) { tr.Base = nil }, "retrip: Base was"},
		"Fleet":              {deaf, func(tr *retrip.Transport) { tr.Fleet = retrip.NewFleet(nil) }, "retrip: Fleet was"},
		"Metrics":            {nil, func(tr *retrip.Transport) { tr.Metrics = &retrip.Metrics{} }, "retrip: Metrics was"},
		"Logger":             {nil, func(tr *retrip.Transport) { tr.Logger = slog.Default() }, "retrip: Logger was"},
		"Trace":              {nil, func(tr *retrip.Transport) { tr.Trace = &retrip.Trace{} }, "retrip: Trace was"},
		"Durations":          {nil, func(tr *retrip.Transport) { tr.Metrics.Durations = []string{} }, "retrip: Metrics.Durations was"},
		"Policy":             {nil, func(tr *retrip.Transport) { tr.Policy.RetryOn = []int{404} }, "call SetPolicies"},
		"a hook of Policy":   {nil, func(tr *retrip.Transport) { tr.Policy.Classify = nil }, "call SetPolicies"},
		"Hosts":              {nil, func(tr *retrip.Transport) { tr.Hosts["example.com"] = retrip.Policy{MaxAttempts: 2} }, "call SetPolicies"},
		"SetPolicies":        {nil, func(tr *retrip.Transport) { require.NoError(t, tr.SetPolicies(retrip.Policy{MaxAttempts: 2}, nil)) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			classify := func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.ByRule }
			tr := &retrip.Transport{Base: tt.base, Metrics: &retrip.Metrics{}, Policy: retrip.Policy{Classify: classify}, Hosts: map[string]retrip.Policy{}}
			if tr.Base == nil {
				tr.Base = play.Base(play.Reply(200))
			}
			testutil.CollectAndCount(tr.Metrics)
			play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
			tt.change(tr)
			if tt.want == "" {
				assert.NoError(t, tr.Validate())
			} else {
				assert.ErrorContains(t, tr.Validate(), tt.want)
			}
		})
	}
}
