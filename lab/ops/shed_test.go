// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/shed"
)

// shedLoad makes h, whose Limit is 2 and which queues nothing, serve 37
// requests and refuse 13. Two of them last until the returned function is
// called.
func shedLoad(t *testing.T) (h *shed.Handler, load func(), end func()) {
	hold, arrived := make(chan struct{}), make(chan struct{})
	h = &shed.Handler{Limit: 2, QueueTime: retrip.Off, DeadlineHeader: "Timeout-Ms", Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			arrived <- struct{}{}
			<-hold
		}
	})}
	serve := func(n, status int, path string, header ...string) {
		for range n {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
			if len(header) > 0 {
				r.Header.Set(header[0], header[1])
			}
			h.ServeHTTP(w, r)
			assert.Equal(t, status, w.Code)
		}
	}
	var wg sync.WaitGroup
	load = func() {
		serve(20, 200, "/")
		serve(10, 200, "/", "Retry-Attempt", "2")
		serve(5, 200, "/", "Retry-Attempt", "7")
		for range 2 {
			wg.Go(func() { serve(1, 200, "/hold") })
			<-arrived
		}
		serve(6, 503, "/")
		serve(4, 503, "/", "Retry-Attempt", "3")
		serve(3, 503, "/", "Timeout-Ms", "0")
	}
	return h, load, func() {
		close(hold)
		wg.Wait()
	}
}

// TestShedDashboard_TellsWhatTheServerDid lets Prometheus scrape a shed.Handler
// under load and runs every query of its dashboard.
func TestShedDashboard_TellsWhatTheServerDid(t *testing.T) {
	find(t, "prometheus")
	h, load, end := shedLoad(t)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(h)
	program := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(program.Close)
	s := startServer(t, program.URL)
	eventually := func(expr string, want float64) {
		t.Helper()
		require.Eventually(t, func() bool { return s.query(t, expr, time.Now())[""] == want }, 30*time.Second, 100*time.Millisecond, expr)
	}
	eventually(`count(retrip_shed_requests_total)`, 5) // from zero on
	load()
	defer end()
	eventually(`sum(retrip_shed_requests_total)`, 50)
	eventually(`sum(retrip_shed_running_requests)`, 2)
	at := time.UnixMilli(int64(math.Round(1000 * s.query(t, `max(timestamp(retrip_shed_requests_total))`, time.Now())[""])))
	each := s.query(t, `sum(rate(retrip_shed_requests_total[5m]))`, at)[""] / 50 // a request, as a rate
	require.Positive(t, each)

	want := map[string]vector{
		"Retries among arrivals: A": {"": 19.0 / 50},
		"Refused: A":                {"": 13.0 / 50},
		"Limit in use: A":           {"": 1},
		"Arrivals by attempt: A":    {"attempt=1": 31 * each, "attempt=2": 10 * each, "attempt=3": 4 * each, "attempt=4": 0, "attempt=5+": 5 * each},
		"Refusals by reason: A":     {"reason=retry": 4 * each, "reason=queue_time": 6 * each, "reason=deadline": 3 * each, "reason=canceled": 0},
		"Time in the queue: A":      {"": 0},
		"Time in the queue: B":      {"": 0},
		"Served and waiting: A":     {"": 2},
		"Served and waiting: B":     {"": 0},
		"Served and waiting: C":     {"": 2},
	}
	for _, panel := range readDashboard(t, "shed").Panels {
		for _, target := range panel.Targets {
			name := panel.Title + ": " + target.RefID
			expr := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*").Replace(target.Expr)
			require.NotContains(t, expr, "$", name)
			require.Contains(t, want, name)
			got := s.query(t, expr, at)
			require.Len(t, got, len(want[name]), "%s: %v", name, got)
			for labels, value := range want[name] {
				assert.InEpsilon(t, 1+value, 1+got[labels], 1e-9, "%s: {%s} according to %s", name, labels, expr)
			}
			delete(want, name)
		}
	}
	assert.Empty(t, want, "panels that don't exist")
	alert := strings.ReplaceAll(shedQuery(t, "sum"), "sum by (job)", "sum")
	assert.InDelta(t, 13.0/50, s.query(t, alert, at)[""], 1e-9)
	for _, variable := range readDashboard(t, "shed").Templating.List {
		if variable.Definition != "" {
			assert.Equal(t, "label_values(retrip_shed_requests_total, job)", variable.Definition)
		}
	}
}

// shedQuery returns the query of docs/shed.md that begins with a word.
func shedQuery(t *testing.T, word string) string {
	t.Helper()
	docs, err := os.ReadFile("../../docs/shed.md")
	require.NoError(t, err)
	match := regexp.MustCompile("(?s)```promql\n(" + word + "\\b.*?)\n```").FindSubmatch(docs)
	require.NotNil(t, match)
	return string(match[1])
}

// The query that tells how to set Limit returns the requests per second times
// the seconds that one takes, of the busiest instance in its busiest minute of a
// week, over all routes.
func TestShedLimit_Query(t *testing.T) {
	promtool := find(t, "promtool")
	test := fmt.Sprintf(`
evaluation_interval: 1m
tests:
  - interval: 15s
    input_series:
      - {series: 'http_request_duration_seconds_sum{instance="a", handler="/"}', values: '0+30x100 3030+150x20 6030+30x100'}
      - {series: 'http_request_duration_seconds_sum{instance="a", handler="/reports"}', values: '0+15x240'}
      - {series: 'http_request_duration_seconds_sum{instance="b", handler="/"}', values: '0+75x240'}
    promql_expr_test:
      - {expr: '%s', eval_time: 1h, exp_samples: [{labels: '{}', value: 11}]}
`, shedQuery(t, "max"))
	file := filepath.Join(t.TempDir(), "limit.yml")
	require.NoError(t, os.WriteFile(file, []byte(test), 0o600))
	out, err := exec.Command(promtool, "test", "rules", file).CombinedOutput()
	assert.NoError(t, err, "%s", out)
}
