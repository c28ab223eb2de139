// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
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

//retrip:promise P19
func TestMetrics_Counts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &retrip.Metrics{}
		run := func(host, method string, p retrip.Policy, ctx context.Context, steps ...play.Step) {
			tr := &retrip.Transport{Base: play.Base(steps...), Metrics: m, Policy: p, Hosts: map[string]retrip.Policy{"*.Example.com": {MaxAttempts: 2}}}
			try(tr, play.MustRequest(t, method, "http://"+host+"/secret-path?q=1", nil).WithContext(ctx))
			time.Sleep(time.Minute) // longer than any pause
		}
		reset := errors.New("reset by a peer with a long story")
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		run("a.com", "GET", play.Steady, t.Context(), play.Reply(200))
		run("b.com", "GET", play.Steady, t.Context(), play.Reply(404))
		run("c.com", "GET", play.Steady, t.Context(), play.Reply(503, "Retry-After: 3"), play.Reply(429, "Retry-After: 3"), play.Err(reset), play.Reply(201))
		run("d.com", "POST", play.Steady, t.Context(), play.Reply(503))
		run("e.com", "GET", play.With(func(p *retrip.Policy) { p.AttemptTimeout = time.Second }), t.Context(), play.Hang)
		run("f.com", "GET", play.Steady, t.Context(), play.Err(http.ErrSchemeMismatch))
		run("g.com", "GET", play.Steady, canceled, play.Reply(200))
		run("h.com", "GET", play.Steady, t.Context(), play.Reply(503, "Retry-After: 31")) // pauses nobody
		run("x.example.com", "GET", play.Steady, t.Context(), play.Reply(500))
		run("i.com", "GET", play.Steady, t.Context(), play.Reply(302), play.Reply(200))
		run("j.com", "GET", play.Steady, t.Context(), func(*http.Request) (*http.Response, error) { return &http.Response{StatusCode: 999}, nil })
		assert.Equal(t, []string{
			"attempts_total{*.example.com,5xx} 2",
			"attempts_total{default,2xx} 2",
			"attempts_total{default,3xx} 1",
			"attempts_total{default,429} 1",
			"attempts_total{default,4xx} 1",
			"attempts_total{default,5xx} 3",
			"attempts_total{default,error} 2",
			"attempts_total{default,other} 1",
			"attempts_total{default,timeout} 4",
			"failing_hosts{*.example.com} 1",
			"failing_hosts{default} 2",
			"give_ups_total{*.example.com,max_attempts} 1",
			"give_ups_total{default,canceled} 1",
			"give_ups_total{default,max_attempts} 1",
			"give_ups_total{default,not_idempotent} 1",
			"give_ups_total{default,wait_too_long} 1",
			"pauses_total{default} 1",
			"requests_total{*.example.com,gave_up} 1",
			"requests_total{default,answered} 3",
			"requests_total{default,canceled} 1",
			"requests_total{default,failed} 2",
			"requests_total{default,gave_up} 3",
			"requests_total{default,recovered} 1",
			"retries_total{*.example.com,server_error} 1",
			"retries_total{default,error} 1",
			"retries_total{default,server_error} 1",
			"retries_total{default,throttled} 1",
			"retries_total{default,timeout} 3",
			"unattempted_requests_total{default} 1",
			"wait_seconds{*.example.com,backoff} 1",
			"wait_seconds{default,backoff} 4",
			"wait_seconds{default,server} 2",
		}, counted(t, m))
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(m)
		problems, err := testutil.GatherAndLint(reg)
		require.NoError(t, err)
		assert.Empty(t, problems)
	})
}

