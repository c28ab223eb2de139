// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package turns

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/span"
)

const ms = time.Millisecond

// The wait doubles while the host fails and halves while it answers; after timeouts
// and slow answers it hardly shrinks, and it may exceed Cap.
func TestPace(t *testing.T) {
	r := Rule{Cap: 10 * time.Second, Slow: 300 * ms}
	type step struct {
		result Result
		took   time.Duration
		wait   time.Duration
	}
	for name, steps := range map[string][]step{
		"fails":           {{Failed, 0, 5 * time.Second}, {Failed, 0, 10 * time.Second}, {Failed, 0, 10 * time.Second}},
		"answers":         {{Continued, 0, 1250 * ms}, {Continued, 300 * ms, 625 * ms}, {Continued, 0, 312500 * time.Microsecond}, {Failed, 0, 5 * time.Second}},
		"is slow":         {{Continued, 301 * ms, 3125 * ms}, {Continued, 300 * ms, 3125 * ms}, {Continued, 150 * ms, 2343750 * time.Microsecond}, {Continued, 0, 1171875 * time.Microsecond}},
		"times out":       {{TimedOut, 0, 5 * time.Second}, {TimedOut, 0, 10 * time.Second}, {TimedOut, 0, 20 * time.Second}, {TimedOut, 0, 40 * time.Second}, {TimedOut, 0, 60 * time.Second}, {TimedOut, 0, 60 * time.Second}, {Failed, 0, 60 * time.Second}, {Continued, 0, 52941 * ms}, {Continued, 150 * ms, 49466 * ms}},
		"breaks at once":  {{Continued, 0, 1250 * ms}, {Empty, 0, 10 * time.Second}, {Continued, 0, 5 * time.Second}, {Empty, 0, 10 * time.Second}},
		"empty, at first": {{Empty, 0, 10 * time.Second}},
	} {
		var p Pace
		assert.Equal(t, 2500*ms, p.Wait(r), name)
		for i, s := range steps {
			p.Record(r, s.result, s.took)
			assert.InDelta(t, s.wait, p.Wait(r), float64(ms), "%s, step %d", name, i)
		}
	}
}

// Other requests come first, but the wait that this takes ends at Cap.
func TestPace_PutOff(t *testing.T) {
	r := Rule{Cap: 10 * time.Second}
	p := Pace{wait: 1}
	n := 0
	for p.PutOff(r) {
		n++
	}
	assert.Equal(t, 13, n)
	assert.GreaterOrEqual(t, p.Wait(r), r.Cap)
	p.Record(r, Continued, 0)
	assert.Greater(t, p.Wait(r), 7*time.Second, "the host counts as crowded")
}

// Whatever happens, a wait is positive, at most six times Cap, and at most Cap if no
// turn was slow or silent.
func TestPace_Bounds(t *testing.T) {
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 1))
		r := Rule{Cap: []time.Duration{1, CapLeast, 10 * time.Second, math.MaxInt64}[random.IntN(4)], Slow: time.Duration(random.Int64N(3))}
		var p Pace
		crowded := false
		for range 200 {
			result, took := Result(random.IntN(4)), time.Duration(random.Int64N(3))
			crowded = crowded || result == TimedOut || result == Continued && r.Slow > 0 && took > r.Slow
			p.Record(r, result, took)
			if random.IntN(8) == 0 {
				p.PutOff(r)
			}
			wait := p.Wait(r)
			require.GreaterOrEqual(t, wait, time.Duration(0))
			require.LessOrEqual(t, wait, span.Mul(r.Cap, crowdedMost))
			if !crowded {
				require.LessOrEqual(t, wait/6*5, r.Cap)
			}
		}
	}
}

// A body asks before its limit, if the host lets it, but not faster and faster.
func TestQueue_Wait(t *testing.T) {
	r := Rule{Cap: 8 * time.Second}
	q := new(Table).Join(hostkey.Key{Host: "a"})
	for _, c := range []struct {
		held, left, want time.Duration
	}{
		{left: time.Minute, want: 2 * time.Second},
		{left: 2 * time.Second, want: time.Second},
		{left: 2*time.Second - 2},
		{held: 5 * time.Second, left: time.Minute, want: 5 * time.Second},
		{held: 5 * time.Second, left: 5 * time.Second},
		{held: 5 * time.Second, left: 5*time.Second + 1, want: 5 * time.Second},
	} {
		q.pausedUntil = 0
		q.PauseUntil(time.Hour + c.held)
		wait, ok := q.Wait(r, time.Hour, time.Hour+c.left, math.MaxUint64)
		assert.Equal(t, c.want != 0, ok, c)
		if ok {
			assert.Equal(t, c.want, wait, c)
		}
	}
}

// One body at a time has the turn, and a host for which nobody waits is forgotten.
func TestTable(t *testing.T) {
	var table Table
	a, b := hostkey.Key{Host: "a"}, hostkey.Key{Host: "b"}
	q := table.Join(a)
	assert.Same(t, q, table.Join(a))
	assert.NotSame(t, q, table.Join(b))
	<-q.Turn()
	select {
	case <-q.Turn():
		t.Error("two turns at once")
	default:
	}
	q.Pass()
	<-q.Turn()
	q.Pass()
	table.Leave(a, q)
	assert.Len(t, table.queues, 2)
	table.Leave(a, q)
	assert.Len(t, table.queues, 1)
}
