// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/internal/play"
)

var gather = play.Gather

type sums = play.Sums

// checkIdentities checks the identities of docs/metrics.md for a policy without
// requests in flight.
func checkIdentities(t *testing.T, policy string, s sums) {
	t.Helper()
	assert.Equal(t, s["requests_total"]-s["unattempted_requests_total"]+s["retries_total"]+s["hedges_total"], s["attempts_total"], "%s: attempts = requests - unattempted + retries + hedges", policy)
	assert.Equal(t, s["requests_total gave_up"]+s["requests_total canceled"], s["give_ups_total"], "%s: give-ups = requests that gave up or were canceled", policy)
	assert.Equal(t, s["requests_total canceled"], s["give_ups_total canceled"], policy)
	assert.Equal(t, s["retries_total"], s["wait_seconds"], "%s: each retry has one wait", policy)
	assert.LessOrEqual(t, s["requests_total recovered"], s["retries_total"], policy)
}

// traffic is random traffic whose base counts for itself what happens.
type traffic struct {
	mu    sync.Mutex
	truth map[string]sums // by policy
}

func (w *traffic) count(policy, what string, n float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.truth[policy] == nil {
		w.truth[policy] = sums{}
	}
	w.truth[policy][what] += n
}

// ride is what the base knows about the request that it serves.
type ride struct {
	*traffic
	policy   string
	random   *rand.Rand
	attempts int
}

type rideKey struct{}

var errPanic = errors.New("the base panics")

// RoundTrip is the base: it responds, fails, hangs or panics at random.
func (w *traffic) RoundTrip(req *http.Request) (*http.Response, error) {
	r := req.Context().Value(rideKey{}).(*ride)
	if r.attempts++; r.attempts > 1 {
		w.count(r.policy, "retries_total", 1)
	}
	w.count(r.policy, "attempts_total", 1)
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil && trace.GotConn != nil {
		// Like net/http when it resends by itself.
		for i := range 1 + r.random.IntN(3) {
			trace.GotConn(httptrace.GotConnInfo{Conn: new(net.TCPConn)})
			if i > 0 {
				w.count(r.policy, "hidden_sends_total", 1)
			}
		}
	}
	time.Sleep(time.Duration(r.random.IntN(300)) * time.Millisecond)
	answer := func(status int, header ...string) (*http.Response, error) {
		resp := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("x"))}
		for i := 0; i < len(header); i += 2 {
			resp.Header.Set(header[i], header[i+1])
		}
		word := fmt.Sprintf("%dxx", status/100)
		if status == http.StatusTooManyRequests {
			word = "429"
		}
		w.count(r.policy, "attempts_total "+word, 1)
		return resp, nil
	}
	switch r.random.IntN(12) {
	case 0:
		return answer(404)
	case 1:
		return answer(503, "Retry-After", fmt.Sprint(r.random.IntN(3)))
	case 2:
		return answer(429, "Retry-After", fmt.Sprint(r.random.IntN(40)))
	case 3:
		return answer(500)
	case 4:
		return nil, errors.New("reset")
	case 5:
		return nil, http.ErrSchemeMismatch
	case 6:
		<-req.Context().Done()
		return nil, req.Context().Err()
	case 7:
		if r.random.IntN(4) == 0 {
			panic(errPanic)
		}
		return nil, nil
	default:
		return answer(200)
	}
}

// policy returns a random policy, which always ends an attempt that hangs.
func (w *traffic) policy(random *rand.Rand) retrip.Policy {
	p := retrip.Policy{MaxAttempts: 1 + random.IntN(4), Backoff: retrip.Backoff{Base: 10 * time.Millisecond}, AttemptTimeout: time.Second}
	if random.IntN(2) == 0 {
		p.Breaker = retrip.Breaker{Ratio: 0.5, MinVolume: 5, OpenFor: 500 * time.Millisecond}
	}
	if random.IntN(2) == 0 {
		p.Gate.Enabled = retrip.On
	}
	if random.IntN(2) == 0 {
		p.Budget = retrip.Unlimited
	}
	if random.IntN(3) == 0 {
		p.Classify = func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
			if resp != nil && len(resp.Header) > 1<<20 {
				return retrip.Final
			}
			return retrip.ByRule
		}
	}
	return p
}

// request makes a random request to host.
func (w *traffic) request(t *testing.T, tr *retrip.Transport, host, policy string, random *rand.Rand) {
	r := &ride{traffic: w, policy: policy, random: random}
	ctx := context.WithValue(t.Context(), rideKey{}, r)
	cancel := func() {}
	switch random.IntN(6) {
	case 0:
		ctx, cancel = context.WithTimeout(ctx, time.Duration(random.IntN(2000))*time.Millisecond)
	case 1:
		ctx, cancel = context.WithCancel(ctx)
		timer := time.AfterFunc(time.Duration(random.IntN(1000))*time.Millisecond, cancel)
		defer timer.Stop()
	}
	defer cancel()
	if random.IntN(40) == 0 {
		// Hooks of any kind may panic, and everything is counted nevertheless.
		boom := func(retrip.Event) { panic(errPanic) }
		trace := &retrip.Trace{}
		switch random.IntN(4) {
		case 0:
			trace.Attempt = boom
		case 1:
			trace.Retry = boom
		case 2:
			trace.GiveUp = boom
		case 3:
			trace.Done = boom
		}
		ctx = retrip.WithTrace(ctx, trace)
	}
	if random.IntN(10) == 0 {
		ctx = retrip.WithPolicy(ctx, retrip.Policy{MaxAttempts: 2, Breaker: retrip.Breaker{Ratio: retrip.Off}})
	}
	method, body := http.MethodGet, io.Reader(nil)
	switch random.IntN(4) {
	case 0:
		method, body = http.MethodPost, strings.NewReader("x")
	case 1:
		method, body = http.MethodPut, io.MultiReader(strings.NewReader("x"))
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+host+"/", body)
	if !assert.NoError(t, err) {
		return
	}
	defer func() {
		if v := recover(); v != nil && v != errPanic {
			panic(v)
		}
		w.count(policy, "requests_total", 1)
		if r.attempts == 0 {
			w.count(policy, "unattempted_requests_total", 1)
		}
	}()
	if resp, err := tr.RoundTrip(req); err == nil {
		assert.NoError(t, resp.Body.Close())
	}
}