// A 5xx or 429 that the caller gets is never counted as an answer, for whatever reason
// nothing follows it. HostState and the log agree.
//
//retrip:promise P19
func TestMetrics_Refusals(t *testing.T) {
	final := func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
		if resp.Header.Get("Final") != "" {
			return retrip.Final
		}
		return retrip.ByRule
	}
	gate := retrip.Gate{Enabled: retrip.On}
	for name, tt := range map[string]struct {
		policy retrip.Policy
		header string // of the response
		method string // GET if empty
		want   retrip.Reason
	}{
		"FailOn":              {retrip.Policy{FailOn: []int{503, 429}}, "", "", ""},
		"FailOn at a gate":    {retrip.Policy{FailOn: []int{503, 429}, Gate: gate}, "", "", ""},
		"FailOn with hooks":   {retrip.Policy{FailOn: []int{503, 429}, AttemptTimeout: time.Second, Hedge: 0.1}, "", "", ""},
		"Final":               {retrip.Policy{Classify: final}, "Final: 1", "", ""},
		"MaxAttempts is 1":    {retrip.Policy{MaxAttempts: 1}, "", "", retrip.ReasonMaxAttempts},
		"all attempts":        {play.Steady, "", "", retrip.ReasonMaxAttempts},
		"a POST":              {play.Steady, "", "POST", retrip.ReasonNotIdempotent},
		"a stream":            {retrip.Policy{MaxReplayBody: retrip.Off}, "", "PUT", retrip.ReasonBodyNotReplayable},
		"the server forbids":  {play.Steady, "X-Should-Retry: false", "", retrip.ReasonRetryForbidden},
		"a long wait":         {play.Steady, "Retry-After: 31", "", retrip.ReasonWaitTooLong},
		"a long wait, gate":   {retrip.Policy{Gate: gate}, "Retry-After: 31", "", retrip.ReasonWaitTooLong},
		"deadline":            {retrip.Policy{Deadline: time.Second}, "Retry-After: 2", "", retrip.ReasonDeadline},
		"budget":              {retrip.Policy{Budget: 1, MaxAttempts: 2}, "", "", retrip.ReasonRetriesFailing},
		"breaker":             {play.With(func(p *retrip.Policy) { p.Breaker.MinVolume = 1 }), "", "", retrip.ReasonBreakerOpen},
		"a status of no kind": {play.Steady, "Status: 999", "", ""},
	} {
		for _, status := range []int{503, 429} {
			play.Bubble(t, fmt.Sprint(name, " ", status), func(t *testing.T) {
				if tt.header == "Status: 999" {
					status = 999
				}
				m, done, log := &retrip.Metrics{}, []retrip.Event{}, strings.Builder{}
				tr := &retrip.Transport{Base: play.Base(play.Reply(status, cmp.Or(tt.header, "X: y"))), Policy: tt.policy, Metrics: m}
				tr.Logger = slog.New(slog.NewTextHandler(&log, nil))
				if name != "FailOn" {
					tr.Trace = &retrip.Trace{Done: func(e retrip.Event) { done = append(done, e) }}
				}
				requests := map[bool]int{true: 3, false: 1}[name == "budget"]
				for range requests {
					var body io.Reader
					if tt.method != "" {
						body = play.Stream([]byte("x"))
					}
					log.Reset()
					resp := do(t, tr, play.Request(t, cmp.Or(tt.method, "GET"), body))
					assert.Equal(t, status, resp.StatusCode)
					play.Finish(t, resp)
				}
				outcome, record := "gave_up", "retrip: give up"
				if tt.want == "" {
					outcome, record = "failed", "retrip: failed"
				}
				assert.Contains(t, counted(t, m), fmt.Sprintf("requests_total{default,%s} %d", outcome, requests))
				assert.NotContains(t, fmt.Sprint(counted(t, m)), "answered")
				if name != "FailOn" {
					assert.Equal(t, tt.want, done[requests-1].Reason)
				}
				state := play.Must(tr.HostState("example.com:80"))
				assert.Equal(t, []int{requests, status}, []int{state.Failed, state.LastStatus})
				assert.Equal(t, tt.want, state.LastGiveUp)
				assert.Equal(t, 1, strings.Count(log.String(), record), log.String())
			})
		}
	}
}

