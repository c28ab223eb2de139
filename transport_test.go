// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

var (
	do   = testenv.Do
	drop = testenv.Drop
	try  = testenv.Try
)

// Which attempts a Transport makes, when, and with which result.
//
//retrip:promise P3 P8 P9
func TestTransport_Schedule(t *testing.T) {
	reset := errors.New("reset")
	for _, tt := range []struct {
		name   string
		policy retrip.Policy
		steps  []play.Step
		at     string
		status int // 0 means an error
	}{
		{"success", play.Steady, []play.Step{play.Reply(200)}, "[0s]", 200},
		{"twice 503", play.Steady, []play.Step{play.Reply(503), play.Reply(503), play.Reply(200)}, "[0s 1s 2s]", 200},
		{"503 for ever", play.With(func(p *retrip.Policy) { p.MaxAttempts = 3 }), []play.Step{play.Reply(503)}, "[0s 1s 2s]", 503},
		{"404", play.Steady, []play.Step{play.Reply(404)}, "[0s]", 404},
		{"429", play.Steady, []play.Step{play.Reply(429), play.Reply(200)}, "[0s 1s]", 200},
		{"one attempt", play.With(func(p *retrip.Policy) { p.MaxAttempts = 1 }), []play.Step{play.Reply(503)}, "[0s]", 503},
		{"error, then success", play.Steady, []play.Step{play.Err(reset), play.Reply(200)}, "[0s 1s]", 200},
		{"errors for ever", play.Steady, []play.Step{play.Err(reset)}, "[0s 1s 2s 3s]", 0},
		{"a status added", play.With(func(p *retrip.Policy) { p.RetryOn = []int{404} }), []play.Step{play.Reply(404), play.Reply(200)}, "[0s 1s]", 200},
		{"a status taken away", play.With(func(p *retrip.Policy) { p.FailOn = []int{501} }), []play.Step{play.Reply(501)}, "[0s]", 501},
		{"exponential", retrip.Policy{MaxAttempts: 6, Backoff: retrip.Backoff{Base: time.Second, Cap: 5 * time.Second, Jitter: retrip.NoJitter}, Budget: retrip.Off},
			[]play.Step{play.Reply(500)}, "[0s 1s 3s 7s 12s 17s]", 500},
		{"no backoff", play.With(func(p *retrip.Policy) { p.Backoff.Base = retrip.Off }), []play.Step{play.Reply(500)}, "[0s 0s 0s 0s]", 500},
		{"Retry-After longer than MaxWait", play.Steady, []play.Step{play.Reply(503, "Retry-After: 31"), play.Reply(200)}, "[0s]", 503},
		{"NoJitter past the deadline", play.With(func(p *retrip.Policy) { p.Deadline = 600 * time.Millisecond }), []play.Step{play.Reply(503)}, "[0s]", 503},
		{"Retry-After past the deadline", retrip.Policy{Deadline: 600 * time.Millisecond}, []play.Step{play.Reply(503, "Retry-After: 2")}, "[0s]", 503},
		{"Classify: a 200 isn't one", play.With(func(p *retrip.Policy) {
			p.Classify = func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
				if resp != nil && resp.Header.Get("X-Busy") != "" {
					return retrip.Retryable
				}
				return retrip.ByRule
			}
		}), []play.Step{play.Reply(200, "X-Busy: 1"), play.Reply(200)}, "[0s 1s]", 200},
		{"Classify: a 503 is final", play.With(func(p *retrip.Policy) {
			p.Classify = func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.Final }
		}), []play.Step{play.Reply(503)}, "[0s]", 503},
		{"Classify: an error is final", play.With(func(p *retrip.Policy) {
			p.Classify = func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.Final }
		}), []play.Step{play.Err(reset)}, "[0s]", 0},
	} {
		play.Bubble(t, tt.name, func(t *testing.T) {
			base := play.Base(tt.steps...)
			req := play.Request(t, "GET", nil)
			resp, err := (&retrip.Transport{Base: base, Policy: tt.policy}).RoundTrip(req)
			assert.Equal(t, tt.at, fmt.Sprint(base.At))
			if tt.status == 0 {
				assert.ErrorIs(t, err, reset)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.status, resp.StatusCode)
			assert.Same(t, req, resp.Request)
			assert.Equal(t, "ok", play.Finish(t, resp))
			assert.Equal(t, len(base.Bodies), base.ClosedBodies())
		})
	}
}

