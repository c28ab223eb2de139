// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

func gated(t testing.TB) *retrip.Rules {
	return rulesOf(t, retrip.Policy{MaxAttempts: 10, Gate: retrip.On})
}

// throttle gets one request at h refused with a 429 that asks for word, or for
// nothing if word is 0.
func throttle(h *retrip.Host, r *retrip.Rules, word, now time.Duration) retrip.Decision {
	return refuse(h, r, &retrip.Call{Attempts: 1}, word, now)
}

// refuse ends the attempt of c with a refusal.
func refuse(h *retrip.Host, r *retrip.Rules, c *retrip.Call, word, now time.Duration) retrip.Decision {
	o := repeatable(http.StatusTooManyRequests)
	o.RetryAfter = word
	c.Attempts = max(c.Attempts, 1)
	return h.Next(r, c, o, now, drawLowest)
}

// accept ends the attempt of c with a 200.
func accept(h *retrip.Host, r *retrip.Rules, c *retrip.Call, now time.Duration) retrip.Decision {
	c.Attempts = max(c.Attempts, 1)
	return h.Next(r, c, repeatable(http.StatusOK), now, drawLowest)
}

// alone asks for an attempt of c, which is alone at its gate, until the gate
// allows it, and returns the instant.
func alone(t testing.TB, h *retrip.Host, r *retrip.Rules, c *retrip.Call, now time.Duration) time.Duration {
	t.Helper()
	ask := h.First
	if c.Attempts > 0 {
		ask = h.Wake
	}
	for {
		d := ask(r, c, now, drawLowest)
		require.True(t, d.Retry, "%s", d.Reason)
		require.Less(t, d.Wait, time.Hour, "it waits for another")
		if d.Wait == 0 {
			return now
		}
		now += d.Wait
	}
}

// line queues n calls at h, whose Waiters are their indices.
func line(t testing.TB, h *retrip.Host, r *retrip.Rules, n int, now time.Duration) []*retrip.Call {
	t.Helper()
	calls := make([]*retrip.Call, n)
	for i := range calls {
		calls[i] = &retrip.Call{Waiter: i}
		d := h.First(r, calls[i], now, drawLowest)
		require.True(t, d.Retry && d.Wait > 0 && d.AtGate, "%+v", d)
	}
	return calls
}

// woken returns the Waiters of all calls that h wants to wake.
func woken(h *retrip.Host) (all []any) {
	for who := h.Woken(); who != nil; who = h.Woken() {
		all = append(all, who)
	}
	return all
}

const untilWoken = time.Duration(math.MaxInt64)

func TestGate_Open(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	for range 1000 {
		assert.Equal(t, retrip.Decision{Retry: true}, h.First(r, &retrip.Call{}, 0, 0))
	}
	assert.Zero(t, h.State(r, 0).Waiting)
	assert.True(t, h.Healed(0))
	assert.Nil(t, h.Woken())
}

// Processes that got the same Retry-After don't start at the same instant.
func TestGate_SpreadsProcesses(t *testing.T) {
	r := gated(t)
	first := map[time.Duration]bool{}
	for draw := range uint64(100) {
		var h retrip.Host
		o := repeatable(429)
		o.RetryAfter = 8 * time.Second
		h.Next(r, &retrip.Call{Attempts: 1}, o, 0, draw)
		first[alone(t, &h, r, &retrip.Call{}, 0)] = true
	}
	assert.Greater(t, len(first), 90)
}

// A request that is refused keeps its place before all later ones.
func TestGate_KeepsPlaces(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, time.Second, 0)
	calls := line(t, &h, r, 4, 0)
	now := 2 * time.Second
	require.Zero(t, h.First(r, calls[0], now, 0).Wait)
	accept(&h, r, calls[0], now)
	now = alone(t, &h, r, calls[1], now)
	now = alone(t, &h, r, calls[2], now)
	newcomer := &retrip.Call{Waiter: "newcomer"}
	h.First(r, newcomer, now, drawLowest)
	// They come back in another order.
	require.True(t, refuse(&h, r, calls[2], time.Second, now).Retry)
	require.True(t, refuse(&h, r, calls[1], time.Second, now).Retry)
	h.Wake(r, calls[2], now, drawLowest)
	h.Wake(r, calls[1], now, drawLowest)
	var order []time.Duration
	for _, c := range []*retrip.Call{calls[1], calls[2], calls[3], newcomer} {
		now = alone(t, &h, r, c, now)
		order = append(order, now)
		accept(&h, r, c, now)
	}
	assert.IsNonDecreasing(t, order)
	assert.Zero(t, h.State(r, now).Waiting)
}

