// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

const ms = time.Millisecond

// serve makes n requests, all of which take what took says of the number in
// progress, while there are always enough of them.
func serve(r *Rule, n int, took func(running int) time.Duration) {
	var tags []uint32
	for range n {
		for len(tags) < r.Limit() {
			tags = append(tags, r.Begin(len(tags)+1))
		}
		tag := tags[0]
		tags = tags[1:]
		if tag != 0 {
			r.End(tag, took(len(tags)+1))
		}
	}
}

// busy returns the times of a server with workers that take service each.
func busy(workers int, service time.Duration) func(int) time.Duration {
	return func(running int) time.Duration {
		return service * time.Duration(max(running, workers)) / time.Duration(workers)
	}
}

// The limit finds servers of all sizes, and follows a change of one.
func TestRule_FindsTheKnee(t *testing.T) {
	for _, workers := range []int{3, 10, 100, 500} {
		r := New(25 * ms)
		for _, change := range []float64{1, 10, 1, 0.3, 1} {
			now := max(2, int(float64(workers)*change))
			serve(&r, 400*now+40_000, busy(now, 100*ms))
			assert.InDelta(t, 1.3, r.limit/float64(now), 0.5, "%d × %g", workers, change)
			serve(&r, 40_000, busy(now, 1000*ms))
			assert.InDelta(t, 1.3, r.limit/float64(now), 0.5, "%d × %g, slower", workers, change)
		}
	}
}

// As long as requests are quick, it doesn't matter that they wait.
func TestRule_Calm(t *testing.T) {
	r := New(25 * ms)
	serve(&r, 40_000, busy(2, ms))
	took := busy(2, ms)(int(r.limit))
	assert.Greater(t, took, 20*ms)
	assert.Less(t, took, 40*ms)
}

// Requests that aren't limited say nothing.
func TestRule_Idle(t *testing.T) {
	r := New(25 * ms)
	for range 1000 {
		assert.Zero(t, r.Begin(r.Limit()-1))
	}
	assert.Equal(t, start, r.Limit())
}

// A request that hangs, or says nothing, doesn't end the search.
func TestRule_Hangs(t *testing.T) {
	r := New(25 * ms)
	for range 10 {
		for r.Begin(r.Limit()) == 0 {
		}
	}
	serve(&r, 40_000, busy(100, 100*ms))
	assert.InDelta(t, 1.3, r.limit/100, 0.5)
	for range 10 {
		tag := r.Begin(r.Limit())
		for ; tag == 0; tag = r.Begin(r.Limit()) {
		}
		r.Drop(tag)
		r.Drop(tag + 1)
	}
	serve(&r, 40_000, busy(100, 100*ms))
	assert.InDelta(t, 1.3, r.limit/100, 0.5)
}

// The limit stays within its bounds whatever the times.
func TestRule_Bounds(t *testing.T) {
	for _, took := range []time.Duration{0, 1, time.Hour, 1 << 62} {
		r := New(0)
		serve(&r, 10_000, func(running int) time.Duration { return took * time.Duration(running%3) })
		assert.GreaterOrEqual(t, r.Limit(), 1)
		assert.LessOrEqual(t, r.Limit(), largest)
	}
}