// Twenty requests that get the same Retry-After wait for different times, and
// none for less than it.
//
//retrip:promise P9
func TestTransport_RetryAfterSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := map[time.Duration]bool{}
		var mu sync.Mutex
		base := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			if r.Header.Get("Seen") == "" {
				return play.Reply(429, "Retry-After: 10")(r)
			}
			return play.Reply(200)(r)
		})
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{MaxAttempts: 2, Budget: retrip.Off}, Trace: &retrip.Trace{Retry: func(e retrip.Event) {
			mu.Lock()
			defer mu.Unlock()
			assert.GreaterOrEqual(t, e.Wait, 10*time.Second)
			assert.True(t, e.FromServer)
			waits[e.Wait] = true
		}}}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				drop(t, tr, play.Request(t, "GET", nil))
			})
		}
		wg.Wait()
		assert.Len(t, waits, 20)
	})
}

//retrip:promise P4
func TestTransport_CloseIdleConnections(t *testing.T) {
	base := play.Base(play.Reply(503), play.Reply(200))
	tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}}
	play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
	assert.Zero(t, base.Idle, "retrip never closes them by itself")
	(&http.Client{Transport: tr}).CloseIdleConnections()
	assert.Equal(t, 1, base.Idle)
	(&retrip.Transport{Base: testenv.RoundTripper(play.Reply(200))}).CloseIdleConnections() // the base has no such method: no panic
	(&retrip.Transport{}).CloseIdleConnections()
}

func TestTransport_SetPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Base(play.Reply(503))
		tr := &retrip.Transport{Base: base, Policy: play.Steady}
		count := func() int {
			before := base.Attempts()
			play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
			return base.Attempts() - before
		}
		assert.Equal(t, 4, count())
		two := play.With(func(p *retrip.Policy) { p.MaxAttempts = 2 })
		require.NoError(t, tr.SetPolicies(two, nil))
		assert.Equal(t, 2, count())
		require.NoError(t, tr.SetPolicies(two, map[string]retrip.Policy{"EXAMPLE.com:80": {MaxAttempts: 3}}))
		assert.Equal(t, 3, count())
		err := tr.SetPolicies(two, map[string]retrip.Policy{"example.com": {MaxAttempts: -2}})
		assert.ErrorContains(t, err, `Hosts["example.com"].MaxAttempts is -2`)
		assert.Equal(t, 3, count())
		assert.Equal(t, play.Steady.MaxAttempts, tr.Policy.MaxAttempts)

		// A request in flight keeps the policy with which it began.
		done := make(chan int)
		require.NoError(t, tr.SetPolicies(play.Steady, nil))
		before := base.Attempts()
		go func() {
			drop(t, tr, play.Request(t, "GET", nil))
			done <- base.Attempts() - before
		}()
		synctest.Wait()
		require.NoError(t, tr.SetPolicies(two, nil))
		assert.Equal(t, 4, <-done)
	})
	t.Run("heals a Transport that began with a bad one", func(t *testing.T) {
		tr := &retrip.Transport{Base: play.Base(play.Reply(200)), Policy: retrip.Policy{MaxAttempts: -1}}
		_, err := tr.RoundTrip(play.Request(t, "GET", nil))
		assert.ErrorContains(t, err, "Policy.MaxAttempts is Off")
		_, err = tr.HostState("example.com:443")
		assert.ErrorContains(t, err, "Policy.MaxAttempts is Off")
		require.NoError(t, tr.SetPolicies(retrip.Policy{}, nil))
		play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
	})
}

// A program may set Base from a variable that holds nothing.
//
//retrip:promise P2
func TestTransport_NilBase(t *testing.T) {
	var none *http.Transport
	const want = "Base is a nil *http.Transport"
	for _, policy := range []retrip.Policy{{}, {MaxAttempts: -1}, {AttemptTimeout: time.Second}} {
		tr := &retrip.Transport{Base: none, Policy: policy, Metrics: &retrip.Metrics{}}
		assert.ErrorContains(t, tr.Validate(), want)
		tr.CloseIdleConnections()
		for range 2 {
			body := play.NewSend("x")
			_, err := tr.RoundTrip(play.Request(t, "PUT", body))
			assert.ErrorContains(t, err, want)
			assert.EqualValues(t, 1, body.Closed.Load())
			require.NoError(t, tr.SetPolicies(retrip.Policy{}, nil))
		}
		_, err := tr.HostState("example.com:443")
		assert.ErrorContains(t, err, want)
		assert.NotContains(t, fmt.Sprint(tr.Advice()), "wraps")
	}
}

