// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package gate_test

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
)

func gated(t testing.TB) play.Judge {
	return play.Rules(t, retrip.Policy{MaxAttempts: 10, Gate: retrip.Gate{Enabled: retrip.On}})
}

// throttle gets one request at h refused with a 429 that asks for word, or for
// nothing if word is 0.
func throttle(h *host.Record, r play.Judge, word, now time.Duration) play.Decision {
	return refuse(h, r, &decide.Call{Attempts: 1}, word, now)
}

// refuse ends the attempt of c with a refusal.
func refuse(h *host.Record, r play.Judge, c *decide.Call, word, now time.Duration) play.Decision {
	o := play.Repeatable(http.StatusTooManyRequests)
	o.RetryAfter = word
	c.Attempts = max(c.Attempts, 1)
	return r.Next(h, c, o, now, play.Lowest)
}

// accept ends the attempt of c with a 200.
func accept(h *host.Record, r play.Judge, c *decide.Call, now time.Duration) play.Decision {
	c.Attempts = max(c.Attempts, 1)
	return r.Next(h, c, play.Repeatable(http.StatusOK), now, play.Lowest)
}

// alone asks for an attempt of c, which is alone at its gate, until the gate
// allows it, and returns the instant.
func alone(t testing.TB, h *host.Record, r play.Judge, c *decide.Call, now time.Duration) time.Duration {
	t.Helper()
	ask := r.First
	if c.Attempts > 0 {
		ask = r.Wake
	}
	for {
		d := ask(h, c, now, play.Lowest)
		require.True(t, d.Retry, "%s", d.Reason)
		require.Less(t, d.Wait, time.Hour, "it waits for another")
		if d.Wait == 0 {
			return now
		}
		now += d.Wait
	}
}

// line queues n calls at h, whose Waiters are their indices.
func line(t testing.TB, h *host.Record, r play.Judge, n int, now time.Duration) []*decide.Call {
	t.Helper()
	calls := make([]*decide.Call, n)
	for i := range calls {
		calls[i] = &decide.Call{Waiter: i}
		d := r.First(h, calls[i], now, play.Lowest)
		require.True(t, d.Retry && d.Wait > 0 && d.AtGate, "%+v", d)
	}
	return calls
}

// woken returns the Waiters of all calls that h wants to wake.
func woken(h *host.Record) (all []any) {
	for who := h.Woken(); who != nil; who = h.Woken() {
		all = append(all, who)
	}
	return all
}

const untilWoken = time.Duration(math.MaxInt64)

// Processes that got the same Retry-After don't start at the same instant.
func TestGate_SpreadsProcesses(t *testing.T) {
	r := gated(t)
	first := map[time.Duration]bool{}
	for draw := range uint64(100) {
		var h host.Record
		o := play.Repeatable(429)
		o.RetryAfter = 8 * time.Second
		r.Next(&h, &decide.Call{Attempts: 1}, o, 0, draw)
		first[alone(t, &h, r, &decide.Call{}, 0)] = true
	}
	assert.Greater(t, len(first), 90)
}

// A request that is refused keeps its place before all later ones.
//
//retrip:promise P23
func TestGate_KeepsPlaces(t *testing.T) {
	var h host.Record
	r := gated(t)
	throttle(&h, r, time.Second, 0)
	calls := line(t, &h, r, 4, 0)
	now := 2 * time.Second
	require.Zero(t, r.First(&h, calls[0], now, 0).Wait)
	accept(&h, r, calls[0], now)
	now = alone(t, &h, r, calls[1], now)
	now = alone(t, &h, r, calls[2], now)
	newcomer := &decide.Call{Waiter: "newcomer"}
	r.First(&h, newcomer, now, play.Lowest)
	// They come back in another order.
	require.True(t, refuse(&h, r, calls[2], time.Second, now).Retry)
	require.True(t, refuse(&h, r, calls[1], time.Second, now).Retry)
	r.Wake(&h, calls[2], now, play.Lowest)
	r.Wake(&h, calls[1], now, play.Lowest)
	var order []time.Duration
	for _, c := range []*decide.Call{calls[1], calls[2], calls[3], newcomer} {
		now = alone(t, &h, r, c, now)
		order = append(order, now)
		accept(&h, r, c, now)
	}
	assert.IsNonDecreasing(t, order)
	assert.Zero(t, r.State(&h, now).Waiting)
}

// Unused time doesn't add up to a burst.
func TestGate_SavesNothing(t *testing.T) {
	var h host.Record
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	var probe decide.Call
	now := alone(t, &h, r, &probe, 0)
	accept(&h, r, &probe, now)
	now += 60 * time.Second
	a := alone(t, &h, r, &decide.Call{}, now)
	b := alone(t, &h, r, &decide.Call{}, a)
	c := alone(t, &h, r, &decide.Call{}, b)
	assert.Equal(t, now, a)
	assert.Equal(t, 500*time.Millisecond, b-a, "the probe has doubled the rate")
	assert.Equal(t, 500*time.Millisecond, c-b)
}

