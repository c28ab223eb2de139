// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

func TestHostState_Healthy(t *testing.T) {
	var h retrip.Host
	assert.Equal(t, retrip.HostState{Tokens: 5, Size: 5, Breaker: "closed"}, h.State(rulesOf(t, retrip.Policy{}), 0))
	assert.Equal(t, retrip.HostState{Breaker: "closed"}, h.State(rulesOf(t, retrip.Policy{Budget: retrip.Unlimited}), 0))
}

func TestHostState_InTrouble(t *testing.T) {
	var h retrip.Host
	r := rulesOf(t, retrip.Policy{Gate: retrip.On, Breaker: retrip.Breaker{Ratio: 1, MinVolume: 2, OpenFor: 10 * time.Second}})
	require.True(t, fail(&h, r, 0).Retry)
	o := repeatable(429)
	o.RetryAfter = 20 * time.Second
	h.Next(r, &retrip.Call{Attempts: 1}, o, 0, drawLowest)
	h.First(r, &retrip.Call{}, 0, drawLowest)

	s := h.State(r, 0)
	assert.Equal(t, 4.5, s.Tokens)
	assert.Equal(t, 20*time.Second, s.PausedFor)
	assert.Equal(t, "open", s.Breaker)
	assert.GreaterOrEqual(t, s.OpenFor, 5*time.Second)
	assert.LessOrEqual(t, s.OpenFor, 15*time.Second)
	assert.Equal(t, 1, s.Waiting)

	later := h.State(r, 5*time.Second)
	assert.Equal(t, 15*time.Second, later.PausedFor)
	assert.Equal(t, s.OpenFor-5*time.Second, later.OpenFor)
	assert.Zero(t, h.State(r, time.Minute).PausedFor)
	assert.Zero(t, h.State(r, time.Minute).OpenFor, "it may be probed")
}

// Everything at once, from many goroutines, for the race detector. No token is
// lost.
func TestHost_Concurrently(t *testing.T) {
	var h retrip.Host
	r := rulesOf(t, retrip.Policy{
		MaxAttempts: 3,
		MaxWait:     time.Microsecond,
		Budget:      retrip.Budget{Size: 1000},
		Gate:        retrip.On,
		Breaker:     retrip.Breaker{Ratio: 0.9, Window: time.Millisecond, MinVolume: 5, OpenFor: time.Millisecond},
	})
	start := time.Now()
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := range 500 {
				var call retrip.Call
				draw := uint64(g*1000+i) * 0x9e3779b97f4a7c15
				d := h.First(r, &call, time.Since(start), draw)
				for again := d.Retry; again; {
					call.Attempts++
					o := repeatable([]int{200, 503, 429, 0, 404}[(g+i+call.Attempts)%5])
					o.RetryAfter = time.Duration(i%2) * time.Microsecond
					if again = h.Next(r, &call, o, time.Since(start), draw).Retry; again {
						again = h.Wake(r, &call, time.Since(start), draw).Retry
					}
				}
				h.Return(r, &call)
				s := h.State(r, time.Since(start))
				assert.LessOrEqual(t, s.Tokens, 1000.0)
				assert.GreaterOrEqual(t, s.Tokens, 0.0)
			}
		})
	}
	wg.Wait()
	// An hour later it is a host like any other.
	const later = time.Hour
	for range 5000 {
		var call retrip.Call
		h.First(r, &call, later, 0)
		call.Attempts = 1
		h.Next(r, &call, repeatable(200), later, 0)
	}
	s := h.State(r, later)
	assert.Equal(t, 1000.0, s.Tokens)
	assert.Equal(t, "closed", s.Breaker)
	assert.Zero(t, s.PausedFor)
	assert.Zero(t, s.Waiting)
}
