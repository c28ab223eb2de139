// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip/internal/testenv"
	"github.com/retrip/retrip/shed"
)

// overloaded sends load times its capacity to a Handler before a pool of workers
// and returns the share of the capacity that is served, and the 99th percentile
// of the times, from the time settled on.
func overloaded(h *shed.Handler, workers int, service func() time.Duration, load float64, settled, until time.Duration) (goodput float64, p99 time.Duration) {
	pool := make(chan struct{}, workers)
	mean := service()
	for range 999 {
		mean += service()
	}
	mean /= 1000
	h.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		pool <- struct{}{}
		time.Sleep(service())
		<-pool
	})
	random := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	var took []time.Duration
	var wg sync.WaitGroup
	begin := time.Now()
	for time.Since(begin) < until {
		time.Sleep(time.Duration(random.ExpFloat64() * float64(mean) / float64(workers) / load))
		wg.Go(func() {
			start, w := time.Now(), httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			if end := time.Since(begin); w.Code == 200 && end >= settled && end < until {
				mu.Lock()
				took = append(took, time.Since(start))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	return float64(len(took)) * mean.Seconds() / float64(workers) / (until - settled).Seconds(), took[len(took)*99/100]
}

// A Handler without a Limit does as well as with the best one.
func TestAdaptive_Overload(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{2, 10, 50} {
		for _, load := range []float64{2, 5} {
			t.Run(fmt.Sprint(workers, load), func(t *testing.T) {
				t.Parallel()
				service := func() time.Duration { return 10 * ms }
				until := time.Duration(testenv.Size(6, 20)) * time.Second
				synctest.Test(t, func(t *testing.T) {
					best, bestP99 := overloaded(&shed.Handler{Limit: workers}, workers, service, load, 3*time.Second, until)
					goodput, p99 := overloaded(&shed.Handler{}, workers, service, load, 3*time.Second, until)
					t.Log(best, bestP99, goodput, p99)
					assert.GreaterOrEqual(t, goodput, 0.97*best)
					assert.LessOrEqual(t, p99.Seconds(), 1.5*bestP99.Seconds())
				})
			})
		}
	}
}

// A new process lets in what comes at first, up to 32, although it knows nothing.
func TestAdaptive_Starts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &shed.Handler{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(time.Second) })}
		var served atomic.Int32
		var wg sync.WaitGroup
		for range 40 {
			time.Sleep(5 * ms)
			wg.Go(func() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
				if w.Code == http.StatusOK {
					served.Add(1)
				}
			})
		}
		wg.Wait()
		assert.EqualValues(t, 32, served.Load())
	})
}

// While nothing is known, a process isn't judged by few requests that take long.
func TestAdaptive_StartsSlowly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &shed.Handler{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(20 * time.Second) })}
		var wg sync.WaitGroup
		for range 15 {
			time.Sleep(time.Second)
			wg.Go(func() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
				assert.Equal(t, http.StatusOK, w.Code)
			})
		}
		wg.Wait()
	})
}

// A small server that shares its work isn't flooded although, at first, all
// requests take longer than HoldTime, whatever the limit.
func TestAdaptive_LongRequests(t *testing.T) {
	t.Parallel()
	for _, server := range []struct {
		workers int
		service time.Duration
		load    float64
	}{{2, time.Second, 50}, {2, 4 * time.Second, 10}, {2, 20 * time.Second, 50}, {10, 4 * time.Second, 50}} {
		t.Run(fmt.Sprint(server), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var inside, most, served atomic.Int64
				begin := time.Now()
				from, until := 20*server.service, 100*server.service
				const parts = 20
				h := &shed.Handler{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
					if now := inside.Add(1); now > most.Load() {
						most.Store(now)
					}
					for range parts {
						part := float64(server.service) / parts
						time.Sleep(time.Duration(part * max(1, float64(inside.Load())/float64(server.workers))))
					}
					inside.Add(-1)
					if now := time.Since(begin); now > from && now < until {
						served.Add(1)
					}
				})}
				random := rand.New(rand.NewPCG(1, 2))
				var wg sync.WaitGroup
				for time.Since(begin) < until {
					time.Sleep(time.Duration(random.ExpFloat64() * float64(server.service) / float64(server.workers) / server.load))
					wg.Go(func() { h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)) })
				}
				wg.Wait()
				goodput := float64(served.Load()) / float64(server.workers) / float64((until-from)/server.service)
				t.Log(goodput, most.Load())
				assert.GreaterOrEqual(t, goodput, 0.7)
				assert.LessOrEqual(t, most.Load(), int64(100))
			})
		})
	}
}