// WithPolicy applies to that request only. An invalid one sends nothing.
//
//retrip:promise P2
func TestTransport_WithPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Base(play.Reply(503))
		tr := &retrip.Transport{Base: base, Policy: play.Steady}
		count := func(ctx context.Context) int {
			before := base.Attempts()
			play.Finish(t, do(t, tr, play.Request(t, "GET", nil).WithContext(ctx)))
			return base.Attempts() - before
		}
		ctx := t.Context()
		two := retrip.WithPolicy(ctx, retrip.Policy{MaxAttempts: 2})
		assert.Equal(t, []int{4, 2, 4}, []int{count(ctx), count(two), count(ctx)})
		traced := 0
		outer := retrip.WithTrace(two, &retrip.Trace{Attempt: func(retrip.Event) { traced++ }})
		inner := retrip.WithPolicy(outer, retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}})
		start := time.Now()
		assert.Equal(t, 2, count(inner), "inherits from the enclosing one")
		assert.Equal(t, 2, traced, "the hooks stay")
		assert.Zero(t, time.Since(start))
		assert.Equal(t, 2, count(outer))
		assert.Positive(t, time.Since(start), "the outer policy is unchanged")
		require.NoError(t, tr.SetPolicies(play.With(func(p *retrip.Policy) { p.Unprocessed = []int{429} }), nil))
		for want, bad := range map[string]retrip.Policy{
			"MaxAttempts is Off": {MaxAttempts: retrip.Off}, "MaxWait is -5ns": {MaxWait: -5}, "Backoff.Base is 1h": {Backoff: retrip.Backoff{Base: time.Hour}},
			"Budget is 10: its state belongs to the host, so WithPolicy accepts only Off": {Budget: 10},
			"Breaker is {Ratio:0.5": {Breaker: retrip.Breaker{Ratio: .5}}, "Breaker is {Ratio:0 ": {Breaker: retrip.Breaker{MinVolume: 1}},
			"Gate.Enabled is on": {Gate: retrip.Gate{Enabled: retrip.On}},
			"FailOn is 500":      {FailOn: []int{500}, RetryOn: []int{500}}, "FailOn is 429": {FailOn: []int{429}},
		} {
			body := play.NewSend("x")
			before := base.Attempts()
			_, err := tr.RoundTrip(play.Request(t, "PUT", body).WithContext(retrip.WithPolicy(ctx, bad)))
			assert.ErrorContains(t, err, "retrip: WithPolicy."+want)
			assert.EqualValues(t, 1, body.Closed.Load())
			assert.Equal(t, before, base.Attempts())
		}
		_, err := tr.RoundTrip(play.Request(t, "GET", nil).WithContext(retrip.WithPolicy(ctx, retrip.Policy{MaxAttempts: -1, Budget: 10, Breaker: retrip.Breaker{Ratio: 0.5}})))
		for _, want := range []string{"MaxAttempts", "Budget", "Breaker"} {
			assert.ErrorContains(t, err, "retrip: WithPolicy."+want, "all at once")
		}
	})
}

// P7: an upload of 64 MiB is not buffered before it is sent.
//
//retrip:promise P7
func TestTransport_MemoryOfAnUpload(t *testing.T) {
	play.MeasureHeap(t)
	const size = 64 << 20
	var most uint64
	base := play.Base(func(r *http.Request) (*http.Response, error) {
		var m runtime.MemStats
		buf := make([]byte, 64<<10)
		for i := 0; ; i++ {
			if _, err := r.Body.Read(buf); err != nil {
				break
			}
			if i%64 == 0 {
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapAlloc)
			}
		}
		_ = r.Body.Close()
		return play.Reply(200)(r)
	})
	base.Keep = true
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	play.Finish(t, do(t, &retrip.Transport{Base: base}, play.Request(t, "PUT", io.LimitReader(play.Zeros{}, size))))
	assert.Less(t, int64(most)-int64(before.HeapAlloc), int64(8<<20))
}

