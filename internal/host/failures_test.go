// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"math/rand/v2"
	"net/url"
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
	const failed, canceled, answered = 0, 1, 2
	type request struct {
		at   time.Duration
		kind int
	}
	testenv.OneGoroutine(t)
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		var f Failures
		key := hostkey.Key{Host: "example.com", Port: "80"}
		var all []request
		var since, last, news, answer time.Duration
		var how Failure
		var gaveUp uint32
		fails, listed, run, earlier := false, -1, 0, 0 // listed is the first request of which f knows
		// From bursts to gaps of hours.
		scale := time.Duration(1+r.IntN(1000)) * time.Millisecond << r.IntN(10)
		now := time.Duration(r.Int64N(int64(time.Hour))) * time.Duration(r.IntN(2))
		for i := range 300 {
			now += time.Duration(r.Int64N(int64(scale)))
			at := now
			if i > 0 && r.IntN(4) == 0 {
				at = max(all[0].at, now-time.Duration(r.Int64N(int64(time.Second))))
			}
			kind := []int{failed, failed, canceled, answered, answered, answered}[r.IntN(6)]
			all = append(all, request{at, kind})
			over := listed < 0 || at-news > FailureWindow
			if kind != answered {
				if over {
					listed = i
				}
				news = max(news, at)
			}
			switch kind {
			case answered:
				f.Answer(key, func() time.Duration {
					require.GreaterOrEqual(t, listed, 0, "the clock is read only for a host that failed")
					return at
				})
				if over {
					fails, listed = false, -1
				} else {
					answer, run = max(answer, at), run+1
				}
			case canceled:
				f.Cancel(key, at)
			case failed:
				if !fails || at-last > FailureWindow {
					since, earlier, how, gaveUp = at, 0, Failure{}, 0
				} else if known, _ := f.Find(key, at); known.Recovered {
					since, earlier = at, earlier+1
				}
				fails, last, run = true, max(last, at), 0
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
			known, ok := f.Find(key, look)
			var least, most [3]int
			var leastMinute, mostMinute [2]int // failed, and all
			for i, q := range all {
				mine := q.kind != answered || listed >= 0 && i >= listed
				for of, is := range []bool{q.kind == failed && fails && look-last <= FailureWindow, true} {
					if is && mine && look-q.at <= time.Minute {
						leastMinute[of]++
					}
					if is && look-q.at <= time.Minute+slot+time.Second {
						mostMinute[of]++
					}
				}
				if look-q.at <= FailureWindow && (q.kind != answered || listed >= 0 && i >= listed) {
					least[q.kind]++
				}
				if look-q.at <= FailureWindow+slot+time.Second {
					most[q.kind]++
				}
			}
			fails := fails && look-last <= FailureWindow
			if !fails {
				require.Zero(t, known.Failed)
				require.Zero(t, known.Since)
				require.Zero(t, known.GaveUp)
			} else {
				require.GreaterOrEqual(t, known.Failed, least[0], "seed %d", seed)
				require.LessOrEqual(t, known.Failed, most[0], "seed %d", seed)
				require.Positive(t, known.Failed)
				require.Equal(t, []any{since, last, earlier, how, gaveUp}, []any{known.Since, known.Last, known.Earlier, known.How, known.GaveUp}, "seed %d", seed)
				require.Equal(t, run > 0 && known.Failed*run >= 3*(known.Failed+max(0, known.Answered-run)), known.Recovered, "seed %d", seed)
			}
			require.LessOrEqual(t, known.Answered, most[answered], "seed %d", seed)
			if ok {
				require.True(t, leastMinute[0] <= known.MinuteFailed && known.MinuteFailed <= mostMinute[0], "seed %d: %d", seed, known.MinuteFailed)
				require.True(t, leastMinute[1] <= known.MinuteAll && known.MinuteAll <= mostMinute[1], "seed %d: %d", seed, known.MinuteAll)
				require.GreaterOrEqual(t, known.Answered, least[answered], "seed %d", seed)
			}
			if known.Answered > 0 {
				require.Equal(t, answer, known.Answer, "seed %d", seed)
			}
			require.LessOrEqual(t, known.Canceled, most[1], "seed %d", seed)
			if ok || least[1] > 0 {
				require.GreaterOrEqual(t, known.Canceled, least[1], "seed %d", seed)
			}
			require.Equal(t, fails || least[1] > 0, ok && (fails || look-news <= FailureWindow || least[1] > 0), "seed %d", seed)
		}
		_, ok := f.Find(key, now+FailureWindow+1)
		require.False(t, ok)
		require.Empty(t, f.All(now+FailureWindow+1))
	}
}

// A program that calls any number of names that fail fills the places, and no more. The
// names that failed last are there. A name at which callers only cancel goes first.
//
//retrip:promise P15
func TestFailures_Bounded(t *testing.T) {
	testenv.OneGoroutine(t)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f := &Failures{}
	name := func(i int) hostkey.Key { return hostkey.Key{Host: fmt.Sprintf("%d.example", i), Port: "443"} }
	const names = 20_000
	for i := range names {
		now := time.Duration(i) * time.Millisecond
		f.Fail(name(i), Failure{Reason: 1, Status: 503}, 1, now)
		f.Cancel(hostkey.Key{Host: fmt.Sprintf("%d.canceled", i), Port: "443"}, now)
		_, ok := f.Find(name(i), now)
		require.True(t, ok, "the last one is there")
		if i == 0 {
			require.True(t, f.Knows(&url.URL{Scheme: "https", Host: name(0).Host}, new(Position)))
		}
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
	assert.Less(t, canceled, stripes*perStripe/8, "they go first")
	assert.Equal(t, stripes*perStripe, len(all))
	assert.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(4096*560), "bytes")

	// Those that are over make room at once, and cost other hosts nothing.
	late := names*time.Millisecond + FailureWindow + time.Second
	last := &url.URL{Scheme: "https", Host: name(names - 1).Host}
	assert.True(t, f.Knows(last, new(Position)))
	assert.Empty(t, f.All(late))
	assert.False(t, f.Knows(last, new(Position)))
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
			for i := range 500 {
				key, now := hostkey.Key{Host: fmt.Sprint(i % 300), Port: "80"}, time.Duration(i)*time.Millisecond
				f.Fail(key, Failure{Reason: 1, Kind: uint8(g), Status: 503}, 1, now)
				f.Cancel(key, now)
				f.Answer(key, func() time.Duration { return now })
				f.Find(key, now)
				if i%100 == 0 {
					f.All(now)
				}
			}
		})
	}
	wg.Wait()
	failed, canceled, answered := 0, 0, 0
	for _, known := range f.All(2 * time.Second) {
		failed += known.Failed
		canceled += known.Canceled
		answered += known.Answered
	}
	assert.Equal(t, []int{2000, 2000, 2000}, []int{failed, canceled, answered})
}
