// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/chance"
	"github.com/retrip/retrip/internal/play"
)

// These tests cover the time before a first attempt at a closed gate or an open
// breaker, and the end of a wait.

// A request that is refused before its first attempt sends nothing, and its error, hooks and
// metrics have the reason.
//
//retrip:promise P3 P10
func TestExchange_Refused(t *testing.T) {
	breaker := retrip.Policy{Breaker: retrip.Breaker{Ratio: 1, MinVolume: 1, OpenFor: 10 * time.Second}}
	gate := retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}}
	for name, tt := range map[string]struct {
		policy, own retrip.Policy // of all, and of the request
		limit       time.Duration // of its context
		reason      retrip.Reason
	}{
		"breaker":               {breaker, retrip.Policy{}, time.Hour, retrip.ReasonBreakerOpen},
		"gate, Policy.Deadline": {gate, retrip.Policy{Deadline: 5 * time.Second}, time.Hour, retrip.ReasonHostPaused},
		"gate, context":         {gate, retrip.Policy{}, 5 * time.Second, retrip.ReasonHostPaused},
	} {
		play.Bubble(t, name, func(t *testing.T) {
			var n notes
			base := play.Base(play.Reply(503, "Retry-After: 8"), play.Reply(200))
			tr := &retrip.Transport{Base: base, Metrics: &retrip.Metrics{}, Policy: tt.policy}
			drop(t, tr, play.Request(t, "POST", nil))
			body := play.NewSend("x")
			req := play.Request(t, "PUT", body)
			ctx, cancel := context.WithTimeout(req.Context(), tt.limit)
			defer cancel()
			start := time.Now()
			resp, err := tr.RoundTrip(req.WithContext(retrip.WithTrace(retrip.WithPolicy(ctx, tt.own), n.trace())))
			assert.Nil(t, resp)
			assert.Zero(t, time.Since(start))
			left := play.Must(tr.HostState("example.com:80"))
			back := left.PausedFor
			if tt.reason == retrip.ReasonBreakerOpen {
				back = left.OpenFor
			}
			require.Positive(t, back)
			assert.Equal(t, &retrip.Error{Reason: tt.reason, RetryAfter: back}, err)
			assert.Equal(t, 1, base.Attempts())
			assert.EqualValues(t, 1, body.Closed.Load())
			assert.Zero(t, left.Waiting, "it takes no place")
			told := fmt.Sprintf(" #0 0 %s wait=%v server=%v at=0s default", tt.reason, back, tt.reason == retrip.ReasonHostPaused)
			assert.Equal(t, []string{"giveup" + told, "done" + told}, n.lines)
			assert.Subset(t, counted(t, tr.Metrics), []string{"give_ups_total{default," + string(tt.reason) + "} 1", "give_ups_total{default,not_idempotent} 1",
				"requests_total{default,gave_up} 2", "attempts_total{default,5xx} 1"})

			time.Sleep(15 * time.Second)
			drop(t, tr, play.Request(t, "GET", nil))
			time.Sleep(5 * time.Minute)
			assert.Empty(t, play.Held(tr))
		})
	}
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

// A gate that closes just before a request asks wakes the request like all others.
//
//retrip:promise P10
func TestExchange_GateClosesAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Base(play.Reply(503), play.Reply(503), play.Reply(429, "Retry-After: 1"), play.Reply(200))
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{MaxAttempts: 2, Gate: retrip.Gate{Enabled: retrip.On}}}
		drop(t, tr, play.Request(t, "GET", nil))
		require.NotEmpty(t, play.Held(tr), "a failed retry costs tokens")
		first := make(chan struct{})
		draw := func() uint64 { return 1 << 63 }
		chance.Source = func() uint64 {
			chance.Source = draw
			drop(t, tr, play.Request(t, "POST", nil))
			go func() {
				defer close(first)
				drop(t, tr, play.Request(t, "GET", nil))
			}()
			synctest.Wait()
			return draw()
		}
		defer func() { chance.Source = nil }()
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		play.Finish(t, do(t, tr, play.Request(t, "GET", nil).WithContext(ctx)))
		assert.Less(t, time.Since(start), 3*time.Second, "once the probe was accepted")
		<-first
	})
}