// A request that gives up at a pending answer counts as one that gave up. Its host is well.
//
//retrip:promise P19
func TestMetrics_Pending(t *testing.T) {
	polls := func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
		if resp.StatusCode == http.StatusAccepted {
			return retrip.Retryable
		}
		return retrip.ByRule
	}
	for name, tt := range map[string]struct {
		policy  retrip.Policy
		answers []int // the last one again and again
		outcome string
		failing float64 // hosts
	}{
		"one attempt":          {retrip.Policy{MaxAttempts: 1}, []int{202}, "gave_up", 0},
		"all attempts":         {retrip.Policy{}, []int{202}, "gave_up", 0},
		"deadline":             {retrip.Policy{Deadline: time.Millisecond}, []int{202}, "gave_up", 0},
		"gate":                 {retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}}, []int{202}, "gave_up", 0},
		"failed, then pending": {retrip.Policy{}, []int{503, 202}, "gave_up", 0},
		"pending, then failed": {retrip.Policy{}, []int{202, 503}, "gave_up", 1},
		"done":                 {retrip.Policy{}, []int{202, 200}, "answered", 0},
		"failed, then done":    {retrip.Policy{}, []int{202, 503, 200}, "recovered", 0},
	} {
		play.Bubble(t, name, func(t *testing.T) {
			m, steps := &retrip.Metrics{}, []play.Step{}
			for _, status := range tt.answers {
				steps = append(steps, play.Reply(status))
			}
			tt.policy.Classify = polls
			tr := &retrip.Transport{Base: play.Base(steps...), Policy: tt.policy, Metrics: m}
			play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
			s := counts(t, m)
			assert.Equal(t, []float64{1, tt.failing}, []float64{s["requests_total "+tt.outcome], s["failing_hosts"]})
		})
	}
}

// Label values are patterns and fixed words, whatever the number of hosts,
// paths and errors.
//
//retrip:promise P15
func TestMetrics_Bounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &retrip.Metrics{}
		tr := &retrip.Transport{Metrics: m, Hosts: map[string]retrip.Policy{"*.example.com": {}}, Policy: retrip.Policy{MaxAttempts: 2},
			Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				if r.URL.Path == "/e" {
					return nil, errors.New(r.URL.Host)
				}
				return play.Reply(500 + len(r.URL.Host)%90)(r)
			})}
		series := func() int {
			reg := prometheus.NewPedanticRegistry()
			reg.MustRegister(m)
			n, err := testutil.GatherAndCount(reg)
			require.NoError(t, err)
			return n
		}
		call := func(hosts string) {
			for i := range 300 {
				for _, path := range []string{"/", "/e"} {
					req := play.MustRequest(t, "GET", fmt.Sprintf("http://%s%d%s%s", hosts, i, map[bool]string{true: ".example.com", false: ".org"}[i%2 == 0], path), nil)
					req.Method = fmt.Sprint("METHOD", i)
					try(tr, req)
				}
			}
		}
		call("g")
		before := series()
		call("h")
		assert.Equal(t, before, series())
		for _, line := range counted(t, m) {
			assert.NotRegexp(t, `[gh]\d+|org|METHOD`, line)
		}
	})
}

// Many Transports share one Metrics, from its first use on, which is scraped meanwhile,
// registered or not.
func TestMetrics_Shared(t *testing.T) {
	var m retrip.Metrics
	reg := prometheus.NewPedanticRegistry()
	var wg sync.WaitGroup
	for range 4 {
		tr := &retrip.Transport{Base: testenv.Status(200), Metrics: &m}
		for range 2 {
			wg.Go(func() {
				for range 500 {
					drop(t, tr, play.Request(t, http.MethodGet, nil))
				}
			})
		}
		wg.Go(func() {
			descriptions, metrics := make(chan *prometheus.Desc, 100), make(chan prometheus.Metric, 1000)
			m.Describe(descriptions)
			m.Collect(metrics)
		})
	}
	require.NoError(t, reg.Register(&m))
	assert.Error(t, reg.Register(&m), "registering twice is the caller's mistake, and breaks no request")
	for range 10 {
		_, err := reg.Gather()
		assert.NoError(t, err)
	}
	wg.Wait()
	assert.Equal(t, []string{"attempts_total{default,2xx} 4000", "requests_total{default,answered} 4000"}, counted(t, &m))
}

// The zero Metrics counts the same whether it is registered before the first request
// or after it.
func TestMetrics_Zero(t *testing.T) {
	play := func(m *retrip.Metrics) {
		tr := &retrip.Transport{Base: play.Base(play.Reply(503), play.Reply(200)), Metrics: m, Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}}
		play.Finish(t, do(t, tr, play.Request(t, http.MethodGet, nil)))
	}
	var first, later, idle retrip.Metrics
	require.NoError(t, prometheus.NewRegistry().Register(&first))
	play(&first)
	play(&later)
	assert.Equal(t, counted(t, &first), counted(t, &later))
	assert.Empty(t, counted(t, &idle))
	assert.Contains(t, counted(t, &later), "requests_total{default,recovered} 1")
}
