// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// These tests cover the time before a first attempt at a closed gate or an open
// breaker, and the end of a wait.

// gatedHost returns a Transport whose gate for example.com a 429 has just
// closed for 8 s. The steps are what its base does afterwards.
func gatedHost(t *testing.T, n *notes, steps ...play.Step) (*retrip.Transport, *play.Script) {
	t.Helper()
	base := play.Base(append([]play.Step{play.Reply(429, "Retry-After: 8")}, steps...)...)
	tr := &retrip.Transport{Base: base, Metrics: &retrip.Metrics{}, Trace: n.trace(), Policy: retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}}}
	play.Finish(t, do(t, tr, play.Request(t, "POST", nil)))
	require.Equal(t, 8*time.Second, play.Must(tr.HostState("example.com:80")).PausedFor)
	n.lines = nil
	return tr, base
}

// The caller of a new request goes while the request waits at the gate.
//
//retrip:promise P10
func TestExchange_GateCanceled(t *testing.T) {
	cause := errors.New("the user left")
	for _, tt := range []struct {
		name   string
		is     []error
		reason retrip.Reason
		end    func(*http.Request) (*http.Request, func())
	}{
		{"WithCancelCause", []error{context.Canceled, cause}, retrip.ReasonCanceled, func(r *http.Request) (*http.Request, func()) {
			ctx, cancel := context.WithCancelCause(r.Context())
			return r.WithContext(ctx), func() { cancel(cause) }
		}},
		{"Request.Cancel", []error{context.Canceled}, retrip.ReasonCanceled, func(r *http.Request) (*http.Request, func()) {
			gone := make(chan struct{})
			r.Cancel = gone //lint:ignore SA1019 it must be obeyed
			return r, func() { close(gone) }
		}},
	} {
		play.Bubble(t, tt.name, func(t *testing.T) {
			var n notes
			tr, base := gatedHost(t, &n, play.Reply(200))
			before := play.Must(tr.HostState("example.com:80"))
			body := play.NewSend("x")
			req, end := tt.end(play.Request(t, "PUT", body))
			start := time.Now()
			time.AfterFunc(3*time.Second, end)
			resp, err := tr.RoundTrip(req)
			assert.Nil(t, resp)
			assert.Equal(t, 3*time.Second, time.Since(start), "at once")
			for _, want := range tt.is {
				assert.ErrorIs(t, err, want)
			}
			e := play.AsError(t, err)
			assert.Equal(t, tt.reason, e.Reason)
			assert.Zero(t, e.Attempts)
			assert.Zero(t, e.StatusCode)
			assert.Equal(t, 1, base.Attempts())
			assert.EqualValues(t, 1, body.Closed.Load())
			assert.Equal(t, before.Tokens, play.Must(tr.HostState("example.com:80")).Tokens)
			require.Len(t, n.lines, 2)
			assert.Regexp(t, `^giveup #0 0 .* canceled wait=0s server=false at=3s default$`, n.lines[0])
			assert.Regexp(t, `^done #0 0 .* canceled wait=0s server=false at=3s default$`, n.lines[1])
			assert.Contains(t, counted(t, tr.Metrics), "requests_total{default,canceled} 1")

			// The gate and the host's entry are as before.
			resp = do(t, tr, play.Request(t, "GET", nil))
			play.Finish(t, resp)
			time.Sleep(5 * time.Minute)
			assert.Empty(t, tr.HostStates())
		})
	}
}