// A Transport keeps nothing of requests that have ended, however many there are.
//
//retrip:promise P13 P15
func TestTransport_KeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		tr := &retrip.Transport{
			Metrics: &retrip.Metrics{},
			Policy:  retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, Breaker: retrip.Breaker{Ratio: 0.5}, AttemptTimeout: time.Second, Hedge: 0.1},
			Base: testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				made++
				status := []int{200, 200, 503, 200, 429, 200, 0}[made%7]
				if status == 0 {
					return nil, io.ErrUnexpectedEOF
				}
				return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
			}),
		}
		requests := func(n int) {
			for i := range n {
				try(tr, play.MustRequest(t, http.MethodGet, fmt.Sprintf("http://h%d.test/", i%20), nil))
			}
			time.Sleep(24 * time.Hour)
		}
		requests(1000)
		before := testenv.Heap()
		const more = 20_000
		requests(more)
		assert.Less(t, testenv.Heap()-before, int64(8*more))
		assert.Greater(t, made, more)
		runtime.KeepAlive(tr)
	})
}

// The default base over loopback, outside a bubble.
func TestTransport_Loopback(t *testing.T) {
	var seen atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if seen.Add(1)%3 != 0 {
			http.Error(w, "later", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.Copy(w, r.Body)
	}))
	defer s.Close()
	c := &http.Client{Transport: &retrip.Transport{Policy: retrip.Policy{Backoff: retrip.Backoff{Base: time.Millisecond}}}}
	defer c.CloseIdleConnections()
	for range 3 {
		req := play.Must(http.NewRequest("PUT", s.URL, play.Stream([]byte("over loopback"))))
		resp, err := c.Do(req)
		require.NoError(t, err)
		assert.Equal(t, "over loopback", play.Finish(t, resp))
	}
	assert.EqualValues(t, 9, seen.Load())
}

// Whatever else is called first, the fields count that a Transport has at its first
// request.
func TestTransport_FieldsUntilTheFirstRequest(t *testing.T) {
	for name, call := range map[string]func(*retrip.Transport){
		"HostStates":           func(tr *retrip.Transport) { assert.Empty(t, tr.HostStates()) },
		"HostState":            func(tr *retrip.Transport) { _, _ = tr.HostState("example.com:80") },
		"PolicyFor":            func(tr *retrip.Transport) { _, _ = tr.PolicyFor("example.com:80") },
		"Policies":             func(tr *retrip.Transport) { _, _, _ = tr.Policies() },
		"SetPolicies":          func(tr *retrip.Transport) { require.NoError(t, tr.SetPolicies(retrip.Policy{MaxAttempts: 3}, nil)) },
		"CloseIdleConnections": (*retrip.Transport).CloseIdleConnections,
		"Validate":             func(tr *retrip.Transport) { require.NoError(t, tr.Validate()) },
		"Advice":               func(tr *retrip.Transport) { tr.Advice() },
	} {
		testenv.Bubble(t, name, func(t *testing.T) {
			never := play.Base(play.Err(http.ErrNotSupported))
			other := &retrip.Metrics{}
			tr := &retrip.Transport{Base: never, Metrics: other}
			call(tr)
			var log bytes.Buffer
			hooks := 0
			base := play.Base(play.Reply(503))
			tr.Base, tr.Metrics, tr.Logger = base, &retrip.Metrics{}, slog.New(slog.NewTextHandler(&log, nil))
			tr.Trace = &retrip.Trace{Attempt: func(retrip.Event) { hooks++ }}
			tr.Policy.MaxAttempts = 3
			play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
			assert.Equal(t, 3, base.Attempts())
			assert.Zero(t, never.Attempts())
			assert.Equal(t, 3, hooks)
			assert.Contains(t, log.String(), "give up")
			assert.Equal(t, 1.0, sumOf(t, tr.Metrics, "retrip_requests_total"))
			assert.Zero(t, sumOf(t, other, "retrip_requests_total"))
			assert.NoError(t, tr.Validate())
		})
	}
}

