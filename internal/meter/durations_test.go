// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package meter_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
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

// Each request is observed once, under its outcome and its host, with its attempts and the
// time that its caller waited.
func TestDurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &retrip.Metrics{Durations: []string{"Api.example.com.", "api.example.com:8080", "[::1]", "bücher.example"}}
		sent := 0
		tr := &retrip.Transport{Metrics: m, Policy: retrip.Policy{MaxAttempts: 3, Backoff: retrip.Backoff{Base: time.Second, Jitter: retrip.NoJitter}},
			Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				sent++
				time.Sleep(100 * time.Millisecond)
				switch {
				case r.URL.Path == "/panic":
					panic("base")
				case r.URL.Path == "/hang":
					<-r.Context().Done()
					return nil, r.Context().Err()
				case r.URL.Path == "/nowhere":
					return nil, &net.DNSError{IsNotFound: true}
				case r.URL.Path == "/down" || r.URL.Path == "/flaky" && sent == 1:
					return play.Reply(503)(r)
				}
				return play.Reply(200)(r)
			})}
		require.NoError(t, tr.Validate())
		for _, url := range []string{"http://api.example.com/", "http://API.example.com:80/", "http://api.example.com:8080/", "http://api.example.com/flaky", "http://api.example.com/down",
			"http://[::1]:99/", "http://bücher.example/nowhere", "http://elsewhere.example/", "http://elsewhere.example/hang", "http://elsewhere.example/panic"} {
			sent = 0
			func() {
				defer func() { _ = recover() }()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if url == "http://elsewhere.example/hang" {
					time.AfterFunc(7*time.Second, cancel)
				}
				_ = testenv.Try(tr, play.MustRequest(t, http.MethodGet, url, nil).WithContext(ctx))
			}()
		}
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(m)
		families, err := reg.Gather()
		require.NoError(t, err)
		got := map[string]string{}
		requests := 0.0
		for _, f := range families {
			for _, series := range f.GetMetric() {
				key := ""
				for _, pair := range series.GetLabel() {
					if pair.GetName() != "policy" {
						key = pair.GetValue() + " " + key
					}
				}
				h := series.GetHistogram()
				switch f.GetName() {
				case "retrip_requests_total":
					requests += series.GetCounter().GetValue()
				case "retrip_request_duration_seconds":
					assert.NotEmpty(t, h.GetBucket())
					assert.NotEmpty(t, h.GetPositiveSpan(), "native")
					got[key] += fmt.Sprintf("%d in %gs", h.GetSampleCount(), h.GetSampleSum())
				case "retrip_request_attempts":
					got[key] = fmt.Sprintf("%g attempts, ", h.GetSampleSum()) + got[key]
				}
			}
		}
		assert.Equal(t, map[string]string{
			"answered api.example.com ":      "2 attempts, 2 in 0.2s",
			"answered api.example.com:8080 ": "1 attempts, 1 in 0.1s",
			"answered ::1 ":                  "1 attempts, 1 in 0.1s",
			"answered other ":                "1 attempts, 1 in 0.1s",
			"recovered api.example.com ":     "2 attempts, 1 in 1.2s",
			"gave_up api.example.com ":       "3 attempts, 1 in 3.3s",
			"failed bücher.example ":         "1 attempts, 1 in 0.1s",
			"canceled other ":                "1 attempts, 1 in 7s",
			"failed other ":                  "1 attempts, 1 in 0.1s",
		}, got)
		assert.Equal(t, 10.0, requests)
		problems, err := testutil.GatherAndLint(reg)
		require.NoError(t, err)
		assert.Empty(t, problems)
	})
}

// Without Durations, nothing more is exported.
func TestDurations_Off(t *testing.T) {
	m := &retrip.Metrics{}
	tr := &retrip.Transport{Metrics: m, Base: play.Base(play.Reply(200))}
	play.Do(t, tr, play.Request(t, http.MethodGet, nil))
	assert.Zero(t, testutil.CollectAndCount(m, "retrip_request_duration_seconds", "retrip_request_attempts"))
}

func TestDurations_Wrong(t *testing.T) {
	for _, host := range []string{"*.example.com", "https://example.com", "", "a b"} {
		tr := &retrip.Transport{Metrics: &retrip.Metrics{Durations: []string{"example.com", host}}}
		assert.ErrorContains(t, tr.Validate(), "Metrics.Durations", host)
	}
}
