// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// The queries of docs/platform-engineers.md read the numbers of a fleet off a real
// Prometheus. Days become minutes, and the fleet is one process with its server.
func TestOwnNumbers(t *testing.T) {
	docs, err := os.ReadFile("../../docs/platform-engineers.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```promql\n(.*?)```").FindSubmatch(docs)
	require.NotNil(t, block)
	exprs := map[string]string{}
	for paragraph := range strings.SplitSeq(strings.TrimSpace(string(block[1])), "\n\n") {
		comment, expr, ok := strings.Cut(paragraph, "\n")
		require.True(t, ok, paragraph)
		flag, _, _ := strings.Cut(strings.TrimPrefix(comment, "# "), ":")
		expr = regexp.MustCompile(`\[[0-9]+d:[0-9]m\]`).ReplaceAllString(expr, "[5m:1s]")
		exprs[flag] = strings.ReplaceAll(expr, `{job="fraud"}`, `{job="program"}`)
	}
	require.ElementsMatch(t, []string{"-clients", "-rate", "-service", "-queue"}, slices.Collect(maps.Keys(exprs)))

	registry := prometheus.NewRegistry()
	took := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "http_server_request_duration_seconds"})
	active := prometheus.NewGauge(prometheus.GaugeOpts{Name: "http_server_active_requests"})
	metrics := &retrip.Metrics{}
	registry.MustRegister(took, active, metrics)
	backend := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { took.Observe(0.008) }))
	t.Cleanup(backend.Close)
	scraped := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(scraped.Close)
	host := strings.TrimPrefix(backend.URL, "http://")
	transport := &retrip.Transport{Metrics: metrics, Hosts: map[string]retrip.Policy{host: {}}}
	client := &http.Client{Transport: transport}
	t.Cleanup(client.CloseIdleConnections)
	call := func(times int) {
		for range times {
			resp, err := client.Get(backend.URL)
			require.NoError(t, err)
			resp.Body.Close()
		}
	}
	for flag, expr := range exprs {
		exprs[flag] = strings.ReplaceAll(expr, "fraud.internal", host)
	}

	call(1)
	s := startServer(t, scraped.URL)
	s.waitFor(t, `sum(retrip_requests_total)`, 1)
	call(30)
	active.Set(50)
	s.waitFor(t, `sum(retrip_requests_total)`, 31)
	at := s.waitFor(t, `max(http_server_active_requests)`, 50)
	// A rate needs two scrapes, and a step of a query ends with a whole second.
	at = at.Add(2 * time.Second)
	require.Eventually(t, func() bool { return time.Now().After(at) }, 10*time.Second, 100*time.Millisecond)
	value := func(flag string) float64 { return s.query(t, exprs[flag], at)[""] }
	assert.EqualValues(t, 1, value("-clients"))
	rate := s.query(t, `max_over_time(sum(rate(http_server_request_duration_seconds_count[5m]))[5m:1s])`, at)[""]
	require.Positive(t, rate)
	assert.InEpsilon(t, rate, value("-rate"), 0.1)
	assert.InEpsilon(t, 0.008, value("-service"), 1e-6)
	perMinute := s.query(t, `max_over_time(sum(rate(http_server_request_duration_seconds_count[1m]))[5m:1s])`, at)[""]
	assert.InEpsilon(t, 50/perMinute, value("-queue"), 0.1)
}
