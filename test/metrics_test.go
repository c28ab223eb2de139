// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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

// The stories show what is counted. The label policy is the pattern of the host.
//
//retrip:promise P19
func TestMetrics_Counts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &retrip.Metrics{}
		run := func(host string, ctx context.Context, steps ...play.Step) {
			tr := &retrip.Transport{Base: play.Base(steps...), Metrics: m, Policy: play.Steady, Hosts: map[string]retrip.Policy{"*.Example.com": {MaxAttempts: 2}}}
			try(tr, play.MustRequest(t, "GET", "http://"+host+"/secret-path?q=1", nil).WithContext(ctx))
			time.Sleep(time.Minute) // longer than any pause
		}
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		run("a.com", t.Context(), play.Reply(503, "Retry-After: 3"), play.Reply(429, "Retry-After: 3"), play.Err(errors.New("reset by a peer with a long story")), play.Reply(201))
		run("b.com", t.Context(), play.Reply(302), play.Reply(200))
		run("c.com", t.Context(), play.Reply(404))
		run("d.com", t.Context(), play.Reply(999))
		run("e.com", canceled, play.Reply(200))
		run("x.example.com", t.Context(), play.Reply(500))
		assert.Equal(t, []string{
			"attempts_total{*.example.com,5xx} 2",
			"attempts_total{default,2xx} 1",
			"attempts_total{default,3xx} 1",
			"attempts_total{default,429} 1",
			"attempts_total{default,4xx} 1",
			"attempts_total{default,5xx} 1",
			"attempts_total{default,error} 1",
			"attempts_total{default,other} 1",
			"failing_hosts{*.example.com} 1",
			"failing_hosts{default} 1",
			"give_ups_total{*.example.com,max_attempts} 1",
			"give_ups_total{default,canceled} 1",
			"pauses_total{default} 1",
			"requests_total{*.example.com,gave_up} 1",
			"requests_total{default,answered} 2",
			"requests_total{default,canceled} 1",
			"requests_total{default,failed} 1",
			"requests_total{default,recovered} 1",
			"retries_total{*.example.com,server_error} 1",
			"retries_total{default,error} 1",
			"retries_total{default,server_error} 1",
			"retries_total{default,throttled} 1",
			"unattempted_requests_total{default} 1",
			"wait_seconds{*.example.com,backoff} 1",
			"wait_seconds{default,backoff} 1",
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
// nothing follows it, also without hooks and log. The stories have more reasons.
//
//retrip:promise P19
func TestMetrics_Refusals(t *testing.T) {
	final := func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.Final }
	for name, tt := range map[string]struct {
		policy retrip.Policy
		want   retrip.Reason
	}{
		"FailOn":              {retrip.Policy{FailOn: []int{503, 429}}, ""},
		"FailOn at a gate":    {retrip.Policy{FailOn: []int{503, 429}, Gate: retrip.Gate{Enabled: retrip.On}}, ""},
		"FailOn with a timer": {retrip.Policy{FailOn: []int{503, 429}, AttemptTimeout: time.Second, Hedge: 0.1}, ""},
		"Final":               {retrip.Policy{Classify: final}, ""},
		"MaxAttempts is 1":    {retrip.Policy{MaxAttempts: 1}, retrip.ReasonMaxAttempts},
		"all attempts":        {play.Steady, retrip.ReasonMaxAttempts},
	} {
		for _, status := range []int{503, 429} {
			play.Bubble(t, fmt.Sprint(name, " ", status), func(t *testing.T) {
				m, outcome := &retrip.Metrics{}, "failed"
				if tt.want != "" {
					outcome = "gave_up"
				}
				tr := &retrip.Transport{Base: play.Base(play.Reply(status)), Policy: tt.policy, Metrics: m}
				drop(t, tr, play.Request(t, "GET", nil))
				s := counts(t, m)
				assert.Equal(t, []float64{1, 1}, []float64{s["requests_total"], s["requests_total "+outcome]})
				state := play.Must(tr.HostState("example.com:80"))
				assert.Equal(t, []any{1, status, tt.want}, []any{state.Failed, state.LastStatus, state.LastGiveUp})
			})
		}
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