// A new request would get through the gate only after its deadline.
//
//retrip:promise P3 P10
func TestExchange_GateBeyondTheDeadline(t *testing.T) {
	for name, limit := range map[string]func(*http.Request, *retrip.Policy) (*http.Request, context.CancelFunc){
		"Policy.Deadline": func(r *http.Request, p *retrip.Policy) (*http.Request, context.CancelFunc) {
			p.Deadline = 5 * time.Second
			return r, func() {}
		},
		"context": func(r *http.Request, _ *retrip.Policy) (*http.Request, context.CancelFunc) {
			ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
			return r.WithContext(ctx), cancel
		},
	} {
		play.Bubble(t, name, func(t *testing.T) {
			var n notes
			tr, base := gatedHost(t, &n, play.Reply(200))
			body := play.NewSend("x")
			var p retrip.Policy
			req, cancel := limit(play.Request(t, "PUT", body), &p)
			defer cancel()
			start := time.Now()
			resp, err := tr.RoundTrip(req.WithContext(retrip.WithPolicy(req.Context(), p)))
			assert.Nil(t, resp)
			assert.Zero(t, time.Since(start))
			assert.Equal(t, &retrip.Error{Reason: retrip.ReasonHostPaused}, err)
			assert.Equal(t, 1, base.Attempts())
			assert.EqualValues(t, 1, body.Closed.Load())
			assert.Zero(t, play.Must(tr.HostState("example.com:80")).Waiting, "it takes no place")
			assert.Equal(t, []string{
				"giveup #0 0 host_paused wait=0s server=false at=0s default",
				"done #0 0 host_paused wait=0s server=false at=0s default",
			}, n.lines)
			metrics := counted(t, tr.Metrics)
			assert.Contains(t, metrics, "give_ups_total{default,host_paused} 1")
			assert.Contains(t, metrics, "requests_total{default,gave_up} 2")
			assert.Contains(t, metrics, "attempts_total{default,429} 1")
		})
	}
}

// A request to a host with an open breaker.
//
//retrip:promise P3
func TestExchange_BreakerFailsFast(t *testing.T) {
	for name, body := range map[string]*play.SendBody{"no body": nil, "body": play.NewSend("x")} {
		play.Bubble(t, name, func(t *testing.T) {
			var n notes
			base := play.Base(play.Reply(503), play.Reply(200))
			tr := &retrip.Transport{Base: base, Metrics: &retrip.Metrics{}, Policy: retrip.Policy{
				Breaker: retrip.Breaker{Ratio: 1, MinVolume: 1, OpenFor: 10 * time.Second},
			}}
			resp, err := tr.RoundTrip(play.Request(t, "POST", nil))
			require.NoError(t, err)
			play.Finish(t, resp)
			require.Equal(t, retrip.BreakerOpen, play.Must(tr.HostState("example.com:80")).Breaker)

			req := play.Request(t, "GET", nil)
			if body != nil {
				req = play.Request(t, "PUT", body)
			}
			start := time.Now()
			resp, err = tr.RoundTrip(req.WithContext(retrip.WithTrace(req.Context(), n.trace())))
			assert.Nil(t, resp)
			assert.Zero(t, time.Since(start))
			assert.Equal(t, &retrip.Error{Reason: retrip.ReasonBreakerOpen}, err)
			assert.Equal(t, 1, base.Attempts())
			if body != nil {
				assert.EqualValues(t, 1, body.Closed.Load())
			}
			assert.Equal(t, []string{
				"giveup #0 0 breaker_open wait=0s server=false at=0s default",
				"done #0 0 breaker_open wait=0s server=false at=0s default",
			}, n.lines)
			metrics := counted(t, tr.Metrics)
			assert.Contains(t, metrics, "give_ups_total{default,breaker_open} 1")
			assert.Contains(t, metrics, "give_ups_total{default,not_idempotent} 1")
			assert.Contains(t, metrics, "requests_total{default,gave_up} 2")
			assert.Contains(t, metrics, "attempts_total{default,5xx} 1")

			time.Sleep(15 * time.Second)
			resp, err = tr.RoundTrip(play.Request(t, "GET", nil))
			require.NoError(t, err, "the probe")
			play.Finish(t, resp)
			time.Sleep(time.Minute)
			assert.Empty(t, play.Held(tr))
		})
	}
}

