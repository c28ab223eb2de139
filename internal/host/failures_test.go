// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/testenv"
)

// Counts, instants and reasons are those of a list of all requests, in which requests
// that end at once may be out of order. Only the length of the window is coarse.
func TestFailures_Model(t *testing.T) {
	type request struct {
		at       time.Duration
		canceled bool
	}
	seeds := uint64(60)
	if testenv.Race {
		seeds = 5 // it has one goroutine
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		var f Failures
		key := hostkey.Key{Host: "example.com", Port: "80"}
		var all []request
		var since, last time.Duration
		var how Failure
		var gaveUp uint32
		failed := false
		// From bursts to gaps of hours.
		scale := time.Duration(1+r.IntN(1000)) * time.Millisecond << r.IntN(10)
		now := time.Duration(r.Int64N(int64(time.Hour))) * time.Duration(r.IntN(2))
		for i := range 300 {
			now += time.Duration(r.Int64N(int64(scale)))
			at := now
			if i > 0 && r.IntN(4) == 0 {
				at = max(all[0].at, now-time.Duration(r.Int64N(int64(time.Second))))
			}
			if r.IntN(3) == 0 {
				all = append(all, request{at, true})
				f.Cancel(key, at)
			} else {
				all = append(all, request{at, false})
				if !failed || at-last > FailureWindow {
					since, how, gaveUp = at, Failure{}, 0
				}
				failed, last = true, max(last, at)
				h, g := Failure{Reason: uint8(r.IntN(3))}, uint32(r.IntN(3))
				if h != (Failure{}) {
					how = h
				}
				if g != 0 {
					gaveUp = g
				}
				f.Fail(key, h, g, at)
			}
			look := now + time.Duration(r.Int64N(int64(scale)))*time.Duration(r.IntN(2))
			known, ok := f.Look(key, look)
			var least, most [2]int
			for _, q := range all {
				n := 0
				if q.canceled {
					n = 1
				}
				if look-q.at <= FailureWindow {
					least[n]++
				}
				if look-q.at <= FailureWindow+slot+time.Second {
					most[n]++
				}
			}
			fails := failed && look-last <= FailureWindow
			if !fails {
				require.Zero(t, known.Failed)
				require.Zero(t, known.Since)
				require.Zero(t, known.GaveUp)
			} else {
				require.GreaterOrEqual(t, known.Failed, least[0], "seed %d", seed)
				require.LessOrEqual(t, known.Failed, most[0], "seed %d", seed)
				require.Positive(t, known.Failed)
				require.Equal(t, []any{since, how, gaveUp}, []any{known.Since, known.How, known.GaveUp}, "seed %d", seed)
			}
			require.LessOrEqual(t, known.Canceled, most[1], "seed %d", seed)
			if ok || least[1] > 0 {
				require.GreaterOrEqual(t, known.Canceled, least[1], "seed %d", seed)
			}
			require.Equal(t, fails || least[1] > 0, ok && (fails || look-all[len(all)-1].at <= FailureWindow || least[1] > 0), "seed %d", seed)
		}
		_, ok := f.Look(key, now+FailureWindow+1)
		require.False(t, ok)
		require.Empty(t, f.All(now+FailureWindow+1))
	}
}

// A program that calls any number of names that fail fills the places, and no more. The
// names that failed last are there. A name at which callers only cancel goes first.
//
//retrip:promise P15
func TestFailures_Bounded(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f := &Failures{}
	name := func(i int) hostkey.Key { return hostkey.Key{Host: fmt.Sprintf("%d.example", i), Port: "443"} }
	const names = 50_000
	for i := range names {
		now := time.Duration(i) * time.Millisecond
		f.Fail(name(i), Failure{Reason: 1, Status: 503}, 1, now)
		f.Cancel(hostkey.Key{Host: fmt.Sprintf("%d.canceled", i), Port: "443"}, now)
		_, ok := f.Look(name(i), now)
		require.True(t, ok, "the last one is there")
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	all := f.All(names * time.Millisecond)
	assert.LessOrEqual(t, len(all), stripes*perStripe)
	canceled := 0
	for _, known := range all {
		if known.Failed == 0 {
			canceled++
		}
	}
	assert.LessOrEqual(t, canceled, stripes, "one for each part of the table")
	assert.GreaterOrEqual(t, len(all), stripes*(perStripe-1))
	if !testenv.Race {
		assert.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(4096*450), "bytes")
	}

	// Those that are over make room at once.
	late := names*time.Millisecond + FailureWindow + time.Second
	for i := range 10 {
		f.Fail(name(i), Failure{}, 0, late)
	}
	assert.Len(t, f.All(late), 10)
}

func TestFailures_Concurrently(t *testing.T) {
	f := &Failures{}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 2000 {
				key, now := hostkey.Key{Host: fmt.Sprint(i % 300), Port: "80"}, time.Duration(i)*time.Millisecond
				f.Fail(key, Failure{1, uint8(g), 503}, 1, now)
				f.Cancel(key, now)
				f.Look(key, now)
				if i%200 == 0 {
					f.All(now)
				}
			}
		})
	}
	wg.Wait()
	failed, canceled := 0, 0
	for _, known := range f.All(2 * time.Second) {
		failed += known.Failed
		canceled += known.Canceled
	}
	assert.Equal(t, []int{8000, 8000}, []int{failed, canceled})
}