// When the head of the queue leaves, the next request is woken. An empty queue
// holds back nothing.
func TestGate_Leave(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	calls := line(t, &h, r, 5, 0)
	assert.False(t, h.Return(r, calls[3]), "it was not the next request")
	assert.False(t, h.Return(r, calls[3]), "it may be called twice")
	assert.Equal(t, 4, h.State(r, 0).Waiting)
	assert.True(t, h.Return(r, calls[0]))
	assert.Equal(t, []any{1}, woken(&h))
	assert.False(t, h.Return(r, calls[2]))
	assert.True(t, h.Return(r, calls[1]))
	assert.Equal(t, []any{4}, woken(&h))
	assert.False(t, h.Return(r, calls[4]))
	assert.Zero(t, h.State(r, 0).Waiting)
	assert.LessOrEqual(t, alone(t, &h, r, &retrip.Call{}, 0), 9*time.Second)
}

// Unused time doesn't add up to a burst.
func TestGate_SavesNothing(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, 8*time.Second, 0)
	var probe retrip.Call
	now := alone(t, &h, r, &probe, 0)
	accept(&h, r, &probe, now)
	now += 60 * time.Second
	a := alone(t, &h, r, &retrip.Call{}, now)
	b := alone(t, &h, r, &retrip.Call{}, a)
	c := alone(t, &h, r, &retrip.Call{}, b)
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
		8 * time.Second: 8*time.Second + 16*8*time.Second,
	} {
		var h retrip.Host
		throttle(&h, r, word, 0)
		assert.False(t, h.Healed(over), "%v", word)
		assert.True(t, h.Healed(over+1), "%v", word)
		for range 100 {
			assert.Zero(t, h.First(r, &retrip.Call{}, over+1, 0).Wait)
		}

		h = retrip.Host{}
		throttle(&h, r, word, 0)
		waits := line(t, &h, r, 1, 0)
		assert.False(t, h.Healed(over+time.Hour), "somebody waits")
		h.Return(r, waits[0])
		assert.True(t, h.Healed(over+time.Hour))
	}
}

// A request that was sent before its gate was forgotten is new when it comes
// back.
func TestGate_ForgottenMeanwhile(t *testing.T) {
	var h retrip.Host
	r := gated(t)
	throttle(&h, r, time.Second, 0)
	old := line(t, &h, r, 1, 0)[0]
	now := alone(t, &h, r, old, 0)
	now += time.Hour
	h.First(r, &retrip.Call{}, now, 0)
	throttle(&h, r, 8*time.Second, now)
	calls := line(t, &h, r, 3, now)
	require.True(t, refuse(&h, r, old, time.Second, now).Retry)
	h.Wake(r, old, now, drawLowest)
	assert.Equal(t, 4, h.State(r, now).Waiting, "no other request has its number")
	at := alone(t, &h, r, old, now)
	assert.GreaterOrEqual(t, at, now+8*time.Second)
	assert.LessOrEqual(t, at, now+9*time.Second)
	accept(&h, r, old, at)
	for _, c := range calls {
		at = alone(t, &h, r, c, at)
	}
}

// A 429 costs nothing at a gate, because the gate holds requests back already,
// with or without a Retry-After.
func TestGate_Prices(t *testing.T) {
	for _, tt := range []struct {
		name   string
		gate   bool
		status int
		word   time.Duration
		tokens float64
	}{
		{"429", true, 429, time.Second, 5},
		{"429 without a word", true, 429, 0, 5},
		{"503", true, 503, time.Second, 4.5},
		{"503 without a word", true, 503, 0, 4.5},
		{"429 without a gate", false, 429, time.Second, 4.5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var h retrip.Host
			r := rulesOf(t, retrip.Policy{Gate: toggle(tt.gate)})
			call := retrip.Call{Attempts: 1}
			o := repeatable(tt.status)
			o.RetryAfter = tt.word
			require.True(t, h.Next(r, &call, o, 0, 0).Retry)
			assert.Equal(t, tt.tokens, h.State(r, 0).Tokens)
			h.Return(r, &call)
			assert.Equal(t, 5.0, h.State(r, 0).Tokens)
		})
	}
}

