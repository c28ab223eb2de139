// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
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
