// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

// bench implements the backend of a Scenario as a RoundTripper in a synctest
// bubble. It shares no code with the simulator: goroutines wait for places in
// channels, and there is no event queue.
type bench struct {
	s       Scenario
	began   time.Time
	service *source
	faults  *source

	mu       sync.Mutex
	attempts []time.Duration
	stations []benchStation
	work     sync.WaitGroup

	fleets []*retrip.Fleet // one for each client with an account
	lacks  float64         // tokens of that account
}

// add is the store of the fleet's account.
func (b *bench) add(_ context.Context, _ string, tokens, size float64) (level float64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lacks = min(size, max(0, b.lacks-tokens))
	return size - b.lacks, nil
}

// benchStation is an instance: a place for each request that waits or is served, and for
// each that is served.
type benchStation struct{ inside, served chan struct{} }

func newBench(s Scenario) *bench {
	b := &bench{s: s, began: time.Now(), service: newSource(s.Seed+99, 1), faults: newSource(s.Seed+99, 2)}
	workers := s.Backend.Workers
	if workers == 0 {
		workers = math.MaxInt32
	}
	for range max(1, s.Backend.Instances) {
		b.stations = append(b.stations, benchStation{make(chan struct{}, workers+s.Backend.Queue), make(chan struct{}, workers)})
	}
	return b
}

func (b *bench) RoundTrip(req *http.Request) (*http.Response, error) {
	be := &b.s.Backend
	b.mu.Lock()
	now := time.Since(b.began)
	b.attempts = append(b.attempts, now)
	troubled := now >= b.s.Trigger.At && now < b.s.Trigger.end()
	rate := be.FailureRate
	if troubled {
		rate = max(rate, b.s.Trigger.FailureRate)
	}
	n := int(b.faults.below(uint64(len(b.stations))))
	s := b.stations[n]
	if b.faults.happens(newChance(rate)) || n >= be.Slow && n < be.Slow+be.Dead {
		b.mu.Unlock()
		if be.Silent {
			<-req.Context().Done()
			return nil, req.Context().Err()
		}
		resp := answer(req, http.StatusServiceUnavailable)
		if d := b.s.Trigger.RetryAfter; d > 0 && troubled {
			resp.Header.Set("Retry-After", strconv.Itoa(int(d.Seconds())))
		}
		return resp, nil
	}
	b.mu.Unlock()
	select {
	case s.inside <- struct{}{}:
	default:
		return answer(req, http.StatusServiceUnavailable), nil
	}
	done := make(chan bool, 1)
	// The worker finishes the job whether or not the client waits.
	b.work.Go(func() {
		s.served <- struct{}{}
		good := !be.DropAbandoned || req.Context().Err() == nil
		if good {
			time.Sleep(b.takes(n))
		}
		<-s.served
		<-s.inside
		done <- good
	})
	select {
	case good := <-done:
		if !good {
			return answer(req, http.StatusServiceUnavailable), nil
		}
		return answer(req, http.StatusOK), nil
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}

// takes returns how long a worker of the nth instance works.
func (b *bench) takes(n int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	be := &b.s.Backend
	mean := float64(be.Service)
	now := time.Since(b.began)
	if b.s.Trigger.Slowdown > 0 && now >= b.s.Trigger.At && now < b.s.Trigger.end() {
		mean *= b.s.Trigger.Slowdown
	}
	if n < be.Slow {
		mean *= be.SlowBy
	}
	took := time.Duration(mean)
	if be.Spread > 0 {
		took = time.Duration(max(0, mean*(1+be.Spread*b.service.normal())))
	} else if !be.Fixed {
		took = b.service.exponential(mean)
	}
	return took
}

func answer(req *http.Request, status int) *http.Response {
	return &http.Response{StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: req}
}

// clients returns the clients of the fleet.
func (b *bench) clients() []*http.Client {
	list := make([]*http.Client, b.s.Fleet.Clients)
	for k := range list {
		tr := &retrip.Transport{Base: b, Policy: b.s.Policy.Retry}
		tr.Policy.AttemptTimeout = max(tr.Policy.AttemptTimeout, b.s.Fleet.Timeout)
		if b.s.Policy.account {
			tr.Fleet, tr.Policy.FleetBudget = retrip.NewFleet(b.add), b.s.Store.Size
			b.fleets = append(b.fleets, tr.Fleet)
		}
		list[k] = &http.Client{Transport: tr}
	}
	return list
}

// fleet sends the requests of a Scenario through Transports of its clients. It
// returns how many succeeded and the times of all attempts.
func fleet(t *testing.T, s Scenario) (succeeded int, attempts []time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(s)
		clients := b.clients()
		arrivals := newSource(s.Seed+99, 3)
		var (
			wg sync.WaitGroup
			mu sync.Mutex
		)
		for i := 0; time.Since(b.began) < s.Horizon; i++ {
			client := clients[i%len(clients)]
			if !s.Arrivals.Regular {
				client = clients[arrivals.below(uint64(len(clients)))]
			}
			wg.Go(func() {
				resp, err := client.Get("http://backend.test/")
				if err != nil {
					return
				}
				resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					mu.Lock()
					succeeded++
					mu.Unlock()
				}
			})
			mean := float64(time.Second) / s.Arrivals.Rate
			if s.Arrivals.Regular {
				time.Sleep(time.Duration(mean))
			} else {
				time.Sleep(arrivals.exponential(mean))
			}
		}
		wg.Wait()
		b.work.Wait()
		for _, f := range b.fleets {
			assert.NoError(t, f.Close())
		}
		attempts = b.attempts
	})
	return succeeded, attempts
}

