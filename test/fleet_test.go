// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// These tests show what a fleet of real Transports does to a server, in virtual
// time.

// answer returns a response to r with the given header lines.
func answer(r *http.Request, status int, lines ...string) *http.Response {
	resp, _ := play.Reply(status, lines...)(r)
	resp.Body, resp.Request = http.NoBody, r
	return resp
}

// getFrom returns the response to a GET, whose body it has closed.
func getFrom(t *testing.T, rt http.RoundTripper, url string) (*http.Response, error) {
	t.Helper()
	resp, err := rt.RoundTrip(play.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)))
	if resp != nil {
		resp.Body.Close()
	}
	return resp, err
}

//retrip:promise P14
func TestFleet_OutageCostsOneAttemptPerRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		perHost := map[string]int{}
		tr := &retrip.Transport{Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			perHost[r.URL.Host]++
			return answer(r, 503), nil
		})}
		const requests = 600 // ten minutes at one per second
		for range requests {
			for _, host := range []string{"a.example.com", "b.example.com"} {
				resp, err := getFrom(t, tr, "http://"+host+"/")
				require.NoError(t, err)
				require.Equal(t, 503, resp.StatusCode)
			}
			time.Sleep(time.Second)
		}
		assert.Equal(t, map[string]int{"a.example.com": requests + 7, "b.example.com": requests + 7}, perHost,
			"one attempt per request, and seven retries per host in all")
	})
}

//retrip:promise P14
func TestFleet_IndependentFailures(t *testing.T) {
	for _, tt := range []struct{ p, least float64 }{{0.1, 0.999}, {0.2, 0.99}, {0.3, 0.94}} {
		t.Run(fmt.Sprint(tt.p), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(1, 2))
				tr := &retrip.Transport{Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
					if random.Float64() < tt.p {
						return answer(r, 503), nil
					}
					return answer(r, 200), nil
				})}
				const requests = 20_000
				var ok int
				for range requests {
					if resp, err := getFrom(t, tr, "http://example.com/"); err == nil && resp.StatusCode == 200 {
						ok++
					}
				}
				assert.GreaterOrEqual(t, float64(ok)/requests, tt.least)
			})
		})
	}
}

// The overload that no backoff ends: 700 requests per second to a server with a
// capacity of 1000, which drops to 303 for ten seconds.
//
//retrip:promise P14
func TestFleet_RecoversFromOverload(t *testing.T) {
	for _, clients := range []int{100, 1000} {
		t.Run(fmt.Sprintf("%d clients", clients), func(t *testing.T) {
			t.Parallel()
			defaults := overload(t, clients, 0)
			assert.LessOrEqual(t, defaults.recovered, 5, "seconds from the end of the trigger, goodput %v", defaults.goodput)

			unlimited := overload(t, clients, retrip.Off)
			assert.Equal(t, notRecovered, unlimited.recovered, "a fleet without budgets doesn't recover: goodput %v", unlimited.goodput)
			assert.Less(t, slices.Max(unlimited.goodput[15:]), 0.5*offered)
		})
	}
}

const (
	offered      = 700.0 // requests per second
	notRecovered = 1 << 30
)

type overloadResult struct {
	goodput   []float64 // successes in each second
	recovered int       // seconds from the end of the trigger to 95 % goodput, or notRecovered
}

func overload(t *testing.T, clients int, budget float64) (result overloadResult) {
	const trigger, triggerEnd, end = 3, 13, 30 // seconds
	synctest.Test(t, func(t *testing.T) {
		server := newModelServer(time.Now(), trigger*time.Second, triggerEnd*time.Second)
		fleet := make([]*retrip.Transport, clients)
		for i := range fleet {
			fleet[i] = &retrip.Transport{Base: server, Policy: retrip.Policy{
				AttemptTimeout: 300 * time.Millisecond,
				Backoff:        retrip.Backoff{Cap: time.Second},
				Budget:         budget,
			}}
		}
		start := time.Now()
		var good [end]atomic.Int64
		random := rand.New(rand.NewPCG(3, 4))
		var wg sync.WaitGroup
		for {
			time.Sleep(time.Duration(random.ExpFloat64() / offered * float64(time.Second)))
			if time.Since(start) >= end*time.Second {
				break
			}
			client := fleet[random.IntN(clients)]
			wg.Go(func() {
				req, _ := http.NewRequest(http.MethodGet, "http://example.com/", nil)
				resp, err := client.RoundTrip(req)
				if err != nil || resp.StatusCode != http.StatusOK {
					return
				}
				if second := int(time.Since(start) / time.Second); second < end {
					good[second].Add(1)
				}
			})
		}
		wg.Wait()
		result.recovered = notRecovered
		for i := range good {
			result.goodput = append(result.goodput, float64(good[i].Load()))
		}
		for i := triggerEnd; i < end; i++ {
			if result.goodput[i] >= 0.95*offered {
				result.recovered = i - triggerEnd
				break
			}
		}
	})
	return result
}

// modelServer has ten workers and a queue of 1000, and continues to work on
// requests whose callers have gone. The fate of a request is known when it
// arrives, so the server needs no goroutine.
type modelServer struct {
	start               time.Time
	trigger, triggerEnd time.Duration

	mu      sync.Mutex
	random  *rand.Rand
	workers [10]time.Duration // instant at which each worker is free
	starts  []time.Duration   // of requests that have not begun, in order
}

func newModelServer(start time.Time, trigger, triggerEnd time.Duration) *modelServer {
	return &modelServer{start: start, trigger: trigger, triggerEnd: triggerEnd, random: rand.New(rand.NewPCG(5, 6))}
}

