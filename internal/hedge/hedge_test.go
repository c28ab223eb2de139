// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package hedge

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

var rule = Rule{Share: 0.05}

// ready returns a host that has learned a delay of 20 ms from requests that came every
// 10 ms, and the instant of the next one. It has no hedge saved up.
func ready(t *testing.T) (h *Host, now time.Duration) {
	h = new(Host)
	for range Warmup {
		require.Zero(t, h.Begin(now, 0))
		h.RecordAnswer(rule, 20*ms, false)
		now += 10 * ms
	}
	h.saved = 0
	require.Equal(t, 20*ms, h.Delay())
	return h, now
}

func TestHost_Size(t *testing.T) {
	assert.LessOrEqual(t, unsafe.Sizeof(Host{}), uintptr(64))
}

// The first delay is the largest of the first times to an answer, timeouts included.
func TestHost_Warmup(t *testing.T) {
	for name, tt := range map[string]struct {
		took, want time.Duration
		timeout    bool
	}{
		"answer":       {took: 30 * ms, want: 30 * ms},
		"timeout":      {took: time.Second, want: time.Second, timeout: true},
		"too exact":    {took: 0, want: ms},
		"negative":     {took: -time.Second, want: ms},
		"immeasurable": {took: math.MaxInt64, want: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			h := new(Host)
			for i := range Warmup {
				assert.Zero(t, h.Begin(0, 0))
				assert.Zero(t, h.Delay())
				switch {
				case i != 7:
					h.RecordAnswer(rule, 0, false)
				case tt.timeout:
					h.RecordTimeout(rule, tt.took)
				default:
					h.RecordAnswer(rule, tt.took, false)
				}
			}
			assert.Equal(t, tt.want, h.Delay())
			assert.Equal(t, tt.want, h.Begin(0, 0))
		})
	}
}

// A hedge after the attempt has ended would be no hedge.
func TestHost_Limit(t *testing.T) {
	h, now := ready(t)
	assert.Equal(t, 20*ms, h.Begin(now, 0))
	assert.Equal(t, 20*ms, h.Begin(now, 20*ms+1))
	assert.Zero(t, h.Begin(now, 20*ms))
	assert.Zero(t, h.Begin(now, 1))
}

// Once 20 hedges have lost, the last one saved up is for two late requests without an answer between.
func TestHost_Silent(t *testing.T) {
	h, _ := ready(t)
	for range fewest {
		h.RecordHedge(false)
	}
	h.saved = 2 * whole
	late := func() Skip { skip, _ := h.Late(rule, 0, true); return skip }
	assert.Equal(t, None, late())
	h.RecordAnswer(rule, 0, true)
	assert.Equal(t, Spent, late())
	h.RecordAnswer(rule, 0, true)
	assert.Equal(t, Spent, late())
	h.RecordHedge(false)
	assert.Equal(t, None, late())
	h.saved = whole
	h.RecordHedge(true)
	assert.Equal(t, Spent, late())
	assert.Equal(t, None, late())
}

// The delay of steady latencies has the share of late requests that leaves slack below
// the hedges that are paid for. With hundreds of requests in flight, it stays near.
func TestHost_Quantile(t *testing.T) {
	for _, share := range []float64{0.02, 0.05, 0.1, 0.2, 1} {
		for _, flight := range []int{0, 20, 300} {
			r, h, n := Rule{share}, new(Host), int(4000/share)
			draw, late, events, most := rand.New(rand.NewPCG(1, 2)), 0, map[int][]func(){}, time.Duration(0)
			for i := range 2 * n {
				in := func(d time.Duration, f func()) {
					at := i + int(d)*flight/int(20*ms)
					events[at] = append(events[at], f)
				}
				took, judged := time.Duration(float64(20*ms)*math.Exp(0.4*draw.NormFloat64())), false
				delay := h.Begin(time.Duration(i)*ms, 0)
				most = max(most, delay)
				if delay > 0 && took > delay {
					in(delay, func() { _, judged = h.Late(r, delay, true) })
					if i >= n {
						late++
					}
				}
				in(took, func() { h.RecordAnswer(r, took, judged) })
				for _, f := range events[i] {
					f()
				}
				delete(events, i)
			}
			if flight == 0 {
				assert.InEpsilon(t, 0.4*share, float64(late)/float64(n), 0.08, share)
			}
			assert.Less(t, most, 400*ms, "%v, %d", share, flight)
		}
	}
}

// The delay stays within bounds however long latencies rise or fall, and so does the gap
// between requests, whatever the clock.
func TestHost_Bounds(t *testing.T) {
	h, _ := ready(t)
	for range 1000 {
		h.Late(rule, time.Hour, true)
	}
	assert.Equal(t, time.Hour, h.Delay())
	for range 10000 {
		h.RecordAnswer(rule, 0, false)
	}
	assert.Equal(t, ms, h.Delay())
	h.Begin(math.MinInt64, 0)
	h.Begin(math.MaxInt64, 0)
	assert.Less(t, h.gap, float64(time.Second))
}

func TestHost_AllocatesNothing(t *testing.T) {
	var table Table
	key := keyOf(1)
	table.Host(key, 0)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		h := table.Host(key, 0)
		h.Begin(0, 0)
		h.Late(rule, 0, true)
		h.RecordHedge(true)
		h.RecordAnswer(rule, 0, false)
		h.RecordTimeout(rule, 0)
		h.Delay()
	}))
}