// Without randomness, real Transports make the same attempts at the same times
// as the simulated clients.
//
//retrip:promise P14
func TestTransportsAgreeExactly(t *testing.T) {
	for _, budget := range []float64{0, 2, retrip.Off} {
		s := Storm(Continuing)
		s.Fleet.Clients = 20
		s.Policy.Retry = retrip.Policy{MaxAttempts: 6, Budget: budget,
			Backoff: retrip.Backoff{Base: 70 * time.Millisecond, Jitter: retrip.NoJitter}}
		// Odd durations keep different events from coinciding.
		s.Arrivals.Rate = 333
		s.Trigger.For = 411 * time.Millisecond
		s.Horizon = 4 * time.Second
		succeeded, attempts := fleet(t, s)

		r, err := newRun(&s)
		require.NoError(t, err)
		var simulated []time.Duration
		r.traceAttempt = func(now time.Duration) { simulated = append(simulated, now) }
		result, err := r.run(t.Context())
		require.NoError(t, err)
		require.Greater(t, len(simulated), 1300)
		last := simulated[len(simulated)-1]
		cut := 0
		for cut < len(attempts) && attempts[cut] <= last {
			cut++
		}
		assert.Equal(t, simulated, attempts[:cut])
		assert.InDelta(t, succeeded, result.Succeeded, 2) // those under way at the horizon
	}
}

