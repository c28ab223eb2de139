// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/shed"
)

// shedders are ways to bound the requests that h serves on a server with workers.
var shedders = []struct {
	name string
	wrap func(h http.Handler, workers int) http.Handler
}{
	{"shed.Handler, Limit: workers", func(h http.Handler, n int) http.Handler { return &shed.Handler{Handler: h, Limit: n} }},
	{"shed.Handler", func(h http.Handler, _ int) http.Handler { return &shed.Handler{Handler: h} }},
	{"failsafe-go adaptivelimiter", func(h http.Handler, _ int) http.Handler {
		return failsafehttp.NewHandler(h, adaptivelimiter.NewWithDefaults[*http.Response]())
	}},
	{"failsafe-go adaptivelimiter, queueing", func(h http.Handler, _ int) http.Handler {
		return failsafehttp.NewHandler(h, adaptivelimiter.NewBuilder[*http.Response]().WithQueueing(2, 3).WithMaxWaitTime(100*time.Millisecond).Build())
	}},
	{"chi ThrottleBacklog, limit: workers", func(h http.Handler, n int) http.Handler {
		return middleware.ThrottleBacklog(n, 10_000, 100*time.Millisecond)(h)
	}},
	{"failsafe-go bulkhead, limit: workers", func(h http.Handler, n int) http.Handler {
		return failsafehttp.NewHandler(h, bulkhead.NewBuilder[*http.Response](uint(n)).WithMaxWaitTime(100*time.Millisecond).Build())
	}},
}

// TestShedders prints, for servers at twice and five times their capacity, the
// share of the capacity that is served and the 99th percentile of the times,
// from the 10th second to the 30th. The times of requests are exponential. The
// clock is virtual.
func TestShedders(t *testing.T) {
	for _, server := range []struct {
		workers int
		service time.Duration
	}{{10, 10 * time.Millisecond}, {10, 100 * time.Millisecond}, {50, 100 * time.Millisecond}} {
		if server.workers*int(server.service) > int(100*time.Millisecond) && os.Getenv("RETRIP_TABLES") == "" {
			break // takes long
		}
		for _, load := range []float64{2, 5} {
			for _, s := range shedders {
				synctest.Test(t, func(t *testing.T) {
					goodput, p99 := overload(s.wrap, server.workers, server.service, load)
					require.Positive(t, goodput)
					t.Logf("%d × %v, load %g: %s: %.1f %%, p99 %d ms", server.workers, server.service, load, s.name, 100*goodput, p99.Milliseconds())
				})
			}
		}
	}
}

func overload(wrap func(http.Handler, int) http.Handler, workers int, service time.Duration, load float64) (goodput float64, p99 time.Duration) {
	const settled, until = 10 * time.Second, 30 * time.Second
	pool := make(chan struct{}, workers)
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(1, 2))
	draw := func(mean time.Duration) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(random.ExpFloat64() * float64(mean))
	}
	h := wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		pool <- struct{}{}
		time.Sleep(draw(service))
		<-pool
	}), workers)
	var took []time.Duration
	var wg sync.WaitGroup
	begin := time.Now()
	for time.Since(begin) < until {
		time.Sleep(draw(time.Duration(float64(service) / float64(workers) / load)))
		wg.Go(func() {
			start, w := time.Now(), httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			if end := time.Since(begin); w.Code == http.StatusOK && end >= settled && end < until {
				mu.Lock()
				took = append(took, time.Since(start))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	return float64(len(took)) * service.Seconds() / float64(workers) / (until - settled).Seconds(), took[len(took)*99/100]
}
