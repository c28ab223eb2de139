// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"sync"
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

func TestHostState_Healthy(t *testing.T) {
	var h host.Record
	assert.Equal(t, decide.State{Tokens: 5, Size: 5, Breaker: breaker.Closed}, play.Rules(t, retrip.Policy{}).State(&h, 0))
	assert.Equal(t, decide.State{Breaker: breaker.Closed}, play.Rules(t, retrip.Policy{Budget: retrip.Off}).State(&h, 0))
}

func TestHostState_InTrouble(t *testing.T) {
	var h host.Record
	r := play.Rules(t, retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, Breaker: retrip.Breaker{Ratio: 1, MinVolume: 2, OpenFor: 10 * time.Second}})
	require.True(t, play.Fail(&h, r, 0).Retry)
	o := play.Repeatable(429)
	o.RetryAfter = 20 * time.Second
	r.Next(&h, &decide.Call{Attempts: 1}, o, 0, play.Lowest)
	r.First(&h, &decide.Call{}, 0, play.Lowest)

	s := r.State(&h, 0)
	assert.Equal(t, 4.5, s.Tokens)
	assert.Equal(t, 20*time.Second, s.PausedFor)
	assert.Equal(t, breaker.Open, s.Breaker)
	assert.GreaterOrEqual(t, s.OpenFor, 5*time.Second)
	assert.LessOrEqual(t, s.OpenFor, 15*time.Second)
	assert.Equal(t, 1, s.Waiting)

	later := r.State(&h, 5*time.Second)
	assert.Equal(t, 15*time.Second, later.PausedFor)
	assert.Equal(t, s.OpenFor-5*time.Second, later.OpenFor)
	assert.Zero(t, r.State(&h, time.Minute).PausedFor)
	assert.Zero(t, r.State(&h, time.Minute).OpenFor, "it may be probed")
}

// Everything at once, from many goroutines, for the race detector. No token is
// lost.
//
//retrip:promise P13
func TestStep_Concurrently(t *testing.T) {
	var h host.Record
	r := play.Rules(t, retrip.Policy{
		MaxAttempts: 3,
		MaxWait:     time.Microsecond,
		Budget:      1000,
		Gate:        retrip.Gate{Enabled: retrip.On},
		Breaker:     retrip.Breaker{Ratio: 0.9, Window: time.Millisecond, MinVolume: 5, OpenFor: time.Millisecond},
	})
	start := time.Now()
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := range 500 {
				var call decide.Call
				draw := uint64(g*1000+i) * 0x9e3779b97f4a7c15
				d := r.First(&h, &call, time.Since(start), draw)
				for again := d.Retry; again; {
					call.Attempts++
					o := play.Repeatable([]int{200, 503, 429, 0, 404}[(g+i+call.Attempts)%5])
					o.RetryAfter = time.Duration(i%2) * time.Microsecond
					if again = r.Next(&h, &call, o, time.Since(start), draw).Retry; again {
						again = r.Wake(&h, &call, time.Since(start), draw).Retry
					}
				}
				r.Return(&h, &call)
				s := r.State(&h, time.Since(start))
				assert.LessOrEqual(t, s.Tokens, 1000.0)
				assert.GreaterOrEqual(t, s.Tokens, 0.0)
			}
		})
	}
	wg.Wait()
	// An hour later it is a host like any other.
	const later = time.Hour
	for range 5000 {
		var call decide.Call
		r.First(&h, &call, later, 0)
		call.Attempts = 1
		r.Next(&h, &call, play.Repeatable(200), later, 0)
	}
	s := r.State(&h, later)
	assert.Equal(t, 1000.0, s.Tokens)
	assert.Equal(t, breaker.Closed, s.Breaker)
	assert.Zero(t, s.PausedFor)
	assert.Zero(t, s.Waiting)
}