// If the breaker opens during the wait before a retry, the request ends with
// the outcome before that wait.
//
//retrip:promise P17
func TestExchange_BreakerOpensInTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n notes
		base := play.Base(play.Reply(503, "X: first"), play.Reply(503, "X: second"))
		tr := &retrip.Transport{Base: base, Metrics: &retrip.Metrics{}, Policy: play.With(func(p *retrip.Policy) {
			p.Budget = 5
			p.Breaker = retrip.Breaker{Ratio: 1, MinVolume: 2, OpenFor: time.Minute}
		})}
		time.AfterFunc(500*time.Millisecond, func() {
			drop(t, tr, play.Request(t, "POST", nil))
		})
		body := play.NewSend("x")
		req := play.Request(t, "PUT", body)
		start := time.Now()
		resp, err := tr.RoundTrip(req.WithContext(retrip.WithTrace(req.Context(), n.trace())))
		assert.Nil(t, resp)
		assert.Equal(t, time.Second, time.Since(start))
		e := play.AsError(t, err)
		assert.Equal(t, retrip.ReasonBreakerOpen, e.Reason)
		assert.Equal(t, 1, e.Attempts)
		assert.Equal(t, 503, e.StatusCode)
		assert.Equal(t, "first", e.Header.Get("X"))
		assert.NoError(t, e.Unwrap())
		assert.Equal(t, 2, base.Attempts())
		assert.Equal(t, 2, base.ClosedBodies())
		assert.EqualValues(t, 1, body.Closed.Load())
		state := play.Must(tr.HostState("example.com:80"))
		assert.Equal(t, retrip.BreakerOpen, state.Breaker)
		assert.Equal(t, 5.0, state.Tokens, "the token for the retry is back")
		assert.Equal(t, []string{
			"attempt #1 0 wait=0s server=false at=0s default",
			"retry #1 503 server_error wait=1s server=false at=0s default",
			"giveup #1 503 breaker_open wait=0s server=false at=1s default",
			"done #1 503 breaker_open wait=0s server=false at=1s default",
		}, n.lines)
		metrics := counted(t, tr.Metrics)
		assert.NotContains(t, metrics, "retries_total{default,server_error} 1", "it wasn't sent")
		assert.Contains(t, metrics, "attempts_total{default,5xx} 2")
		assert.Contains(t, metrics, "give_ups_total{default,breaker_open} 1")
	})
}

// The caller goes while a retry waits at the gate after its own wait.
//
//retrip:promise P10
func TestExchange_CanceledAtTheGateBeforeARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Base(play.Reply(503, "X: y"), play.Reply(429, "Retry-After: 20"))
		tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) {
			p.Budget = 5
			p.Gate.Enabled = retrip.On
		})}
		time.AfterFunc(500*time.Millisecond, func() {
			drop(t, tr, play.Request(t, "POST", nil))
		})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		body := play.NewSend("x")
		start := time.Now()
		_, err := tr.RoundTrip(play.Request(t, "PUT", body).WithContext(ctx))
		assert.Equal(t, 10*time.Second, time.Since(start))
		assert.ErrorIs(t, err, context.Canceled)
		e := play.AsError(t, err)
		assert.Equal(t, retrip.ReasonCanceled, e.Reason)
		assert.Equal(t, 1, e.Attempts)
		assert.Equal(t, 503, e.StatusCode)
		assert.Equal(t, "y", e.Header.Get("X"))
		assert.EqualValues(t, 1, body.Closed.Load())
		assert.Equal(t, 5.0, play.Must(tr.HostState("example.com:80")).Tokens)
		assert.Equal(t, 2, base.Attempts())
	})
}

// A hook that panics about a refusal leaves nothing behind.
//
//retrip:promise P5
func TestExchange_HookPanicsOnFailingFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Base(play.Reply(503))
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Breaker: retrip.Breaker{Ratio: 1, MinVolume: 1, OpenFor: 10 * time.Second}}}
		resp, err := tr.RoundTrip(play.Request(t, "POST", nil))
		require.NoError(t, err)
		play.Finish(t, resp)
		body := play.NewSend("x")
		req := play.Request(t, "PUT", body)
		ctx := retrip.WithTrace(req.Context(), &retrip.Trace{GiveUp: func(retrip.Event) { panic("hook") }})
		assert.PanicsWithValue(t, "hook", func() { _, _ = tr.RoundTrip(req.WithContext(ctx)) })
		assert.EqualValues(t, 1, body.Closed.Load())
		_, err = tr.RoundTrip(play.Request(t, "GET", nil))
		assert.Equal(t, retrip.ReasonBreakerOpen, play.AsError(t, err).Reason)
	})
}

// A thousand hosts in trouble hold back no request to another host.
//
//retrip:promise P16
func TestExchange_HealthyHostAmongMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &retrip.Transport{Base: play.Base(play.Reply(429, "Retry-After: 8")), Policy: retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}}}
		get := func(host string) {
			play.Finish(t, do(t, tr, play.MustRequest(t, "POST", "http://"+host+"/", nil)))
		}
		for i := range 1000 {
			get(fmt.Sprintf("h%d.example.com", i))
		}
		start := time.Now()
		get("example.com")
		assert.Zero(t, time.Since(start))
	})
}