// The success of a retry that cost nothing pays nothing. An empty budget
// doesn't hold back requests at a gate.
func TestGate_WithEmptyBudget(t *testing.T) {
	var h retrip.Host
	drain(t, &h, 0)
	r := gated(t)
	call := retrip.Call{Attempts: 1}
	require.True(t, refuse(&h, r, &call, time.Second, 0).Retry)
	now := alone(t, &h, r, &call, 0)
	call.Attempts++
	accept(&h, r, &call, now)
	assert.Zero(t, h.State(r, now).Tokens)
}

// An attempt that the breaker refuses was none, so the probe is due again.
func TestGate_AndBreaker(t *testing.T) {
	var h retrip.Host
	r := rulesOf(t, retrip.Policy{MaxAttempts: 10, Gate: retrip.On, Budget: retrip.Unlimited, Breaker: retrip.Breaker{Ratio: .5, MinVolume: 2, OpenFor: time.Minute}})
	throttle(&h, r, time.Second, 0)
	calls := line(t, &h, r, 2, 0)
	for range 5 {
		h.Next(r, &retrip.Call{Attempts: 1}, repeatable(500), 0, 0)
	}
	woken(&h)
	require.Equal(t, "open", h.State(r, 0).Breaker)
	d := h.First(r, calls[0], 2*time.Second, 0)
	assert.Equal(t, retrip.Decision{Reason: retrip.ReasonBreakerOpen, Wakes: true}, withoutChange(d))
	assert.Equal(t, []any{1}, unique(woken(&h)))
	d = h.First(r, calls[1], 3*time.Second, 0)
	assert.Equal(t, retrip.ReasonBreakerOpen, d.Reason, "it needn't wait for a probe that was never sent")
	assert.Zero(t, h.State(r, 0).Waiting)
}

// toggle returns a Switch that is on or off.
func toggle(on bool) retrip.Switch {
	if on {
		return retrip.On
	}
	return retrip.Off
}

// 200 concurrent workers and a server that allows 10 requests per second.
func TestGate_Workers(t *testing.T) {
	run := func(gate bool) (succeeded, throttled, atOnce int, took time.Duration) {
		var h retrip.Host
		r := rulesOf(t, retrip.Policy{Gate: toggle(gate)})
		w := newWorld(3)
		second, allowed := time.Duration(-1), 0
		serve := func() retrip.Outcome {
			if s := w.now / time.Second; s != second {
				second, allowed = s, 10
			}
			o := repeatable(http.StatusOK)
			o.Took = 10 * time.Millisecond
			if allowed--; allowed < 0 {
				o.Status, o.RetryAfter = http.StatusTooManyRequests, time.Second
				throttled++
				if w.now < 10*time.Millisecond {
					atOnce++
				}
			}
			return o
		}
		for range 200 {
			w.request(&h, r, serve, func(o retrip.Outcome, _ retrip.Reason) {
				if o.Status == http.StatusOK {
					succeeded++
				}
				took = w.now
			})
		}
		w.run(math.MaxInt64)
		return succeeded, throttled, atOnce, took
	}
	succeeded, throttled, atOnce, took := run(true)
	t.Logf("with the gate: %d succeed in %v, %d refusals at once and %d later", succeeded, took, atOnce, throttled-atOnce)
	assert.Equal(t, 200, succeeded)
	assert.Equal(t, 190, atOnce)
	assert.LessOrEqual(t, throttled-atOnce, 10)
	assert.Less(t, took, 30*time.Second, "the gate finds the rate")

	without, more, _, _ := run(false)
	t.Logf("without: %d succeed, %d refusals later", without, more-atOnce)
	assert.Less(t, without, 200)
}
