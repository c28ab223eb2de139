// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"

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
	m := &retrip.Metrics{}
	tr := &retrip.Transport{Base: play.Base(play.Reply(302), play.Reply(999), play.Reply(500)), Metrics: m, Policy: retrip.Policy{MaxAttempts: 1}, Hosts: map[string]retrip.Policy{"*.Example.com": {}}}
	for _, host := range []string{"a.com", "b.com", "x.example.com"} {
		drop(t, tr, play.MustRequest(t, "GET", "http://"+host+"/secret-path?q=1", nil))
	}
	assert.Equal(t, []string{
		"attempts_total{*.example.com,5xx} 1",
		"attempts_total{default,3xx} 1",
		"attempts_total{default,other} 1",
		"failing_hosts{*.example.com} 1",
		"failing_hosts{default} 1",
		"give_ups_total{*.example.com,max_attempts} 1",
		"requests_total{*.example.com,gave_up} 1",
		"requests_total{default,answered} 1",
		"requests_total{default,failed} 1",
	}, counted(t, m))
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m)
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
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