func sumOf(t *testing.T, m *retrip.Metrics, name string) (sum float64) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, series := range f.GetMetric() {
			if f.GetName() == name {
				sum += series.GetCounter().GetValue() + series.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// What changes too late is no secret.
func TestTransport_FieldsAfterTheFirstRequest(t *testing.T) {
	deaf := testenv.RoundTripper(play.Reply(200)) // can't be compared
	for name, tt := range map[string]struct {
		base   http.RoundTripper
		change func(*retrip.Transport)
		want   string // a part of the error; empty for none
	}{
		"nothing":            {nil, func(*retrip.Transport) {}, ""},
		"Base":               {nil, func(tr *retrip.Transport) { tr.Base = play.Base(play.Reply(200)) }, "retrip: Base was changed after the first request"},
		"Base of other type": {nil, func(tr *retrip.Transport) { tr.Base = deaf }, "retrip: Base was"},
		"Base, incomparable": {deaf, func(tr *retrip.Transport) { tr.Base = nil }, "retrip: Base was"},
		"Fleet":              {deaf, func(tr *retrip.Transport) { tr.Fleet = retrip.NewFleet(nil) }, "retrip: Fleet was"},
		"Metrics":            {nil, func(tr *retrip.Transport) { tr.Metrics = &retrip.Metrics{} }, "retrip: Metrics was"},
		"Logger":             {nil, func(tr *retrip.Transport) { tr.Logger = slog.Default() }, "retrip: Logger was"},
		"Trace":              {nil, func(tr *retrip.Transport) { tr.Trace = &retrip.Trace{} }, "retrip: Trace was"},
		"Durations":          {nil, func(tr *retrip.Transport) { tr.Metrics.Durations = []string{} }, "retrip: Metrics.Durations was"},
		"Policy":             {nil, func(tr *retrip.Transport) { tr.Policy.RetryOn = []int{404} }, "call SetPolicies"},
		"a hook of Policy":   {nil, func(tr *retrip.Transport) { tr.Policy.Classify = nil }, "call SetPolicies"},
		"Hosts":              {nil, func(tr *retrip.Transport) { tr.Hosts["example.com"] = retrip.Policy{MaxAttempts: 2} }, "call SetPolicies"},
		"SetPolicies":        {nil, func(tr *retrip.Transport) { require.NoError(t, tr.SetPolicies(retrip.Policy{MaxAttempts: 2}, nil)) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			classify := func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.ByRule }
			tr := &retrip.Transport{Base: tt.base, Metrics: &retrip.Metrics{}, Policy: retrip.Policy{Classify: classify}, Hosts: map[string]retrip.Policy{}}
			if tr.Base == nil {
				tr.Base = play.Base(play.Reply(200))
			}
			testutil.CollectAndCount(tr.Metrics)
			play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
			tt.change(tr)
			if tt.want == "" {
				assert.NoError(t, tr.Validate())
			} else {
				assert.ErrorContains(t, tr.Validate(), tt.want)
			}
		})
	}
}

// Policies that were invalid at the first request are so for good, unless SetPolicies replaces them.
func TestTransport_InvalidUntilSetPolicies(t *testing.T) {
	tr := &retrip.Transport{Base: play.Base(play.Reply(200)), Policy: retrip.Policy{MaxAttempts: -2}}
	require.ErrorContains(t, try(tr, play.Request(t, "GET", nil)), "MaxAttempts")
	tr.Policy.MaxAttempts = 2
	require.ErrorContains(t, tr.Validate(), "call SetPolicies")
	require.NoError(t, tr.SetPolicies(tr.Policy, nil))
	assert.NoError(t, tr.Validate())
	play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
}

// A Transport counts with the Metrics that it has at its first request, and with no others.
func TestTransport_CountsWithOneMetrics(t *testing.T) {
	var first, second *retrip.Metrics
	replace := func(tr *retrip.Transport) { require.NoError(t, tr.SetPolicies(retrip.Policy{MaxAttempts: 1}, nil)) }
	for name, tt := range map[string]struct {
		before, after func(*retrip.Transport)
		counts        **retrip.Metrics // nil: neither
	}{
		"none":              {func(tr *retrip.Transport) { replace(tr); tr.Metrics = nil }, replace, nil},
		"another":           {func(tr *retrip.Transport) { assert.Empty(t, tr.HostStates()); tr.Metrics = second }, replace, &second},
		"another, too late": {replace, func(tr *retrip.Transport) { tr.Metrics = second; replace(tr) }, &first},
	} {
		t.Run(name, func(t *testing.T) {
			first, second = &retrip.Metrics{}, &retrip.Metrics{}
			tr := &retrip.Transport{Base: play.Base(play.Reply(500)), Metrics: first, Policy: retrip.Policy{MaxAttempts: 1}}
			tt.before(tr)
			play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
			tt.after(tr)
			play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
			for _, m := range []**retrip.Metrics{&first, &second} {
				want := 0.0
				if m == tt.counts {
					want = 1
				}
				assert.Equal(t, 2*want, sumOf(t, *m, "retrip_requests_total"))
				assert.Equal(t, want, sumOf(t, *m, "retrip_failing_hosts"))
			}
		})
	}
}