// If all requests hang for good, one more is let in after HoldTime, and another
// after twice that. As soon as one is completed, all are.
func TestAdaptive_HangForGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin, hang := time.Now(), make(chan struct{})
		h := &shed.Handler{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			if now := time.Since(begin); now > 20*time.Second && now < 35*time.Second {
				<-hang
			}
			time.Sleep(10 * ms)
		})}
		var refused [7]atomic.Int32
		var wg sync.WaitGroup
		for range 7000 {
			time.Sleep(10 * ms)
			interval := min(6, int(time.Since(begin)/(10*time.Second)))
			wg.Go(func() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
				if w.Code != http.StatusOK {
					refused[interval].Add(1)
				}
			})
		}
		assert.Zero(t, refused[0].Load()+refused[1].Load())
		assert.Positive(t, refused[2].Load())
		assert.Positive(t, refused[3].Load())
		assert.Zero(t, refused[4].Load()+refused[5].Load()+refused[6].Load(), "20 s after they began to hang")
		close(hang)
		wg.Wait()
	})
}

// Clients that leave don't make the server look large, although their requests
// never take longer than they wait, whether the server drops those or not: a
// limit that lets so many in that all of them leave serves nobody.
func TestAdaptive_ClientsLeave(t *testing.T) {
	t.Parallel()
	for _, times := range []string{"constant", "exponential"} {
		for _, drops := range []bool{true, false} {
			for _, workers := range []int{2, 10} {
				for _, patience := range []time.Duration{250 * ms, 500 * ms} {
					t.Run(fmt.Sprint(times, drops, workers, patience), func(t *testing.T) {
						t.Parallel()
						best, found := 0, 0
						for seed := range uint64(testenv.Size(3, 10)) {
							synctest.Test(t, func(t *testing.T) {
								served := func(limit int) int {
									r := rushed{times: times, drops: drops, workers: workers, patience: patience, seed: seed}
									return r.served(t, &shed.Handler{Limit: limit})
								}
								most, n := served(workers), served(0)
								t.Log(most, n)
								assert.GreaterOrEqual(t, float64(n), 0.3*float64(most))
								best += most
								found += n
							})
						}
						assert.GreaterOrEqual(t, float64(found), 0.75*float64(best))
					})
				}
			}
		}
	}
}

// Many clients that leave early on don't take the server from those that wait.
func TestAdaptive_ClientsReset(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{ms, 10 * ms, 60 * ms} {
		t.Run(after.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				served := func(limit int) int {
					r := rushed{times: "constant", drops: true, workers: 2, patience: time.Second, resets: 9, after: after}
					return r.served(t, &shed.Handler{Limit: limit})
				}
				best, found := served(3), served(0)
				t.Log(best, found)
				assert.GreaterOrEqual(t, float64(found), 0.9*float64(best))
			})
		})
	}
}

// rushed is a server of some workers, which need 100 ms per request, and clients
// that wait no longer than patience, at four times its capacity.
type rushed struct {
	times    string
	drops    bool // a request whose client has left, instead of a worker's time
	workers  int
	patience time.Duration
	resets   int // clients per patient one that wait no longer than after
	after    time.Duration
	seed     uint64

	mu     sync.Mutex
	random *rand.Rand
}

func (r *rushed) exponential(mean time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Duration(r.random.ExpFloat64() * float64(mean))
}

// served returns how many requests were served from the 10th second on, while
// their clients waited.
func (r *rushed) served(t *testing.T, h *shed.Handler) (n int) {
	r.random = rand.New(rand.NewPCG(r.seed, 2))
	pool := make(chan struct{}, r.workers)
	h.Handler = http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		var left <-chan struct{}
		if r.drops {
			left = req.Context().Done()
		}
		select {
		case pool <- struct{}{}:
		case <-left:
			return
		}
		took := 100 * ms
		if r.times == "exponential" {
			took = r.exponential(took)
		}
		time.Sleep(took)
		<-pool
	})
	var wg sync.WaitGroup
	begin := time.Now()
	until := time.Duration(testenv.Size(40, 80)) * time.Second
	for i := 0; time.Since(begin) < until; i++ {
		time.Sleep(r.exponential(100 * ms / time.Duration(4*r.workers*(1+r.resets))))
		counts, patience := time.Since(begin) > 10*time.Second, r.patience
		if i%(1+r.resets) > 0 {
			counts, patience = false, r.after
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
			if counts && w.Code == http.StatusOK && ctx.Err() == nil {
				r.mu.Lock()
				n++
				r.mu.Unlock()
			}
		})
	}
	wg.Wait()
	return n
}