// TestMetrics_Identities checks the identities of docs/metrics.md, and the
// counts themselves, under random traffic from many goroutines, with changes of
// policies, callers that go, transparent retries, and bases and hooks that panic.
func TestMetrics_Identities(t *testing.T) {
	const rounds, workers, requests = 6, 8, 100
	synctest.Test(t, func(t *testing.T) {
		m := &retrip.Metrics{Exemplar: func(context.Context) prometheus.Labels { return prometheus.Labels{"trace_id": "0af7651916cd43dd"} }}
		w := &traffic{truth: map[string]sums{}}
		policies := func(random *rand.Rand, gone bool) (retrip.Policy, map[string]retrip.Policy) {
			hosts := map[string]retrip.Policy{"a.test": w.policy(random), "*.b.test": w.policy(random), "c.test": w.policy(random)}
			if !gone {
				hosts["gone.test"] = w.policy(random)
			}
			return w.policy(random), hosts
		}
		random := rand.New(rand.NewPCG(1, 2))
		policy, hosts := policies(random, false)
		transports := []*retrip.Transport{
			{Base: w, Metrics: m, Policy: policy, Hosts: hosts},
			{Base: w, Metrics: m, Policy: policy, Hosts: hosts, Trace: &retrip.Trace{}},
		}
		of := map[string]string{"a.test": "a.test", "x.b.test": "*.b.test", "c.test": "c.test", "gone.test": "default or its own"}
		names := []string{"a.test", "x.b.test", "c.test", "gone.test"}
		for round := range rounds {
			var wg sync.WaitGroup
			for worker := range workers {
				wg.Go(func() {
					random := rand.New(rand.NewPCG(uint64(round), uint64(worker)))
					for range requests {
						host := names[random.IntN(len(names))]
						w.request(t, transports[random.IntN(2)], host, of[host], random)
						time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
					}
				})
			}
			wg.Go(func() {
				random := rand.New(rand.NewPCG(uint64(round), 99))
				for i := range 20 {
					policy, hosts := policies(random, i%2 == 0)
					assert.NoError(t, transports[random.IntN(2)].SetPolicies(policy, hosts))
					gather(t, m)
					time.Sleep(time.Duration(random.IntN(700)) * time.Millisecond)
				}
			})
			wg.Wait()
			synctest.Wait()
			reported := gather(t, m)
			for policy, s := range reported {
				checkIdentities(t, policy, s)
			}
			for _, policy := range []string{"c.test", "a.test", "*.b.test"} {
				truth := w.truth[policy]
				for what, want := range truth {
					assert.Equal(t, want, reported[policy][what], "%s: %s", policy, what)
				}
			}
		}
		for _, policy := range []string{"c.test", "a.test", "*.b.test"} {
			s := gather(t, m)[policy]
			for _, what := range []string{"requests_total recovered", "requests_total gave_up", "requests_total failed", "requests_total canceled",
				"unattempted_requests_total", "hidden_sends_total", "retries_total", "attempts_total timeout", "attempts_total canceled", "give_ups_total deadline"} {
				assert.Positive(t, s[what], "%s: %s didn't happen", policy, what)
			}
		}
		runtime.KeepAlive(transports)
	})
}

// A Host hook that panics when a give-up has filled the budget doesn't hide that
// give-up.
func TestMetrics_HostHookPanicsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := retrip.NewMetrics()
		tr := &retrip.Transport{Base: play.Base(play.Reply(503)), Metrics: m, Policy: retrip.Policy{
			Budget:  retrip.Budget{Size: 1},
			Backoff: retrip.Backoff{Base: time.Minute, Cap: time.Minute, Jitter: retrip.NoJitter},
		}}
		full := false
		tr.Trace = &retrip.Trace{Host: func(s retrip.HostState) {
			if s.Tokens == s.Size {
				full = true
				panic("boom")
			}
		}}
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 { // each waits with half a token
			go func() {
				defer func() { _ = recover() }()
				_, _ = tr.RoundTrip(play.Request(t, http.MethodGet, nil).WithContext(ctx))
			}()
		}
		synctest.Wait()
		resp, err := tr.RoundTrip(play.Request(t, http.MethodGet, nil)) // notices that the budget is empty
		assert.NoError(t, err)
		play.Finish(t, resp)
		cancel()
		synctest.Wait()
		assert.True(t, full)
		s := gather(t, m)["default"]
		checkIdentities(t, "default", s)
		assert.EqualValues(t, 2, s["give_ups_total canceled"])
	})
}