// A gate without waiting requests is forgotten after the plateau, or after a
// minute. Until then its pace is worth keeping.
func TestGate_Idle(t *testing.T) {
	r := gated(t)
	for word, over := range map[time.Duration]time.Duration{
		time.Second:     time.Second + time.Minute,
		8 * time.Second: 8*time.Second + 16*5*time.Second,
	} {
		var h host.Record
		throttle(&h, r, word, 0)
		assert.False(t, h.Healed(over), "%v", word)
		assert.True(t, h.Healed(over+1), "%v", word)
		for range 100 {
			assert.Zero(t, r.First(&h, &decide.Call{}, over+1, 0).Wait)
		}

		h = host.Record{}
		throttle(&h, r, word, 0)
		waits := line(t, &h, r, 1, 0)
		assert.False(t, h.Healed(over+time.Hour), "somebody waits")
		r.Return(&h, waits[0])
		assert.True(t, h.Healed(over+time.Hour))
	}
}

// A request that was sent before its gate was forgotten is new when it comes
// back.
//
//retrip:promise P23
func TestGate_ForgottenMeanwhile(t *testing.T) {
	var h host.Record
	r := gated(t)
	throttle(&h, r, time.Second, 0)
	old := line(t, &h, r, 1, 0)[0]
	now := alone(t, &h, r, old, 0)
	now += time.Hour
	r.First(&h, &decide.Call{}, now, 0)
	throttle(&h, r, 8*time.Second, now)
	calls := line(t, &h, r, 3, now)
	require.True(t, refuse(&h, r, old, time.Second, now).Retry)
	r.Wake(&h, old, now, play.Lowest)
	assert.Equal(t, 4, r.State(&h, now).Waiting, "no other request has its number")
	at := alone(t, &h, r, old, now)
	assert.GreaterOrEqual(t, at, now+8*time.Second)
	assert.LessOrEqual(t, at, now+9*time.Second)
	accept(&h, r, old, at)
	for _, c := range calls {
		at = alone(t, &h, r, c, at)
	}
}

// An attempt that the breaker refuses was none, so the probe is due again.
func TestGate_AndBreaker(t *testing.T) {
	var h host.Record
	r := play.Rules(t, retrip.Policy{MaxAttempts: 10, Gate: retrip.Gate{Enabled: retrip.On}, Budget: retrip.Off, Breaker: retrip.Breaker{Ratio: .5, MinVolume: 2, OpenFor: time.Minute}})
	throttle(&h, r, time.Second, 0)
	calls := line(t, &h, r, 2, 0)
	for range 5 {
		r.Next(&h, &decide.Call{Attempts: 1}, play.Repeatable(500), 0, 0)
	}
	woken(&h)
	require.Equal(t, breaker.Open, r.State(&h, 0).Breaker)
	d := r.First(&h, calls[0], 2*time.Second, 0)
	open := r.State(&h, 2*time.Second).OpenFor
	assert.Equal(t, play.Decision{Reason: decide.BreakerOpen, Wakes: true, Wait: open}, withoutChange(d))
	assert.Equal(t, []any{1}, unique(woken(&h)))
	d = r.First(&h, calls[1], 3*time.Second, 0)
	assert.Equal(t, decide.BreakerOpen, d.Reason, "it needn't wait for a probe that was never sent")
	assert.Zero(t, r.State(&h, 0).Waiting)
}

func unique(all []any) (each []any) {
	seen := map[any]bool{}
	for _, x := range all {
		if !seen[x] {
			seen[x] = true
			each = append(each, x)
		}
	}
	return each
}

// 200 concurrent workers and a server that allows 10 requests per second.
func TestGate_Workers(t *testing.T) {
	run := func(gate bool) (succeeded, throttled, atOnce int, took time.Duration) {
		var h host.Record
		r := play.Rules(t, retrip.Policy{Gate: retrip.Gate{Enabled: play.Toggle(gate)}})
		w := play.NewWorld(3)
		second, allowed := time.Duration(-1), 0
		serve := func() decide.Outcome {
			if s := w.Now / time.Second; s != second {
				second, allowed = s, 10
			}
			o := play.Repeatable(http.StatusOK)
			o.Took = 10 * time.Millisecond
			if allowed--; allowed < 0 {
				o.Status, o.RetryAfter = http.StatusTooManyRequests, time.Second
				throttled++
				if w.Now < 10*time.Millisecond {
					atOnce++
				}
			}
			return o
		}
		for range 200 {
			w.Request(&h, r, serve, func(o decide.Outcome, _ decide.Reason) {
				if o.Status == http.StatusOK {
					succeeded++
				}
				took = w.Now
			})
		}
		w.Run(math.MaxInt64)
		return succeeded, throttled, atOnce, took
	}
	succeeded, throttled, atOnce, took := run(true)
	t.Logf("with the gate: %d succeed in %v, %d refusals at once and %d later", succeeded, took, atOnce, throttled-atOnce)
	assert.Equal(t, 200, succeeded)
	assert.Equal(t, 190, atOnce)
	assert.LessOrEqual(t, throttled-atOnce, 45)
	assert.Less(t, took, 30*time.Second, "the gate finds the rate")

	without, more, _, _ := run(false)
	t.Logf("without: %d succeed, %d refusals later", without, more-atOnce)
	assert.Less(t, without, 200)
}