// done returns when a request that arrives now will be complete.
func (s *modelServer) done(now time.Duration) (at time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	begun, _ := slices.BinarySearch(s.starts, now+1)
	s.starts = s.starts[begun:]
	if len(s.starts) >= 1000 {
		return 0, false
	}
	worker := 0
	for i, free := range s.workers {
		if free < s.workers[worker] {
			worker = i
		}
	}
	begin := max(now, s.workers[worker])
	capacity := 1000.0
	if begin >= s.trigger && begin < s.triggerEnd {
		capacity = 303
	}
	mean := float64(len(s.workers)) / capacity * float64(time.Second)
	at = begin + time.Duration(s.random.ExpFloat64()*mean)
	s.workers[worker] = at
	if begin > now {
		s.starts = append(s.starts, begin)
	}
	return at, true
}

func (s *modelServer) RoundTrip(r *http.Request) (*http.Response, error) {
	now := time.Since(s.start)
	at, ok := s.done(now)
	if !ok {
		return answer(r, http.StatusServiceUnavailable), nil
	}
	timer := time.NewTimer(at - now)
	defer timer.Stop()
	select {
	case <-timer.C:
		return answer(r, http.StatusOK), nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

//retrip:promise P23
func TestFleet_GateAtARateLimit(t *testing.T) {
	const callers = 200
	run := func(t *testing.T, p retrip.Policy) (succeeded, refusedLater int32) {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var second time.Time
			var allowed int
			start := time.Now()
			var good, later atomic.Int32
			tr := &retrip.Transport{Policy: p, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				time.Sleep(5 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				if now := time.Now().Truncate(time.Second); now != second {
					second, allowed = now, 0
				}
				if allowed++; allowed <= 10 {
					return answer(r, 200), nil
				}
				if time.Since(start) > 5*time.Millisecond {
					later.Add(1)
				}
				return answer(r, 429, "Retry-After: 1"), nil
			})}
			require.NoError(t, tr.Validate())
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					if resp, err := getFrom(t, tr, "http://example.com/"); err == nil && resp.StatusCode == 200 {
						good.Add(1)
					}
				})
			}
			wg.Wait()
			succeeded, refusedLater = good.Load(), later.Load()
		})
		return succeeded, refusedLater
	}
	gated, again := run(t, retrip.Policy{MaxAttempts: 10, Gate: retrip.Gate{Enabled: retrip.On}})
	assert.EqualValues(t, callers, gated)
	assert.LessOrEqual(t, again, int32(45), "refusals beyond the 190 in flight before the first")
	without, _ := run(t, retrip.Policy{MaxAttempts: 10})
	assert.Less(t, without, int32(50), "the five tokens are soon spent")
	unlimited, refused := run(t, retrip.Policy{MaxAttempts: 10, Budget: retrip.Off})
	t.Logf("gate: %d of %d, %d further refusals; defaults: %d; no gate, no budget: %d, %d further refusals", gated, callers, again, without, unlimited, refused)
	assert.Greater(t, refused, 10*again)
}

// A Retry-After on a 503 holds back the retries of all requests to the host.
// Afterwards they come one by one.
//
//retrip:promise P9
func TestFleet_PauseIsHeardByTheWholeProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex
		var retries []time.Duration
		first := true
		tr := &retrip.Transport{Policy: retrip.Policy{Budget: retrip.Off}, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			if since := time.Since(start); since > time.Second {
				retries = append(retries, since)
				return answer(r, 200), nil
			}
			if first {
				first = false
				return answer(r, 503, "Retry-After: 10"), nil
			}
			return answer(r, 500), nil // doesn't ask for a pause
		})}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				resp, err := getFrom(t, tr, "http://example.com/")
				assert.NoError(t, err)
				assert.Equal(t, 200, resp.StatusCode)
			})
			synctest.Wait() // the response with the Retry-After comes first
		}
		wg.Wait()
		require.Len(t, retries, 20)
		assert.GreaterOrEqual(t, retries[0], 10*time.Second, "never earlier than the server said")
		assert.Len(t, slices.Compact(slices.Clone(retries)), 20, "20 requests with the same Retry-After wait for 20 different times")
		assert.Greater(t, retries[19]-retries[0], 2*time.Second, "spread out")
		assert.Less(t, retries[19], 15*time.Second+time.Millisecond)
	})
}

func TestFleet_ProbesDontComeInOneBurst(t *testing.T) {
	testenv.Slow(t)
	const clients = 1000
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex
		probes := map[int]int{} // by tenth of a second since the outage began
		base := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			if since := time.Since(start); since > 0 {
				probes[int(since/(100*time.Millisecond))]++
			}
			return answer(r, 503), nil
		})
		p := retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 0.5, MinVolume: 5, OpenFor: 5 * time.Second}}
		var wg sync.WaitGroup
		for range clients {
			tr := &retrip.Transport{Base: base, Policy: p}
			wg.Go(func() {
				for range 5 { // opens all breakers at the same instant
					getFrom(t, tr, "http://example.com/")
				}
				for time.Since(start) < 8*time.Second {
					time.Sleep(50 * time.Millisecond)
					getFrom(t, tr, "http://example.com/")
				}
			})
		}
		wg.Wait()
		var total, most int
		for _, n := range probes {
			total += n
			most = max(most, n)
		}
		assert.GreaterOrEqual(t, total, clients, "all probed")
		assert.Less(t, most, clients/10, "no tenth of a second between 2.5 s and 7.5 s has more than a tenth of the probes")
	})
}