// With random waits and failures, counts agree within their statistical error.
//
//retrip:promise P14
func TestTransportsAgreeStatistically(t *testing.T) {
	overload := Overload()
	overload.Fleet.Clients = 40
	overload.Arrivals.Rate = 210
	overload.Backend.Workers = 3
	overload.Backend.Queue = 300
	overload.Trigger.At, overload.Trigger.For = 8*time.Second, 4*time.Second
	overload.Horizon = 25 * time.Second
	unbounded := overload
	unbounded.Policy.Retry.Budget = retrip.Off
	faults := Faults(0.25)
	faults.Fleet.Clients = 30
	faults.Arrivals.Rate = 200
	faults.Horizon = 25 * time.Second
	account := as(t, overload, "account")
	account.Fleet.Clients, account.Fleet.Timeout, account.Store.Size = 200, time.Second, 50
	pauses := as(t, faults, "account")
	pauses.Backend.FailureRate, pauses.Store.Size = 0, 50
	pauses.Trigger = Trigger{For: 25 * time.Second, FailureRate: 0.2, RetryAfter: 2 * time.Second}
	pauses.Horizon = 40 * time.Second
	server := func(change func(*Backend)) Scenario {
		s := overload
		s.Policy.Retry.Budget = 20
		change(&s.Backend)
		return s
	}
	for name, s := range map[string]Scenario{
		"drops": server(func(b *Backend) { b.DropAbandoned = true }),
		"instances": server(func(b *Backend) {
			b.Instances, b.Workers, b.Slow, b.SlowBy, b.Dead = 6, 1, 1, 3, 1
		}),
		"silent": server(func(b *Backend) { b.FailureRate, b.Silent = 0.2, true }),
		"spread": server(func(b *Backend) {
			b.Workers, b.Service, b.Spread, b.FailureRate, b.Silent = 0, 210*time.Millisecond, 0.2, 0.2, true
		}),
		"account": account, "account and pauses": pauses,
		"overload": overload, "no budget": unbounded, "faults": faults} {
		t.Run(name, func(t *testing.T) {
			real, simulated := 4, 16
			if brief {
				if slices.Contains([]string{"drops", "instances", "silent", "spread"}, name) {
					t.Skip("a property of the server alone: make tables")
				}
				real, simulated = 2, 8
			}
			var ok, attempts [2]sample
			for seed := range uint64(real) {
				s.Seed = 1000 + seed
				n, list := fleet(t, s)
				cut := 0
				for _, at := range list {
					if at < s.Horizon {
						cut++
					}
				}
				ok[0].add(float64(n))
				attempts[0].add(float64(cut))
			}
			s.Seed = 1
			for _, r := range ranAll(t, s.Seeds(simulated)) {
				ok[1].add(float64(r.Succeeded))
				attempts[1].add(float64(r.Attempts))
			}
			assertAgree(t, "successes", ok)
			assertAgree(t, "attempts", attempts)
		})
	}
}

// sample is a mean with its error.
type sample struct{ n, sum, squares float64 }

func (s *sample) add(x float64) { s.n, s.sum, s.squares = s.n+1, s.sum+x, s.squares+x*x }

func (s *sample) mean() float64 { return s.sum / s.n }

// variance is the variance of a single x.
func (s *sample) variance() float64 { return max(0, s.squares-s.sum*s.sum/s.n) / (s.n - 1) }

func assertAgree(t *testing.T, what string, s [2]sample) {
	t.Helper()
	// The error of a difference, by the variance of the larger sample.
	bound := 4 * math.Sqrt(s[1].variance()*(1/s[0].n+1/s[1].n))
	t.Logf("%s: %.0f by Transports, %.0f simulated, 4σ = %.0f", what, s[0].mean(), s[1].mean(), bound)
	assert.InDelta(t, s[1].mean(), s[0].mean(), bound+2, what)
	assert.Less(t, bound, 0.12*s[1].mean(), "the bound is meaningful")
}

// Layers that retry multiply their attempts. In an outage of 10 s, three layers
// without budgets send up to 64 attempts per request. With the default budget, each
// client of each layer makes its few retries once: 4 attempts per request if each
// client sends 0.7 requests per second.
//
//retrip:promise P14
func TestLayers(t *testing.T) {
	for _, c := range []struct {
		budget      float64
		least, most float64
	}{{retrip.Off, 64, 64}, {0, 3.5, 4.5}} {
		const clients, requests = 100, 700 // in 10 s, 0.7 per second and client
		var sent atomic.Int64
		synctest.Test(t, func(t *testing.T) {
			var wg sync.WaitGroup
			for range clients {
				var base http.RoundTripper = testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
					sent.Add(1)
					return answer(req, http.StatusServiceUnavailable), nil
				})
				for range 3 {
					inner := &retrip.Transport{Base: base, Policy: retrip.Policy{Budget: c.budget, Backoff: retrip.Backoff{Cap: time.Second}}}
					base = testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
						return inner.RoundTrip(req.Clone(req.Context()))
					})
				}
				for range requests / clients {
					wg.Go(func() {
						req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://backend.test/", nil)
						assert.NoError(t, err)
						resp, err := base.RoundTrip(req)
						if assert.NoError(t, err) {
							resp.Body.Close()
						}
					})
					time.Sleep(10 * time.Second * clients / requests)
				}
			}
			wg.Wait()
		})
		perRequest := float64(sent.Load()) / requests
		t.Logf("%.2f attempts per request", perRequest)
		assert.True(t, perRequest >= c.least && perRequest <= c.most, "%.2f", perRequest)
	}
}
