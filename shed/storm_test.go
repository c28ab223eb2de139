// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/testenv"
	"github.com/retrip/retrip/shed"
)

var table = flag.Bool("table", false, "with -v, print the table of docs/shed.md: some minutes")

// storm is a fleet of real clients that send 700 requests per second to a server with a
// capacity of 1000, which drops to 303 in a brownout.
type storm struct {
	clients    int
	budget     float64
	begin, end time.Duration // of the brownout
	horizon    time.Duration // no requests after this time

	began   time.Time
	queue   chan struct{}  // a place for each request that waits
	workers chan struct{}  // a place for each that is served
	arrived []int64        // requests, by the second of their arrival
	good    []atomic.Int64 // those answered with 200
}

const (
	stormWorkers = 10
	stormService = 10 * time.Millisecond // mean of the exponentially distributed service time
	stormQueue   = 1000                  // requests that may wait; others get a 503
	stormRate    = 700
)

// ServeHTTP works like a server with a bounded pool of workers: it serves every request
// that has a place in its queue, whether or not the client still waits.
func (s *storm) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	select {
	case s.queue <- struct{}{}:
	default:
		http.Error(w, "queue full", http.StatusServiceUnavailable)
		return
	}
	s.workers <- struct{}{}
	<-s.queue
	took := time.Duration(rand.ExpFloat64() * float64(stormService))
	if now := time.Since(s.began); now >= s.begin && now < s.end {
		took = took * 330 / 100
	}
	time.Sleep(took)
	<-s.workers
	w.WriteHeader(http.StatusOK)
}

// recovery returns the seconds from the end of the brownout to the first of three
// consecutive seconds in which 95 % of the requests were answered, or -1.
func (s *storm) recovery() int {
	from := int(s.end / time.Second)
	for t := from; t+3 < len(s.good); t++ {
		if s.goodput(t, t+3) >= 0.95 {
			return t - from
		}
	}
	return -1
}

// goodput returns the answered share of the requests that arrived in the given seconds.
func (s *storm) goodput(from, to int) float64 {
	var arrived, good int64
	for t := from; t < to; t++ {
		arrived += s.arrived[t]
		good += s.good[t].Load()
	}
	return float64(good) / float64(arrived)
}

// run sends the requests through base until all have ended, or ctx has.
func (s *storm) run(ctx context.Context, base http.RoundTripper, url string) {
	s.began, s.queue, s.workers = time.Now(), make(chan struct{}, stormQueue), make(chan struct{}, stormWorkers)
	fleet := make([]*retrip.Transport, s.clients)
	for i := range fleet {
		fleet[i] = &retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: 300 * time.Millisecond, Budget: s.budget,
			Backoff: retrip.Backoff{Cap: time.Second}, RetryHeader: "Retry-Attempt"}}
	}
	seconds := int(s.horizon / time.Second)
	s.arrived, s.good = make([]int64, seconds), make([]atomic.Int64, seconds)
	var wg sync.WaitGroup
	next := time.Duration(0)
	for ctx.Err() == nil {
		next += time.Duration(rand.ExpFloat64() / stormRate * float64(time.Second))
		if next >= s.horizon {
			break
		}
		time.Sleep(next - time.Since(s.began))
		second := int(next / time.Second)
		s.arrived[second]++
		client := fleet[rand.IntN(s.clients)]
		wg.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return
			}
			resp, err := client.RoundTrip(req)
			if err != nil {
				return
			}
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				s.good[second].Add(1)
			}
		})
	}
	wg.Wait()
}

// brownout runs s in a bubble, with or without a Handler.
func brownout(t *testing.T, sheds bool, s *storm) *storm {
	synctest.Test(t, func(t *testing.T) {
		handler := http.Handler(s)
		if sheds {
			handler = &shed.Handler{Handler: s, Limit: stormWorkers}
		}
		server := memhttp.NewServer(t, memhttp.HTTP1, handler)
		base := server.Transport()
		base.MaxIdleConnsPerHost = 100
		s.run(t.Context(), base, server.URL)
		base.CloseIdleConnections()
	})
	return s
}

// The table of docs/shed.md: seconds to recovery (-1 if there was none in 24 s)
// and the goodput during the brownout, without and with a Handler, by fleet, with
// the default budget and with none.
func TestTable(t *testing.T) {
	if !*table {
		t.Skip("with -table")
	}
	for _, sheds := range []bool{false, true} {
		var line strings.Builder
		fmt.Fprintf(&line, "shed.Handler: %-5v", sheds)
		for _, budget := range []float64{0, retrip.Off} {
			for _, clients := range []int{1000, 10_000, 100_000} {
				s := brownout(t, sheds, &storm{clients: clients, budget: budget, begin: 3 * time.Second, end: 13 * time.Second, horizon: 40 * time.Second})
				fmt.Fprintf(&line, " | %3d (%2.0f %%)", s.recovery(), 100*s.goodput(3, 13))
			}
		}
		t.Log(line.String())
	}
}

// The storm that the clients can't end by themselves: with one request per 14 s
// and client, their budgets don't help.
func TestHandler_EndsAStorm(t *testing.T) {
	if testing.Short() || testenv.Race {
		t.Skip("takes some seconds, and is about figures")
	}
	t.Parallel()
	run := func(sheds bool) int {
		return brownout(t, sheds, &storm{clients: 10_000, begin: time.Second, end: 7 * time.Second, horizon: 14 * time.Second}).recovery()
	}
	if testenv.Tables() { // 10 s of CPU
		assert.Equal(t, -1, run(false), "without")
	}
	with := run(true)
	assert.LessOrEqual(t, with, 1, "with")
	assert.GreaterOrEqual(t, with, 0, "with")
}
