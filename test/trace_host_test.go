// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// The hook and the counters report each change of a host's state once.
//
//retrip:promise P19
func TestHost_TellsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status, header := http.StatusServiceUnavailable, http.Header{"Retry-After": {"1"}}
		base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Header: header, Body: http.NoBody, Request: req}, nil
		})
		var told []string
		var log strings.Builder
		metrics := retrip.NewMetrics()
		transport := &retrip.Transport{
			Base: base, Metrics: metrics, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Policy: retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 1, MinVolume: 2, Window: time.Minute, OpenFor: time.Second}},
			Trace: &retrip.Trace{Host: func(s retrip.HostState) {
				what := string(s.Breaker)
				if s.PausedFor > 0 {
					what += ", paused"
				}
				told = append(told, what)
			}},
		}
		call := func() {
			req := play.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com/", nil))
			try(transport, req)
		}
		call() // begins a pause
		header = http.Header{}
		time.Sleep(2 * time.Second)
		call() // opens the breaker
		time.Sleep(2 * time.Second)
		status = http.StatusOK
		call() // probes, and closes the breaker
		call()
		assert.Equal(t, []string{"closed, paused", "open", "half-open", "closed"}, told)
		lines := regexp.MustCompile(`level=(\S+) msg="retrip: host" host=example.com:80 change=(\S+) policy=default breaker=(\S+) open_for=\S+ paused_for=(\S+)`)
		var logged [][]string
		for _, match := range lines.FindAllStringSubmatch(log.String(), -1) {
			logged = append(logged, match[1:])
		}
		assert.Equal(t, [][]string{{"WARN", "paused", "closed", "1s"}, {"WARN", "breaker_open", "open", "0s"}, {"INFO", "breaker_closed", "closed", "0s"}}, logged)

		reg := prometheus.NewPedanticRegistry()
		require.NoError(t, reg.Register(metrics))
		families, err := reg.Gather()
		require.NoError(t, err)
		var counted []string
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, label := range m.GetLabel() {
					if f.GetName() == "retrip_breaker_transitions_total" && label.GetName() == "to" && m.GetCounter().GetValue() == 1 {
						counted = append(counted, label.GetValue())
					}
				}
				if f.GetName() == "retrip_pauses_total" && m.GetCounter().GetValue() == 1 {
					counted = append(counted, "paused")
				}
			}
		}
		slices.Sort(counted)
		assert.Len(t, counted, 4, "%v", counted)
	})
}
